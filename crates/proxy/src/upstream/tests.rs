//! Calls over lost connections, and to servers that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::*;
use crate::endpoint::Endpoint;
use crate::profile::Profile;
use crate::{ModelSettings, OnOverflow, SessionOptions};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-length: 28\r\n\r\n{\"choices\":[{\"message\":{}}]}";

/// A server that runs a script, and its base URL.
fn server<T: Send + 'static>(
    script: impl FnOnce(&TcpListener) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    (base_url, std::thread::spawn(move || script(&listener)))
}

fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().unwrap().0
}

/// One request: its head in lower case, and its body.
fn read_request(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).unwrap();
    }
    let head = head.to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// Reads one request and answers it.
fn answer_one(mut stream: &TcpStream) {
    read_request(stream);
    stream.write_all(ANSWER).unwrap();
}

/// Reads one request and closes the connection.
fn lose_one(stream: TcpStream) {
    read_request(&stream);
    drop(stream);
}

struct Caller {
    session: Arc<Session>,
    _directory: tempfile::TempDir,
}

impl Caller {
    /// Never retries with a delay.
    fn new(base_url: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = SessionOptions {
            client: crate::outbound::client(&base_url).unwrap(),
            endpoint: Endpoint {
                base_url,
                ..Endpoint::none()
            },
            settings: ModelSettings {
                upstream_patience: Duration::ZERO,
                ..ModelSettings::default()
            },
            profile: Profile::whole(),
            on_overflow: OnOverflow::Stop,
            record: directory.path().join("exchanges.rec"),
            agent_time: None,
            observe: Box::new(|_| {}),
            mcp: Default::default(),
            clients: Arc::default(),
        };
        Caller {
            session: Session::create("key".to_owned(), options).unwrap(),
            _directory: directory,
        }
    }

    async fn call(
        &self,
        body: impl Into<BodySegments>,
    ) -> (Result<UpstreamResponse, Failure>, RetryState) {
        let mut retry = RetryState::default();
        let outgoing = OutgoingRequest {
            passed: &ForwardedHead::default(),
            body: body.into(),
            view: StreamView::Original,
            added: AddedFields::default(),
        };
        let sent = send(&self.session, &outgoing, &mut retry).await;
        (sent, retry)
    }
}

const BODY: Bytes = Bytes::from_static(b"{}");

#[tokio::test]
async fn a_connection_is_reused_and_a_closed_one_is_replaced() {
    let (base_url, server) = server(|listener| {
        let first = accept(listener);
        answer_one(&first);
        answer_one(&first);
        drop(first);
        answer_one(&accept(listener));
    });
    let caller = Caller::new(base_url);
    for _ in 0..3 {
        assert_eq!(caller.call(BODY).await.0.unwrap().status(), 200);
    }
    server.join().unwrap();
}

#[tokio::test]
async fn a_repeated_request_that_may_have_been_read_is_recorded() {
    let (base_url, server) = server(|listener| {
        let first = accept(listener);
        answer_one(&first);
        lose_one(first);
        answer_one(&accept(listener));
    });
    let caller = Caller::new(base_url);
    assert!(caller.call(BODY).await.1.attempts.is_empty());
    let (sent, retry) = caller.call(BODY).await;
    assert_eq!(sent.unwrap().status(), 200);
    assert_eq!(retry.attempts.len(), 1);
    assert_eq!(retry.attempts[0].status, None);
    assert_eq!(caller.session.outages.total(), Duration::ZERO);
    server.join().unwrap();
}

#[tokio::test]
async fn a_connection_lost_twice_is_the_endpoints_failure() {
    let (base_url, server) = server(|listener| {
        lose_one(accept(listener));
        lose_one(accept(listener));
    });
    let (sent, retry) = Caller::new(base_url).call(BODY).await;
    assert!(sent.unwrap_err().is_transient);
    assert_eq!(retry.attempts.len(), 1);
    assert!(retry.last_problem.is_some());
    server.join().unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_speak_http_is_not_retried() {
    let (base_url, server) = server(|listener| {
        let mut stream = accept(listener);
        read_request(&stream);
        stream.write_all(b"220 ready for mail\r\n\r\n").unwrap();
    });
    let (sent, retry) = Caller::new(base_url).call(BODY).await;
    assert!(!sent.unwrap_err().is_transient);
    assert!(retry.attempts.is_empty());
    server.join().unwrap();
}

#[tokio::test]
async fn a_refused_connection_is_reported() {
    let (base_url, server) = server(|_| {});
    server.join().unwrap();
    let (sent, _) = Caller::new(base_url).call(BODY).await;
    let failure = sent.unwrap_err();
    assert!(failure.is_transient);
    assert!(failure.text.contains("refused"), "{}", failure.text);
}

#[tokio::test]
async fn a_body_in_pieces_is_sent_with_its_length() {
    let (base_url, server) = server(|listener| {
        let mut stream = accept(listener);
        let request = read_request(&stream);
        stream.write_all(ANSWER).unwrap();
        request
    });
    let long = "x".repeat(100_000);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}],"model":"other"}}"#);
    let rewrite = rollcage_dialect::chat::Rewrite {
        model: Some("m".to_owned()),
        ..Default::default()
    };
    let body = Bytes::from(body);
    let pieces = rollcage_dialect::chat::prepare(&body, &rewrite)
        .unwrap()
        .body;
    assert!(pieces.clone().into_iter().count() > 1);
    let caller = Caller::new(base_url);
    assert_eq!(caller.call(pieces.clone()).await.0.unwrap().status(), 200);
    let (head, body) = server.join().unwrap();
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(body.as_bytes(), pieces.concat());
}
