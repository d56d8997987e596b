//! Arbitrary input neither ends the server nor affects other clients.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::AsyncWriteExt;

use super::*;

/// JSON that resembles valid messages.
fn json_like() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "2.0",
            "tools/call",
            "tools/list",
            "openenv/session/create",
            "openenv/session/close",
            "initialize",
            "ping",
            "notifications/x",
            "reset",
            "step",
            "state",
            "mcp",
            "close",
            "call_tool",
            "list_tools",
            "echo",
            "fail",
            "panic",
            "",
        ])
        .prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let key = prop::sample::select(vec![
            "jsonrpc",
            "method",
            "params",
            "id",
            "type",
            "data",
            "name",
            "arguments",
            "tool_name",
            "session_id",
            "episode_id",
            "seed",
            "metadata",
            "message",
            "_meta",
            "progressToken",
            "action",
            "timeout_s",
            "split",
            "index",
            "other",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value));
                Value::Object(members.collect())
            }),
        ]
    })
}

/// A protocol message, valid or nearly so, or random bytes.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let rpc = json_like().prop_map(
        |params| json!({"jsonrpc": "2.0", "method": "tools/call", "params": params, "id": 1}),
    );
    let frame = (
        prop::sample::select(vec!["reset", "step", "mcp", "state"]),
        json_like(),
    )
        .prop_map(|(kind, data)| json!({"type": kind, "data": data}));
    let structured = prop_oneof![json_like(), rpc, frame].prop_map(|value| value.to_string());
    // A byte changed, or the end cut off.
    let torn = (structured, any::<prop::sample::Index>(), any::<u8>(), 0..3).prop_map(
        |(text, at, byte, how)| {
            let mut bytes = text.into_bytes();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] = byte,
                    1 => bytes.truncate(at),
                    _ => {}
                }
            }
            bytes
        },
    );
    prop_oneof![4 => torn, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

/// Sends the same bytes over every transport.
async fn throw(served: &Served, bytes: &[u8]) {
    for path in ["/mcp", "/reset", "/step", "/rollcage/task"] {
        let request = served.client.post(served.url(path)).body(bytes.to_vec());
        let request = request.header("content-type", "application/json");
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let is_fine = match path {
            "/mcp" => [200, 202].contains(&status),
            _ => [200, 422, 501].contains(&status),
        };
        assert!(is_fine, "{path} answered {status}");
    }
    for path in ["/ws", "/mcp"] {
        let mut socket = served.socket(path).await;
        let _ = match std::str::from_utf8(bytes) {
            Ok(text) => socket.0.send(Message::text(text)).await,
            Err(_) => socket.0.send(Message::binary(bytes.to_vec())).await,
        };
        // Wait until it is processed: an answer, or the end.
        let _ = socket.0.send(Message::Ping("x".into())).await;
        let _ = tokio::time::timeout(Duration::from_secs(20), socket.0.next())
            .await
            .unwrap();
    }
}

/// Sends raw bytes in place of frames or a request.
async fn throw_raw(served: &Served, bytes: &[u8]) {
    let mut stream = tokio::net::TcpStream::connect(served.address)
        .await
        .unwrap();
    let _ = stream.write_all(bytes).await;
    drop(stream);
    let mut stream = tokio::net::TcpStream::connect(served.address)
        .await
        .unwrap();
    let head = "GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(bytes).await;
}

#[test]
fn nothing_that_is_sent_harms_another_client() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let served = runtime.block_on(Served::with(ServerOptions {
        sessions_max: 10_000,
        ..options()
    }));
    let mut witness = runtime.block_on(async {
        let mut witness = served.socket("/ws").await;
        witness
            .ask(json!({"type": "reset", "data": {"episode_id": "witness"}}))
            .await;
        witness
    });
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let tested = runner.run(&message(), |bytes| {
        runtime.block_on(async {
            throw(&served, &bytes).await;
            throw_raw(&served, &bytes).await;
        });
        Ok(())
    });
    tested.unwrap();
    runtime.block_on(async {
        let state = witness.ask(json!({"type": "state"})).await;
        assert_eq!(state["data"]["episode_id"], "witness");
        assert_eq!(state["data"]["step_count"], 0);
        assert_eq!(served.get("/health").await.status(), 200);
    });
}
