//! Answers in SGLang's format. Its chat streams refuse `return_token_ids`; newer versions return the ids once per
//! answer, in `sglext`, if two flags of their own are set. Unknown members are ignored.

use serde_json::{Value, json};

use crate::upstream::{ReceivedRequest, Reply, StreamEnd};

const PROMPT: [u32; 4] = [1, 2, 3, 4];
const SAMPLED: [u32; 2] = [7, 8];

/// A version with `sglext`.
pub fn says(request: &ReceivedRequest) -> Reply {
    answer(request, true)
}

/// An older version: ids only in JSON answers.
pub fn says_without_sglext(request: &ReceivedRequest) -> Reply {
    answer(request, false)
}

fn answer(request: &ReceivedRequest, knows_sglext: bool) -> Reply {
    let request: Value = serde_json::from_str(&request.body).unwrap_or_default();
    let is_set = |name: &str| request[name] == true;
    let mut extension = json!({});
    if knows_sglext && is_set("return_input_ids_in_sglext") {
        extension["input_ids"] = json!(PROMPT);
    }
    if knows_sglext && is_set("return_output_ids_in_sglext") {
        extension["output_ids"] = json!([SAMPLED]);
    }
    let extension = (extension != json!({})).then_some(extension);
    match (is_set("stream"), is_set("return_token_ids")) {
        (true, true) => refusal(),
        (true, false) => stream(extension),
        (false, has_ids) => whole(extension, has_ids),
    }
}

fn refusal() -> Reply {
    let message = "return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when using return_token_ids=true.";
    let body = json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": 400});
    Reply::Whole {
        status: 400,
        content_type: "application/json",
        body: body.to_string(),
    }
}

fn logprobs(entries: &[(&str, f64)]) -> Value {
    let entries = entries.iter().map(|(token, logprob)| {
        json!({"token": token, "bytes": token.as_bytes(), "logprob": logprob, "top_logprobs": []})
    });
    json!({"content": entries.collect::<Vec<_>>()})
}

fn usage() -> Value {
    json!({"prompt_tokens": 4, "total_tokens": 6, "completion_tokens": 2, "prompt_tokens_details": null})
}

fn whole(extension: Option<Value>, has_ids: bool) -> Reply {
    let mut choice = json!({
        "index": 0, "finish_reason": "stop", "matched_stop": 8,
        "message": {"role": "assistant", "content": "ok", "reasoning_content": null, "tool_calls": null},
        "logprobs": logprobs(&[("o", -0.25), ("k", -0.5)]),
    });
    if has_ids {
        choice["prompt_token_ids"] = json!(PROMPT);
        choice["token_ids"] = json!(SAMPLED);
    }
    let mut body = json!({
        "id": "a1", "object": "chat.completion", "created": 1, "model": "test-model",
        "choices": [choice], "usage": usage(), "metadata": {"weight_version": "default"},
    });
    if let Some(extension) = extension {
        body["sglext"] = extension;
    }
    Reply::Whole {
        status: 200,
        content_type: "application/json",
        body: body.to_string(),
    }
}

/// The ids come in a separate chunk after the finish reason.
fn stream(extension: Option<Value>) -> Reply {
    let chunk = |choices: Value| {
        json!({
            "id": "a1", "object": "chat.completion.chunk", "created": 1, "model": "test-model",
            "choices": choices, "usage": null,
        })
    };
    let delta_chunk = |delta: Value, logprobs: Value, finish: Option<&str>| {
        chunk(json!([{
            "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish, "matched_stop": null,
        }]))
    };
    let mut data = vec![
        delta_chunk(
            json!({"role": "assistant", "content": ""}),
            Value::Null,
            None,
        ),
        delta_chunk(json!({"content": "o"}), logprobs(&[("o", -0.25)]), None),
        delta_chunk(json!({"content": "k"}), logprobs(&[("k", -0.5)]), None),
        delta_chunk(json!({}), Value::Null, Some("stop")),
    ];
    if let Some(extension) = extension {
        let mut last = chunk(json!([]));
        last["sglext"] = extension;
        data.push(last);
    }
    let mut last = chunk(json!([]));
    last["usage"] = usage();
    data.push(last);
    let mut data: Vec<_> = data.iter().map(Value::to_string).collect();
    data.push("[DONE]".to_owned());
    Reply::Stream {
        data,
        ending: StreamEnd::Clean,
    }
}
