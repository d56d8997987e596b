//! Endpoints that speak Anthropic's dialect: requests to them and answers from them.

use super::*;

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
fn effort_and_format_are_in_one_place() {
    let config = |more: Value| {
        let mut chat = json!({"model": "m", "messages": []});
        chat.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let got = from_chat_request(chat.to_string().as_bytes(), &Thoughts::default()).unwrap();
        let mut body: Value = serde_json::from_slice(&got.body).unwrap();
        (body["output_config"].take(), got.dropped)
    };
    let schema = json!({"type": "object"});
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    assert_eq!(
        config(json!({"reasoning_effort": "high", "response_format": format})),
        (
            json!({"effort": "high", "format": {"type": "json_schema", "schema": schema}}),
            vec![]
        )
    );
    assert_eq!(
        config(json!({"reasoning_effort": "minimal"})),
        (
            json!({"effort": "low"}),
            vec!["reasoning_effort below low".to_owned()]
        )
    );
    assert_eq!(config(json!({})), (Value::Null, vec![]));
}

#[test]
fn thoughts_with_their_signature_go_back_before_their_call() {
    let (reply, kept) = read_with_thoughts(STREAM, true);
    let thoughts = Thoughts::default();
    thoughts.keep(kept);
    let mut turn = reply.message.to_value();
    // As sent by an agent that does not keep thoughts.
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
