use std::sync::Mutex;
use std::time::Duration;

use http_body_util::Empty;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::fake::{FREE_PORT, FakePlace, FakePort};
use crate::place::{Place, ServeCommand, ServeProcess};

fn credentials(password: &str) -> Credentials {
    Credentials {
        username: "opencode".to_owned(),
        password: password.to_owned(),
    }
}

/// A server that may not run.
#[derive(Default)]
struct Behind {
    place: Arc<FakePlace>,
    process: Mutex<Option<Box<dyn ServeProcess>>>,
}

impl Behind {
    async fn start(&self) {
        let command = ServeCommand {
            argv: vec![FREE_PORT.to_string()],
            env: [("OPENCODE_SERVER_PASSWORD".to_owned(), "inner".to_owned())].into(),
            cwd: String::new(),
        };
        let process = self.place.spawn(command).await.unwrap();
        *self.process.lock().unwrap() = Some(process);
    }
}

impl ForwardTarget for Behind {
    fn target(&self) -> Option<(Arc<dyn Connect>, Credentials)> {
        self.process.lock().unwrap().as_ref()?;
        let port = FakePort(Arc::clone(&self.place), FREE_PORT);
        Some((Arc::new(port), credentials("inner")))
    }
}

/// One request as text; the answer as text, without its date.
async fn ask(forwarder: &Forwarder, request: &str) -> String {
    let mut stream = TcpStream::connect(forwarder.address).await.unwrap();
    let request = request.replace('\n', "\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let lines = answer.lines().filter(|line| !line.starts_with("date: "));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_request_arrives_with_the_servers_own_password() {
    let behind = Arc::new(Behind::default());
    behind.start().await;
    let target = Arc::clone(&behind) as Arc<dyn ForwardTarget>;
    let forwarder = Forwarder::start(target, credentials("outer"))
        .await
        .unwrap();
    let outer = credentials("outer").header();
    let request = format!(
        "POST /session/x/message?directory=%2Fa HTTP/1.1\nhost: h\nauthorization: {outer}\nx-kept: 1\n\
         x-hop: 1\nkeep-alive: 5\nconnection: close, x-hop\ncontent-length: 5\n\nhello"
    );
    let answer = ask(&forwarder, &request).await;
    let inner = credentials("inner").header();
    let (head, body) = answer.split_once("\n\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 201 Created\n"), "{head}");
    assert!(
        body.contains("POST /session/x/message?directory=%2Fa\n"),
        "{body}"
    );
    let names = [
        "authorization",
        "connection",
        "content-length",
        "host",
        "x-kept",
    ];
    let values = [inner.as_str(), "close", "5", "h", "1"];
    for (name, value) in names.iter().zip(values) {
        assert!(body.contains(&format!("{name}: {value}\n")), "{body}");
    }
    assert!(
        !body.contains("x-hop") && !body.contains("keep-alive"),
        "{body}"
    );
    assert!(body.contains("hello"), "{body}");
    assert!(!answer.contains(&outer), "{answer}");
}

#[tokio::test]
async fn without_the_password_nothing_is_passed_on() {
    let behind = Arc::new(Behind::default());
    behind.start().await;
    let target = Arc::clone(&behind) as Arc<dyn ForwardTarget>;
    let forwarder = Forwarder::start(target, credentials("outer"))
        .await
        .unwrap();
    let inner = credentials("inner").header();
    for header in [
        String::new(),
        format!("authorization: {inner}\n"),
        "authorization: Basic\n".to_owned(),
        format!("authorization: {}x\n", credentials("outer").header()),
        "authorization: Bearer outer\n".to_owned(),
    ] {
        let request =
            format!("GET /global/health HTTP/1.1\nhost: h\n{header}connection: close\n\n");
        let answer = ask(&forwarder, &request).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(
            answer.contains("www-authenticate: Basic realm="),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn without_a_server_the_answer_says_so() {
    let behind = Arc::new(Behind::default());
    let target = Arc::clone(&behind) as Arc<dyn ForwardTarget>;
    let mut forwarder = Forwarder::start(target, credentials("outer"))
        .await
        .unwrap();
    let outer = credentials("outer").header();
    let request =
        format!("GET /x HTTP/1.1\nhost: h\nauthorization: {outer}\nconnection: close\n\n");
    let answer = ask(&forwarder, &request).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("does not run now"), "{answer}");
    behind.start().await;
    behind.place.latest().kill(9);
    let answer = ask(&forwarder, &request).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    forwarder.close().await;
    TcpStream::connect(forwarder.address).await.unwrap_err();
}

#[tokio::test]
async fn an_event_stream_begins_before_its_first_event_and_ends_with_the_forwarder() {
    let behind = Arc::new(Behind::default());
    behind.start().await;
    let target = Arc::clone(&behind) as Arc<dyn ForwardTarget>;
    let forwarder = Forwarder::start(target, credentials("outer"))
        .await
        .unwrap();
    let stream = TcpStream::connect(forwarder.address).await.unwrap();
    let (mut sender, driver) = outgoing::handshake(TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(driver);
    let request = Request::get("/global/event")
        .header(header::HOST, "h")
        .header(header::AUTHORIZATION, credentials("outer").header())
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = timeout(Duration::from_secs(5), sender.send_request(request));
    let mut answer = answer.await.expect("it begins at once").unwrap();
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/event-stream");
    drop(forwarder);
    // The first heartbeat comes after ten seconds.
    let end = timeout(Duration::from_secs(5), answer.frame()).await;
    assert!(matches!(end.expect("it ends"), None | Some(Err(_))));
}
