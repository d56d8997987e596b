//! Requests as the real Claude Code sends them, a stream as Anthropic sends it, and properties of both directions.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Render;
use crate::chat::{Delta, Message, Reply, ToolCall, Usage};
use crate::sse::Splitter;

/// Three requests of one rollout, with the profile that rollouts use.
const TURNS: [&str; 3] = [
    include_str!("../../tests/transcripts/anthropic-claude-code-1.json"),
    include_str!("../../tests/transcripts/anthropic-claude-code-2.json"),
    include_str!("../../tests/transcripts/anthropic-claude-code-3.json"),
];

/// The same with Claude Code's own settings: cache marks that move, and a system message that turns from a list of
/// blocks into a string.
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

/// The chat members that a request's other members become.
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

fn answer() -> Answer {
    let mut answer = Answer::new("m");
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

/// A rendered stream as one line for each event, in short.
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
fn a_request_of_claude_code_becomes_chat() {
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
fn what_is_left_out_is_named() {
    let translation = to_chat(CACHED[0].as_bytes()).unwrap();
    assert_eq!(
        translation.dropped,
        [
            "system: billing header",
            "metadata",
            "thinking",
            "context_management",
            "output_config.effort"
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
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            "stream": false, "seed": 7,
        })),
        json!({
            "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop": ["X"],
            "tool_choice": "required", "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": true}},
            "stream": false, "seed": 7,
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
fn what_cannot_be_asked_is_refused_by_name() {
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

/// Claude Code asks again without a stream when there is no block at all; after an empty text it asks once more and
/// then ends.
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
fn errors_and_small_answers_have_anthropics_shape() {
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

#[test]
fn a_stream_of_anthropic_is_read() {
    let reply = read_message(STREAM, true);
    let mut other = serde_json::Map::new();
    other.insert(
        "reasoning_content".into(),
        "The user wants the weather.".into(),
    );
    let tool_call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: Some(id.to_owned()),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    assert_eq!(
        reply,
        Reply {
            id: Some("msg_01XFDUDYJgAACzvnptvVoYEL".into()),
            model: Some("claude-opus-4-5-20251101".into()),
            message: Message {
                role: "assistant".into(),
                content: Some("Okay, let's check:".into()),
                tool_calls: vec![
                    tool_call(
                        "toolu_01T1x1fJ34qAmk2tNTrN7Up6",
                        "get_weather",
                        "{\"location\": \"San Francisco\"}"
                    ),
                    tool_call("toolu_02", "get_time", "{}"),
                ],
                other,
            },
            finish_reason: Some("tool_calls".into()),
            usage: Some(Usage {
                prompt_tokens: 572,
                completion_tokens: 89,
                cached_tokens: 400,
                cache_write_tokens: 100,
            }),
            is_complete: true,
            ..Reply::default()
        }
    );
}

#[test]
fn a_stream_that_was_cut_or_failed_is_not_complete() {
    let cut = read_message(
        &STREAM[..STREAM.find("event: message_delta").unwrap()],
        true,
    );
    assert_eq!((cut.is_complete, cut.finish_reason), (false, None));
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let overloaded = json!({"type": "overloaded_error", "message": "Overloaded"});
    let failed = read_message(error, true);
    assert_eq!(failed.upstream_error, Some(overloaded.clone()));
    let body = String::from_utf8(error_body(529, "Overloaded")).unwrap();
    assert_eq!(read_message(&body, true).upstream_error, Some(overloaded));
    let refused = r#"{"id":"x","content":[{"type":"text","text":"no"}],"stop_reason":"refusal","usage":{"input_tokens":1,"output_tokens":2}}"#;
    let refused = read_message(refused, false);
    assert_eq!(refused.finish_reason.as_deref(), Some("content_filter"));
    assert_eq!(refused.message.content.as_deref(), Some("no"));
}

#[test]
fn a_chat_request_becomes_a_messages_request() {
    let chat = json!({
        "model": "claude", "max_completion_tokens": 5, "temperature": 1, "stream": true, "stop": "X", "seed": 1,
        "stream_options": {"include_usage": true}, "logprobs": true, "parallel_tool_calls": false,
        "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}],
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "oops"}},
            ]},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "one"},
            {"role": "system", "content": "note"},
            {"role": "tool", "tool_call_id": "c2", "content": ""},
        ],
    });
    let got = from_chat_request(chat.to_string().as_bytes(), &Thoughts::default()).unwrap();
    assert_eq!(
        got.dropped,
        [
            "thoughts of earlier turns that led to no call",
            "seed",
            "logprobs"
        ]
    );
    assert_eq!(
        serde_json::from_slice::<Value>(&got.body).unwrap(),
        json!({
            "model": "claude", "max_tokens": 5, "system": "S", "temperature": 1, "stream": true, "stop_sequences": ["X"],
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "functions_f_0", "name": "f", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "f", "input": {"INVALID_JSON": "oops"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "functions_f_0", "content": [{"type": "text", "text": "one"}]},
                    {"type": "tool_result", "tool_use_id": "c2"},
                    {"type": "text", "text": "<system-reminder>\nnote\n</system-reminder>", "cache_control": {"type": "ephemeral"}},
                ]},
            ],
        })
    );
}

#[test]
fn thoughts_with_their_signature_go_back_before_their_call() {
    let (reply, kept) = read_with_thoughts(STREAM, true);
    let mut thoughts = Thoughts::default();
    thoughts.keep(kept);
    let mut turn = reply.message.to_value();
    // As an agent sends it that keeps no thoughts.
    turn.as_object_mut().unwrap().remove("reasoning_content");
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}, turn]});
    let asked = from_chat_request(chat.to_string().as_bytes(), &thoughts).unwrap();
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    let content = body["messages"][1]["content"].as_array().unwrap();
    let kinds: Vec<&str> = content
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!(content[0]["thinking"], "The user wants the weather.");
    assert!(!content[0]["signature"].as_str().unwrap().is_empty());
    assert_eq!(asked.dropped, Vec::<String>::new());
}

#[test]
fn usage_is_found_without_reading_the_rest() {
    let whole = r#"{"id":"x","content":[],"usage":{"input_tokens":5,"cache_read_input_tokens":2,"output_tokens":3}}"#;
    for (body, is_stream) in [(STREAM, true), (whole, false)] {
        assert_eq!(
            usage_of(body.as_bytes()),
            read_message(body, is_stream).usage
        );
    }
    assert_eq!(usage_of(b"event: ping\ndata: {}\n\n"), None);
    assert_eq!(usage_of(&error_body(529, "Overloaded")), None);
}

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

/// Pieces of an answer: thoughts and texts, then calls whose arguments may interleave.
fn pieces() -> impl Strategy<Value = Vec<Delta>> {
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

/// What a client that joins the pieces holds at the end.
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
    fn a_rendered_stream_reads_as_what_was_rendered(deltas in pieces()) {
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
    fn blocks_come_one_after_the_other(deltas in pieces()) {
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
