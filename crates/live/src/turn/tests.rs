//! Whole turns against a server in memory, which breaks in every way.

mod fake;
mod hostile;

use std::time::Duration;

use fake::{Answer as Says, Fake};
use rollcage_model::live::{Answer, ErrorCode, PermissionPolicy};
use serde_json::{Value, json};

use super::*;

fn connected() -> (f64, Value) {
    (0.0, json!({"type": "server.connected", "properties": {}}))
}

fn event(pause: f64, kind: &str, mut properties: Value) -> (f64, Value) {
    properties["sessionID"] = json!("s");
    (pause, json!({"type": kind, "properties": properties}))
}

fn user() -> Value {
    let part = json!({"id": "u1", "messageID": "u", "type": "text", "text": "go"});
    json!({"info": {"id": "u", "role": "user"}, "parts": [part]})
}

fn answer(text: &str) -> Value {
    let info = json!({"id": "a", "role": "assistant", "parentID": "u", "finish": "stop", "time": {"completed": 1}});
    let part = json!({"id": "p", "messageID": "a", "type": "text", "text": text});
    json!({"info": info, "parts": [part]})
}

/// Events of a turn until the text `one `.
fn begun() -> Vec<(f64, Value)> {
    let part = |message: &str, id: &str, text: &str| {
        let part = json!({"id": id, "messageID": message, "type": "text", "text": text});
        event(0.0, "message.part.updated", json!({ "part": part }))
    };
    vec![
        connected(),
        event(1.0, "message.updated", json!({"info": user()["info"]})),
        part("u", "u1", "go"),
        event(
            0.0,
            "message.updated",
            json!({"info": {"id": "a", "role": "assistant", "parentID": "u"}}),
        ),
        part("a", "p", ""),
        delta(0.0, "one "),
    ]
}

fn delta(pause: f64, text: &str) -> (f64, Value) {
    let delta = json!({"partID": "p", "messageID": "a", "field": "text", "delta": text});
    event(pause, "message.part.delta", delta)
}

fn ok(value: Value) -> Vec<Says> {
    vec![Says::Json(200, value)]
}

fn after(seconds: f64, then: Says) -> Vec<Says> {
    vec![Says::After(seconds, Box::new(then))]
}

/// A server whose turns say `one two` after ten seconds.
fn fake() -> Fake {
    Fake::default()
        .on("POST /session", ok(json!({"id": "s", "directory": "/w"})))
        .on("GET /event", vec![Says::Events(begun())])
        .on(
            "POST /session/s/message",
            after(10.0, Says::Json(200, answer("one two"))),
        )
        .on(
            "GET /session/s/message",
            ok(json!([user(), answer("one two")])),
        )
        .on("GET /session/s/children", ok(json!([])))
        .on("POST /session/s/abort", ok(json!(true)))
        .on("GET /session/status", ok(json!({})))
        .on("GET /permission", ok(json!([])))
        .on("GET /question", ok(json!([])))
        .on("GET /global/health", ok(json!({"healthy": true})))
}

fn request() -> TurnRequest {
    TurnRequest {
        prompt: Prompt {
            text: "go".to_owned(),
            ..Prompt::default()
        },
        directory: Some("/w".to_owned()),
        session: None,
        title: "t".to_owned(),
        trace_id: "trace".to_owned(),
        turn_id: "turn".to_owned(),
        limit: Duration::from_secs(60),
        permissions: PermissionPolicy::Ask,
        answer_limit: Duration::from_secs(5),
    }
}

/// Runs a turn; each reply in short.
async fn run_with(fake: &Fake, request: TurnRequest, controls: TurnControls) -> Vec<String> {
    let client = fake.client();
    let mut replies = Vec::new();
    let mut sink = |reply: Reply| replies.push(reply);
    let last = drive_turn(&client, request, controls, &mut sink).await;
    assert_eq!(replies.last(), Some(&last));
    let terminal = replies.iter().filter(|reply| reply.kind.is_terminal());
    assert_eq!(terminal.count(), 1);
    let numbers: Vec<u64> = replies.iter().map(|reply| reply.seq).collect();
    assert_eq!(numbers, (1..=replies.len() as u64).collect::<Vec<_>>());
    // Whatever happened, no connection is left.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.open(), 0);
    replies.into_iter().map(|reply| shown(reply.kind)).collect()
}

fn shown(kind: ReplyKind) -> String {
    match kind {
        ReplyKind::Delta { text } => text,
        ReplyKind::Final { text, .. } => format!("final {text}"),
        ReplyKind::Error { code, .. } => format!("{code:?}"),
        ReplyKind::Permission { id, .. } => format!("{id} asks"),
        kind => panic!("{kind:?} is not expected"),
    }
}

fn controls() -> (
    TurnControls,
    CancellationToken,
    mpsc::Sender<(String, Answer)>,
) {
    let abort = CancellationToken::new();
    let (sender, answers) = mpsc::channel(4);
    let controls = TurnControls {
        abort: abort.clone(),
        answers,
    };
    (controls, abort, sender)
}

async fn run(fake: &Fake) -> Vec<String> {
    run_with(fake, request(), controls().0).await
}

#[track_caller]
fn check(replies: &[String], expected: &[&str]) {
    assert_eq!(replies, expected);
}

#[test]
fn a_turn_can_move_between_threads() {
    fn is_send(_: impl Send) {}
    let fake = Fake::default().client();
    let mut sink = |_: Reply| ();
    is_send(drive_turn(&fake, request(), controls().0, &mut sink));
}

#[tokio::test(start_paused = true)]
async fn events_bring_the_text_and_the_transcript_the_rest() {
    check(&run(&fake()).await, &["one ", "two", "final one two"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_that_ends_is_opened_again() {
    let again = vec![connected(), delta(3.0, "two"), delta(0.0, "!")];
    let fake = fake()
        .on(
            "GET /event",
            vec![
                Says::EventsThenEnd(begun()),
                Says::Json(503, Value::Null),
                Says::Close,
                Says::EventsThenEnd(vec![]),
                Says::Events(again),
            ],
        )
        .on(
            "GET /session/s/message",
            vec![
                Says::Json(200, json!([user(), answer("")])),
                Says::Json(200, json!([user(), answer("one two")])),
            ],
        );
    check(&run(&fake).await, &["one ", "two", "final one two"]);
}

#[tokio::test(start_paused = true)]
async fn a_transcript_that_cannot_be_read_is_replaced_by_the_answer() {
    let fake = fake().on("GET /session/s/message", vec![Says::Hang]);
    check(&run(&fake).await, &["one ", "two", "final one two"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_breaks_is_waited_for_while_the_agent_works() {
    let busy = json!({"s": {"type": "busy"}});
    let fake = fake()
        .on("POST /session/s/message", after(2.0, Says::Close))
        .on(
            "GET /session/status",
            vec![
                Says::Json(200, busy.clone()),
                Says::Close,
                Says::Json(200, busy),
                Says::Json(200, json!({})),
            ],
        );
    check(&run(&fake).await, &["one ", "two", "final one two"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_has_crashed() {
    let gone = |health: Says| {
        fake()
            .on("POST /session/s/message", after(2.0, Says::Close))
            .on("GET /session/status", vec![Says::Close])
            .on("GET /global/health", vec![health])
    };
    for health in [Says::Close, Says::Hang, Says::Json(401, Value::Null)] {
        check(&run(&gone(health)).await, &["one ", "Crashed"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_started_anew_did_not_finish_the_turn() {
    let mut half = answer("one ");
    half["info"]["finish"] = Value::Null;
    half["info"]["time"] = json!({});
    let fake = fake()
        .on("POST /session/s/message", after(2.0, Says::Close))
        .on("GET /session/s/message", ok(json!([user(), half])));
    check(&run(&fake).await, &["one ", "Crashed"]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_at_its_limit_whatever_hangs() {
    let stopped = [
        fake().on("POST /session", vec![Says::Hang]),
        fake().on("GET /event", vec![Says::Hang]),
    ];
    let limited = TurnRequest {
        limit: Duration::from_secs(3),
        ..request()
    };
    for fake in stopped {
        check(
            &run_with(&fake, limited.clone(), controls().0).await,
            &["Timeout"],
        );
    }
    let fake = fake()
        .on("POST /session/s/message", vec![Says::Hang])
        .on("POST /session/s/abort", vec![Says::Hang]);
    check(
        &run_with(&fake, limited, controls().0).await,
        &["one ", "Timeout"],
    );
}

#[tokio::test(start_paused = true)]
async fn an_aborted_turn_keeps_what_was_said() {
    let mut aborted = answer("one two");
    aborted["info"]["error"] = json!({"name": "MessageAbortedError"});
    let fake = fake()
        .on(
            "POST /session/s/message",
            after(3.0, Says::Json(200, aborted.clone())),
        )
        .on("GET /session/s/message", ok(json!([user(), aborted])));
    let (controls, abort, _answers) = controls();
    let aborting = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        abort.cancel();
    };
    let (replies, ()) = tokio::join!(run_with(&fake, request(), controls), aborting);
    check(&replies, &["one ", "two", "Aborted"]);
    assert!(fake.posts().contains(&"/session/s/abort ".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_turn_aborted_before_it_began_is_not_sent() {
    let (controls, abort, _answers) = controls();
    abort.cancel();
    let fake = fake();
    check(&run_with(&fake, request(), controls).await, &["Aborted"]);
    assert_eq!(fake.posts(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_told() {
    let refusal = json!({"name": "UnknownError", "data": {"message": "see the log"}});
    let told = event(
        0.2,
        "session.error",
        json!({"error": {"name": "UnknownError", "data": {"message": "Model not found"}}}),
    );
    let mut events = begun();
    events.truncate(3);
    events.extend([told, event(0.0, "session.idle", json!({}))]);
    let fake = fake()
        .on(
            "POST /session/s/message",
            after(1.0, Says::Json(500, refusal)),
        )
        .on("GET /event", vec![Says::Events(events)]);
    let client = fake.client();
    let last = drive_turn(&client, request(), controls().0, &mut |_| ()).await;
    let expected = ReplyKind::Error {
        code: ErrorCode::Upstream,
        message: "the agent failed: Model not found".to_owned(),
        retryable: false,
    };
    assert_eq!(last.kind, expected);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_missed_is_still_asked_and_an_answer_is_sent_until_it_arrives() {
    let permission =
        json!({"id": "per_1", "sessionID": "s", "permission": "bash", "patterns": ["ls"]});
    let fake = fake()
        .on(
            "GET /event",
            vec![
                Says::EventsThenEnd(begun()),
                Says::Events(vec![connected()]),
            ],
        )
        .on("GET /permission", ok(json!([permission])))
        .on(
            "POST /permission/per_1/reply",
            vec![Says::Close, Says::Json(200, json!(true))],
        );
    let (controls, _abort, answers) = controls();
    let answering = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        answers
            .send(("per_0".to_owned(), Answer::Always))
            .await
            .unwrap();
        answers
            .send(("per_1".to_owned(), Answer::Once))
            .await
            .unwrap();
        answers
            .send(("per_1".to_owned(), Answer::Always))
            .await
            .unwrap();
    };
    let (replies, ()) = tokio::join!(run_with(&fake, request(), controls), answering);
    check(&replies, &["one ", "two", "per_1 asks", "final one two"]);
    let mut posts = fake.posts();
    posts.retain(|post| post.starts_with("/permission"));
    let once = r#"/permission/per_1/reply {"reply":"once"}"#;
    assert_eq!(posts, [once, once]);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_answers_is_refused_in_time() {
    let permission = json!({"id": "per_1", "permission": "bash", "patterns": ["ls"]});
    let mut events = begun();
    events.push(event(0.0, "permission.asked", permission));
    let fake = fake()
        .on("GET /event", vec![Says::Events(events)])
        .on("POST /permission/per_1/reply", ok(json!(true)));
    let (controls, _abort, answers) = controls();
    // Nobody can answer any more.
    drop(answers);
    let replies = run_with(&fake, request(), controls).await;
    check(&replies, &["one ", "per_1 asks", "two", "final one two"]);
    let refused = fake.posts().pop().unwrap();
    assert!(refused.contains(r#"{"reply":"reject","message":"Nobody answered in time."}"#));
}
