use proptest::prelude::*;

use super::*;
use crate::chat::Render;
use crate::chat::{Delta, Reply, read_reply};

mod random;
mod stream;

fn chat_of(body: &str) -> Value {
    let translation = to_chat(body.as_bytes()).unwrap();
    serde_json::from_slice(&translation.chat).unwrap()
}

/// The translated messages, one per line.
#[track_caller]
fn check(input: Value, expect: &[&str]) {
    let chat = chat_of(&json!({"model": "m", "input": input}).to_string());
    let messages = chat["messages"].as_array().unwrap();
    let got: Vec<String> = messages.iter().map(Value::to_string).collect();
    assert_eq!(got, expect);
}

fn reply(message: Value, finish: &str) -> Reply {
    let choice = json!({"message": message, "finish_reason": finish});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}});
    read_reply(
        &json!({"choices": [choice], "usage": usage}).to_string(),
        false,
    )
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn answer(request: Value) -> ResponsesRenderer {
    to_chat(request.to_string().as_bytes()).unwrap().answer
}

fn plain() -> ResponsesRenderer {
    answer(json!({"model": "m", "input": "hi", "stream": true}))
}

/// The events of a stream; checks that each has its name in its data too.
fn events(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream).unwrap();
    assert!(!text.contains("[DONE]"));
    let blocks = text.split("\n\n").filter(|block| !block.is_empty());
    let events = blocks.map(|block| {
        let (name, data) = block.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

fn stream(answer: &mut ResponsesRenderer, deltas: &[Delta]) -> Vec<Value> {
    let mut out = answer.start();
    for delta in deltas {
        out.extend(answer.push(delta));
    }
    out.extend(answer.finish());
    let events = events(&out);
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    events
}

#[test]
fn what_codex_sends_back_is_what_the_model_said() {
    let turns = [
        include_str!("../../tests/transcripts/responses-codex-1.json"),
        include_str!("../../tests/transcripts/responses-codex-2.json"),
        include_str!("../../tests/transcripts/responses-codex-3.json"),
    ];
    let chats: Vec<Value> = turns.iter().map(|turn| chat_of(turn)).collect();
    let said = [
        json!({"role": "assistant", "content": "Writing the file.", "reasoning_content": "I think I should write the file.\nThen look.", "tool_calls": [
            call("call_a1", "exec_command", r#"{"cmd": "printf hi > hello.txt"}"#),
            call("call_a2", "exec_command", r#"{"cmd": "echo two; ls"}"#),
        ]}),
        json!({"role": "assistant", "content": null, "reasoning_content": "Now the note.", "tool_calls": [
            call("call_b1", "mcp__my_srv__add_note", r#"{"text": "hi"}"#),
        ]}),
    ];
    for (pair, said) in chats.windows(2).zip(said) {
        let [before, after] = [&pair[0], &pair[1]].map(|it| it["messages"].as_array().unwrap());
        let before_text: Vec<String> = before.iter().map(Value::to_string).collect();
        let after_text: Vec<String> = after.iter().map(Value::to_string).collect();
        assert_eq!(before_text, after_text[..before.len()]);
        assert_eq!(after[before.len()].to_string(), said.to_string());
        assert_eq!(pair[0]["tools"].to_string(), pair[1]["tools"].to_string());
    }
    let roles: Vec<&str> = chats[2]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|message| message["role"].as_str())
        .collect();
    assert_eq!(
        roles.join(" "),
        "system user user assistant tool tool assistant tool"
    );
}

#[test]
fn codex_freeform_and_hosted_tools_are_offered_as_functions_or_left_out() {
    let body = include_str!("../../tests/transcripts/responses-codex-patch.json");
    let translation = to_chat(body.as_bytes()).unwrap();
    assert_eq!(translation.dropped, ["tool tool_search", "text.verbosity"]);
    let chat: Value = serde_json::from_slice(&translation.chat).unwrap();
    assert_eq!(chat["reasoning_effort"], "medium");
    let messages = chat["messages"].as_array().unwrap();
    let patch = "*** Begin Patch\n*** Add File: p.txt\n+patched \"q\"\n*** End Patch\n";
    assert_eq!(
        messages[messages.len() - 2]["tool_calls"],
        json!([call(
            "call_p",
            "apply_patch",
            &json!({"input": patch}).to_string()
        )])
    );
    let tools = chat["tools"].as_array().unwrap();
    let tool = tools
        .iter()
        .find(|tool| tool["function"]["name"] == "apply_patch")
        .unwrap();
    let description = tool["function"]["description"].as_str().unwrap();
    assert!(
        description.contains("lark grammar:\nstart: begin_patch"),
        "{description}"
    );
    assert_eq!(tool["function"]["parameters"]["required"], json!(["input"]));
}

#[test]
fn tools_that_codex_offers_in_its_input_are_offered() {
    let body = include_str!("../../tests/transcripts/responses-codex-code.json");
    let chat = chat_of(body);
    let names: Vec<&str> = chat["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["function"]["name"].as_str())
        .collect();
    assert_eq!(names[..2], ["functions__exec", "functions__wait"]);
    assert_eq!(names.len(), 11);
    let message = &chat["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(
        message["content"],
        "Script completed\nWall time 0.1 seconds\nOutput:\n\nhey"
    );
}

#[test]
fn what_opencode_sends_back_is_one_message_too() {
    let body = include_str!("../../tests/transcripts/responses-opencode.json");
    let chat = chat_of(body);
    let messages = chat["messages"].as_array().unwrap();
    let said = &messages[2];
    assert_eq!(said["reasoning_content"], "I will write it.");
    assert_eq!(said["content"], "Writing.");
    assert_eq!(said["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(messages.len(), 5);
}

#[test]
fn a_string_input_is_a_user_message() {
    check(json!("hi"), &[r#"{"role":"user","content":"hi"}"#]);
}

#[test]
fn leading_system_messages_are_merged_and_later_ones_become_user_messages() {
    let body = json!({"input": [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": [{"type": "input_text", "text": "c"}]},
        {"role": "user", "content": "d"},
        {"role": "developer", "content": "e"},
    ], "instructions": "a"});
    let chat = chat_of(&body.to_string());
    assert_eq!(
        chat["messages"].to_string(),
        r#"[{"role":"system","content":"a\n\nb\n\nc"},{"role":"user","content":"d"},{"role":"user","content":"e"}]"#
    );
}

#[test]
fn items_of_one_turn_are_one_message() {
    check(
        json!([
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "content": [{"type": "reasoning_text", "text": "long"}], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
            {"type": "function_call", "call_id": "1", "namespace": "ns", "name": "f", "arguments": "{}"},
            {"type": "local_shell_call", "call_id": "2", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "web_search_call", "id": "w"},
            {"type": "function_call_output", "call_id": "1", "output": "ok"},
            {"type": "local_shell_call_output", "id": "2", "output": {"x": 1}},
        ]),
        &[
            r#"{"role":"assistant","content":"ab","reasoning_content":"long","tool_calls":[{"id":"1","type":"function","function":{"name":"ns__f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"local_shell","arguments":"{\"type\":\"exec\",\"command\":[\"ls\"]}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"1","content":"ok"}"#,
            r#"{"role":"tool","tool_call_id":"2","content":"{\"x\":1}"}"#,
        ],
    );
}

#[test]
fn images_of_tool_results_follow_all_results() {
    check(
        json!([
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x", "detail": "original"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": "data:y", "detail": "high"}]},
            {"type": "function_call_output", "call_id": "2", "output": ""},
            {"role": "assistant", "content": "c"},
        ]),
        &[
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}}]}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"1","content":"b"}"#,
            r#"{"role":"tool","tool_call_id":"2","content":""}"#,
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:y","detail":"high"}}]}"#,
            r#"{"role":"assistant","content":"c"}"#,
        ],
    );
}

#[test]
fn settings_get_their_names_in_chat() {
    let chat = chat_of(
        &json!({
            "model": "m", "input": "hi", "stream": true, "store": false, "tools": [], "tool_choice": "auto",
            "parallel_tool_calls": false, "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.9,
            "reasoning": {"effort": "high", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
        })
        .to_string(),
    );
    assert_eq!(
        chat.to_string(),
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"temperature":0.5,"top_p":0.9,"reasoning_effort":"high","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}},"stream":true,"stream_options":{"include_usage":true}}"#
    );
}

#[test]
fn a_tool_choice_is_translated() {
    for (choice, expect) in [
        (json!("required"), json!("required")),
        (
            json!({"type": "function", "name": "f", "namespace": "n"}),
            json!({"type": "function", "function": {"name": "n__f"}}),
        ),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": []}),
            json!("auto"),
        ),
        (json!({"type": "web_search"}), Value::Null),
    ] {
        let body = json!({"input": "", "tool_choice": choice, "tools": [{"type": "function", "name": "f", "strict": true}]});
        let chat = chat_of(&body.to_string());
        assert_eq!(chat["tool_choice"], expect);
        assert_eq!(chat["tools"][0]["function"]["strict"], true);
    }
}

#[test]
fn untranslatable_requests_are_refused_with_the_reason() {
    for (body, expect) in [
        ("[]", "the request body is not a JSON object"),
        ("{}", "the request's member `input` is missing"),
        (
            r#"{"input":"","previous_response_id":"r"}"#,
            "`previous_response_id` (nothing is stored here: send the whole input, store: false) cannot be asked",
        ),
        (
            r#"{"input":[{"type":"item_reference","id":"i"}]}"#,
            "an item by reference",
        ),
        (
            r#"{"input":[{"type":"compaction"}]}"#,
            "an item of type `compaction` cannot",
        ),
        (
            r#"{"input":[{"type":"function_call","call_id":"1"}]}"#,
            "the request's member `input[0].name` is missing",
        ),
        (
            r#"{"input":[{"role":"robot"}]}"#,
            "the request's member `input[0].role` is no role",
        ),
        (
            r#"{"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]}"#,
            "an image by its file id",
        ),
    ] {
        let error = to_chat(body.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expect), "{error}");
    }
}
