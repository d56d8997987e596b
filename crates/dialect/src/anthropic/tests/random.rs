//! Property tests over random conversations and answers.

use super::*;

/// One round of a conversation: what the user says, what the assistant says, and its calls with their results.
type Round = (String, String, Vec<(String, String)>);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let call = ("[a-zé\"\\\\ ]{0,6}", "[a-z\n]{0,5}z");
    let round = (
        "[a-zé\n]{0,8}x",
        "[a-z\" ]{0,8}y",
        prop::collection::vec(call, 0..4),
    );
    prop::collection::vec(round, 1..5)
}

fn conversation(rounds: &[Round]) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for (at, (user, assistant, calls)) in rounds.iter().enumerate() {
        let mut content = std::mem::take(&mut results);
        content.push(json!({"type": "text", "text": user}));
        messages.push(json!({"role": "user", "content": content}));
        let mut content = vec![json!({"type": "text", "text": assistant})];
        for (number, (argument, result)) in calls.iter().enumerate() {
            let id = format!("toolu_{at}_{number}");
            content.push(json!({"type": "tool_use", "id": id, "name": "f", "input": {"z": argument, "a": number}}));
            let result = json!([{"type": "text", "text": result}]);
            results.push(json!({"type": "tool_result", "tool_use_id": id, "content": result}));
        }
        messages.push(json!({"role": "assistant", "content": content}));
    }
    messages.into()
}

/// Deltas of an answer: thoughts and texts, then calls whose arguments may interleave.
fn answer_deltas() -> impl Strategy<Value = Vec<Delta>> {
    let say = prop_oneof![
        "[a-zé\n]{1,4}".prop_map(Delta::Reasoning),
        "[a-zé\n]{1,4}".prop_map(Delta::Text),
    ];
    let more = prop_oneof![
        (0..3_usize, "[a-z{}:\"]{1,4}").prop_map(|(index, text)| Delta::Arguments { index, text }),
        "[a-zé\n]{1,4}".prop_map(Delta::Text),
    ];
    let say = prop::collection::vec(say, 0..5);
    let more = prop::collection::vec(more, 0..12);
    (say, 0..4_usize, more).prop_map(|(mut deltas, calls, more)| {
        deltas.extend((0..calls).map(|index| call(index, &format!("c{index}"), "f")));
        let is_known =
            |delta: &Delta| !matches!(delta, Delta::Arguments { index, .. } if *index >= calls);
        deltas.extend(more.into_iter().filter(is_known));
        deltas
    })
}

/// The message that a client assembles from the deltas.
fn joined(deltas: &[Delta]) -> (String, String, Vec<String>) {
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for delta in deltas {
        match delta {
            Delta::Reasoning(more) => reasoning.push_str(more),
            Delta::Text(more) => text.push_str(more),
            Delta::Call { .. } => calls.push(String::new()),
            Delta::Arguments { index, text } => calls[*index].push_str(text),
            Delta::Finish(_) | Delta::Usage(_) => {}
        }
    }
    (text, reasoning, calls)
}

proptest! {
    #[test]
    fn a_conversation_survives_the_way_to_chat_and_back(rounds in rounds()) {
        let body = json!({"model": "m", "max_tokens": 5, "system": "S", "messages": conversation(&rounds)});
        let chat = to_chat(body.to_string().as_bytes()).unwrap().chat;
        let back = from_chat_request(&chat, &Thoughts::default()).unwrap();
        let mut back: Value = serde_json::from_slice(&back.body).unwrap();
        if let Some(block) = back["messages"].as_array_mut().and_then(|it| it.last_mut()?["content"].as_array_mut()?.last_mut()) {
            block.as_object_mut().unwrap().remove("cache_control");
        }
        prop_assert_eq!(&back["messages"], &body["messages"]);
        prop_assert_eq!(&back["system"], "S");
    }

    #[test]
    fn a_rendered_stream_reads_as_what_was_rendered(deltas in answer_deltas()) {
        let stream = render(&deltas);
        let reply = read_message(&stream, true);
        let (text, reasoning, mut calls) = joined(&deltas);
        // A call without arguments is read as one with an empty object.
        calls.iter_mut().filter(|call| call.is_empty()).for_each(|call| call.push_str("{}"));
        prop_assert_eq!(reply.message.content.clone().unwrap_or_default(), text);
        let thoughts = reply.message.other.get("reasoning_content").and_then(Value::as_str);
        prop_assert_eq!(thoughts.unwrap_or_default(), reasoning);
        let got: Vec<String> = reply.message.tool_calls.iter().map(|call| call.arguments.clone()).collect();
        prop_assert_eq!(got, calls);
        prop_assert!(reply.is_complete);
    }

    #[test]
    fn blocks_come_one_after_the_other(deltas in answer_deltas()) {
        let mut open = None;
        let mut next = 0;
        for line in short(&render(&deltas)) {
            if line.starts_with("content_block_start") {
                prop_assert_eq!(open.replace(next), None);
                next += 1;
            }
            if line.starts_with("content_block_stop") {
                prop_assert!(open.take().is_some());
            }
            if let Some(rest) = line.strip_prefix("content_block_delta ") {
                let index = open.map(|index: usize| index.to_string()).unwrap_or_default();
                prop_assert!(rest.starts_with(&index));
            }
        }
        prop_assert_eq!(open, None);
        prop_assert!(next > 0);
    }

    #[test]
    fn nothing_panics_on_what_is_no_request(text in "[\\[\\]{}\":,a-z0-9]{0,40}") {
        let _ = to_chat(text.as_bytes());
        let _ = from_chat_request(text.as_bytes(), &Thoughts::default());
        let _ = messages_of(text.as_bytes());
        let _ = read_message(&text, true);
        let _ = read_message(&text, false);
    }
}
