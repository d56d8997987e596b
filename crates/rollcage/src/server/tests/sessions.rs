//! Sessions and sockets: which socket holds which session, and what happens when a client disconnects.

use super::*;

#[tokio::test]
async fn a_socket_is_read_while_a_step_runs() {
    let served = Served::start().await;
    let mut socket = served.socket("/ws").await;
    socket.send(&step("slow", json!({"seconds": 3600}))).await;
    served.until_running(1).await;
    socket
        .0
        .send(Message::Ping("are you there".into()))
        .await
        .unwrap();
    assert_eq!(socket.next().await, Message::Pong("are you there".into()));
}

#[tokio::test]
async fn a_step_ends_with_the_socket_that_owns_its_session() {
    let served = Served::start().await;
    let mut socket = served.socket("/ws").await;
    socket.send(&step("slow", json!({"seconds": 3600}))).await;
    served.until_running(1).await;
    drop(socket);
    served.until_running(0).await;
    assert_eq!(served.finished.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_step_outlives_the_socket_of_an_attached_session() {
    let served = Served::start().await;
    let id = served.create().await;
    let mut socket = served.socket(&format!("/ws?session_id={id}")).await;
    socket.send(&step("slow", json!({"seconds": 0.3}))).await;
    served.until_running(1).await;
    drop(socket);
    // The session can be attached again at once, while the step continues.
    let again = async {
        loop {
            let mut socket = served.socket(&format!("/ws?session_id={id}")).await;
            socket.send(&json!({"type": "state"})).await;
            let answer = socket.receive().await;
            if answer["type"] == "state" {
                return answer;
            }
        }
    };
    let state = tokio::time::timeout(Duration::from_secs(20), again)
        .await
        .unwrap();
    assert_eq!(state["data"]["step_count"], 1);
    until(|| served.finished.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn closing_a_session_ends_its_calls() {
    let served = Served::start().await;
    let id = served.create().await;
    let call = json!({"name": "slow", "arguments": {"seconds": 3600}, "session_id": id});
    let calling = served.rpc("tools/call", call);
    let closing = async {
        served.until_running(1).await;
        served
            .rpc("openenv/session/close", json!({"session_id": id}))
            .await
    };
    let (called, closed) = tokio::join!(calling, closing);
    assert_eq!(closed["result"], json!({"session_id": id, "closed": true}));
    assert_eq!(
        called["error"]["message"],
        "Session task completed unexpectedly"
    );
}

#[tokio::test]
async fn a_session_remembers_its_last_rollout() {
    let served = Served::start().await;
    let id = served.create().await;
    let mut socket = served.socket(&format!("/ws?session_id={id}")).await;
    socket
        .ask(json!({"type": "reset", "data": {"episode_id": "e", "seed": -5}}))
        .await;
    let call = json!({"name": "rollout", "arguments": {"reward": 0.5}, "session_id": id});
    served.rpc("tools/call", call).await;
    let answer = socket.ask(step("echo", json!({"message": "x"}))).await;
    assert_eq!(answer["data"]["reward"], 0.0, "this step finished none");
    let state = socket.ask(json!({"type": "state"})).await;
    assert_eq!(
        state["data"],
        json!({"episode_id": "e", "step_count": 1, "rollouts_completed": 1, "last_reward": 0.5,
            "last_task_id": "task", "last_sandbox_id": "sandbox"})
    );
    let answer = socket.ask(step("rollout", json!({"reward": 0.25}))).await;
    assert_eq!(answer["data"]["reward"], 0.25);
    socket.ask(json!({"type": "reset"})).await;
    let state = socket.ask(json!({"type": "state"})).await;
    assert_eq!(state["data"]["last_reward"], Value::Null);
    assert_ne!(state["data"]["episode_id"], "e");
}

#[tokio::test]
async fn a_full_server_reports_it_on_every_transport() {
    let sessions_max = 1;
    let served = Served::with(ServerOptions {
        sessions_max,
        ..options()
    })
    .await;
    let _held = served.create().await;
    let full = json!({"active_sessions": 1, "max_sessions": 1});
    let mut socket = served.socket("/ws").await;
    let answer = socket.receive().await;
    assert_eq!(answer["data"]["code"], "CAPACITY_REACHED");
    assert_eq!(answer["data"]["max_sessions"], 1);
    assert_eq!(socket.close_code().await, 1000);
    let mut socket = served.socket("/mcp").await;
    let answer = socket.receive().await;
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]),
        (&json!(-32000), &full)
    );
    let answer = served.rpc("openenv/session/create", json!({})).await;
    assert_eq!(answer["error"]["data"], full);
    let call = json!({"name": "echo", "arguments": {"message": "hi"}});
    assert_eq!(served.rpc("tools/call", call).await["result"]["data"], "hi");
}

#[tokio::test]
async fn a_message_that_is_not_a_text_object_ends_the_socket() {
    let served = Served::start().await;
    let mut socket = served.socket("/ws").await;
    socket.0.send(Message::binary(vec![1, 2])).await.unwrap();
    assert_eq!(socket.receive().await["data"]["code"], "SESSION_ERROR");
    assert_eq!(socket.close_code().await, 1000);
    let mut socket = served.socket("/mcp").await;
    socket.send_text("[1]").await;
    assert_eq!(socket.receive().await["error"]["code"], -32000);
    assert_eq!(socket.close_code().await, 1000);
}

#[tokio::test]
async fn a_message_that_is_too_large_closes_with_1009() {
    let mut options = options();
    options.limits.body_bytes_max = 1000;
    let served = Served::with(options).await;
    let mut socket = served.socket("/ws").await;
    socket.send_text("x".repeat(2000)).await;
    assert_eq!(socket.close_code().await, 1009);
}

#[tokio::test]
async fn requests_wait_in_a_bounded_queue() {
    let served = Served::start().await;
    let mut socket = served.socket("/ws").await;
    socket.send(&step("slow", json!({"seconds": 3600}))).await;
    for _ in 0..300 {
        // The server may close before all are sent.
        let _ = socket.0.send(Message::text(r#"{"type":"state"}"#)).await;
    }
    let answer = socket.receive().await;
    assert!(
        answer["data"]["message"]
            .as_str()
            .unwrap()
            .contains("too many")
    );
    assert_eq!(socket.close_code().await, 1008);
    served.until_running(0).await;
}

#[tokio::test]
async fn a_large_answer_arrives_in_one_piece() {
    let served = Served::start().await;
    let mut socket = served.socket("/ws").await;
    let bytes = 3 << 20;
    let answer = socket.ask(step("large", json!({"bytes": bytes}))).await;
    let data = &answer["data"]["observation"]["result"]["data"];
    assert_eq!(data.as_str().unwrap().len(), bytes);
}

#[tokio::test]
async fn a_client_that_answers_no_pings_is_disconnected() {
    let mut options = options();
    options.sessions_max = 1;
    options.limits.ping_every = Duration::from_millis(50);
    options.limits.silence_max = Duration::from_millis(120);
    let served = Served::with(options).await;
    // A client that is not polled sends no pongs.
    let _silent = served.socket("/ws").await;
    let freed = async {
        while served.rpc("openenv/session/create", json!({})).await["result"].is_null() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), freed)
        .await
        .unwrap();
}

#[tokio::test]
async fn idle_sessions_are_closed_and_held_ones_are_not() {
    let mut options = options();
    options.limits.session_idle = Duration::from_millis(200);
    let served = Served::with(options).await;
    let idle = served.create().await;
    let held = served.create().await;
    let mut socket = served.socket(&format!("/ws?session_id={held}")).await;
    let mut owner = served.socket("/ws").await;
    let reaped = async {
        // `close` would end it and `tools/list` would use it, so the test attaches, which fails when it is gone.
        loop {
            tokio::time::sleep(Duration::from_millis(600)).await;
            let mut socket = served.socket(&format!("/ws?session_id={idle}")).await;
            socket.send(&json!({"type": "state"})).await;
            if socket.receive().await["type"] == "error" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reaped)
        .await
        .unwrap();
    assert_eq!(socket.ask(json!({"type": "state"})).await["type"], "state");
    assert_eq!(owner.ask(json!({"type": "state"})).await["type"], "state");
}

#[tokio::test]
async fn a_socket_on_an_unknown_path_is_refused_in_the_handshake() {
    let served = Served::start().await;
    let url = format!("ws://{}/nope", served.address);
    let error = tokio_tungstenite::connect_async(url).await.unwrap_err();
    assert!(error.to_string().contains("403"), "{error}");
}

#[tokio::test]
async fn jsonrpc_over_a_socket_answers_all_but_notifications() {
    let served = Served::start().await;
    let mut socket = served.socket("/mcp").await;
    socket
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        .await;
    let answer = socket
        .ask(json!({"jsonrpc": "2.0", "method": "ping", "id": "p"}))
        .await;
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    let own = json!({"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1});
    let id = socket.ask(own).await["result"]["session_id"].clone();
    let close = json!({"jsonrpc": "2.0", "method": "openenv/session/close", "id": 2,
        "params": {"session_id": id}});
    assert_eq!(socket.ask(close).await["error"]["code"], -32600);
}
