//! Rollouts whose agent runs as a server, with the real OpenCode and the scripted endpoint.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::*;

impl Client {
    /// Asks until a member of the state has this value.
    async fn until(&self, id: &Value, name: &str, expect: Value) -> Value {
        loop {
            let state = self.json("get_state", id.clone()).await;
            if state[name] == expect {
                return state;
            }
            let is_over = state["ended"].is_string();
            assert!(!is_over, "ended before `{name}` was {expect}: {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn start(&self, arguments: Value) -> Value {
        let handle = self.json("start_rollout", arguments).await;
        json!({"rollout_id": handle["rollout_id"]})
    }
}

/// What is said in a transcript, as `role: text`, and tools by name.
fn said(messages: &Value) -> Vec<String> {
    let mut said = Vec::new();
    for message in messages.as_array().unwrap() {
        let role = message["info"]["role"].as_str().unwrap();
        for part in message["parts"].as_array().unwrap() {
            match part["type"].as_str().unwrap() {
                "text" => said.push(format!("{role}: {}", part["text"].as_str().unwrap())),
                "tool" => said.push(format!("tool: {}", part["tool"].as_str().unwrap())),
                _ => {}
            }
        }
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_rollout_takes_messages_until_it_is_finalized() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Begin.", "verify": ["grep -qx one a.txt", "grep -qx two b.txt"],
        "solution": ["echo one > a.txt", {"say": "The first half."}, "echo two > b.txt", {"say": "All of it."}],
    });
    let id = client.start(arguments).await;
    let state = client.until(&id, "status", json!("done")).await;
    let session = state["serve_session_id"].as_str().unwrap().to_owned();
    assert!(session.starts_with("ses_"), "{session}");
    assert_eq!(
        (&state["driver"], &state["ended"], &state["error"]),
        (&json!("serve"), &Value::Null, &Value::Null)
    );
    assert!(state["finished_at"].is_f64());
    let first = ["user: Begin.", "tool: bash", "assistant: The first half."];
    let messages = client.json("get_messages", id.clone()).await;
    assert_eq!(said(&messages["messages"]), first);
    assert_eq!(messages["serve_session_id"], json!(session));

    let mut more = id.clone();
    more["text"] = json!("Go on.");
    let sent = client.json("send_message", more.clone()).await;
    assert_eq!(sent["queued"], json!(true));
    client.until(&id, "proxy_turns_so_far", json!(4)).await;
    client.until(&id, "status", json!("done")).await;
    let whole = [
        &first[..],
        &["user: Go on.", "tool: bash", "assistant: All of it."],
    ]
    .concat();
    let live = client.json("get_messages", id.clone()).await;
    assert_eq!(said(&live["messages"]), whole);

    let result = client.json("finalize_rollout", id.clone()).await;
    assert_eq!(
        (&result["ended"], &result["reward"], &result["error"]),
        (&json!("completed"), &json!(1.0), &Value::Null)
    );
    assert_eq!(
        (&result["driver"], &result["serve_session_id"]),
        (&json!("serve"), &json!(session))
    );
    assert_eq!(
        (&result["agent_exit_code"], &result["exit_code"]),
        (&Value::Null, &json!(0))
    );
    assert_eq!(
        result["training_trace"]["turns"].as_array().unwrap().len(),
        4
    );
    assert_eq!(result["agent_report"]["last_message"], json!("All of it."));
    let stored = client.json("get_messages", id.clone()).await;
    assert_eq!(stored["messages"], live["messages"]);
    let path = format!("{}/messages.json", result["record"].as_str().unwrap());
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    check_events(&client, &id, &session).await;
    let late = client.json("send_message", more).await;
    assert_eq!(late["queued"], json!(false));
    client.close().await;
}

/// The events tell what was said and called, and when the agent was idle.
async fn check_events(client: &Client, id: &Value, session: &str) {
    let told = client.json("subscribe_events", id.clone()).await;
    let told = told["events"].as_array().unwrap();
    let of = |name: &str| -> Vec<&Value> {
        let named = told.iter().filter(|event| event["event"] == json!(name));
        named.collect()
    };
    assert_eq!(of("session")[0]["serve_session_id"], json!(session));
    assert_eq!((of("turn_started").len(), of("idle").len()), (2, 2));
    let calls = of("call");
    let command = &calls[0]["tool_calls"][0];
    assert_eq!(command["name"], json!("bash"));
    let arguments = command["arguments"].as_str().unwrap();
    assert!(arguments.contains("echo one > a.txt"), "{arguments}");
    assert_eq!(calls[1]["text"], json!("The first half."));
    let replies = of("reply");
    let kind = |kind: &str| -> Vec<&Value> {
        let of_kind = replies.iter().map(|event| &event["reply"]);
        of_kind
            .filter(|reply| reply["kind"] == json!(kind))
            .collect()
    };
    let texts: String = kind("delta")
        .iter()
        .filter_map(|it| it["text"].as_str())
        .collect();
    assert_eq!(texts, "The first half.All of it.");
    assert!(
        kind("tool")
            .iter()
            .any(|it| it["status"] == json!("completed"))
    );
    assert_eq!(kind("final").len(), 2);
    assert_eq!(told.last().unwrap()["event"], json!("finished"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_while_the_agent_works_is_the_next_turn_of_the_same_rollout() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Begin.", "verify": ["test -f b.txt"], "driver": "serve",
        "solution": ["sleep 1; touch a.txt", {"say": "Done."}, "touch b.txt", {"say": "More."}],
    });
    let id = client.start(arguments).await;
    let mut more = id.clone();
    more["text"] = json!("And more.");
    // Also before there is a server that could take it.
    assert_eq!(
        client.json("send_message", more).await["queued"],
        json!(true)
    );
    let result = client.json("finalize_rollout", id.clone()).await;
    assert_eq!(
        (&result["ended"], &result["reward"]),
        (&json!("completed"), &json!(1.0)),
        "{}",
        result["error"]
    );
    let messages = client.json("get_messages", id).await;
    let said = said(&messages["messages"]);
    assert_eq!(said.last().unwrap(), "assistant: More.");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_rollout_ends_with_its_time_and_is_judged_by_its_last_turn() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Begin.", "verify": ["test -f a.txt"], "agent_timeout_s": 30,
        "solution": ["touch a.txt", {"say": "Done."}],
    });
    let id = client.start(arguments).await;
    client.until(&id, "status", json!("done")).await;
    client.until(&id, "ended", json!("completed")).await;
    let result = client.json("finalize_rollout", id).await;
    assert_eq!(
        (&result["reward"], &result["error"]),
        (&json!(1.0), &Value::Null)
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_without_a_server_run_as_commands_unless_one_is_asked_for() {
    let client = Client::new().await;
    let mut arguments = json!({
        "instruction": "Begin.", "agent": "oracle", "solution": ["touch a.txt"], "verify": ["test -f a.txt"],
    });
    let id = client.start(arguments.clone()).await;
    let result = client.json("finalize_rollout", id.clone()).await;
    assert_eq!(
        (
            &result["driver"],
            &result["reward"],
            &result["serve_session_id"]
        ),
        (&json!("cli"), &json!(1.0), &Value::Null)
    );
    let mut message = id;
    message["text"] = json!("More.");
    let refused = client.json("send_message", message).await;
    assert_eq!(refused["queued"], json!(false));
    arguments["driver"] = json!("serve");
    let error = client.call("start_rollout", arguments.clone()).await;
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("oracle cannot be driven as a server"),
        "{error}"
    );
    assert!(error.contains("these can: opencode"), "{error}");
    arguments["driver"] = json!("other");
    let error = client.call("run_rollout", arguments).await;
    assert!(error.err().unwrap().to_string().contains("cli or serve"));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_never_had_a_session_says_so() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Begin.", "setup": ["sleep 1; false"], "solution": ["true"],
    });
    let id = client.start(arguments).await;
    client.until(&id, "phase", json!("setup")).await;
    let running = client.json("get_messages", id.clone()).await;
    assert_eq!(running["note"], json!("session not created yet"));
    client.json("finalize_rollout", id.clone()).await;
    let over = client.json("get_messages", id).await;
    assert_eq!(
        (&over["error"], &over["serve_session_id"], &over["messages"]),
        (&json!("session never created"), &Value::Null, &json!([]))
    );
    client.close().await;
}
