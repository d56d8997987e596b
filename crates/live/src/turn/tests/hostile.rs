//! An agent knows the password of its own server, so it can end that and answer in its place, however it likes.

use super::*;

fn asked(id: &str) -> (f64, Value) {
    let request = json!({"id": id, "permission": "bash", "patterns": ["x"]});
    event(0.0, "permission.asked", request)
}

/// The last reply, and how many bytes all of them have.
async fn last_of(fake: &Fake, request: TurnRequest) -> (Reply, usize) {
    let client = fake.client();
    let mut bytes = 0;
    let mut count = |reply: Reply| bytes += json!(reply).to_string().len();
    let last = drive_turn(&client, request, controls(), &mut count).await;
    (last, bytes)
}

fn message(reply: &Reply) -> &str {
    match &reply.kind {
        ReplyKind::Error { message, .. } => message,
        kind => panic!("{kind:?}"),
    }
}

async fn run_of(events: Vec<(f64, Value)>, request: TurnRequest) -> (Fake, Vec<String>) {
    let fake = fake().on("GET /event", vec![Says::Events(events)]);
    let replies = run_with(&fake, request, controls()).await;
    (fake, replies)
}

fn controls() -> TurnControls {
    TurnControls {
        abort: CancellationToken::new(),
        // Closed, as for a caller who never answers.
        answers: mpsc::channel(1).1,
    }
}

fn last(replies: &[String]) -> &str {
    replies.last().map_or("", String::as_str)
}

#[tokio::test(start_paused = true)]
async fn a_session_with_another_kind_of_id_is_refused() {
    for id in ["../../global", "?x", "a\nb", "", &"x".repeat(1 << 20)] {
        let session = json!({"id": id, "directory": "/w"});
        let fake = fake().on("POST /session", ok(session));
        let (last, bytes) = last_of(&fake, request()).await;
        assert!(message(&last).contains("not understood"), "{last:?}");
        assert!(bytes < 1000);
        let posts = fake.posts();
        assert!(posts.iter().all(|post| post.starts_with("/session {")));

        let given = TurnRequest {
            session: Some(id.to_owned()),
            ..request()
        };
        let (last, bytes) = last_of(&fake, given).await;
        assert!(message(&last).contains("none of this server's"));
        assert!(bytes < 1000);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_with_other_ids_get_no_answer_and_many_have_few_connections() {
    let mut events = begun();
    events.extend(["../../abort", "?x", "a/b", &"x".repeat(9999)].map(asked));
    events.extend((0..1000).map(|number| asked(&format!("per_{number}"))));
    let policy = TurnRequest {
        permissions: PermissionPolicy::Reject,
        ..request()
    };
    let (fake, replies) = run_of(events, policy).await;
    assert_eq!(last(&replies), "final one two");
    let posts = fake.posts();
    let answers = posts.iter().filter(|post| post.contains("/reply"));
    assert!(
        answers
            .clone()
            .all(|post| post.starts_with("/permission/per_"))
    );
    assert!(answers.count() > 8);
    assert!(fake.open_max() < 20, "{}", fake.open_max());
}

#[tokio::test(start_paused = true)]
async fn an_endless_answer_ends_the_turn() {
    let mut events = begun();
    // Small as text, large in memory.
    let zeros = vec![0; 300_000];
    for number in 0..10 {
        let info = json!({"id": format!("m{number}"), "role": "assistant", "more": zeros});
        events.push(event(0.0, "message.updated", json!({ "info": info })));
        events.push(delta(0.0, "x"));
    }
    let fake = fake().on("GET /event", vec![Says::Events(events)]);
    let (last, bytes) = last_of(&fake, request()).await;
    assert!(message(&last).contains("more than is kept"), "{last:?}");
    assert!(bytes < 10_000, "{bytes}");
}

#[tokio::test(start_paused = true)]
async fn numbers_beyond_measure_are_no_panic() {
    let mut answers = Vec::new();
    for id in ["a", "b"] {
        let mut message = answer("one two");
        message["info"]["id"] = json!(id);
        message["info"]["tokens"] = json!({"input": 1e300, "output": -1e300, "cache": []});
        message["info"]["cost"] = json!(1.7e308);
        answers.push(message);
    }
    let transcript = json!([user(), answers[0], answers[1]]);
    let fake = fake()
        .on(
            "POST /session/s/message",
            after(10.0, Says::Json(200, answers[1].clone())),
        )
        .on("GET /session/s/message", ok(transcript));
    let client = fake.client();
    let reply = drive_turn(&client, request(), controls(), &mut |_| {}).await;
    let ReplyKind::Final { usage, .. } = reply.kind else {
        panic!("{reply:?}");
    };
    assert_eq!((usage.input, usage.output), (u64::MAX, 0));
    assert!(usage.cost.is_finite());
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_that_ends_at_once_is_not_opened_without_pause() {
    let fake = fake().on("GET /event", vec![Says::EventsThenEnd(vec![connected()])]);
    let replies = run_with(&fake, request(), controls()).await;
    assert_eq!(last(&replies), "final one two");
    assert!(
        fake.count("GET /event") < 30,
        "{}",
        fake.count("GET /event")
    );
}
