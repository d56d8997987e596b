//! Each test is a list of events and transcripts, and what they amount to.

use serde_json::{Value, json};

use super::*;
use crate::turn::ending;

/// A turn with the prompt `go` in the session `s`.
struct Script {
    state: TurnState,
    news: Vec<String>,
}

impl Script {
    fn new() -> Self {
        Script::after(None)
    }

    /// In a session whose newest message is this one.
    fn after(before: Option<&str>) -> Self {
        Script {
            state: TurnState::new("s", "go", before.map(str::to_owned)),
            news: Vec::new(),
        }
    }

    /// With the prompt and the beginning of its answer `a` seen.
    fn started() -> Self {
        let mut script = Script::new();
        script.user("u", "go");
        script.assistant("a", "u", json!({}));
        script
    }

    fn event(&mut self, kind: &str, properties: Value) {
        let event = json!({"id": "evt_1", "type": kind, "properties": properties});
        if let Some(news) = self.state.event(&event) {
            self.news.push(shown(&news));
        }
    }

    fn own(&mut self, kind: &str, mut properties: Value) {
        properties["sessionID"] = json!("s");
        self.event(kind, properties);
    }

    fn user(&mut self, id: &str, text: &str) {
        let info = json!({"id": id, "role": "user"});
        self.own("message.updated", json!({ "info": info }));
        self.part(
            id,
            json!({"id": format!("{id}-text"), "type": "text", "text": text}),
        );
    }

    fn assistant(&mut self, id: &str, parent: &str, more: Value) {
        let info = answer_info(id, parent, more);
        self.own("message.updated", json!({ "info": info }));
    }

    fn part(&mut self, message: &str, mut part: Value) {
        part["messageID"] = json!(message);
        self.own("message.part.updated", json!({ "part": part }));
    }

    fn text(&mut self, id: &str, text: &str) {
        self.part("a", json!({"id": id, "type": "text", "text": text}));
    }

    fn delta(&mut self, id: &str, delta: &str) {
        let delta = json!({"partID": id, "messageID": "a", "field": "text", "delta": delta});
        self.own("message.part.delta", delta);
    }

    fn transcript(&mut self, messages: &[Value]) {
        let replies = self.state.transcript(messages);
        let replies = replies.into_iter().map(|reply| shown(&News::Reply(reply)));
        self.news.extend(replies);
    }

    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(self.news, expected);
    }
}

fn shown(news: &News) -> String {
    match news {
        News::Reply(ReplyKind::Delta { text }) => text.clone(),
        News::Reply(ReplyKind::Reasoning { text }) => format!("({text})"),
        News::Reply(reply) => serde_json::to_string(reply).unwrap(),
        News::Asked(asked) => format!("{} asks", asked.id),
        News::Settled(id) => format!("{id} is settled"),
    }
}

fn answer_info(id: &str, parent: &str, more: Value) -> Value {
    let mut info = json!({"id": id, "role": "assistant", "parentID": parent});
    let fields = info.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    info
}

fn user_message(id: &str, text: &str) -> Value {
    let part = json!({"id": format!("{id}-text"), "messageID": id, "type": "text", "text": text});
    json!({"info": {"id": id, "role": "user"}, "parts": [part]})
}

fn answer(id: &str, parent: &str, texts: &[(&str, &str)], more: Value) -> Value {
    let parts: Vec<Value> = texts
        .iter()
        .map(|(part, text)| json!({"id": part, "messageID": id, "type": "text", "text": text}))
        .collect();
    json!({"info": answer_info(id, parent, more), "parts": parts})
}

#[test]
fn text_comes_as_it_is_streamed() {
    let mut script = Script::started();
    script.text("p", "");
    script.delta("p", "Hel");
    script.delta("p", "lo");
    script.text("p", "Hello");
    script.transcript(&[
        user_message("u", "go"),
        answer("a", "u", &[("p", "Hello")], json!({})),
    ]);
    script.check(&["Hel", "lo"]);
    assert_eq!(script.state.last_text(), "Hello");
}

#[test]
fn the_prompt_is_never_part_of_the_answer() {
    let mut script = Script::started();
    script.part("u", json!({"id": "u-2", "type": "text", "text": "more"}));
    script.check(&[]);
}

#[test]
fn reasoning_is_kept_apart() {
    let mut script = Script::started();
    script.part("a", json!({"id": "r", "type": "reasoning", "text": ""}));
    script.delta("r", "hm");
    script.part("a", json!({"id": "r", "type": "reasoning", "text": "hmm"}));
    script.text("p", "yes");
    script.check(&["(hm)", "(m)", "yes"]);
}

#[test]
fn other_fields_of_parts_are_no_text() {
    let mut script = Script::started();
    script.text("p", "");
    let delta = json!({"partID": "p", "messageID": "a", "field": "metadata", "delta": "x"});
    script.own("message.part.delta", delta);
    script.check(&[]);
}

#[test]
fn after_a_gap_nothing_is_lost_or_repeated() {
    let mut script = Script::started();
    script.text("p", "");
    script.delta("p", "one ");
    script.state.gap();
    script.delta("p", "three ");
    // The transcript has a part's text only once it is whole.
    script.transcript(&[
        user_message("u", "go"),
        answer("a", "u", &[("p", "")], json!({})),
    ]);
    script.delta("p", "four");
    script.text("p", "one two three four");
    script.check(&["one ", "two three four"]);
}

#[test]
fn whole_messages_that_were_missed_come_from_the_transcript() {
    let mut script = Script::started();
    script.text("p", "one");
    script.state.gap();
    script.transcript(&[
        user_message("u", "go"),
        answer("a", "u", &[("p", "one two")], json!({})),
        answer("b", "u", &[("q", "three")], json!({})),
    ]);
    // The stream was behind the transcript.
    let part = json!({"id": "q", "messageID": "b", "type": "text", "text": ""});
    script.own("message.part.updated", json!({ "part": part }));
    script.delta("q", "three");
    script.delta("q", " four");
    script.check(&["one", " two", "three", " four"]);
}

#[test]
fn a_turn_without_any_event_is_whole_too() {
    let mut script = Script::after(Some("a0"));
    script.transcript(&[
        user_message("u0", "go"),
        answer("a0", "u0", &[("p0", "old")], json!({})),
        user_message("u", "go"),
        answer("a", "u", &[("p", "new"), ("q", "er")], json!({})),
    ]);
    script.check(&["new", "er"]);
    assert_eq!(script.state.last_text(), "new\ner");
}

#[test]
fn the_turn_before_has_no_part_in_it() {
    let mut script = Script::after(Some("a0"));
    // Its last events come late.
    script.assistant("a0", "u0", json!({}));
    script.part("a0", json!({"id": "p0", "type": "text", "text": "old"}));
    script.own(
        "session.error",
        json!({"error": {"name": "MessageAbortedError"}}),
    );
    script.own("session.idle", json!({}));
    assert!(script.state.is_idle() && !script.state.is_prompt_seen());
    script.user("u", "go");
    script.check(&[]);
    assert!(!script.state.is_idle() && script.state.session_error().is_none());
}

#[test]
fn what_others_ask_in_the_same_session_is_not_answered_here() {
    let mut script = Script::started();
    script.user("x", "something else");
    script.assistant("b", "x", json!({}));
    script.part("b", json!({"id": "q", "type": "text", "text": "theirs"}));
    script.text("p", "ours");
    script.check(&["ours"]);
}

#[test]
fn other_sessions_are_left_out() {
    let mut script = Script::started();
    let part = json!({"id": "q", "messageID": "a", "type": "text", "text": "theirs"});
    script.event(
        "message.part.updated",
        json!({"sessionID": "t", "part": part}),
    );
    script.event("session.idle", json!({"sessionID": "t"}));
    script.check(&[]);
    assert!(!script.state.is_idle());
}

#[test]
fn an_answer_goes_on_after_the_conversation_was_shortened() {
    let mut script = Script::started();
    script.text("p", "begun");
    script.own(
        "message.updated",
        json!({"info": {"id": "c", "role": "user"}}),
    );
    script.part("c", json!({"id": "c1", "type": "compaction", "auto": true}));
    let tokens = json!({"tokens": {"input": 7}, "summary": true});
    script.assistant("s1", "c", tokens);
    script.part(
        "s1",
        json!({"id": "x", "type": "text", "text": "all that was said"}),
    );
    script.own(
        "message.updated",
        json!({"info": {"id": "d", "role": "user"}}),
    );
    let go_on = json!({"id": "d1", "type": "text", "synthetic": true, "text": "Continue"});
    script.part("d", go_on);
    script.assistant("b", "d", json!({"finish": "stop", "tokens": {"input": 3}}));
    script.part("b", json!({"id": "q", "type": "text", "text": "done"}));
    script.check(&["begun", "done"]);
    assert_eq!(script.state.last_info().unwrap()["id"], "b");
    assert_eq!(script.state.usage().input, 10);
}

#[test]
fn a_tool_is_reported_when_its_status_changes() {
    let mut script = Script::started();
    let tool = |state: Value| json!({"id": "t", "type": "tool", "tool": "bash", "callID": "c", "state": state});
    script.part(
        "a",
        tool(json!({"status": "pending", "input": {}, "raw": ""})),
    );
    script.part(
        "a",
        tool(json!({"status": "running", "input": {"command": "ls"}})),
    );
    script.part(
        "a",
        tool(json!({"status": "running", "input": {"command": "ls"}, "metadata": {"output": "x"}})),
    );
    script.part(
        "a",
        tool(json!({"status": "completed", "input": {"command": "ls"}, "output": "x"})),
    );
    script.part(
        "a",
        tool(json!({"status": "running", "input": {"command": "ls"}})),
    );
    let reply = |rest: &str| format!(r#"{{"kind":"tool","call_id":"c","name":"bash",{rest}}}"#);
    let expected = [
        reply(r#""status":"pending","input":{},"output":null"#),
        reply(r#""status":"running","input":{"command":"ls"},"output":null"#),
        reply(r#""status":"completed","input":{"command":"ls"},"output":"x""#),
    ];
    assert_eq!(script.news, expected);
}

#[test]
fn requests_of_subagents_count_and_each_once() {
    let mut script = Script::started();
    let child =
        |id: &str, parent: &str| json!({"sessionID": id, "info": {"id": id, "parentID": parent}});
    script.event("session.created", child("s1", "s"));
    script.event("session.updated", child("s2", "s1"));
    script.event("session.created", child("x", "y"));
    let permission = |id: &str, session: &str| json!({"id": id, "sessionID": session, "permission": "bash", "patterns": ["ls"]});
    script.event("permission.asked", permission("p1", "s"));
    script.event("permission.asked", permission("p2", "s2"));
    script.event("permission.asked", permission("p2", "s2"));
    script.event("permission.asked", permission("p3", "x"));
    script.event(
        "question.asked",
        json!({"id": "q1", "sessionID": "s1", "questions": []}),
    );
    script.event(
        "permission.replied",
        json!({"sessionID": "s", "requestID": "p1", "reply": "once"}),
    );
    let missed = [
        permission("p2", "s2"),
        permission("p4", "s9"),
        permission("p5", "x"),
    ];
    let questions = [json!({"id": "q2", "sessionID": "s", "questions": []})];
    let news = script
        .state
        .missed(vec!["s9".to_owned()], &missed, &questions);
    script.news.extend(news.iter().map(shown));
    let expected = [
        "p1 asks",
        "p2 asks",
        "q1 asks",
        "p1 is settled",
        "p4 asks",
        "q2 asks",
    ];
    script.check(&expected);
}

#[test]
fn usage_is_that_of_all_steps() {
    let mut script = Script::started();
    let info = |cost: f64| json!({"cost": cost, "tokens": {"input": 10, "output": 5, "reasoning": 1, "cache": {"read": 3, "write": 2}}});
    script.assistant("a", "u", info(0.5));
    // Reported twice, as the server does.
    script.assistant("a", "u", info(0.5));
    script.assistant("b", "u", info(0.25));
    let usage = TurnUsage {
        input: 20,
        output: 10,
        reasoning: 2,
        cache_read: 6,
        cache_write: 4,
        cost: 0.75,
    };
    assert_eq!(script.state.usage(), usage);
}

#[test]
fn a_prompt_that_was_not_recognised_is_known_by_its_answer() {
    let mut script = Script::new();
    script.user("u", "go, in other words");
    let message = answer("a", "u", &[("p", "fine")], json!({"finish": "stop"}));
    script.state.answered_by(&message);
    script.transcript(&[user_message("u", "go, in other words"), message]);
    script.check(&["fine"]);
    assert!(ending::answered(&script.state).is_terminal());
}

#[test]
fn how_far_back_a_transcript_must_reach() {
    let mut script = Script::after(Some("a0"));
    script.user("u", "go");
    script.own(
        "message.updated",
        json!({"info": {"id": "d", "role": "user"}}),
    );
    script.part(
        "d",
        json!({"id": "d1", "type": "text", "synthetic": true, "text": "Continue"}),
    );
    let message = |id: &str| json!({"info": {"id": id}});
    assert!(!script.state.reaches_back(&[message("d")]));
    assert!(script.state.reaches_back(&[message("u"), message("d")]));
    assert!(script.state.reaches_back(&[message("a0")]));
}

#[test]
fn nonsense_is_passed_over() {
    let mut script = Script::started();
    for properties in [
        json!(null),
        json!([]),
        json!({"part": 3, "info": "x", "status": 1}),
    ] {
        for kind in [
            "message.updated",
            "message.part.updated",
            "message.part.delta",
        ] {
            script.event(kind, properties.clone());
        }
    }
    for kind in [
        "message.updated",
        "message.part.updated",
        "message.part.delta",
        "session.status",
    ] {
        script.own(kind, json!({"part": {"id": 1}, "info": [], "status": null}));
    }
    assert_eq!(script.state.event(&json!("text")), None);
    script.transcript(&[json!(null), json!({"info": {}, "parts": "none"})]);
    script.check(&[]);
}

#[test]
fn a_model_fails_until_it_answers_again() {
    let mut script = Script::started();
    let retry = json!({"status": {"type": "retry", "attempt": 1, "message": "overloaded"}});
    script.own("session.status", retry);
    script.own("session.status", json!({"status": {"type": "busy"}}));
    assert_eq!(script.state.retry(), Some("overloaded"));
    script.part("a", json!({"id": "p", "type": "step-start"}));
    assert_eq!(script.state.retry(), None);
}

#[test]
fn very_many_pieces_are_not_kept_for_ever() {
    let mut script = Script::started();
    script.text("p", "");
    let event = json!({"type": "message.part.delta", "properties": {
        "sessionID": "s", "partID": "p", "messageID": "a", "field": "text", "delta": "x".repeat(1000),
    }});
    let passed_on = (0..100_000)
        .take_while(|_| script.state.event(&event).is_some())
        .count();
    assert!((10_000..100_000).contains(&passed_on), "{passed_on}");
    assert!(script.state.is_full());
}
