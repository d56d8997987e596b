//! Bodies that never arrive.

use std::io::{Read, Write};

use super::*;
use crate::server::harness;

/// Sends a head and a part of a body; returns the answer up to the end of the connection.
fn trickle(address: SocketAddr, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_arrives_times_out() {
    let limit = Duration::from_millis(100);
    let backend = harness::backend_with(harness::limits(), limit, |_| ());
    let backend = backend.await;
    let options = ServerOptions {
        extra: api::routes(Arc::clone(&backend)),
        limits: Limits {
            body_read: limit,
            ..limits()
        },
        ..options()
    };
    let served = Served::with(options).await;
    for path in ["/v1/rollouts", "/mcp", "/reset", "/step", "/rollcage/task"] {
        let address = served.address;
        let answer = tokio::task::spawn_blocking(move || trickle(address, path));
        let answer = answer.await.unwrap().to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 408"), "{path}: {answer}");
        assert!(answer.contains("connection: close"), "{path}: {answer}");
        assert!(
            answer.contains("did not arrive within 0.1 s"),
            "{path}: {answer}"
        );
    }
    harness::close(&backend).await;
}
