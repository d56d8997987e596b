//! From what the server says to the last reply.

use std::io;

use serde_json::json;

use super::*;

/// The state of a turn whose last message is as given.
fn state(info: Value) -> TurnState {
    let mut state = TurnState::new("s", "go", None);
    let mut last =
        json!({"id": "a", "role": "assistant", "parentID": "u", "time": {"completed": 1}});
    let fields = last.as_object_mut().unwrap();
    fields.extend(info.as_object().unwrap().clone());
    let text = |id: &str, message: &str, text: &str| json!({"id": id, "messageID": message, "type": "text", "text": text});
    state.transcript(&[
        json!({"info": {"id": "u", "role": "user"}, "parts": [text("p", "u", "go")]}),
        json!({"info": last, "parts": [text("q", "a", "said")]}),
    ]);
    state
}

fn shown(end: ReplyKind) -> String {
    match end {
        ReplyKind::Final { text, finish, .. } => format!("final {text} {finish:?}"),
        ReplyKind::Error {
            code,
            message,
            retryable,
        } => format!("{code:?} {retryable}: {message}"),
        _ => panic!("{end:?} is no end"),
    }
}

#[track_caller]
fn check(error: Value, expected: &str) {
    assert_eq!(shown(answered(&state(json!({ "error": error })))), expected);
}

#[test]
fn an_answer_without_error_is_final() {
    let end = answered(&state(json!({"finish": "stop"})));
    assert_eq!(shown(end), r#"final said Some("stop")"#);
}

#[test]
fn an_answer_that_became_too_long_is_final() {
    check(
        json!({"name": "MessageOutputLengthError", "data": {}}),
        r#"final said Some("length")"#,
    );
}

#[test]
fn errors_of_the_model_are_told_apart() {
    let api = |status: Option<u16>, message: &str| json!({"name": "APIError", "data": {"statusCode": status, "message": message, "isRetryable": false}});
    check(
        api(Some(400), "bad"),
        "Upstream false: the model answered HTTP 400: bad",
    );
    check(
        api(Some(429), ""),
        "Upstream true: the model answered HTTP 429",
    );
    check(
        api(Some(503), "later"),
        "Upstream true: the model answered HTTP 503: later",
    );
    check(
        api(None, "reset"),
        "Upstream true: the call of the model failed: reset",
    );
    check(
        api(Some(402), "pay"),
        "Budget false: the budget at the model's endpoint is used up: pay",
    );
    check(
        api(Some(400), "Budget has been exceeded"),
        "Budget false: the budget at the model's endpoint is used up: Budget has been exceeded",
    );
}

#[test]
fn other_errors_have_safe_words() {
    let error =
        |name: &str| json!({"name": name, "data": {"message": "see http://h/ key sk-1234"}});
    check(
        error("MessageAbortedError"),
        "Aborted false: the turn was aborted",
    );
    check(
        error("ProviderAuthError"),
        "Upstream false: the model's endpoint refused the key: see [address] key [key]",
    );
    check(
        error("ContextOverflowError"),
        "Upstream false: the conversation is too long for the model: see [address] key [key]",
    );
    check(
        error("UnknownError"),
        "Upstream false: the agent failed: see [address] key [key]",
    );
    check(json!("nonsense"), "Upstream false: the agent failed");
}

#[test]
fn a_turn_without_an_answer_is_an_error() {
    let mut state = TurnState::new("s", "go", None);
    let none = "Upstream true: the agent ended the turn without an answer";
    assert_eq!(shown(answered(&state)), none);
    assert_eq!(shown(answered(&self::state(json!({})))), none);
    let error = json!({"name": "UnknownError", "data": {"message": "Model not found: a/b"}});
    let properties = json!({"sessionID": "s", "error": error});
    state.event(&json!({"type": "session.error", "properties": properties}));
    let told = "Upstream false: the agent failed: Model not found: a/b";
    assert_eq!(shown(answered(&state)), told);
    let refusal = ClientError::Status {
        status: 500,
        message: None,
    };
    assert_eq!(shown(refused(&refusal, Some(&state))), told);
}

#[test]
fn requests_that_fail_are_told_apart() {
    let closed = "Crashed true: the agent's server ended during the turn";
    assert_eq!(shown(refused(&ClientError::Closed, None)), closed);
    let source = io::Error::other("10.0.0.1:80 refused");
    assert_eq!(
        shown(refused(&ClientError::Unreachable(source), None)),
        closed
    );
    let late = ClientError::Deadline(Duration::from_secs(3));
    assert_eq!(
        shown(refused(&late, None)),
        "Timeout true: the agent's server did not answer within 3 s"
    );
    let missing = ClientError::Status {
        status: 404,
        message: Some("NotFoundError: Session not found: x".to_owned()),
    };
    assert_eq!(
        shown(refused(&missing, None)),
        "Upstream false: the agent's server answered 404: NotFoundError: Session not found: x"
    );
}

#[test]
fn a_stopped_turn_says_why_unless_it_was_done() {
    let limit = Stop::TimedOut(Duration::from_millis(1500));
    let aborted = json!({"error": {"name": "MessageAbortedError"}});
    let late = "Timeout true: no answer within 1.5 s";
    assert_eq!(shown(stopped(limit, None)), late);
    assert_eq!(shown(stopped(limit, Some(&state(aborted.clone())))), late);
    let stop = stopped(Stop::Aborted, Some(&state(aborted)));
    assert_eq!(shown(stop), "Aborted false: the turn was aborted");
    let between = state(json!({"finish": "tool-calls"}));
    assert_eq!(shown(stopped(limit, Some(&between))), late);
    let done = stopped(Stop::Aborted, Some(&state(json!({"finish": "stop"}))));
    assert_eq!(shown(done), r#"final said Some("stop")"#);
}

#[test]
fn a_turn_at_its_limit_tells_of_a_model_that_fails() {
    let mut state = TurnState::new("s", "go", None);
    let status = json!({"type": "retry", "attempt": 2, "message": "overloaded at http://h/"});
    let properties = json!({"sessionID": "s", "status": status});
    state.event(&json!({"type": "session.status", "properties": properties}));
    let limit = Stop::TimedOut(Duration::from_secs(1));
    assert_eq!(
        shown(stopped(limit, Some(&state))),
        "Timeout true: no answer within 1 s: the model failed again and again: overloaded at [address]"
    );
}

#[test]
fn a_broken_call_ends_as_the_transcript_says() {
    let crashed = "Crashed true: the agent's server ended during the turn";
    let done = state(json!({"finish": "stop"}));
    assert_eq!(shown(lost(&done)), r#"final said Some("stop")"#);
    assert_eq!(
        shown(lost(&state(json!({"finish": "tool-calls"})))),
        crashed
    );
    assert_eq!(shown(lost(&state(json!({"time": {}})))), crashed);
    let failed = state(json!({"error": {"name": "MessageAbortedError"}}));
    assert_eq!(shown(lost(&failed)), "Aborted false: the turn was aborted");
    let nothing = TurnState::new("s", "go", None);
    assert_eq!(
        shown(lost(&nothing)),
        "Crashed true: the connection to the agent's server broke before it took the message"
    );
}
