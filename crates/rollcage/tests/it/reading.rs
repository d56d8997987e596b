//! A record with a hole in it and a torn end: everybody who shows it says so.

use std::process::Command;

use rollcage_engine::store::{StartInfo, Store};
use rollcage_model::exchange::{Encoder, Line, Request, Response};
use rollcage_model::export::Format;
use rollcage_model::id::RolloutId;
use rollcage_model::task::Task;
use rollcage_model::transcript::McpNames;
use rollcage_testkit::upstream::{ReceivedRequest, Reply, Upstream};
use serde_json::{Value, json};

use crate::serve::Server;
use crate::standalone::{Proxy, chat};
use crate::support::says;

/// The hole, the torn end, and the MCP server of which the model was offered nothing.
const CODES: [&str; 3] = ["upstream_error", "capture_ingest_failed", "mcp_not_offered"];

#[track_caller]
fn check(place: &str, shown: &str, codes: &[&str]) {
    for code in codes {
        assert!(
            shown.contains(code),
            "{place} does not tell {code}: {shown}"
        );
    }
}

/// Two calls, the second without an answer, and the beginning of a third.
fn exchanges() -> Vec<u8> {
    let Reply::Whole { body: answer, .. } = says("ok") else {
        panic!("a whole answer");
    };
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    let mut write = |line: Line| {
        let frame = encoder.earlier(&line).frame(line).unwrap();
        bytes.extend(encoder.encode(frame).unwrap().0);
    };
    let request = |exchange, body: Value| {
        Line::Request(Request {
            exchange,
            body: body.to_string().into(),
            ..Request::default()
        })
    };
    write(request(1, chat()));
    write(Line::Response(Response {
        exchange: 1,
        status: Some(200),
        body: answer.into(),
        ..Response::default()
    }));
    write(request(
        2,
        json!({"messages": [{"role": "user", "content": "and"}]}),
    ));
    write(request(
        3,
        json!({"messages": [{"role": "user", "content": "then"}]}),
    ));
    bytes.truncate(bytes.len() - 5);
    bytes
}

/// What a killed process leaves of a rollout: the next start makes a result of it.
fn leave_record(home: &std::path::Path) -> String {
    let store = Store::open(home).unwrap();
    let id = RolloutId::generate();
    let task = Task {
        instruction: "go".to_owned(),
        ..Task::default()
    };
    let start = StartInfo {
        mcp_names: Some(McpNames::new("{server}_{tool}", [&"docs".to_owned()])),
        ..StartInfo::default()
    };
    let record = store.begin(id, &task, &start, None).unwrap();
    std::fs::write(record.exchanges(), exchanges()).unwrap();
    id.to_string()
}

fn rollcage(home: &std::path::Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args(arguments)
        .env("ROLLCAGE_HOME", home)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn every_view_reports_the_gaps_of_a_record() {
    let home = tempfile::tempdir().unwrap();
    let id = leave_record(home.path());
    let server = Server::start_in(home, &[]);
    let mut shown = Vec::new();
    for trace in ["none", "sequences", "turns"] {
        let path = format!("/v1/rollouts/{id}?trace={trace}");
        shown.push((path.clone(), server.text(&path).await));
    }
    // A Parquet table is compressed: the model's own tests read one.
    let formats = Format::ALL.iter().map(|format| format.as_str());
    let formats: Vec<&str> = formats.filter(|format| *format != "parquet").collect();
    for format in &formats {
        let path = format!("/v1/rollouts/{id}/trace?format={format}");
        shown.push((path.clone(), server.text(&path).await));
        let arguments = ["export", &id, "--format", format];
        shown.push((arguments.join(" "), rollcage(server.home(), &arguments)));
    }
    for arguments in [
        &["show", &id][..],
        &["show", &id, "--json"],
        &["show", &id, "--json", "--trace", "none"],
    ] {
        shown.push((arguments.join(" "), rollcage(server.home(), arguments)));
    }
    for (tool, arguments) in [
        ("get_messages", json!({})),
        ("get_trace", json!({"form": "sequences"})),
        ("get_trace", json!({"form": "turns"})),
        ("get_trace", json!({"form": "training_trace"})),
        ("finalize_rollout", json!({})),
        ("finalize_rollout", json!({"trace": "turns"})),
    ] {
        let mut given = arguments.clone();
        given["rollout_id"] = json!(id);
        let call = json!({"name": tool, "arguments": given});
        let (_, answer) = server.rpc("", "tools/call", call).await;
        shown.push((format!("{tool} {arguments}"), answer.to_string()));
    }
    for (place, text) in &shown {
        check(place, text, &CODES);
    }
}

/// The files of a record, to see that nothing was written.
fn files(home: &std::path::Path, id: &str) -> Vec<String> {
    let directory = std::fs::read_dir(home.join("rollouts").join(id)).unwrap();
    let names = directory.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_killed_processs_rollout_can_be_shown_and_exported_before_anything_closes_it() {
    let home = tempfile::tempdir().unwrap();
    let id = leave_record(home.path());
    let before = files(home.path(), &id);
    let shown = rollcage(home.path(), &["show", &id]);
    assert!(shown.contains("rollcage was killed while"), "{shown}");
    check("show", &shown, &CODES);
    let result = rollcage(home.path(), &["show", &id, "--json"]);
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["ended"], "engine_failed");
    let rows = rollcage(home.path(), &["export", &id]);
    let row: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&row["rollout_id"], &row["n_trainable"]),
        (&json!(id), &json!(2))
    );
    assert_eq!(files(home.path(), &id), before, "nothing was closed");
    // What the next start commits is what was shown.
    let id_of = id.parse::<RolloutId>().unwrap();
    let server = Server::start_in(home, &[]);
    let store = Store::open(server.home()).unwrap();
    let committed = serde_json::to_value(store.result(id_of).unwrap()).unwrap();
    for member in ["ended", "cause", "error", "findings", "usage", "started_at"] {
        assert_eq!(committed[member], result[member], "{member}");
    }
}

#[test]
fn a_running_rollout_is_shown_as_running_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let begun = store.begin(id, &Task::default(), &StartInfo::default(), None);
    let record = begun.unwrap();
    std::fs::write(record.exchanges(), exchanges()).unwrap();
    let id = id.to_string();
    let before = files(home.path(), &id);
    let shown = rollcage(home.path(), &["show", &id]);
    assert!(shown.contains("  running  "), "{shown}");
    let row: Value =
        serde_json::from_str(&rollcage(home.path(), &["show", &id, "--json"])).unwrap();
    assert_eq!(
        (&row["rollout_id"], &row["status"]),
        (&json!(id), &json!("running"))
    );
    let exported = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args(["export", &id])
        .env("ROLLCAGE_HOME", home.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&exported.stderr);
    assert!(
        !exported.status.success() && told.contains("still runs"),
        "{told}"
    );
    assert_eq!(files(home.path(), &id), before);
    drop(record);
}

/// What a damaged disk does to a record whose result is written already.
#[tokio::test]
async fn a_record_that_is_damaged_later_says_more_than_its_result() {
    let home = tempfile::tempdir().unwrap();
    let id = leave_record(home.path());
    let server = Server::start_in(home, &[]);
    let record = server.home().join("rollouts").join(&id);
    let result = std::fs::read_to_string(record.join("result.json")).unwrap();
    assert!(!result.contains("frame 2:"), "{result}");
    let path = record.join("exchanges.rec");
    let bytes = std::fs::read(&path).unwrap();
    // Within the answer to the first call.
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    for shown in [
        server.text(&format!("/v1/rollouts/{id}")).await,
        rollcage(server.home(), &["show", &id]),
    ] {
        assert!(shown.contains("frame 2: torn"), "{shown}");
    }
}

/// A server has thousands of sessions; listing them must not read their records.
#[tokio::test]
async fn a_listing_of_sessions_reads_no_record() {
    let failing = |_, asked: &ReceivedRequest| match asked.body.contains("fail") {
        true => Reply::Whole {
            status: 400,
            content_type: "application/json",
            body: json!({"error": {"message": "no"}}).to_string(),
        },
        false => says("ok"),
    };
    let upstream = Upstream::start(failing).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({"metadata": {"task": "t1"}})).await;
    let key = session["session_id"].as_str().unwrap();
    let path = "/v1/chat/completions";
    assert_eq!(proxy.send("POST", path, key, &chat()).await.0, 200);
    let mut refused = chat();
    refused["messages"][0]["content"] = json!("fail");
    proxy.send("POST", path, key, &refused).await;
    let listed = async || {
        let (status, listed) = proxy.send("GET", "/sessions", "", &json!({})).await;
        assert_eq!(status, 200, "{listed}");
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let mut row = listed["sessions"][0].clone();
        row["idle_s"].take();
        row
    };
    let mut row = json!({
        "session_id": key, "turns": 1, "roots": null, "idle_s": null, "upstream_errors": 1, "task": "t1",
    });
    assert_eq!(listed().await, row);
    // Who reads the record finds the conversations in it, and the listing remembers them.
    let rollout = format!("/sessions/{key}/rollout");
    assert_eq!(proxy.send("GET", &rollout, "", &json!({})).await.0, 200);
    row["roots"] = json!(1);
    std::fs::remove_file(proxy.record()).unwrap();
    assert_eq!(listed().await, row);
}

#[tokio::test]
async fn a_capture_session_reports_them_too() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    for _ in 0..2 {
        let (status, _) = proxy
            .send("POST", "/v1/chat/completions", key, &chat())
            .await;
        assert_eq!(status, 200);
    }
    let record = proxy.record();
    let bytes = std::fs::read(&record).unwrap();
    std::fs::write(&record, &bytes[..bytes.len() - 5]).unwrap();
    for what in ["rollout", "trace_entries"] {
        let path = format!("/sessions/{key}/{what}");
        let (status, shown) = proxy.send("GET", &path, "", &json!({})).await;
        assert_eq!(status, 200, "{shown}");
        check(&path, &shown, &CODES[..2]);
    }
}
