//! What plain HTTP clients see.

use super::*;

async fn status_and_body(response: reqwest::Response) -> (u16, Value) {
    (response.status().as_u16(), read(response).await)
}

#[tokio::test]
async fn unknown_paths_and_methods_are_answered_like_the_original() {
    let served = Served::start().await;
    let gone = (404, json!({"detail": "Not Found"}));
    for path in ["/nope", "/ws", "/harness", "/a/b/c"] {
        assert_eq!(
            status_and_body(served.get(path).await).await,
            gone,
            "{path}"
        );
    }
    for (method, path, allowed) in [
        ("POST", "/health", "GET"),
        ("HEAD", "/health", "GET"),
        ("OPTIONS", "/reset", "POST"),
        ("GET", "/mcp", "POST"),
        ("DELETE", "/mcp", "POST"),
        ("GET", "/rollcage/tasks", "POST"),
    ] {
        let request = served
            .client
            .request(method.parse().unwrap(), served.url(path));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 405, "{method} {path}");
        assert_eq!(response.headers()["allow"], allowed, "{method} {path}");
    }
}

#[tokio::test]
async fn a_trailing_slash_is_redirected() {
    let served = Served::start().await;
    let response = served.get("/health/?a=1").await;
    assert_eq!(response.status(), 307);
    assert_eq!(response.headers()["location"], served.url("/health?a=1"));
    assert_eq!(served.get("/nope/").await.status(), 404);
}

#[tokio::test]
async fn production_has_no_control_over_http() {
    let mode = Mode::Production;
    let served = Served::with(ServerOptions { mode, ..options() }).await;
    for path in ["/reset", "/step", "/state"] {
        assert_eq!(served.get(path).await.status(), 404, "{path}");
    }
    let mut socket = served.socket("/ws").await;
    let answer = socket.ask(json!({"type": "reset"})).await;
    assert_eq!(answer["type"], "observation");
}

#[tokio::test]
async fn resets_and_steps_look_like_the_originals() {
    let served = Served::start().await;
    let metadata =
        json!({"status": "ready", "message": "rollcage ready. Call echo(...) with a task."});
    assert_eq!(
        read(
            served
                .client
                .post(served.url("/reset"))
                .send()
                .await
                .unwrap()
        )
        .await,
        json!({"observation": {"metadata": metadata}, "reward": null, "done": false, "metadata": metadata})
    );
    let action = json!({"action": {"tool_name": "echo", "arguments": {"message": "hi"}}});
    let answer = read(served.post("/step", &action).await).await;
    assert_eq!(answer["observation"]["result"]["data"], "hi");
    assert_eq!(answer["observation"]["error"], Value::Null);
    assert_eq!(answer["reward"], 0.0);
    assert!(answer.as_object().unwrap().contains_key("metadata"));
    let failed = json!({"action": {"tool_name": "fail"}});
    let answer = read(served.post("/step", &failed).await).await;
    assert_eq!(
        answer["observation"]["error"],
        json!({"error_type": "execution_error", "message": "Error calling tool 'fail': kaput"})
    );
}

#[tokio::test]
async fn wrong_bodies_are_unprocessable() {
    let served = Served::start().await;
    let plain = served.client.post(served.url("/step")).body("{}");
    let (status, body) = status_and_body(plain.send().await.unwrap()).await;
    assert_eq!((status, &body["detail"][0]["loc"]), (422, &json!(["body"])));
    let (status, body) = status_and_body(served.post("/step", &json!({"action": {}})).await).await;
    assert_eq!(
        (status, &body["detail"][0]["loc"]),
        (422, &json!(["tool_name"]))
    );
    let empty = served
        .client
        .post(served.url("/step"))
        .send()
        .await
        .unwrap();
    assert_eq!(empty.status(), 422);
}

#[tokio::test]
async fn a_step_is_answered_at_its_deadline() {
    let served = Served::start().await;
    let action =
        json!({"action": {"tool_name": "slow", "arguments": {"seconds": 3600}}, "timeout_s": 0.1});
    let answer = read(served.post("/step", &action).await).await;
    assert_eq!(
        answer["observation"]["error"],
        json!({"error_type": "timeout", "message": "Tool 'slow' timed out after 0.1 seconds"})
    );
    served.until_running(0).await;
}

#[tokio::test]
async fn tasks_are_served_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("one.toml"), "instruction = 'go'").unwrap();
    std::fs::write(folder.path().join("two.toml"), "instruction = 'on'").unwrap();
    let tasks = Arc::new(Tasks::read(folder.path()).unwrap());
    let served = Served::with(ServerOptions { tasks, ..options() }).await;
    assert_eq!(
        read(served.get("/list_environments").await).await,
        json!(["rollcage"])
    );
    let splits = read(served.get("/Rollcage/splits").await).await;
    assert_eq!(splits, json!([{"name": "train", "type": "train"}]));
    let ask = |call: &str, body: Value| {
        let path = format!("/rollcage/{call}");
        let served = &served;
        async move { status_and_body(served.post(&path, &body).await).await }
    };
    let train = json!({"split": "train"});
    assert_eq!(
        ask("num_tasks", train.clone()).await,
        (200, json!({"num_tasks": 2}))
    );
    let (_, all) = ask("tasks", train.clone()).await;
    assert_eq!(all["env_name"], "rollcage");
    assert_eq!(all["tasks"][0]["instruction"], "go");
    let (_, one) = ask("task", json!({"split": "train", "index": 1})).await;
    assert_eq!(one["task"]["id"], "two");
    let out = (400, json!({"detail": "Invalid task index"}));
    assert_eq!(
        ask("task", json!({"split": "train", "index": 2})).await,
        out
    );
    let (_, last) = ask("task_range", json!({"split": "train", "start": -1})).await;
    assert_eq!(last["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(ask("tasks", json!({"split": "train", "x": 1})).await.0, 422);
    assert_eq!(ask("tasks", json!({"split": "none"})).await.0, 400);
    let (status, other) = status_and_body(served.get("/other/splits").await).await;
    assert_eq!(
        (status, other),
        (404, json!({"detail": "unknown environment 'other'"}))
    );
}

#[tokio::test]
async fn a_server_without_tasks_says_so() {
    let served = Served::start().await;
    let (status, body) = status_and_body(served.get("/rollcage/splits").await).await;
    assert_eq!(status, 501);
    assert_eq!(
        body,
        json!({"detail": "list_splits is not supported for this environment"})
    );
}

/// What OpenEnv's `HarborEnv` asks for, and parses: its paths have the name of its own server.
#[tokio::test]
async fn openenvs_harbor_client_reads_our_tasks() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let text = format!("instruction = 'do {name}'");
        std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
    }
    let served = Served::with(ServerOptions {
        tasks: Arc::new(Tasks::read(folder.path()).unwrap()),
        ..options()
    })
    .await;
    let splits = read(served.get("/harbor_env/splits").await).await;
    assert_eq!(
        splits,
        json!([{"name": "train", "type": "train", "num_tasks": 3}])
    );
    let asked = json!({"split": ""});
    let count = read(served.post("/harbor_env/num_tasks", &asked).await).await;
    assert_eq!(count, json!({"num_tasks": 3}));
    let asked = json!({"split": "train", "index": 1});
    let task = read(served.post("/harbor_env/task", &asked).await).await;
    let asked = json!({"split": "", "start": 1, "stop": 3});
    let tasks = read(served.post("/harbor_env/task_range", &asked).await).await;
    assert_eq!(tasks["tasks"][0], task["task"]);
    for (index, name) in [(1, "b"), (2, "c")] {
        let task = &tasks["tasks"][index - 1];
        let instruction = format!("do {name}");
        for (member, expected) in [
            ("index", json!(index)),
            ("task_id", json!(name)),
            ("task_name", json!(name)),
            ("dataset", json!("train")),
            ("instruction", json!(instruction)),
        ] {
            assert_eq!(task[member], expected, "{member}");
        }
    }
    let own = json!({"split": "train", "index": 1});
    let own = read(served.post("/rollcage/task", &own).await).await;
    assert!(own["task"].get("task_id").is_none(), "{own}");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let mut options = options();
    options.limits.body_bytes_max = 1000;
    let served = Served::with(options).await;
    let body = json!({"x": "y".repeat(2000)});
    assert_eq!(served.post("/mcp", &body).await.status(), 413);
}

#[tokio::test]
async fn a_body_that_never_arrives_is_given_up() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut options = options();
    options.limits.body_read = Duration::from_millis(100);
    let served = Served::with(options).await;
    let mut stream = tokio::net::TcpStream::connect(served.address)
        .await
        .unwrap();
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[tokio::test]
async fn mcp_clients_are_greeted_on_the_same_route() {
    let served = Served::start().await;
    let asked = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}});
    let answer = served.rpc("initialize", asked).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(
        answer["result"]["capabilities"]["tools"],
        json!({"listChanged": false})
    );
    let answer = served
        .rpc("initialize", json!({"protocolVersion": "1999-01-01"}))
        .await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(served.rpc("ping", json!({})).await["result"], json!({}));
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let response = served.post("/mcp", &note).await;
    assert_eq!(response.status(), 202);
    assert_eq!(response.text().await.unwrap(), "");
}

/// Calls a tool as a standard MCP client does.
async fn mcp_call(served: &Served, tool: &str, more: Value) -> reqwest::Response {
    let mut params = json!({"name": tool});
    params
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let body = json!({"jsonrpc": "2.0", "method": "tools/call", "params": params, "id": 7});
    let request = served
        .client
        .post(served.url("/mcp"))
        .header("content-type", "application/json")
        .body(body.to_string());
    let request = request.header("accept", "application/json, text/event-stream");
    request
        .header("mcp-protocol-version", "2025-06-18")
        .send()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_failed_call_reaches_the_model_of_an_mcp_client() {
    let served = Served::start().await;
    let answer = read(mcp_call(&served, "fail", json!({})).await).await;
    assert_eq!(answer["result"]["isError"], true);
    assert_eq!(
        answer["result"]["content"][0]["text"],
        "Error calling tool 'fail': kaput"
    );
    let answer = read(mcp_call(&served, "nope", json!({})).await).await;
    assert_eq!(answer["error"]["code"], -32602);
    let answer = served.rpc("tools/call", json!({"name": "fail"})).await;
    assert_eq!(answer["error"]["code"], -32603);
}

#[tokio::test]
async fn progress_comes_as_events() {
    let served = Served::start().await;
    let response = mcp_call(&served, "steps", json!({"_meta": {"progressToken": "p"}})).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.unwrap();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let messages: Vec<&Value> = events[..3]
        .iter()
        .map(|event| &event["params"]["message"])
        .collect();
    assert_eq!(messages, ["step 1", "step 2", "step 3"]);
    assert_eq!(events[3]["id"], 7);
    assert_eq!(
        events[3]["result"]["structuredContent"],
        json!({"result": "done"})
    );
}

#[tokio::test]
async fn bytes_flow_while_a_call_runs() {
    let mut options = options();
    options.limits.keep_alive.grace = Duration::from_millis(20);
    options.limits.keep_alive.every = Duration::from_millis(20);
    let served = Served::with(options).await;
    let call = json!({"name": "slow", "arguments": {"seconds": 0.3}});
    let body = json!({"jsonrpc": "2.0", "method": "tools/call", "params": call, "id": 1});
    let response = served.post("/mcp", &body).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    let text = response.text().await.unwrap();
    assert!(text.starts_with(' '), "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["result"]["data"], "slept");
}

#[tokio::test]
async fn a_call_ends_when_its_caller_disconnects() {
    let mut options = options();
    options.limits.keep_alive.grace = Duration::from_millis(100);
    let served = Served::with(options).await;
    let call = json!({"name": "slow", "arguments": {"seconds": 3600}});
    let body = json!({"jsonrpc": "2.0", "method": "tools/call", "params": call, "id": 1});
    // Once before the first byte of the answer, once after.
    for wait_ms in [0, 300] {
        let mut posting = Box::pin(served.post("/mcp", &body));
        tokio::select! {
            _ = &mut posting => {}
            () = served.until_running(1) => {}
        }
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        drop(posting);
        served.until_running(0).await;
    }
    assert_eq!(served.finished.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn additional_routes_know_their_caller() {
    let hello =
        |owner: axum::Extension<crate::server::access::Owner>| async move { owner.0.0.to_string() };
    let extra = Router::new().route("/v1/who", axum::routing::get(hello));
    let served = Served::with(ServerOptions { extra, ..options() }).await;
    assert_eq!(served.get("/v1/who").await.text().await.unwrap(), "local");
    assert_eq!(served.get("/v1/other").await.status(), 404);
}

#[tokio::test]
async fn a_tool_that_panics_fails_one_call() {
    let served = Served::start().await;
    let answer = served.rpc("tools/call", json!({"name": "panic"})).await;
    assert_eq!(answer["error"]["code"], -32603);
    let answer = served
        .rpc(
            "tools/call",
            json!({"name": "echo", "arguments": {"message": "hi"}}),
        )
        .await;
    assert_eq!(answer["result"]["data"], "hi");
}
