//! `rollcage live` as its users meet it, with the real `opencode serve` and a scripted model.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rollcage_testkit::upstream::{Reply, StreamEnd, Upstream};
use serde_json::{Value, json};

use crate::support::{says, streams};

mod bench;
mod home;

use home::{KEY, LiveHome, Ran, until};

/// Two turns with a tool call each, and one that takes long.
const TASK: &str = r#"
instruction = "not sent"

[[solution]]
write = "a.txt"
content = "one\n"

[[solution]]
say = "First done."

[[solution]]
run = "cat a.txt b.txt"

[[solution]]
say = "Second done."

[[solution]]
run = "sleep 1000"
"#;

fn terminal(replies: &[Value]) -> Vec<&Value> {
    let ends = ["final", "error"].map(Value::from);
    replies
        .iter()
        .filter(|reply| ends.contains(&reply["kind"]))
        .collect()
}

/// In order, without gaps, and with exactly one end.
#[track_caller]
fn check_whole(replies: &[Value]) {
    let numbers: Vec<_> = replies.iter().map(|reply| reply["seq"].as_u64()).collect();
    let expected: Vec<_> = (1..=replies.len() as u64).map(Some).collect();
    assert_eq!(numbers, expected, "{replies:#?}");
    assert_eq!(terminal(replies).len(), 1, "{replies:#?}");
    assert_eq!(terminal(replies)[0], replies.last().unwrap());
}

fn start(home: &LiveHome) -> String {
    let task = home.write("task.toml", TASK);
    let started = home.json(&[
        "live", "start", "--name", "helper", "--task", &task, "--json",
    ]);
    assert_eq!(started.len(), 1);
    let agent = &started[0];
    assert_eq!(
        (&agent["name"], &agent["state"]),
        (&json!("helper"), &json!("idle"))
    );
    assert!(
        agent["base_url"]
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:")
    );
    assert!(agent["password"].as_str().unwrap().len() > 20);
    agent["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_from_start_to_removal() {
    let home = LiveHome::new().await;
    let id = start(&home);
    let listed = home.json(&["live", "list", "--json"]);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["state"]),
        (&json!(id), &json!("idle"))
    );
    assert!(listed[0]["base_url"].is_null() && listed[0]["password"].is_null());

    let replies = home.json(&["live", "turn", "helper", "Write it", "--json"]);
    check_whole(&replies);
    assert_eq!(terminal(&replies)[0]["text"], "First done.");
    let is_write = |reply: &&Value| reply["kind"] == "tool" && reply["status"] == "completed";
    assert_eq!(replies.iter().filter(is_write).count(), 1, "{replies:#?}");

    let (status, content) = home.ask(&id, ("GET", "/files/a.txt", "")).await;
    assert_eq!((status, content.as_slice()), (200, b"one\n".as_slice()));
    let (status, _) = home.ask(&id, ("PUT", "/files/b.txt", "two\n")).await;
    assert_eq!(status, 204);
    let chat = home
        .run_with(&["live", "chat", &id[..18]], "Read them\n/files\n")
        .ok();
    for said in [
        "✓ bash cat a.txt b.txt → one",
        "Second done.",
        "a.txt",
        "b.txt",
    ] {
        assert!(chat.stdout.contains(said), "{said}: {}", chat.stdout);
    }
    assert!(!chat.stdout.contains('\u{1b}'), "{:?}", chat.stdout);
    home.run(&["live", "logs", "helper"]).ok();
    let health = home.ask_json(&id, "/health").await;
    assert_eq!(health["healthy"], true);
    home.check_private();

    home.run(&["live", "stop", "helper"]).ok();
    home.check_nothing_left();
    let listed = home.json(&["live", "list", "--json"]);
    assert_eq!(
        (&listed[0]["state"], &listed[0]["turns"]),
        (&json!("stopped"), &json!(2))
    );
    let refused = home.run(&["live", "turn", "helper", "hello?"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("rollcage live start --id"),
        "{}",
        refused.stderr
    );
    let record = listed[0]["records"][0].as_str().unwrap();
    home.run(&["show", record]).ok();

    check_goes_on(&home, &id).await;
    home.run(&["live", "stop", &id]).ok();
    home.run(&["live", "remove", &id]).ok();
    assert!(!home.agent(&id).exists());
    home.check_nothing_left();
}

/// A stopped agent has its conversation and files when it is started again.
async fn check_goes_on(home: &LiveHome, id: &str) {
    let again = home.json(&["live", "start", "--id", "helper", "--json"]);
    assert_eq!(again[0]["id"], id);
    let messages = home.ask_json(id, "/messages").await;
    let said = messages["messages"].to_string();
    assert!(
        said.contains("Write it") && said.contains("Second done."),
        "{said}"
    );
    let (status, content) = home.ask(id, ("GET", "/files/b.txt", "")).await;
    assert_eq!((status, content.as_slice()), (200, b"two\n".as_slice()));
    let turns = home.ask_json(id, "/turns?limit=1").await;
    assert_eq!(
        (
            turns["turns"].as_array().unwrap().len(),
            &turns["next_offset"]
        ),
        (1, &json!(1))
    );
    let first = home.ask_json(id, "/turns?offset=1").await;
    let turn = first["turns"][0]["turn_id"].as_str().unwrap();
    let replies = home.ask_json(id, &format!("/turns/{turn}")).await;
    check_whole(replies["replies"].as_array().unwrap());
    let (_, events) = home
        .ask(id, ("GET", &format!("/turns/{turn}/events?after=1"), ""))
        .await;
    let events = String::from_utf8(events).unwrap();
    assert!(
        events.contains("id: 2") && !events.contains("id: 1\n"),
        "{events}"
    );
    // A new conversation begins with the script's first step again.
    let replies = home.json(&["live", "turn", id, "Again", "--new", "--json"]);
    check_whole(&replies);
    assert_eq!(terminal(&replies)[0]["text"], "First done.");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_starts_of_one_agent_at_once_are_one() {
    let home = LiveHome::new().await;
    let id = start(&home);
    home.run(&["live", "stop", &id]).ok();
    let starts: Vec<_> = (0..10)
        .map(|_| home.spawn(&["live", "start", "--id", &id, "--json"]))
        .collect();
    let mut addresses = Vec::new();
    for start in starts {
        let ran = Ran::of(start.wait_with_output().unwrap()).ok();
        addresses.push(ran.lines()[0]["base_url"].clone());
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    assert_eq!(home.supervisors().len(), 1);
    home.run(&["live", "stop", &id]).ok();
    home.check_nothing_left();
}

/// A client of a turn that takes long.
struct Begun {
    process: Child,
    stdout: BufReader<ChildStdout>,
}

impl Begun {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// The rest of what it printed, and how it ended.
    fn end(mut self) -> (Vec<Value>, i32) {
        let lines = self.stdout.lines();
        let replies = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let replies = replies.collect();
        (replies, self.process.wait().unwrap().code().unwrap())
    }
}

/// Begins a turn and returns when its first reply was printed.
fn begin(home: &LiveHome, id: &str) -> Begun {
    let mut command = home.command(&["live", "turn", id, "Take your time", "--new", "--json"]);
    let mut turn = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(turn.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let reply: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(reply["seq"], 1);
    Begun {
        process: turn,
        stdout,
    }
}

async fn last_turn(home: &LiveHome, id: &str) -> Value {
    home.ask_json(id, "/turns?limit=1").await["turns"][0].clone()
}

const LONG: &str = "instruction = 'x'\n[[solution]]\nsay = 'Wait.'\nrun = 'sleep 1000'\n";

fn start_long(home: &LiveHome) -> String {
    let task = home.write("long.toml", LONG);
    let started = home.json(&["live", "start", "--task", &task, "--json"]);
    started[0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_outlives_its_client_and_is_aborted_by_a_stop() {
    let home = LiveHome::new().await;
    let id = start_long(&home);
    let mut client = begin(&home, &id);
    client.process.kill().unwrap();
    client.process.wait().unwrap();
    let listed = home.json(&["live", "list", "--json"]);
    assert_eq!(
        (&listed[0]["state"], &listed[0]["open_turns"]),
        (&json!("busy"), &json!(1))
    );
    assert!(last_turn(&home, &id).await["end"].is_null());

    let turn = last_turn(&home, &id).await["turn_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let (status, _) = home
        .ask(&id, ("POST", &format!("/turns/{turn}/abort"), ""))
        .await;
    assert_eq!(status, 202);
    let (_, events) = home
        .ask(&id, ("GET", &format!("/turns/{turn}/events"), ""))
        .await;
    let events = String::from_utf8(events).unwrap();
    assert_eq!(
        events.matches("\"code\":\"aborted\"").count(),
        1,
        "{events}"
    );
    let client = begin(&home, &id);
    client.signal(Signal::SIGINT);
    let (replies, code) = client.end();
    assert_eq!(
        (&replies.last().unwrap()["code"], code),
        (&json!("aborted"), 1)
    );

    let client = begin(&home, &id);
    home.run(&["live", "stop", &id]).ok();
    let (replies, code) = client.end();
    assert_eq!(
        (&replies.last().unwrap()["code"], code),
        (&json!("aborted"), 1)
    );
    home.check_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_leaves_an_interrupted_turn_and_nothing_that_runs() {
    let home = LiveHome::new().await;
    let id = start_long(&home);
    let client = begin(&home, &id);
    let supervisor = home.supervisors();
    assert_eq!(supervisor.len(), 1);
    kill(Pid::from_raw(supervisor[0]), Signal::SIGKILL).unwrap();
    let (replies, status) = client.end();
    assert_eq!(status, 1);
    let is_last = |reply: &&Value| reply["kind"] == "final" || reply["kind"] == "error";
    assert_eq!(replies.iter().filter(is_last).count(), 1, "{replies:?}");
    let last = replies.last().unwrap();
    assert_eq!(
        (&last["code"], &last["retryable"]),
        (&json!("interrupted"), &json!(true))
    );
    // The first was read before.
    assert_eq!(last["seq"], json!(replies.len() + 1), "{replies:?}");
    until("the sandbox is gone", || home.processes().is_empty());
    let listed = home.json(&["live", "list", "--json"]);
    assert_eq!(listed[0]["state"], "stopped");
    home.check_nothing_left();
    home.run(&["live", "start", "--id", &id]).ok();
    let turn = last_turn(&home, &id).await;
    assert_eq!(
        (&turn["end"]["kind"], &turn["end"]["code"]),
        (&json!("error"), &json!("interrupted"))
    );
    assert_eq!(
        (&last["turn_id"], &last["trace_id"]),
        (&turn["turn_id"], &turn["turn_id"])
    );
    // SIGTERM saves it and ends in good order.
    kill(Pid::from_raw(home.supervisors()[0]), Signal::SIGTERM).unwrap();
    until("the supervisor is gone", || home.supervisors().is_empty());
    home.check_nothing_left();
    home.run(&["live", "stop", &id]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_nowhere_and_a_model_that_fails_is_told() {
    let home = LiveHome::new().await;
    let is_broken = Arc::new(AtomicBool::new(false));
    let broken = Arc::clone(&is_broken);
    let upstream = Upstream::start(move |_, request| {
        if broken.load(Ordering::Relaxed) {
            return Reply::Whole {
                status: 400,
                content_type: "application/json",
                body: r#"{"error": {"message": "no such thing"}}"#.to_owned(),
            };
        }
        match request.body.contains("\"stream\":true") {
            true => streams(true, StreamEnd::Clean),
            false => says("ok"),
        }
    });
    let upstream = upstream.unwrap();
    let started = home.json(&[
        "live",
        "start",
        "--base-url",
        upstream.base_url(),
        "--model",
        "test-model",
        "--api-key-env",
        "LIVE_TEST_KEY",
        "--json",
    ]);
    let id = started[0]["id"].as_str().unwrap();
    let replies = home.json(&["live", "turn", id, "hi", "--json"]);
    check_whole(&replies);
    assert_eq!(terminal(&replies)[0]["text"], "ok");
    let has_key =
        |(name, value): &(String, String)| name == "authorization" && value.ends_with(KEY);
    assert!(
        upstream
            .requests()
            .iter()
            .all(|request| request.headers.iter().any(has_key))
    );
    home.check_private();
    is_broken.store(true, Ordering::Relaxed);
    let failed = home.run(&["live", "turn", id, "hi", "--timeout-s", "20", "--json"]);
    assert_eq!(failed.code, 1, "{}", failed.stdout);
    check_whole(&failed.lines());
    assert_eq!(failed.lines().last().unwrap()["code"], "upstream");
    home.run(&["live", "stop", id]).ok();
    home.check_private();
    home.check_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_its_clients_agents_apart() {
    let home = LiveHome::new().await;
    let (one, other) = ("token-of-one-0123456789", "token-of-other-0123456789");
    let mut command = home.command(&[
        "serve",
        "--port",
        "0",
        "--token-env",
        "ONE",
        "--token-env",
        "OTHER",
    ]);
    let mut server = command.env("ONE", one).env("OTHER", other).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let url = line
        .split_whitespace()
        .find(|word| word.starts_with("http://"))
        .unwrap()
        .to_owned();
    let run = |name: &str, arguments: &[&str]| {
        let mut command =
            home.command(&[arguments, &["--server", &url, "--token-env", name]].concat());
        Ran::of(
            command
                .env("ONE", one)
                .env("OTHER", other)
                .output()
                .unwrap(),
        )
    };
    let task = home.write("task.toml", TASK);
    let started = run(
        "ONE",
        &["live", "start", "--name", "mine", "--task", &task, "--json"],
    )
    .ok();
    let id = started.lines()[0]["id"].as_str().unwrap().to_owned();
    assert!(started.lines()[0]["password"].is_string());
    assert_eq!(
        run("ONE", &["live", "list", "--json"]).ok().lines().len(),
        1
    );
    assert_eq!(run("OTHER", &["live", "list", "--json"]).ok().stdout, "");
    assert_eq!(run("OTHER", &["live", "turn", &id, "hi"]).code, 2);
    let turn = run("ONE", &["live", "turn", "mine", "Write it", "--json"]).ok();
    check_whole(&turn.lines());
    assert_eq!(terminal(&turn.lines())[0]["text"], "First done.");
    let refused = run("ONE", &["live", "start", "--sandbox", "none"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    check_rest(&url, one, other, &id).await;
    run("ONE", &["live", "stop", &id]).ok();
    run("ONE", &["live", "remove", &id]).ok();
    kill(Pid::from_raw(server.id() as i32), Signal::SIGTERM).unwrap();
    server.wait().unwrap();
    home.check_nothing_left();
}

async fn check_rest(url: &str, one: &str, other: &str, id: &str) {
    let client = reqwest::Client::new();
    let ask = async |token: &str, path: &str, body: Option<Value>| {
        let request = match &body {
            Some(body) => client.post(format!("{url}{path}")).body(body.to_string()),
            None => client.get(format!("{url}{path}")),
        };
        let request = request
            .bearer_auth(token)
            .header("content-type", "application/json");
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let body = response.bytes().await.unwrap();
        (
            status,
            serde_json::from_slice::<Value>(&body).unwrap_or_default(),
        )
    };
    let path = format!("/v1/live/{id}");
    assert_eq!(ask(one, &path, None).await.0, 200);
    assert_eq!(ask(other, &path, None).await.0, 404);
    assert_eq!(
        ask(other, &format!("{path}/stop"), Some(json!({}))).await.0,
        404
    );
    let none = json!({"sandbox": "none", "solution": ["true"]});
    assert_eq!(ask(one, "/v1/live", Some(none)).await.0, 400);
    let (status, turn) = ask(
        one,
        &format!("{path}/turns"),
        Some(json!({"text": "Go on"})),
    )
    .await;
    assert_eq!(status, 202);
    let turn = turn["turn_id"].as_str().unwrap().to_owned();
    // Ends with the turn.
    ask(one, &format!("{path}/turns/{turn}/events"), None).await;
    let (_, replies) = ask(one, &format!("{path}/turns/{turn}"), None).await;
    check_whole(replies["replies"].as_array().unwrap());
    assert_eq!(
        ask(other, &format!("{path}/turns/{turn}"), None).await.0,
        404
    );
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "live_turn", "arguments": {"id": id, "text": "Once more", "is_new_session": true}},
    });
    let (_, answer) = ask(one, "/mcp", Some(call)).await;
    let text = answer["result"].to_string();
    assert!(
        text.contains("First done.") && text.contains("done"),
        "{answer}"
    );
}
