use std::net::{Ipv4Addr, TcpListener};

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

fn handler() -> Handler {
    Arc::new(|_| {
        Box::pin(async { answers::whole(StatusCode::OK, answers::JSON, r#"{"served":true}"#) })
    })
}

async fn ask(mut stream: impl Stream) -> String {
    let _ = stream.write_all(REQUEST).await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn in_memory_streams_are_served_until_closed() {
    let (sender, streams) = mpsc::channel(4);
    let mut serving = serve(Listener::Streams(streams), handler()).unwrap();
    for _ in 0..3 {
        let (theirs, ours) = duplex(4096);
        sender.send(Box::new(theirs) as BoxedStream).await.unwrap();
        let answer = ask(ours).await;
        assert!(answer.ends_with(r#"{"served":true}"#), "{answer}");
    }
    let (theirs, idle) = duplex(4096);
    sender.send(Box::new(theirs) as BoxedStream).await.unwrap();
    drop(sender);
    serving.close().await;
    assert_eq!(ask(idle).await, "", "closing ends its connections");
}

#[tokio::test]
async fn only_allowed_peers_are_answered() {
    for (from, is_answered) in [
        (AllowedPeers::Anybody, true),
        (AllowedPeers::Only(vec![Ipv4Addr::LOCALHOST.into()]), true),
        (
            AllowedPeers::Only(vec![Ipv4Addr::new(127, 0, 0, 2).into()]),
            false,
        ),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = serve(Listener::Tcp { listener, from }, handler()).unwrap();
        let answer = ask(tokio::net::TcpStream::connect(address).await.unwrap()).await;
        assert_eq!(answer.ends_with(r#"{"served":true}"#), is_answered);
        serving.close().await;
    }
}
