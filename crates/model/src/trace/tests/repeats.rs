//! Replies to one prompt: calls that were made again, twins, and what an agent threw away.

use serde_json::{Value, json};

use super::talk::{Talk, call, result, text, told, user};
use crate::finding::Code;
use crate::trace::interpret;

/// Two replies to one prompt, and what came of them.
struct Case {
    sessions: [Option<&'static str>; 2],
    first: Value,
    /// Which of the two were gone on from.
    continued: [bool; 2],
    /// When the second began: the first takes from 100 to 101.
    began: f64,
}

#[track_caller]
fn check(case: &Case, expect: &str) {
    let second = call("c2", "bash", r#"{"command":"two"}"#);
    let mut talk = Talk::new(&[user("go")]);
    talk.session = case.sessions[0];
    talk.ask(&case.first);
    talk.session = case.sessions[1];
    talk.at = case.began;
    talk.ask(&second);
    let replies = [&case.first, &second];
    talk.at = 200.0;
    for at in (0..2).filter(|at| case.continued[*at]) {
        talk.session = case.sessions[at];
        let id = format!("c{}", at + 1);
        let messages = [user("go"), replies[at].clone(), result(&id, "ok")];
        talk.ask_with(&messages, &text("done"));
    }
    talk.check(expect);
}

#[test]
fn what_is_a_call_made_again_and_what_is_a_twin() {
    let whole = || call("c1", "bash", r#"{"command":"one"}"#);
    let case = |sessions, first, continued, began| Case {
        sessions,
        first,
        continued,
        began,
    };
    let (none, same, other) = ([None; 2], [Some("s"); 2], [Some("s"), Some("t")]);
    let gone = "n1 asked_again, n2 agent";
    let kept = "n1 agent, n2 agent";
    // Two leaves.
    check(&case(same, whole(), [false, false], 110.0), gone);
    check(&case(other, whole(), [false, false], 110.0), kept);
    check(&case(none, whole(), [false, false], 110.0), kept);
    check(&case(none, text(""), [false, false], 110.0), gone);
    check(&case(same, text(""), [false, false], 110.0), gone);
    check(&case(other, text(""), [false, false], 110.0), kept);
    // The second was gone on from.
    let gone = "n1 asked_again, n2 agent, n3<n2 agent";
    let kept = "n1 agent, n2 agent, n3<n2 agent";
    check(&case(same, whole(), [false, true], 110.0), gone);
    check(&case(other, whole(), [false, true], 110.0), kept);
    check(&case(none, whole(), [false, true], 110.0), gone);
    check(&case(none, whole(), [false, true], 100.5), kept);
    check(&case(none, text(""), [false, true], 100.5), gone);
    // The first was gone on from, with the second one on its way or there.
    let kept = "n1 agent, n2 agent, n3<n1 agent";
    check(
        &case(same, whole(), [true, false], 100.5),
        "n1 agent, n2 asked_again, n3<n1 agent",
    );
    check(&case(none, whole(), [true, false], 100.5), kept);
    check(&case(none, whole(), [true, false], 110.0), kept);
    check(&case(other, whole(), [true, false], 110.0), kept);
    // Both were.
    for sessions in [none, same, other] {
        let kept = "n1 agent, n2 agent, n3<n1 agent, n4<n2 agent";
        check(&case(sessions, whole(), [true, true], 110.0), kept);
    }
}

#[test]
fn twins_with_the_same_replies_are_told_apart_by_their_sessions() {
    let reply = call("call_0", "bash", "{}");
    let mut talk = Talk::new(&[user("find it")]);
    for session in ["a", "b"] {
        talk.session = Some(session);
        talk.ask(&reply);
    }
    talk.say(&[reply, result("call_0", "ok")]);
    for session in ["a", "b"] {
        talk.session = Some(session);
        talk.ask(&text("done"));
    }
    talk.check("n1 agent, n2 agent, n3<n1 agent, n4<n2 agent");
    // The same when the replies come back changed.
    let mut talk = Talk::new(&[user("find it")]);
    let reply = call("call_0", "bash", r#"{"t": 1.0}"#);
    for session in ["a", "b"] {
        talk.session = Some(session);
        talk.ask(&reply);
    }
    talk.say(&[call("call_0", "bash", r#"{"t":1}"#), result("call_0", "ok")]);
    for session in ["b", "a"] {
        talk.session = Some(session);
        talk.ask(&text("done"));
    }
    talk.check("n1 agent, n2 agent, n3!n2 agent, n4!n1 agent");
}

#[test]
fn of_two_tries_the_one_that_was_sent_back_was_gone_on_from() {
    let given = |at: &str| {
        call(
            "functions.bash:0",
            "bash",
            &format!(r#"{{"command": "{at}", "t": 1.0}}"#),
        )
    };
    let sent = |at: &str| {
        call(
            "functions.bash:0",
            "bash",
            &format!(r#"{{"command":"{at}","t":1}}"#),
        )
    };
    for (went_on, expect) in [
        ("one", "n1 agent, n2 agent, n3!n1 agent"),
        ("two", "n1 asked_again, n2 agent, n3!n2 agent"),
        // Nothing tells them apart, so the last one counts.
        ("three", "n1 asked_again, n2 agent, n3!n2 agent"),
    ] {
        let mut talk = Talk::new(&[user("go")]);
        talk.ask(&given("one")).ask(&given("two"));
        talk.say(&[sent(went_on), result("functions.bash:0", "ok")]);
        talk.ask(&text("done"));
        talk.check(expect);
    }
}

#[test]
fn a_stream_that_broke_and_was_asked_for_again_is_not_trained() {
    let mut talk = Talk::new(&[user("go")]);
    talk.ask(&text("I beg")).ask(&text("I begin"));
    let response = talk.exchanges[0].response.as_mut().unwrap();
    let body = String::from_utf8(response.body.to_vec()).unwrap();
    response.body = body.replace("\"stop\"", "\"abort\"").into();
    let seen = interpret(&talk.exchanges);
    assert_eq!(
        told(&seen, Code::DiscardedTurns),
        ["n1: asked for again and not gone on from; not trained"]
    );
}

const SUMMARY: &str = "<analysis>\nlong thoughts\n</analysis>\n\n<summary>\n1. The user wants hello.txt.\n2. It was written and read back.\n</summary>";

/// Work, then a question for a summary; what follows is up to the test.
fn worked() -> Talk {
    let mut talk = Talk::new(&[user("go")]);
    talk.session = Some("s");
    let first = call("c1", "Write", "{}");
    talk.ask(&first).say(&[first, result("c1", "ok")]);
    talk
}

#[test]
fn a_summary_is_auxiliary_with_tools_and_without() {
    for n_tools in [2, 0] {
        let mut talk = worked();
        talk.say(&[user("create a detailed summary")]);
        talk.n_tools = n_tools;
        talk.ask(&text(SUMMARY));
        talk.n_tools = 2;
        let again = "This session is continued.\nSummary:\n1. The user wants hello.txt.\n\n2. It was written and read back.\n\nGo on.";
        talk.ask_with(&[user(again)], &text("done"));
        let seen = talk.check("n1 agent, n2<n1 summary, n3 agent");
        assert_eq!(seen.graph.nodes[2].compacts, Some(0));
        let sequences: Vec<_> = seen
            .graph
            .sequences
            .iter()
            .map(|it| (it.role.as_str(), it.nodes.clone()))
            .collect();
        assert_eq!(
            sequences,
            [
                ("agent", vec![0]),
                ("auxiliary", vec![0, 1]),
                ("agent", vec![2])
            ]
        );
    }
}

#[test]
fn a_summary_that_was_asked_for_may_be_short() {
    let question = "Your task is to create a detailed summary of the conversation so far";
    let again = |said: &str| format!("This session is being continued.\nSummary:\n{said}\nGo on.");
    let check = |question: &str, reply: &str, again: &str, expect: &str| {
        let mut talk = worked();
        talk.say(&[user(question)]).ask(&text(reply));
        talk.ask_with(&[user(again)], &text("done"));
        talk.check(expect);
    };
    let summed_up = "n1 agent, n2<n1 summary, n3 agent";
    let tagged = "<analysis>\nhm\n</analysis>\n\n<summary>\nIt was written.\n</summary>";
    check(question, tagged, &again("It was written."), summed_up);
    check(
        question,
        "It was written.",
        &again("It was written."),
        summed_up,
    );
    let kept = "n1 agent, n2<n1 agent, n3 agent";
    check(question, "It is", &again("It isn't."), kept);
    check(
        "is it there?",
        "It was written.",
        &again("It was written."),
        kept,
    );
    check("is it there?", tagged, &again("It was written."), kept);
}

#[test]
fn summaries_come_back_in_each_agents_way() {
    let summary = "<state_snapshot>hello.txt was written; it is to be checked</state_snapshot>";
    let kept = [call("c1", "Write", "{}"), result("c1", "ok")];
    let fresh: [Vec<Value>; 4] = [
        // OpenCode: as the assistant's own words.
        vec![
            user("What did we do so far?"),
            text(summary),
            user("Continue."),
        ],
        // Codex: behind what the user said.
        vec![
            user("go"),
            user(&format!("Another model wrote:\n{summary}")),
        ],
        // Gemini and Qwen: first of all, and then the last messages as they were.
        [vec![user(summary), text("Got it.")], kept.to_vec()].concat(),
        // pi and goose: in a text around it.
        vec![
            user(&format!("before:\n<summary>\n{summary}\n</summary>")),
            user("go"),
        ],
    ];
    for messages in fresh {
        let mut talk = worked();
        talk.session = None;
        talk.n_tools = 0;
        let asked = [user("<conversation>go, Write, ok</conversation> sum up")];
        talk.ask_with(&asked, &text(summary));
        talk.n_tools = 2;
        talk.ask_with(&messages, &text("done"));
        let seen = interpret(&talk.exchanges);
        let roles: Vec<&str> = seen.graph.nodes.iter().map(|it| it.role.as_str()).collect();
        assert_eq!(roles, ["agent", "auxiliary", "agent"]);
    }
}

#[test]
fn a_call_where_a_summary_was_wanted_is_thrown_away() {
    let mut talk = worked();
    let question = user("create a detailed summary, do not call tools");
    let asked = [talk.messages.clone(), vec![question]].concat();
    let bash = call("c2", "Bash", "{}");
    talk.ask_with(&asked, &bash)
        .ask_with(&asked, &text(SUMMARY));
    let again = "Summary: 1. The user wants hello.txt. 2. It was written and read back.";
    talk.ask_with(&[user(again)], &text("done"));
    let seen = talk.check("n1 agent, n2<n1 thrown_away, n3<n1 summary, n4 agent");
    assert_eq!(
        told(&seen, Code::ReplyThrownAway),
        ["n2: the agent did not use the reply, a call of Bash where it wanted a summary"]
    );
    assert_eq!(
        told(&seen, Code::DiscardedTurns),
        ["n2: thrown away by the agent; not trained"]
    );
}

#[test]
fn a_call_that_was_never_run_is_thrown_away_when_the_work_goes_on_without_it() {
    let mut talk = worked();
    let asked = [talk.messages.clone(), vec![user("create a summary")]].concat();
    talk.ask_with(&asked, &call("c2", "Bash", "{}"));
    // The last thing that happened may be anything.
    talk.check("n1 agent, n2<n1 agent");
    talk.ask(&text("done"));
    talk.check("n1 agent, n2<n1 thrown_away, n3<n1 agent");
}

#[test]
fn an_answer_to_another_question_is_kept() {
    let mut talk = worked();
    let side = [talk.messages.clone(), vec![user("what is next?")]].concat();
    talk.ask_with(&side, &text("to read it"));
    talk.ask(&text("done"));
    talk.check("n1 agent, n2<n1 agent, n3<n1 agent");
}

#[test]
fn a_subagents_answer_that_another_is_told_is_no_summary() {
    let found = "the parser is in src/parse.rs and reads one line after the other";
    let mut talk = Talk::new(&[user("find the parser")]);
    talk.ask(&text(found));
    let next = json!({"role": "user", "content": [{"type": "text", "text": format!("Change it: {found}")}]});
    talk.ask_with(&[next], &text("done"));
    talk.check("n1 agent, n2 agent");
}
