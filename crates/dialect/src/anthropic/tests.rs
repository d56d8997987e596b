//! Recorded requests of Claude Code, a recorded stream of Anthropic, and properties of both directions.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::chat::Render;
use crate::chat::{Delta, Message, Reply, ToolCall, Usage};
use crate::sse::Splitter;

mod random;
mod upstream;

/// Three requests of one rollout, with the profile that rollouts use.
const TURNS: [&str; 3] = [
    include_str!("../../tests/transcripts/anthropic-claude-code-1.json"),
    include_str!("../../tests/transcripts/anthropic-claude-code-2.json"),
    include_str!("../../tests/transcripts/anthropic-claude-code-3.json"),
];

/// The same with Claude Code's default settings: cache markers that move, and a system message that changes from a list
/// of blocks into a string.
const CACHED: [&str; 3] = [
    include_str!("../../tests/transcripts/anthropic-claude-code-cached-1.json"),
    include_str!("../../tests/transcripts/anthropic-claude-code-cached-2.json"),
    include_str!("../../tests/transcripts/anthropic-claude-code-cached-3.json"),
];

const STREAM: &str = include_str!("../../tests/transcripts/anthropic-stream.sse");

#[track_caller]
fn chat_of(body: &str) -> Value {
    let translation = to_chat(body.as_bytes()).unwrap();
    serde_json::from_slice(&translation.chat).unwrap()
}

/// The chat messages of a request that has only messages.
#[track_caller]
fn messages(messages: Value) -> Value {
    let body = json!({ "model": "m", "max_tokens": 5, "messages": messages });
    chat_of(&body.to_string())["messages"].take()
}

/// The members of the chat request other than its messages.
#[track_caller]
fn members(more: Value) -> Value {
    let mut body = json!({ "model": "m", "messages": [] });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    let mut chat = chat_of(&body.to_string());
    for name in ["model", "messages"] {
        chat.as_object_mut().unwrap().shift_remove(name);
    }
    chat
}

#[track_caller]
fn refused(body: Value) -> String {
    to_chat(body.to_string().as_bytes())
        .unwrap_err()
        .to_string()
}

fn answer() -> MessagesRenderer {
    let mut answer = MessagesRenderer::new("m");
    answer.message_id = "msg_1".to_owned();
    answer
}

fn render(deltas: &[Delta]) -> String {
    let mut answer = answer();
    let mut out = answer.start();
    for delta in deltas {
        out.extend(answer.push(delta));
    }
    out.extend(answer.finish());
    String::from_utf8(out).unwrap()
}

/// A rendered stream in short, one line per event.
fn short(stream: &str) -> Vec<String> {
    let mut splitter = Splitter::new(usize::MAX);
    let events = splitter.push(stream.as_bytes()).unwrap();
    let line = |event: crate::sse::SseEvent| {
        let data: Value = serde_json::from_str(&event.data.unwrap()).unwrap();
        assert_eq!(data["type"], event.name);
        let part = ["content_block", "delta"].map(|name| data[name].clone());
        match part.into_iter().find(|part| !part.is_null()) {
            Some(part) => format!("{} {} {part}", event.name, data["index"]),
            None => event.name,
        }
    };
    events.into_iter().map(line).collect()
}

fn call(index: usize, id: &str, name: &str) -> Delta {
    let (id, name) = (id.to_owned(), name.to_owned());
    Delta::Call { index, id, name }
}

fn arguments(index: usize, text: &str) -> Delta {
    let text = text.to_owned();
    Delta::Arguments { index, text }
}

#[test]
fn a_request_of_claude_code_is_translated() {
    let chat = chat_of(TURNS[2]);
    let names: Vec<&String> = chat.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "model",
            "messages",
            "tools",
            "max_tokens",
            "logprobs",
            "return_token_ids",
            "reasoning_effort",
            "stream",
            "stream_options"
        ]
    );
    let messages = chat["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        [
            "system",
            "user",
            "system",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "tool",
            "user"
        ]
    );
    assert_eq!(
        messages[3],
        json!({
            "role": "assistant",
            "content": "Let me.",
            "reasoning_content": "I should act.",
            "tool_calls": [
                {"id": "toolu_1_2", "type": "function", "function": {"name": "Write", "arguments": r#"{"file_path":"/project/a.txt","content":"hello\n"}"#}},
                {"id": "toolu_1_3", "type": "function", "function": {"name": "Bash", "arguments": r#"{"command":"false; echo oops >&2; exit 3","description":"fail"}"#}},
            ],
        })
    );
    assert_eq!(
        messages[5],
        json!({"role": "tool", "tool_call_id": "toolu_1_3", "content": "Error: Exit code 3\noops"})
    );
    assert_eq!(messages[7]["content"], "[image]");
    assert_eq!(
        messages[8]["content"][0]["text"],
        "[image of tool result toolu_2_2]"
    );
    let url = messages[8]["content"][1]["image_url"]["url"].as_str();
    assert!(url.unwrap().starts_with("data:image/png;base64,iVBOR"));
    assert_eq!(chat["tools"][0]["type"], "function");
    assert_eq!(chat["tools"][0]["function"]["name"], "Bash");
    assert_eq!(chat["tools"][0]["function"]["parameters"]["type"], "object");
    assert_eq!(chat["stream_options"], json!({"include_usage": true}));
}

#[test]
fn each_turn_repeats_the_messages_of_the_turn_before_byte_for_byte() {
    for turns in [TURNS, CACHED] {
        let turns = turns.map(|body| {
            let messages = chat_of(body)["messages"].take();
            let messages = messages.as_array().unwrap().clone();
            messages.iter().map(Value::to_string).collect::<Vec<_>>()
        });
        assert!(turns[1].starts_with(&turns[0]));
        assert!(turns[2].starts_with(&turns[1]));
    }
}

#[test]
fn dropped_members_are_listed() {
    let translation = to_chat(CACHED[0].as_bytes()).unwrap();
    assert_eq!(
        translation.dropped,
        [
            "system: billing header",
            "metadata",
            "thinking",
            "context_management"
        ]
    );
    assert!(!translation.is_thinking_disabled);
    let chat = String::from_utf8(translation.chat).unwrap();
    assert!(!chat.contains("billing") && !chat.contains("cache_control"));
}

#[test]
fn results_follow_their_calls_in_the_calls_order_and_before_the_user() {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": id}]});
    let got = messages(json!([
        {"role": "assistant", "content": [call("a")]},
        {"role": "assistant", "content": [call("b"), call("c")]},
        {"role": "system", "content": "note"},
        {"role": "user", "content": [{"type": "text", "text": "go on"}, result("c"), result("a"), result("b")]},
    ]));
    let got: Vec<String> = got
        .as_array()
        .unwrap()
        .iter()
        .map(|message| format!("{}:{}", message["role"], message["content"]).replace('"', ""))
        .collect();
    assert_eq!(
        got,
        [
            "assistant:null",
            "tool:a",
            "tool:b",
            "tool:c",
            "system:note",
            "user:go on"
        ]
    );
}

#[test]
fn blocks_without_a_counterpart_stay_readable() {
    let got = messages(json!([
        {"role": "user", "content": [
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
            {"type": "search_result", "title": "S", "cache_control": {"type": "ephemeral"}},
        ]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "tool_use", "id": "r", "name": "Read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "r", "content": [
            {"type": "tool_reference", "tool_name": "WebFetch"},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
        ]}]},
    ]));
    assert_eq!(
        got[0]["content"],
        "T\nD\n{\"type\":\"search_result\",\"title\":\"S\"}"
    );
    assert_eq!(
        got[2]["content"],
        "{\"type\":\"tool_reference\",\"tool_name\":\"WebFetch\"}\n[a document of type `application/pdf` cannot be shown]"
    );
}

#[test]
fn choices_limits_and_formats_get_their_chat_names() {
    assert_eq!(
        members(json!({
            "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop_sequences": ["X"],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "stream": false, "seed": 7,
        })),
        json!({
            "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop": ["X"],
            "tool_choice": "required", "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": true}},
            "reasoning_effort": "max", "stream": false, "seed": 7,
        })
    );
    assert_eq!(
        members(json!({"tools": [], "tool_choice": {"type": "tool", "name": "f"}})),
        json!({"tool_choice": {"type": "function", "function": {"name": "f"}}})
    );
    let disabled = json!({"model": "m", "messages": [], "thinking": {"type": "disabled"}});
    let disabled = to_chat(disabled.to_string().as_bytes()).unwrap();
    assert!(disabled.is_thinking_disabled && !disabled.is_stream);
}

#[test]
fn untranslatable_members_are_refused_by_name() {
    let with = |name: &str, value: Value| {
        let mut body = json!({"model": "m", "messages": []});
        body[name] = value;
        refused(body)
    };
    assert_eq!(
        with(
            "tools",
            json!([{"type": "web_search_20250305", "name": "web_search"}])
        ),
        "the server tool `web_search_20250305` cannot be asked of this endpoint"
    );
    assert_eq!(
        with("messages", json!([{"role": "user", "content": 3}])),
        "the request's member `messages[0].content` is neither a string nor a list of blocks"
    );
    let pdf = json!([{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}]}]);
    assert_eq!(
        with("messages", pdf),
        "a document of type `application/pdf` cannot be asked of this endpoint"
    );
    assert_eq!(
        refused(json!({"model": "m"})),
        "the request's member `messages` is no list"
    );
    assert!(matches!(to_chat(b"[]"), Err(TranslateError::NotObject(_))));
}

#[test]
fn a_trace_holds_tools_that_only_anthropic_runs() {
    let server_tool = json!({"type": "web_search_20250305", "name": "web_search"});
    let body = json!({"model": "m", "system": "S", "messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "f"}, server_tool]});
    let (messages, tools) = messages_of(body.to_string().as_bytes());
    assert_eq!(
        messages,
        [
            json!({"role": "system", "content": "S"}),
            json!({"role": "user", "content": "hi"})
        ]
    );
    let function = json!({"type": "function", "function": {"name": "f"}});
    assert_eq!(tools, Some(json!([function, server_tool])));
    assert_eq!(messages_of(b"no JSON"), (Vec::new(), None));
}

#[test]
fn interleaved_calls_are_rendered_one_after_the_other() {
    let stream = render(&[
        Delta::Reasoning("hm".into()),
        Delta::Text("ok".into()),
        call(0, "a", "Write"),
        arguments(0, "{\"x\""),
        call(1, "", "Bash"),
        arguments(1, "{"),
        arguments(0, ":1}"),
        arguments(1, "}"),
        Delta::Finish("stop".into()),
        Delta::Usage(Usage {
            prompt_tokens: 10,
            completion_tokens: 3,
            cached_tokens: 4,
            cache_write_tokens: 1,
        }),
    ]);
    assert_eq!(
        short(&stream),
        [
            "message_start",
            r#"content_block_start 0 {"type":"thinking","thinking":"","signature":""}"#,
            r#"content_block_delta 0 {"type":"thinking_delta","thinking":"hm"}"#,
            r#"content_block_delta 0 {"type":"signature_delta","signature":"rollcage"}"#,
            "content_block_stop",
            r#"content_block_start 1 {"type":"text","text":""}"#,
            r#"content_block_delta 1 {"type":"text_delta","text":"ok"}"#,
            "content_block_stop",
            r#"content_block_start 2 {"type":"tool_use","id":"a","name":"Write","input":{}}"#,
            r#"content_block_delta 2 {"type":"input_json_delta","partial_json":"{\"x\""}"#,
            r#"content_block_delta 2 {"type":"input_json_delta","partial_json":":1}"}"#,
            "content_block_stop",
            r#"content_block_start 3 {"type":"tool_use","id":"toolu_1_1","name":"Bash","input":{}}"#,
            r#"content_block_delta 3 {"type":"input_json_delta","partial_json":"{}"}"#,
            "content_block_stop",
            r#"message_delta null {"stop_reason":"tool_use","stop_sequence":null}"#,
            "message_stop",
        ]
    );
    assert!(stream.contains(r#""usage":{"input_tokens":5,"cache_creation_input_tokens":1,"cache_read_input_tokens":4,"output_tokens":3}"#));
}

/// Claude Code retries without streaming if there is no block at all; after an empty text it retries once and then
/// ends.
#[test]
fn an_answer_without_text_still_has_a_text_block() {
    let stream = render(&[
        Delta::Reasoning("hm".into()),
        Delta::Finish("length".into()),
    ]);
    let lines = short(&stream);
    assert_eq!(
        lines[5..],
        [
            r#"content_block_start 1 {"type":"text","text":""}"#,
            "content_block_stop",
            r#"message_delta null {"stop_reason":"max_tokens","stop_sequence":null}"#,
            "message_stop",
        ]
    );
    let whole = answer().whole(&Reply::default());
    let whole: Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(whole["content"], json!([{"type": "text", "text": ""}]));
    assert_eq!(whole["stop_reason"], "end_turn");
}

#[test]
fn calls_with_one_index_and_two_ids_are_two_calls() {
    let reply = read_message(
        &render(&[
            call(0, "a", "f"),
            arguments(0, "{}"),
            call(0, "a", "f"),
            call(0, "b", "g"),
            arguments(0, "{ }"),
            Delta::Finish("tool_calls".into()),
        ]),
        true,
    );
    let calls: Vec<(&str, &str)> = reply
        .message
        .tool_calls
        .iter()
        .map(|call| (call.id.as_deref().unwrap(), call.arguments.as_str()))
        .collect();
    assert_eq!(calls, [("a", "{}"), ("b", "{ }")]);
}

#[test]
fn errors_and_small_answers_have_anthropics_format() {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert_eq!(
        text(answer().error("gone")),
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"gone\"}}\n\n"
    );
    assert_eq!(
        text(answer().keep_alive()),
        "event: ping\ndata: {\"type\":\"ping\"}\n\n"
    );
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (529, "overloaded_error"),
    ] {
        assert_eq!(
            text(error_body(status, "m")),
            format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"m"}}}}"#)
        );
    }
    assert_eq!(text(count_tokens_answer(7)), r#"{"input_tokens":7}"#);
    assert!(text(models_answer("m")).starts_with(r#"{"data":[{"type":"model","id":"m""#));
}
