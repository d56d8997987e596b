//! What real agents sent in one long conversation each: a file written and changed, `cd … &&`, floats, parallel calls,
//! text before a call, blank text, broken arguments, an unknown tool, a stream that breaks, a cut call, a subagent.
//!
//! `tests/drill` has the calls as they were, each as what is new in it; the agents' own texts are hashes.

use serde::Deserialize;
use serde_json::Value;

use super::talk::{Talk, show, told};
use crate::finding::Code;
use crate::trace::interpret;

#[derive(Deserialize)]
struct Line {
    /// Seconds since the first call, and how long this one took.
    at: f64,
    took: f64,
    session: Option<String>,
    parent: Option<String>,
    n_tools: usize,
    /// The earlier call that this one's first `same` messages are those of.
    from: Option<usize>,
    #[serde(default)]
    same: usize,
    new: Vec<Value>,
    finish: Option<String>,
    /// Null for a call that failed.
    reply: Option<Value>,
}

fn play(lines: &str) -> Talk {
    let mut talk = Talk::new(&[]);
    let mut asked: Vec<Vec<Value>> = Vec::new();
    for line in lines.lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        let known = line.from.map_or(&[][..], |from| &asked[from][..line.same]);
        let messages = [known, &line.new].concat();
        (talk.n_tools, talk.at) = (line.n_tools, line.at);
        talk.ask_with(&messages, line.reply.as_ref().unwrap_or(&Value::Null));
        asked.push(messages);
        let exchange = talk.exchanges.last_mut().unwrap();
        let headers = [
            ("x-session-id", line.session),
            ("x-parent-session-id", line.parent),
        ];
        for (name, value) in headers {
            let headers = &mut exchange.request.headers;
            headers.extend(value.map(|value| (name.to_owned(), value)));
        }
        let response = exchange.response.as_mut().unwrap();
        response.total_s = line.took;
        let mut body: Value = serde_json::from_slice(&response.body).unwrap();
        body["choices"][0]["finish_reason"] = line.finish.into();
        response.body = body.to_string().into();
        if line.reply.is_none() {
            response.status = Some(502);
        }
    }
    talk
}

/// The same with ids that a model counts anew in each reply, and without session headers.
fn with_repeated_ids(lines: &str) -> String {
    let mut text = lines
        .replace("\"session\":", "\"_\":")
        .replace("\"parent\":", "\"_\":");
    for line in lines.lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        let calls = line.reply.as_ref().map(|reply| &reply["tool_calls"]);
        let calls = calls.and_then(Value::as_array).into_iter().flatten();
        for (at, call) in calls.enumerate() {
            let id = format!("\"{}\"", call["id"].as_str().unwrap());
            text = text.replace(&id, &format!("\"call_{at}\""));
        }
    }
    text
}

#[track_caller]
fn check(lines: &str, expect: &str, n_changed: usize) {
    for lines in [lines, &with_repeated_ids(lines)] {
        let seen = interpret(&play(lines).exchanges);
        assert_eq!(show(&seen), expect);
        assert_eq!(told(&seen, Code::ReplyChanged).len(), n_changed);
    }
}

#[test]
fn aider() {
    check(
        include_str!("../../../tests/drill/aider.jsonl"),
        "n1 agent, n2!n1 agent, n3!n2 asked_again, n4!n2 agent, n5~n4 agent",
        2,
    );
}

#[test]
fn claude() {
    check(
        include_str!("../../../tests/drill/claude.jsonl"),
        "n1 agent, n2!n1 agent, n3!n2 agent, n4!n3 agent, n5!n4 agent, n6!n5 agent, n7<n6 agent, n8<n7 agent, n9<n7!n8 agent, n10<n7!n9 agent, n11<n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 agent, n15<n13!n14 agent, n16 agent, n17<n16 agent, n18<n15 agent, n19<n18 agent",
        8,
    );
}

#[test]
fn codex() {
    check(
        include_str!("../../../tests/drill/codex.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n4 agent, n6<n5 agent, n7<n6 agent, n8<n7 agent, n9<n8 agent, n10<n9 agent, n11<n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 agent, n15<n14 agent, n16 agent, n17<n16 agent, n18<n15 agent, n19<n18 agent",
        0,
    );
}

#[test]
fn gemini() {
    check(
        include_str!("../../../tests/drill/gemini.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n3!n4 agent, n6<n3!n5 agent, n7<n6 agent, n8<n7 agent, n9<n8 agent, n10<n9 agent, n11<n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 agent, n15<n14 agent, n16 agent, n17<n16 agent, n18<n17 agent, n19<n18 agent, n20<n15 agent, n21<n20 agent",
        2,
    );
}

#[test]
fn goose() {
    check(
        include_str!("../../../tests/drill/goose.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n4 agent, n6<n4~n5 agent, n7<n4!n6 agent, n8<n4!n7 agent, n9<n4!n8 agent, n10<n4!n9 agent, n11<n4!n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 agent, n15<n13!n14 agent, n16<n15 agent",
        6,
    );
}

#[test]
fn mini_swe_agent() {
    check(
        include_str!("../../../tests/drill/mini-swe-agent.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n4 agent, n6<n5 agent, n7<n6 agent, n8<n7 agent, n9<n8 agent, n10<n8?n9 agent, n11<n8?n10 agent, n13<n11 agent, n14<n13 agent, n15<n13?n14 agent, n16<n15 agent",
        3,
    );
}

#[test]
fn opencode() {
    check(
        include_str!("../../../tests/drill/opencode.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n3!n4 agent, n6<n3!n5 agent, n7<n6 agent, n8<n7 agent, n9<n8 agent, n10<n8!n9 agent, n11<n8!n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 agent, n15<n13!n14 agent, n16 agent, n17<n16 agent, n18<n15 agent, n19<n18 agent",
        5,
    );
}

#[test]
fn pi() {
    check(
        include_str!("../../../tests/drill/pi.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n3!n4 agent, n6<n3!n5 agent, n7<n6 agent, n8<n7 agent, n9<n7!n8 agent, n10<n7!n9 agent, n11<n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 agent, n15<n13!n14 agent, n16<n15 agent",
        5,
    );
}

#[test]
fn qwen() {
    check(
        include_str!("../../../tests/drill/qwen.jsonl"),
        "n1 agent, n2<n1 agent, n3<n2 agent, n4<n3 agent, n5<n3!n4 agent, n6<n3!n5 agent, n7<n6 agent, n8<n7 agent, n9<n8 asked_again, n10<n8 agent, n11<n10 agent, n12<n11 asked_again, n13<n11 agent, n14<n13 asked_again, n15<n13 agent, n16<n15 agent, n17 agent, n18<n16 agent, n19<n17 agent, n20<n18 agent",
        2,
    );
}
