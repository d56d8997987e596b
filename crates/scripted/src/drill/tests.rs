//! The order of a drill, however the agent reacts.

use serde_json::{Value, json};

use super::super::request;
use super::*;

fn tools() -> Value {
    let text = json!({"type": "string"});
    let tool = |name: &str, properties: Value| json!({"function": {"name": name, "parameters": {"properties": properties}}});
    json!([
        tool(
            "bash",
            json!({"command": text, "timeout": {"type": "number"}})
        ),
        tool(
            "edit",
            json!({"filePath": text, "oldString": text, "newString": text})
        ),
        tool("task", json!({"prompt": text, "subagent_type": text})),
    ])
}

fn ask(messages: Value, tools: Value) -> ChatRequest {
    let body = json!({"messages": messages, "tools": tools}).to_string();
    request::parse(body.as_bytes()).unwrap()
}

/// Every reply of a conversation, to an agent that never sends one back.
fn play(request: &ChatRequest, drill: &Drill) -> Vec<(PlayedPart, Reply)> {
    let conversation = conversation(request);
    let mut place = 0;
    let mut replies = Vec::new();
    loop {
        let (reply, played, next) =
            super::next(request, (drill, "/w"), conversation, place).unwrap();
        place = next;
        let is_last = played.part == Part::LastWord;
        replies.push((played, reply));
        if is_last {
            return replies;
        }
    }
}

#[test]
fn every_part_is_played_once_and_faults_precede_the_reply_they_affect() {
    let request = ask(json!([{"role": "user", "content": "go"}]), tools());
    let replies = play(&request, &Drill::without(&[Part::Write]));
    let order: Vec<_> = replies.iter().map(|(played, _)| played.part).collect();
    let twice = [
        Part::ServerError,
        Part::ServerError,
        Part::BrokenStream,
        Part::BrokenStream,
    ];
    assert!(order.windows(4).any(|window| window == twice), "{order:?}");
    // No tool here waits for a subagent, and the file part is excluded.
    assert_eq!(order.len(), Part::ALL.len() - 2 + 2);
    let fates: Vec<_> = replies
        .iter()
        .filter(|(played, _)| played.delivery != Delivery::Whole)
        .map(|(played, _)| (played.part, played.delivery))
        .collect();
    let expected = [
        (Part::ServerError, Delivery::Refused),
        (Part::BrokenStream, Delivery::BrokenOff),
        (Part::CutCall, Delivery::Cut),
    ];
    assert_eq!(fates, expected);
}

#[test]
fn each_part_matches_its_name() {
    let request = ask(json!([{"role": "user", "content": "go"}]), tools());
    let replies = play(&request, &Drill::without(&[]));
    let of = |part: Part| {
        let mut replies = replies.iter().rev();
        replies
            .find(|(played, _)| played.part == part)
            .unwrap()
            .1
            .clone()
    };
    let arguments = |part: Part| of(part).calls[0].arguments.clone();
    let edit = r#"{"filePath":"/w/drill.txt","oldString":"two","newString":"three"}"#;
    assert_eq!(arguments(Part::Edit), edit);
    assert_eq!(
        arguments(Part::ChangeDirectory),
        r#"{"command":"cd /w && cat drill.txt"}"#
    );
    assert_eq!(
        arguments(Part::Float),
        r#"{"command":"echo 5000.0","timeout":5000.0}"#
    );
    assert_eq!(
        arguments(Part::Exponent),
        r#"{"command":"echo 7e3","timeout":7e3}"#
    );
    assert_eq!(of(Part::Parallel).calls.len(), 2);
    assert_eq!(of(Part::BlankText).content.as_deref(), Some("\n\n"));
    assert!(of(Part::TextBefore).content.unwrap().ends_with(" \n"));
    let broken = arguments(Part::BrokenArguments);
    assert!(serde_json::from_str::<Value>(&broken).is_err(), "{broken}");
    assert_eq!(of(Part::UnknownTool).calls[0].name, STRAY_TOOL);
    assert!(arguments(Part::Errand).contains(r#""subagent_type":"general""#));
    assert_eq!(of(Part::LastWord), player::speak(LAST_WORD));
}

#[test]
fn a_subagent_has_a_conversation_of_its_own() {
    let request = ask(json!([{"role": "user", "content": ERRAND}]), tools());
    assert_eq!(conversation(&request), Conversation::Errand);
    let parts: Vec<_> = play(&request, &Drill::without(&[]))
        .iter()
        .map(|(played, _)| played.part)
        .collect();
    assert_eq!(parts, [Part::LastCommand, Part::LastWord]);
    let main = ask(json!([{"role": "tool", "content": ERRAND}]), tools());
    assert_eq!(conversation(&main), Conversation::Main);
    let title = ask(json!([{"role": "user", "content": "go"}]), Value::Null);
    assert_eq!(conversation(&title), Conversation::Aside);
}

#[test]
fn a_concurrent_subagent_is_awaited() {
    let properties = json!({"message": {"type": "string"}});
    let targets = json!({"targets": {"type": "array"}});
    let tools = json!([
        tools()[0],
        {"function": {"name": "x__spawn_agent", "parameters": {"properties": properties}}},
        {"function": {"name": "x__wait_agent", "parameters": {"properties": targets}}},
    ]);
    let messages = json!([{"role": "tool", "content": r#"{"agent_id":"a-1"}"#}]);
    let replies = play(&ask(messages, tools), &Drill::without(&[]));
    let wait = replies
        .iter()
        .find(|(played, _)| played.part == Part::Await);
    assert_eq!(wait.unwrap().1.calls[0].arguments, r#"{"targets":["a-1"]}"#);
}

#[test]
fn an_agent_without_tools_gets_files() {
    let asked = json!([{"role": "system", "content": "use this *file listing* format"}]);
    let replies = play(&ask(asked, Value::Null), &Drill::without(&[]));
    let order: Vec<_> = replies
        .iter()
        .map(|(played, _)| (played.part, played.delivery))
        .collect();
    let expected = [
        (Part::TextBefore, Delivery::Whole),
        (Part::ServerError, Delivery::Refused),
        (Part::ServerError, Delivery::Whole),
        (Part::BrokenStream, Delivery::BrokenOff),
        (Part::BrokenStream, Delivery::Whole),
        (Part::LastWord, Delivery::Whole),
    ];
    assert_eq!(order, expected);
}
