//! Answers in the format of Anthropic's service: JSON and streams, with pings, thoughts, calls and errors.

use serde_json::{Value, json};

use crate::upstream::{ReceivedRequest, Reply, StreamEnd};

/// A signature that only Anthropic can create; it must come back unchanged.
pub const SIGNATURE: &str = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk";
pub const CALL_ID: &str = "toolu_01T1x1fJ34qAmk2tNTrN7Up6";

/// The usage that every answer ends with: 472 prompt tokens, 300 of them read from a cache and 100 written to one.
fn usage() -> Value {
    json!({
        "input_tokens": 72, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 300,
        "output_tokens": 89, "service_tier": "standard",
    })
}

/// Thoughts, a text and a call, streamed if requested.
pub fn calls(request: &ReceivedRequest) -> Reply {
    let content = json!([
        {"type": "thinking", "thinking": "Look first.", "signature": SIGNATURE},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": CALL_ID, "name": "bash", "input": {"command": "ls \"a b\""}},
    ]);
    answer(request, &content, "tool_use")
}

/// A text that ends the turn.
pub fn says(request: &ReceivedRequest, text: &str) -> Reply {
    answer(
        request,
        &json!([{"type": "text", "text": text}]),
        "end_turn",
    )
}

/// An answer as JSON, or as a stream if requested.
pub fn answer(request: &ReceivedRequest, content: &Value, stop_reason: &str) -> Reply {
    let request: Value = serde_json::from_str(&request.body).unwrap_or_default();
    if request["stream"] == true {
        return Reply::Events {
            events: events(&request, content, stop_reason),
            ending: StreamEnd::Clean,
        };
    }
    let mut message = message(&request);
    message["content"] = content.clone();
    message["stop_reason"] = stop_reason.into();
    message["usage"] = usage();
    Reply::Whole {
        status: 200,
        content_type: "application/json",
        body: message.to_string(),
    }
}

/// A stream that ends early with an error event.
pub fn fails_midway(request: &ReceivedRequest) -> Reply {
    let request: Value = serde_json::from_str(&request.body).unwrap_or_default();
    let content = json!([{"type": "text", "text": "I loo"}]);
    let mut all = events(&request, &content, "end_turn");
    // After the text, before the end of its block.
    all.truncate(all.len() - 3);
    let error =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    all.push(event(&error));
    Reply::Events {
        events: all,
        ending: StreamEnd::Clean,
    }
}

/// An error response in Anthropic's format.
pub fn refuses(status: u16, headers: &'static str, kind: &str, message: &str) -> Reply {
    let error = json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"});
    Reply::Refusal {
        status,
        headers,
        body: error.to_string(),
    }
}

fn message(request: &Value) -> Value {
    json!({
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL", "type": "message", "role": "assistant",
        "model": request["model"], "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 72, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 300, "output_tokens": 1},
    })
}

/// The events of an answer. Texts and arguments come in two deltas.
pub fn events(request: &Value, content: &Value, stop_reason: &str) -> Vec<String> {
    let mut out = vec![
        event(&json!({"type": "message_start", "message": message(request)})),
        event(&json!({"type": "ping"})),
    ];
    for (index, block) in content.as_array().into_iter().flatten().enumerate() {
        let (start, deltas) = start_and_deltas(block);
        out.push(event(
            &json!({"type": "content_block_start", "index": index, "content_block": start}),
        ));
        for delta in deltas {
            let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
            out.push(event(&delta));
        }
        out.push(event(
            &json!({"type": "content_block_stop", "index": index}),
        ));
        out.push(event(&json!({"type": "ping"})));
    }
    out.push(event(&json!({
        "type": "message_delta",
        "delta": {"stop_reason": stop_reason, "stop_sequence": null},
        "usage": {"output_tokens": 89},
    })));
    out.push(event(&json!({"type": "message_stop"})));
    out
}

/// The start of a block, and its deltas.
fn start_and_deltas(block: &Value) -> (Value, Vec<Value>) {
    let halves = |text: &str| {
        let at = text.len() / 2;
        let at = (0..=at).rev().find(|at| text.is_char_boundary(*at));
        let (left, right) = text.split_at(at.unwrap_or(0));
        [left.to_owned(), right.to_owned()]
    };
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    match text("type") {
        "thinking" => {
            let thoughts = halves(text("thinking"));
            let mut deltas: Vec<Value> = thoughts
                .map(|text| json!({"type": "thinking_delta", "thinking": text}))
                .into();
            deltas.push(json!({"type": "signature_delta", "signature": text("signature")}));
            let start = json!({"type": "thinking", "thinking": "", "signature": ""});
            (start, deltas)
        }
        "tool_use" => {
            let mut start = block.clone();
            start["input"] = json!({});
            let input = halves(&block["input"].to_string());
            let mut deltas = vec![json!({"type": "input_json_delta", "partial_json": ""})];
            deltas.extend(
                input.map(|text| json!({"type": "input_json_delta", "partial_json": text})),
            );
            (start, deltas)
        }
        "text" => {
            let texts = halves(text("text"));
            let deltas = texts.map(|text| json!({"type": "text_delta", "text": text}));
            (json!({"type": "text", "text": ""}), deltas.into())
        }
        _ => (block.clone(), Vec::new()),
    }
}

fn event(data: &Value) -> String {
    let name = data["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}
