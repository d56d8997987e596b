//! The client against a server that answers whatever a test says.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollcage_model::live::Answer;
use rollcage_sandbox::BoxedStream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Every connection is answered by the next text, whatever it asks; its request is sent to the test.
struct Canned {
    answers: std::sync::Mutex<Vec<&'static str>>,
    requests: mpsc::UnboundedSender<String>,
}

#[async_trait]
impl Connect for Canned {
    async fn connect(&self) -> io::Result<BoxedStream> {
        let answer = {
            let mut answers = self.answers.lock().unwrap();
            if answers.is_empty() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            answers.remove(0)
        };
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let requests = self.requests.clone();
        std::thread::spawn(move || serve(theirs, answer, &requests));
        Ok(Box::new(ours))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve(mut stream: DuplexStream, answer: &str, requests: &mpsc::UnboundedSender<String>) {
    let mut request = Vec::new();
    while !is_whole(&request) {
        match stream.read_buf(&mut request).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    requests.send(String::from_utf8(request).unwrap()).unwrap();
    if answer == "hang" {
        // Until the client gives up.
        let _ = stream.read_u8().await;
        return;
    }
    let _ = stream.write_all(answer.as_bytes()).await;
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn client(answers: &[&'static str]) -> (Client, mpsc::UnboundedReceiver<String>) {
    let (requests, received) = mpsc::unbounded_channel();
    let canned = Canned {
        answers: std::sync::Mutex::new(answers.to_vec()),
        requests,
    };
    let credentials = Credentials {
        username: "opencode".to_owned(),
        password: "secret".to_owned(),
    };
    (Client::new(Arc::new(canned), Some(credentials)), received)
}

fn ok(body: &str) -> &'static str {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").leak()
}

fn status(status: u16, body: &str) -> &'static str {
    let length = body.len();
    format!("HTTP/1.1 {status} Some\r\ncontent-length: {length}\r\n\r\n{body}").leak()
}

#[tokio::test]
async fn a_request_has_password_and_body() {
    let (client, mut requests) = client(&[ok(r#"{"id":"ses_1","directory":"/a b"}"#)]);
    let session = NewSession {
        title: "chat".to_owned(),
        directory: Some("/a b&c".to_owned()),
    };
    let session = client.open_session(&session).await.unwrap();
    assert_eq!(session.id, "ses_1");
    assert_eq!(session.directory.as_deref(), Some("/a b"));
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("POST /session?directory=%2Fa+b%26c HTTP/1.1\r\n"));
    assert!(request.contains("authorization: Basic b3BlbmNvZGU6c2VjcmV0\r\n"));
    assert!(request.ends_with("\r\n\r\n{\"title\":\"chat\"}"));
}

#[tokio::test]
async fn an_id_is_one_part_of_a_path() {
    let (client, mut requests) = client(&[ok("true")]);
    client.abort("../x?y").await.unwrap();
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("POST /session/..%2Fx%3Fy/abort "));
}

#[tokio::test]
async fn a_prompt_names_what_is_given() {
    let (client, mut requests) = client(&[ok("{}")]);
    let prompt = Prompt {
        text: "hi".to_owned(),
        model: Some(("p".to_owned(), "org/m".to_owned())),
        variant: Some("high".to_owned()),
        agent: None,
    };
    client.message("ses_1", &prompt).await.unwrap();
    let request = requests.recv().await.unwrap();
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let expected = json!({
        "parts": [{"type": "text", "text": "hi"}],
        "model": {"providerID": "p", "modelID": "org/m"},
        "variant": "high",
    });
    assert_eq!(serde_json::from_str::<Value>(body).unwrap(), expected);
}

#[tokio::test]
async fn answers_are_put_in_the_servers_words() {
    let (client, mut requests) = client(&[ok("true"), ok("true"), ok("true"), ok("true")]);
    let reject = Answer::Reject {
        message: Some("no".to_owned()),
    };
    let choose = Answer::Choose {
        answers: vec![vec!["A".to_owned()]],
    };
    client
        .answer_permission("p", None, &Answer::Always)
        .await
        .unwrap();
    client
        .answer_permission("p", Some("/d"), &reject)
        .await
        .unwrap();
    client.answer_question("q", None, &choose).await.unwrap();
    client
        .answer_question("q", None, &Answer::Once)
        .await
        .unwrap();
    let mut lines = Vec::new();
    for _ in 0..4 {
        let request = requests.recv().await.unwrap();
        let path = request.split(' ').nth(1).unwrap().to_owned();
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        lines.push(format!("{path} {body}"));
    }
    let expected = [
        r#"/permission/p/reply {"reply":"always"}"#,
        r#"/permission/p/reply?directory=%2Fd {"reply":"reject","message":"no"}"#,
        r#"/question/q/reply {"answers":[["A"]]}"#,
        "/question/q/reject ",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn errors_have_the_servers_own_words_without_addresses() {
    let body = r#"{"name":"NotFoundError","data":{"message":"no session at http://h/x"}}"#;
    let (client, _requests) = client(&[status(404, body), status(500, "<html>"), "", ok("[")]);
    let mut texts = Vec::new();
    for _ in 0..5 {
        texts.push(client.messages("ses_1").await.unwrap_err().to_string());
    }
    let expected = [
        "the agent's server answered 404: NotFoundError: no session at [address]",
        "the agent's server answered 500",
        "the agent's server closed the connection",
        "the agent's server answered something that is not understood",
        "the agent's server cannot be reached",
    ];
    assert_eq!(texts, expected);
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let (client, _requests) = client(&["hang", "hang"]);
    let limit = Duration::from_millis(20);
    let error = client.request(Method::GET, "/x", None, limit).await;
    assert!(matches!(error, Err(ClientError::Deadline(_))));
    assert_eq!(client.health(limit).await, Health::Silent);
}

#[tokio::test]
async fn health_tells_servers_apart() {
    let healthy = |version: Option<&str>| Health::Healthy {
        version: version.map(str::to_owned),
    };
    let doc = r#"{"openapi":"3.1.0","paths":{"/session":{}}}"#;
    let cases: [(&[&'static str], Health); 9] = [
        (
            &[ok(r#"{"healthy":true,"version":"1.2"}"#)],
            healthy(Some("1.2")),
        ),
        (&[ok("<html>"), ok(doc)], healthy(None)),
        (&[status(404, ""), ok(doc)], healthy(None)),
        (&[status(404, ""), status(404, "")], Health::Foreign),
        (&[status(401, "")], Health::Foreign),
        (
            &["SSH-2.0-OpenSSH\r\n", "SSH-2.0-OpenSSH\r\n"],
            Health::Foreign,
        ),
        (&[ok("{}"), ok("{}")], Health::Foreign),
        (&[status(500, "")], Health::Silent),
        (&[], Health::Refused),
    ];
    for (answers, expected) in cases {
        let (client, _requests) = client(answers);
        assert_eq!(client.health(LIMIT).await, expected, "{answers:?}");
    }
}

#[tokio::test]
async fn events_are_read_to_the_end() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
        data: {\"type\":\"server.connected\"}\n\n: comment\n\ndata: nonsense\n\ndata: {\"type\":\"x\"}\n\ndata: {\"torn";
    let (client, _requests) = client(&[stream, status(401, "")]);
    let mut events = client.events(None).await.unwrap();
    assert_eq!(events.next().await.unwrap()["type"], "server.connected");
    assert_eq!(events.next().await.unwrap()["type"], "x");
    assert_eq!(events.next().await, None);
    let refused = client.events(None).await.map(drop);
    assert!(matches!(
        refused,
        Err(ClientError::Status { status: 401, .. })
    ));
}

#[tokio::test]
async fn busy_is_whoever_is_listed_and_not_idle() {
    let statuses = r#"{"ses_1":{"type":"busy"},"ses_2":{"type":"idle"},"ses_4":{"type":"retry"}}"#;
    let (client, _requests) = client(&[ok(statuses), ok(statuses), ok(statuses), ok(statuses)]);
    let mut busy = Vec::new();
    for session in ["ses_1", "ses_2", "ses_3", "ses_4"] {
        busy.push(client.is_busy(session, None).await.unwrap());
    }
    assert_eq!(busy, [true, false, false, true]);
}

#[test]
fn only_plain_addresses_without_passwords_are_taken() {
    let client = Client::of_url("http://[::1]:8080/a/b/", None).unwrap();
    assert_eq!(
        (client.host.as_str(), client.prefix.as_str()),
        ("[::1]:8080", "/a/b")
    );
    let client = Client::of_url("http://localhost", None).unwrap();
    assert_eq!(
        (client.host.as_str(), client.prefix.as_str()),
        ("localhost:80", "")
    );
    assert!(matches!(
        Client::of_url("https://h", None),
        Err(AddressError::Scheme)
    ));
    assert!(matches!(
        Client::of_url("http://u:p@h", None),
        Err(AddressError::Password)
    ));
    assert!(matches!(
        Client::of_url("nonsense", None),
        Err(AddressError::Parse(_))
    ));
}

#[test]
fn passwords_are_long_and_not_shown() {
    let one = Credentials::generate().unwrap();
    assert_eq!(one.password.len(), 43);
    assert_ne!(one.password, Credentials::generate().unwrap().password);
    assert!(!format!("{one:?}").contains(&one.password));
}
