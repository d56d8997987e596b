use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::server::harness::{backend, close, limits, owner};
use crate::server::tool::{ClientKind, ProgressUpdate};

mod served;

struct Client {
    tools: RolloutTools,
    owner: String,
}

impl Client {
    async fn new() -> Self {
        Client {
            tools: RolloutTools::new(backend(limits()).await),
            owner: owner(),
        }
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        self.call_with(name, arguments, None).await
    }

    async fn call_with(
        &self,
        name: &str,
        arguments: Value,
        progress: Option<mpsc::Sender<ProgressUpdate>>,
    ) -> Result<ToolOutput, ToolError> {
        let caller = Caller {
            owner: self.owner.clone(),
            client: ClientKind::OpenEnv,
            progress,
        };
        let arguments = arguments.as_object().cloned().unwrap();
        self.tools.call(name, arguments, caller).await
    }

    /// A call whose answer is JSON in a string.
    async fn json(&self, name: &str, arguments: Value) -> Value {
        parsed(&self.call(name, arguments).await.unwrap())
    }

    async fn close(self) {
        close(&self.tools.backend).await;
    }
}

fn parsed(answered: &ToolOutput) -> Value {
    serde_json::from_str(answered.value.as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_rollout_returns_both_variants_of_the_result() {
    let client = Client::new().await;
    let (sender, mut progress) = mpsc::channel(1000);
    let arguments = json!({
        "instruction": "Create a.txt.", "solution": [{"say": "I will.", "run": "echo hello > a.txt"}], "task_id": "t1",
        "verify": ["test -f a.txt", "false"], "setup": ["touch before"], "upload_files": {"given.txt": "given"},
    });
    let answered = client
        .call_with("run_rollout", arguments, Some(sender))
        .await
        .unwrap();
    let result = parsed(&answered);
    assert_eq!(
        (&result["ended"], &result["error"]),
        (&json!("completed"), &Value::Null)
    );
    assert_eq!(
        (&result["reward"], &result["task_id"]),
        (&json!(0.5), &json!("t1"))
    );
    assert_eq!(
        (&result["agent_exit_code"], &result["exit_code"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(result["files"], result["workdir_files"]);
    assert_eq!(
        result["files"]["/home/user/workdir/a.txt"],
        json!("hello\n")
    );
    assert_eq!(result["test_exit_code"], json!(1));
    for name in [
        "verifier_stdout",
        "verifier_stderr",
        "install_log_tail",
        "agent_log_tail",
        "proxy_log_tail",
    ] {
        assert!(result[name].is_string(), "{name}");
    }
    assert!(
        !result["training_trace"]["turns"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let finished = answered.finished.unwrap();
    assert_eq!(finished.task_id, "t1");
    assert_eq!((finished.reward, finished.is_counted), (Some(0.5), true));
    assert_eq!(json!(finished.sandbox_id), result["sandbox_id"]);

    check_progress(&mut progress);
    let id = json!({"rollout_id": result["rollout_id"]});
    let state = client.json("get_state", id.clone()).await;
    assert_eq!(
        (&state["status"], &state["ended"]),
        (&json!("done"), &json!("completed"))
    );
    assert_eq!(state["proxy_turns_so_far"], result["usage"]["calls"]);
    let messages = client.json("get_messages", id.clone()).await;
    check_messages(&messages["messages"]);
    let events = client.json("subscribe_events", id.clone()).await;
    let events = events["events"].as_array().unwrap();
    assert_eq!(events.last().unwrap()["event"], json!("finished"));
    let again = client.json("finalize_rollout", id).await;
    assert_eq!(again["reward"], json!(0.5));
    client.close().await;
}

/// Progress is numbered from the queue to the end.
fn check_progress(progress: &mut mpsc::Receiver<ProgressUpdate>) {
    let mut messages = Vec::new();
    while let Ok(step) = progress.try_recv() {
        assert_eq!(step.done, messages.len() as f64 + 1.0);
        messages.push(step.message);
    }
    assert!(messages[0].starts_with("queued as "), "{messages:?}");
    assert!(
        messages
            .iter()
            .any(|message| message.starts_with("1 model calls")),
        "{messages:?}"
    );
    assert_eq!(messages.last().unwrap(), "completed, reward 0.5");
}

/// The instruction, a tool call with its output, and the final message.
fn check_messages(messages: &Value) {
    let messages = messages.as_array().unwrap();
    let roles: Vec<_> = messages
        .iter()
        .map(|message| message["info"]["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "assistant"]);
    assert_eq!(messages[0]["parts"][0]["text"], json!("Create a.txt."));
    let parts = messages[1]["parts"].as_array().unwrap();
    assert_eq!(parts[0]["text"], json!("I will."));
    assert_eq!(
        (&parts[1]["type"], &parts[1]["tool"]),
        (&json!("tool"), &json!("bash"))
    );
    assert_eq!(parts[1]["state"]["status"], json!("completed"));
    assert_eq!(
        parts[1]["state"]["input"]["command"],
        json!("echo hello > a.txt")
    );
    assert!(messages[1]["info"]["tokens"]["output"].as_u64().unwrap() > 0);
    assert_eq!(messages[1]["info"]["parentID"], messages[0]["info"]["id"]);
    assert_eq!(messages[2]["parts"][0]["text"], json!("Done."));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_started_watched_aborted_and_finalized() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Wait.", "solution": ["sleep 300"], "task_id": "t2", "setup": ["echo begun > before"],
        "verify": ["test -f before", "test -f after"],
    });
    let handle = client.json("start_rollout", arguments).await;
    assert_eq!(
        (&handle["status"], &handle["task_id"]),
        (&json!("starting"), &json!("t2"))
    );
    let id = json!({"rollout_id": handle["rollout_id"]});
    let (messages, call) = loop {
        let state = client.json("get_state", id.clone()).await;
        assert_eq!(
            (&state["status"], &state["error"]),
            (&json!("running"), &Value::Null)
        );
        if state["proxy_turns_so_far"].as_u64().unwrap() > 0 {
            let messages = client.json("get_messages", id.clone()).await;
            let parts = messages.pointer("/messages/1/parts");
            let mut parts = parts.and_then(Value::as_array).into_iter().flatten();
            let call = parts.find(|part| part["state"]["status"] == json!("running"));
            if let Some(call) = call.cloned() {
                break (messages, call);
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(messages["status"], json!("running"));
    assert_eq!(call["tool"], json!("bash"));
    assert!(messages["serve_session_id"].is_string());

    let other = Client {
        owner: owner(),
        tools: RolloutTools::new(Arc::clone(&client.tools.backend)),
    };
    assert_eq!(
        other.json("get_state", id.clone()).await["status"],
        json!("unknown")
    );
    assert_eq!(
        other.json("abort_rollout", id.clone()).await["reason"],
        json!("unknown")
    );

    let mut impatient = id.clone();
    impatient["wait_s"] = json!(0);
    let late = client.json("finalize_rollout", impatient).await;
    let text = format!(
        "timeout waiting for rollout_id={}",
        id["rollout_id"].as_str().unwrap()
    );
    assert_eq!(
        (&late["error"], &late["exit_code"]),
        (&json!(text), &json!(-1))
    );
    assert_eq!(
        (&late["status"], &late["ended"]),
        (&json!("running"), &Value::Null)
    );
    check_aborted(&client, &id).await;
    let again = client.json("abort_rollout", id.clone()).await;
    assert_eq!(
        (&again["aborted"], &again["reason"]),
        (&json!(false), &json!("already done"))
    );
    client.close().await;
}

/// Aborting ends the agent, and finalizing verifies what it left.
async fn check_aborted(client: &Client, id: &Value) {
    let aborted = client.json("abort_rollout", id.clone()).await;
    assert_eq!(aborted["aborted"], json!(true));
    let answered = client.call("finalize_rollout", id.clone()).await.unwrap();
    let result = parsed(&answered);
    assert_eq!(
        (&result["ended"], &result["reward"]),
        (&json!("cancelled"), &json!(0.5))
    );
    assert_eq!(
        (&result["graded"], &result["reward_valid"]),
        (&json!(true), &json!(false))
    );
    let before = &result["files"]["/home/user/workdir/before"];
    assert_eq!(before, &json!("begun\n"));
    assert!(!result["proxy_turns"].as_array().unwrap().is_empty());
    assert_eq!(answered.finished.unwrap().reward, Some(0.5));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_rollout_is_done_while_its_sandbox_is_kept() {
    let client = Client::new().await;
    let arguments = json!({
        "instruction": "Wait.", "solution": ["sleep 300"], "test_script": "echo 0.5 > ~/logs/verifier/reward.txt",
    });
    let handle = client.json("start_rollout", arguments).await;
    let id = json!({"rollout_id": handle["rollout_id"]});
    let until = async |name: &str, expect: Value| loop {
        let state = client.json("get_state", id.clone()).await;
        if state[name] == expect {
            return state;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    until("phase", json!("agent")).await;
    client.json("abort_rollout", id.clone()).await;
    let state = until("phase", json!("kept")).await;
    assert_eq!(
        (&state["status"], &state["ended"]),
        (&json!("done"), &Value::Null)
    );
    assert!(state["finished_at"].is_f64());
    let result = client.json("finalize_rollout", id.clone()).await;
    assert_eq!(
        (&result["ended"], &result["reward"], &result["graded"]),
        (&json!("cancelled"), &json!(0.5), &json!(true))
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reward_of_a_test_script_is_what_it_writes_and_nothing_else() {
    let client = Client::new().await;
    let run = async |script: &str| {
        let arguments =
            json!({"instruction": "Go.", "solution": ["echo it\\'s > a"], "test_script": script});
        client.json("run_rollout", arguments).await
    };
    let (written, silent) = tokio::join!(
        run("grep -q \"it's\" a && echo '0.25' > ~/logs/verifier/reward.txt; echo 'out'; exit 3"),
        run("true")
    );
    assert_eq!(
        (&written["reward"], &written["test_exit_code"]),
        (&json!(0.25), &json!(3))
    );
    assert_eq!(written["verifier_stdout"], json!("out\n"));
    assert_eq!(
        written["verify_results"][0]["cmd"],
        json!("/home/user/tests/test.sh")
    );
    // A policy's code may have kept the script from writing it.
    assert_eq!(
        (&silent["reward"], &silent["ended"], &silent["reward_valid"]),
        (&json!(0.0), &json!("completed"), &json!(true))
    );
    let findings = silent["findings"].as_array().unwrap();
    let unreadable = findings
        .iter()
        .find(|finding| finding["code"] == "reward_unreadable");
    let text = unreadable.unwrap()["text"].as_str().unwrap();
    assert!(text.contains("wrote no reward to"), "{text}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_returns_an_array_and_a_task_of_the_server_runs_by_its_id() {
    let client = Client::new().await;
    let tasks = client.json("list_tasks", json!({"split": "train"})).await;
    let task = &tasks["tasks"][tasks["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .position(|task| task["id"] == "hello")
        .unwrap()];
    let arguments =
        json!({"task": {"index": task["index"], "split": "train"}, "endpoint": "scripted", "n": 2});
    let results = client.json("run_rollout", arguments).await;
    let rewards: Vec<_> = results
        .as_array()
        .unwrap()
        .iter()
        .map(|result| &result["reward"])
        .collect();
    assert_eq!(rewards, [&json!(1.0), &json!(1.0)]);
    let many = json!({"task": "hello", "endpoint": "scripted", "n": 100});
    let refused = client.call("run_rollout", many).await;
    assert!(matches!(refused, Err(ToolError::Failed(text)) if text.contains("the queue is full")));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_ids_and_wrong_arguments_are_answered_like_the_original() {
    let client = Client::new().await;
    assert!(
        client
            .tools
            .list()
            .iter()
            .any(|tool| tool.name == "run_rollout")
    );
    let unknown = json!({"rollout_id": "abc"});
    assert_eq!(
        client.json("get_state", unknown.clone()).await,
        json!({"rollout_id": "abc", "status": "unknown"})
    );
    assert_eq!(
        client.json("abort_rollout", unknown.clone()).await,
        json!({"rollout_id": "abc", "aborted": false, "reason": "unknown"})
    );
    assert_eq!(
        client.json("get_messages", unknown.clone()).await["messages"],
        json!([])
    );
    let result = client.json("finalize_rollout", unknown).await;
    assert_eq!(
        (&result["error"], &result["exit_code"], &result["reward"]),
        (&json!("unknown rollout_id: abc"), &json!(0), &Value::Null)
    );
    let wrong = client.call("get_state", json!({})).await.unwrap_err();
    assert!(
        matches!(wrong, ToolError::InvalidArguments(text) if text == "missing required argument `rollout_id` of get_state")
    );
    let wrong = client.call("run_rollout", json!({})).await.unwrap_err();
    assert!(
        matches!(wrong, ToolError::InvalidArguments(text) if text.starts_with("must provide either ``endpoint``"))
    );
    let wrong = client.call("nosuch", json!({})).await.unwrap_err();
    assert_eq!(wrong.to_string(), "Unknown tool: 'nosuch'");
    let endpoints = client.json("list_endpoints", json!({})).await;
    let vllm = &endpoints["endpoints"][0];
    assert_eq!(
        (&vllm["kind"], &vllm["configured"]),
        (&json!("vllm"), &json!(false))
    );
    assert_eq!(
        client.json("list_agents", json!({})).await["agents"][0]["name"],
        json!("opencode")
    );
    assert_eq!(
        client.json("capabilities", json!({})).await["sandboxes"],
        json!(["local"])
    );
    client.close().await;
}

#[test]
fn a_model_gets_a_summary_unless_it_asks_for_more() {
    assert_eq!(form_for(None, ClientKind::Mcp), ResultForm::Summary);
    assert_eq!(form_for(None, ClientKind::OpenEnv), ResultForm::OpenEnv);
    let asked = form_for(Some(TraceDetail::Turns), ClientKind::Mcp);
    assert_eq!(asked, ResultForm::View(TraceDetail::Turns));
}
