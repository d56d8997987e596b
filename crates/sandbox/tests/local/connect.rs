//! Connections from outside to services inside.

use std::io::ErrorKind;

use rollcage_sandbox::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{bash, command, sandbox};

/// Replies to every connection with its number and the line it received.
const SERVICE: &str = "import socket\n\
    server = socket.create_server(('127.0.0.1', 8080))\n\
    print('ready', flush=True)\n\
    number = 0\n\
    while True:\n\
    \x20   number += 1\n\
    \x20   connection, _ = server.accept()\n\
    \x20   line = connection.makefile().readline()\n\
    \x20   connection.sendall(f'{number} {line}'.encode())\n\
    \x20   connection.close()\n";

#[tokio::test]
async fn a_service_inside_can_be_connected_to_again_and_again() {
    let (_backend, sandbox) = sandbox().await;
    let mut process = sandbox
        .spawn(command(&["python3", "-c", SERVICE]))
        .await
        .unwrap();
    let mut ready = [0; 6];
    let stdout = process.stdout.as_mut().unwrap();
    stdout.read_exact(&mut ready).await.unwrap();
    for number in 1..=3 {
        let mut stream = sandbox.connect(8080).await.unwrap();
        stream.write_all(b"hello\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, format!("{number} hello\n"));
    }

    let mut open = sandbox.connect(8080).await.unwrap();
    sandbox.kill_all().await.unwrap();
    // Its service is dead: the connection ends, with or without an error.
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn where_nobody_listens_a_connection_is_refused_at_once() {
    let (_backend, sandbox) = sandbox().await;
    match sandbox.connect(8080).await.err() {
        Some(Error::Connect { port: 8080, source }) => {
            assert_eq!(source.kind(), ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
    assert!(bash(&*sandbox, "true").await.exit.success());
}

#[tokio::test]
async fn a_service_of_the_host_is_not_reached() {
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    let (_backend, sandbox) = sandbox().await;
    let refused = sandbox.connect(port).await.err();
    assert!(
        matches!(refused, Some(Error::Connect { .. })),
        "{refused:?}"
    );
}
