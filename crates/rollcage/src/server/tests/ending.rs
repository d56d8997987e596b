//! How a server shuts down: it accepts nothing new, waits for running calls, and ends what outlives them.

use super::*;

#[tokio::test]
async fn idle_sockets_are_closed_and_running_calls_finish() {
    let (on_shutdown, hook) = oneshot::channel();
    let mut served = Served::with(ServerOptions {
        grace: Duration::from_secs(60),
        on_shutdown: Box::new(|left| {
            Box::pin(async move {
                let _ = on_shutdown.send(left);
            })
        }),
        ..options()
    })
    .await;
    let mut idle = served.socket("/ws").await;
    let mut busy = served.socket("/ws").await;
    idle.ask(json!({"type": "state"})).await;
    busy.send(&step("slow", json!({"seconds": 0.3}))).await;
    served.until_running(1).await;
    served.stop();
    assert_eq!(idle.close_code().await, 1001);
    let answer = busy.receive().await;
    assert_eq!(answer["data"]["observation"]["result"]["data"], "slept");
    assert_eq!(busy.close_code().await, 1001);
    assert!(
        hook.await.unwrap() > Duration::ZERO,
        "some of the grace is left"
    );
    served.tasks.join_next().await.unwrap().unwrap();
    assert!(
        tokio::net::TcpStream::connect(served.address)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn calls_that_outlast_the_grace_are_dropped() {
    let mut served = Served::with(ServerOptions {
        grace: Duration::from_millis(50),
        ..options()
    })
    .await;
    let mut socket = served.socket("/ws").await;
    socket.send(&step("slow", json!({"seconds": 3600}))).await;
    let call = json!({"name": "slow", "arguments": {"seconds": 3600}});
    let body = json!({"jsonrpc": "2.0", "method": "tools/call", "params": call, "id": 1});
    let request = served
        .client
        .post(served.url("/mcp"))
        .header("content-type", "application/json")
        .body(body.to_string());
    let mut posting = JoinSet::new();
    posting.spawn(request.send());
    served.until_running(2).await;
    served.stop();
    assert_eq!(socket.close_code().await, 1001);
    assert!(posting.join_next().await.unwrap().unwrap().is_err());
    served.tasks.join_next().await.unwrap().unwrap();
    assert_eq!(served.running.load(Ordering::SeqCst), 0);
}
