//! What agents change in a reply when they send it back, and what becomes of it.

use serde_json::{Value, json};

use super::talk::{Talk, call, calls, result, text, told, user};
use crate::finding::Code;
use crate::graph::Role;
use crate::trace::interpret;

/// Ids as a model gives them: each its own, the same ones in each reply, or none at all.
#[derive(Clone, Copy, Debug)]
enum Ids {
    Unique,
    Repeated,
    None,
}

/// The reply in the middle of a conversation comes back as `sent`; `ID1` and `ID2` stand for ids.
#[track_caller]
fn check_changed(given: &Value, sent: &[Value], change: &str) {
    for ids in [Ids::Unique, Ids::Repeated, Ids::None] {
        let named = |value: &Value, turn: &str| -> Value {
            let (one, two) = match ids {
                Ids::Unique => (format!("{turn}a"), format!("{turn}b")),
                Ids::Repeated => ("call_0".to_owned(), "call_1".to_owned()),
                Ids::None => Default::default(),
            };
            let text = value.to_string().replace("ID1", &one).replace("ID2", &two);
            serde_json::from_str(&text).unwrap()
        };
        let given = named(given, "n2");
        let sent: Vec<Value> = sent.iter().map(|it| named(it, "n2")).collect();
        let first = named(&call("ID1", "bash", r#"{"command":"ls"}"#), "n1");
        let system = json!({"role": "system", "content": "you are an agent"});
        let mut talk = Talk::new(&[system, user("go")]);
        talk.ask(&first);
        talk.say(&[first.clone(), named(&result("ID1", "a.txt"), "n1")]);
        talk.ask(&given).say(&sent);
        talk.ask(&text("done"));
        let seen = talk.check("n1 agent, n2<n1 agent, n3<n1!n2 agent");
        let expect = format!(
            "n2: the agent sent the reply back changed: {change}; n3 goes on from it as a row of its own"
        );
        assert_eq!(told(&seen, Code::ReplyChanged), [expect], "{ids:?}");
    }
}

/// One call that comes back with other arguments.
#[track_caller]
fn check_arguments(name: &str, given: &str, sent: &str, change: &str) {
    let (given, sent) = (call("ID1", name, given), call("ID1", name, sent));
    check_changed(&given, &[sent, result("ID1", "ok")], change);
}

#[test]
fn claude_adds_a_default_to_every_edit() {
    check_arguments(
        "Edit",
        r#"{"file_path": "a", "old_string": "x", "new_string": "y"}"#,
        r#"{"replace_all":false,"file_path":"a","old_string":"x","new_string":"y"}"#,
        "`Edit`: replace_all added (false)",
    );
}

#[test]
fn claude_cuts_the_way_to_the_work_directory() {
    check_arguments(
        "Bash",
        r#"{"command": "cd /work && make"}"#,
        r#"{"command":"make"}"#,
        "`Bash`: command \"cd /work && make\" became \"make\"",
    );
}

#[test]
fn numbers_are_written_in_another_form() {
    // Claude, OpenCode, pi, Qwen and Gemini.
    for (given, sent, change) in [
        ("5000.0", "5000", "5000.0 became 5000"),
        ("7e3", "7000", "7e3 became 7000"),
        ("\"5\"", "5", "\"5\" became 5"),
    ] {
        check_arguments(
            "bash",
            &format!(r#"{{"command": "ls", "timeout": {given}}}"#),
            &format!(r#"{{"command":"ls","timeout":{sent}}}"#),
            &format!("`bash`: timeout {change}"),
        );
    }
}

#[test]
fn claude_cuts_blanks_at_the_ends_of_lines() {
    check_arguments(
        "Write",
        r#"{"file_path": "a", "content": "x  \ny"}"#,
        r#"{"file_path":"a","content":"x\ny"}"#,
        r#"`Write`: content "x  \ny" became "x\ny""#,
    );
}

#[test]
fn blank_text_beside_a_call_is_left_out() {
    // Claude and pi.
    let bash = ("ID1", "Bash", r#"{"command":"ls"}"#);
    check_changed(
        &calls("\n\n", &[bash]),
        &[calls(Value::Null, &[bash]), result("ID1", "a")],
        "blank text left out",
    );
}

#[test]
fn broken_arguments_are_replaced() {
    // Claude wraps what it cannot read, pi mends it; a call cut by the token limit is the same to both.
    let wrapped = r#"{"__unparsedToolInput":{"raw":"{\"command\": \"ls","len":15}}"#;
    for (sent, shown) in [
        (wrapped, "{\"__unparsedToolInput\":{\"raw\":\"{\\\"comman…"),
        (r#"{"command":"ls"}"#, r#"{"command":"ls"}"#),
    ] {
        check_arguments(
            "Bash",
            r#"{"command": "ls"#,
            sent,
            &format!("`Bash`: broken arguments became {shown}"),
        );
    }
}

#[test]
fn goose_replaces_calls_by_one_of_its_own() {
    let sent = call("ID1", "unparseable_tool_call", "{}");
    check_changed(
        &calls("Once more.", &[("ID1", "shell", r#"{"command": "ech"#)]),
        &[
            calls("Once more.", &[("ID1", "unparseable_tool_call", "{}")]),
            result("ID1", "truncated"),
        ],
        "call `shell` replaced by `unparseable_tool_call`",
    );
    check_changed(
        &call("ID1", "look_around", r#"{"path":"."}"#),
        &[sent, result("ID1", "not advertised")],
        "call `look_around` replaced by `unparseable_tool_call`",
    );
}

#[test]
fn qwen_asks_again_for_calls_that_it_cannot_read() {
    let first = call("c1", "shell", "{}");
    let mut talk = Talk::new(&[user("go")]);
    talk.ask(&first).say(&[first, result("c1", "a")]);
    talk.ask(&call("c2", "shell", r#"{"command": "ls"#));
    let again = call("c3", "shell", "{}");
    talk.ask(&again).say(&[again, result("c3", "a")]);
    talk.ask(&text("done"));
    talk.check("n1 agent, n2<n1 asked_again, n3<n1 agent, n4<n3 agent");
}

#[test]
fn aider_moves_its_reminders_to_the_last_message() {
    let asked = |text: &str| user(&format!("{text}\n\nYou MUST return whole files."));
    let mut talk = Talk::new(&[]);
    talk.n_tools = 0;
    talk.ask_with(&[asked("write it")], &text("Here it is.\n"));
    let sent = [user("write it"), text("Here it is.")];
    talk.ask_with(
        &[&sent[..], &[asked("no file name")]].concat(),
        &text("Again."),
    );
    let sent = [&sent[..], &[user("no file name"), text("Again.")]].concat();
    talk.ask_with(
        &[&sent[..], &[asked("no file name")]].concat(),
        &text("bye"),
    );
    talk.check("n1 agent, n2!n1 agent, n3~n2 agent");
}

#[test]
fn opencode_replaces_calls_by_one_of_its_own() {
    let sent = call(
        "ID1",
        "invalid",
        r#"{"tool":"nope","error":"no such tool"}"#,
    );
    check_changed(
        &call("ID1", "nope", r#"{"a": 1}"#),
        &[sent.clone(), result("ID1", "available: bash")],
        "call `nope` replaced by `invalid`",
    );
    check_changed(
        &call("ID1", "write", r#"{"content": "cut he"#),
        &[sent, result("ID1", "available: bash")],
        "call `write` replaced by `invalid`",
    );
}

#[test]
fn goose_cuts_white_space_and_parts_parallel_calls() {
    let one = ("ID1", "shell", r#"{"command":"ls"}"#);
    let two = ("ID2", "shell", r#"{"command":"pwd"}"#);
    check_changed(
        &calls("I look.\n", &[one]),
        &[calls("I look.", &[one]), result("ID1", "a")],
        "white space around the text",
    );
    check_changed(
        &calls("I look.", &[one, two]),
        &[
            calls("I look.", &[one]),
            result("ID1", "a"),
            calls("", &[two]),
            result("ID2", "/"),
        ],
        "sent as 2 messages",
    );
    check_changed(
        &call("ID1", "srv__tool.v1", r#"{"a":1}"#),
        &[
            call("ID1", "srv__tool_v1", r#"{"a":1}"#),
            result("ID1", "1"),
        ],
        "call `srv__tool.v1` renamed `srv__tool_v1`",
    );
}

#[test]
fn a_cut_call_may_be_left_out() {
    // pi and Qwen keep what was said before it.
    check_changed(
        &calls("I write.", &[("ID1", "write", r#"{"content": "cu"#)]),
        &[text("I write."), user("the call was cut")],
        "call `write` left out",
    );
}

#[test]
fn dropped_reasoning_is_told_beside_other_changes() {
    let mut given = call("ID1", "bash", r#"{"timeout": 1.0}"#);
    given["reasoning_content"] = "let me think".into();
    let sent = call("ID1", "bash", r#"{"timeout":1}"#);
    check_changed(
        &given,
        &[sent, result("ID1", "a")],
        "`bash`: timeout 1.0 became 1, reasoning left out",
    );
}

#[test]
fn dropped_reasoning_alone_is_the_same_words_in_other_tokens() {
    let mut given = call("c1", "bash", "{}");
    given["reasoning_content"] = "let me think".into();
    let mut talk = Talk::new(&[user("go")]);
    talk.ask(&given);
    talk.say(&[call("c1", "bash", "{}"), result("c1", "a")]);
    talk.ask(&text("done"));
    talk.check("n1 agent, n2~n1 agent");
}

#[test]
fn codex_sends_everything_back_as_it_was() {
    let given = call("c1", "exec_command", r#"{"cmd": "ls"}"#);
    let mut talk = Talk::new(&[user("go")]);
    talk.ask(&given).say(&[given, result("c1", "a")]);
    talk.ask(&text("done"));
    let seen = talk.check("n1 agent, n2<n1 agent");
    assert!(told(&seen, Code::ReplyChanged).is_empty());
}

#[test]
fn mini_swe_agent_leaves_a_reply_out_and_says_what_is_wrong() {
    let first = call("c1", "bash", r#"{"command": "ls"}"#);
    let mut talk = Talk::new(&[user("go")]);
    talk.ask(&first).say(&[first, result("c1", "a")]);
    talk.ask(&text("")).say(&[user("no tool call found")]);
    talk.ask(&text("I am done"))
        .say(&[user("no tool call found")]);
    let last = call("c2", "bash", r#"{"command": "echo bye"}"#);
    talk.ask(&last).say(&[last, result("c2", "bye")]);
    talk.ask(&text("bye"));
    let seen = talk.check("n1 agent, n2<n1 agent, n3<n1?n2 agent, n4<n1?n3 agent, n5<n4 agent");
    assert_eq!(
        told(&seen, Code::ReplyChanged)[0],
        "n2: the agent left the reply out and went on with a message of its own in n3; both are trained, as rows of their own"
    );
}

#[test]
fn a_reply_is_found_by_its_call_where_earlier_messages_were_cut() {
    let mut talk = Talk::new(&[user("go")]);
    let replies: Vec<Value> = (1..4)
        .map(|at| {
            call(
                &format!("c{at}"),
                "bash",
                &format!(r#"{{"command":"{at}"}}"#),
            )
        })
        .collect();
    for (at, reply) in (1..).zip(&replies) {
        talk.ask(reply);
        talk.say(&[reply.clone(), result(&format!("c{at}"), "long output")]);
    }
    // The first output is cleared, so that no message behind it stands where it stood.
    talk.messages[2] = result("c1", "[cleared]");
    talk.ask(&text("done"));
    talk.check("n1 agent, n2<n1 agent, n3<n2 agent, n4<n1~n3 agent");
}

#[test]
fn every_turn_of_a_long_conversation_stays_when_all_of_them_are_changed() {
    let mut talk = Talk::new(&[user("go")]);
    talk.session = Some("s");
    for at in 0..40 {
        let id = format!("functions.bash:{at}");
        let given = call(&id, "Bash", &format!(r#"{{"command": "cd /w && {at}"}}"#));
        let sent = call(&id, "Bash", &format!(r#"{{"command":"{at}"}}"#));
        talk.ask(&given).say(&[sent, result(&id, "ok")]);
    }
    talk.ask(&text("done"));
    let seen = interpret(&talk.exchanges);
    let nodes = &seen.graph.nodes;
    assert!(nodes.iter().all(|node| node.role == Role::Agent));
    for (at, node) in nodes.iter().enumerate().skip(1) {
        assert_eq!(node.changed, Some(at - 1));
    }
    assert_eq!(told(&seen, Code::ReplyChanged).len(), 40);
    let longest = told(&seen, Code::ReplyChanged).into_iter().map(str::len);
    assert!(longest.max() <= Some(300));
}

#[test]
fn a_long_change_is_told_shortly() {
    let long = "x".repeat(1000);
    let given = call("c", &long, &format!(r#"{{"{long}": "{long}"}}"#));
    let mut talk = Talk::new(&[user("go")]);
    talk.ask(&given);
    talk.say(&[call("c", &format!("{long}é"), "{}"), result("c", "ok")]);
    talk.ask(&text("done"));
    let seen = talk.check("n1 agent, n2!n1 agent");
    let text = told(&seen, Code::ReplyChanged)[0];
    assert!(text.len() <= 300 && text.ends_with("; n2 goes on from it as a row of its own"));
}
