//! OpenAI Responses, as Codex and OpenCode's `openai` provider use it, translated to and from chat.
//!
//! Stateless: references to stored objects (`previous_response_id`, item references) are refused. Hosted tools cannot
//! run here; they are dropped without failing the request, and `Translation::dropped` lists them.

mod answer;
mod content;
mod input;
mod item;
mod tool;

use serde_json::{Map, Value, json};

pub use self::answer::ResponsesRenderer;
use super::TranslateError;
use crate::chat::mentions_context_overflow;

/// A request translated to chat, and the renderer for its answer.
#[derive(Debug)]
pub struct Translation {
    /// A chat completions body.
    pub chat: Vec<u8>,
    pub is_stream: bool,
    pub answer: ResponsesRenderer,
    /// What chat cannot express, by the request's own member names.
    pub dropped: Vec<String>,
}

/// Translates a body of `POST /v1/responses`. Deterministic: the same history yields the same messages, byte for byte.
pub fn to_chat(body: &[u8]) -> Result<Translation, TranslateError> {
    let request: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| TranslateError::NotObject(error.to_string()))?;
    refuse_state(&request)?;
    let mut dropped = Vec::new();
    let tools = tool::OfferedTools::read(&request, &mut dropped);
    let messages = input::messages(&request, &mut dropped)?;
    let is_stream = request.get("stream") == Some(&Value::Bool(true));

    let mut chat = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            chat.insert(name.to_owned(), value);
        }
    };
    let same = |name: &str| request.get(name).cloned();
    set("model", same("model"));
    set("messages", Some(Value::Array(messages)));
    // Endpoints refuse a `tool_choice` without tools, and Codex sends one.
    if !tools.offered.is_empty() {
        set("tool_choice", tools.choice(&request, &mut dropped));
        set("parallel_tool_calls", same("parallel_tool_calls"));
        set("tools", Some(Value::Array(tools.offered.clone())));
    }
    set("max_tokens", same("max_output_tokens"));
    set("temperature", same("temperature"));
    set("top_p", same("top_p"));
    let effort = request.get("reasoning").and_then(|it| it.get("effort"));
    set("reasoning_effort", effort.cloned());
    set("response_format", response_format(&request));
    if request
        .get("text")
        .and_then(|it| it.get("verbosity"))
        .is_some()
    {
        dropped.push("text.verbosity".to_owned());
    }
    if is_stream {
        set("stream", Some(Value::Bool(true)));
        // The last event of the answer has to report the usage.
        set("stream_options", Some(json!({"include_usage": true})));
    }
    let chat = Value::Object(chat).to_string().into_bytes();
    let answer = ResponsesRenderer::new(&request, tools.originals, &chat);
    Ok(Translation {
        chat,
        is_stream,
        answer,
        dropped,
    })
}

fn refuse_state(request: &Map<String, Value>) -> Result<(), TranslateError> {
    let is_set = |name: &&str| request.get(*name).is_some_and(|value| !value.is_null());
    let stored = ["previous_response_id", "conversation", "prompt"];
    if let Some(name) = stored.iter().find(|name| is_set(name)) {
        return Err(TranslateError::Unsupported {
            what: format!("`{name}` (nothing is stored here: send the whole input, store: false)"),
        });
    }
    if request.get("background") == Some(&Value::Bool(true)) {
        return Err(TranslateError::Unsupported {
            what: "`background`".to_owned(),
        });
    }
    Ok(())
}

fn response_format(request: &Map<String, Value>) -> Option<Value> {
    let format = request.get("text")?.get("format")?;
    match format.get("type")?.as_str()? {
        "json_schema" => {
            let mut schema = format.as_object()?.clone();
            schema.shift_remove("type");
            Some(json!({"type": "json_schema", "json_schema": schema}))
        }
        "json_object" => Some(json!({"type": "json_object"})),
        _ => None,
    }
}

/// The body of an error response.
pub fn error_body(status: u16, message: &str) -> Vec<u8> {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        // Failed dependency: the fault is on our side, not in the request.
        424 => "upstream_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    // Agents give up on a prompt that is too long only if the error code says so; otherwise they retry.
    let code = mentions_context_overflow(message).then_some("context_length_exceeded");
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
        .to_string()
        .into_bytes()
}

/// The response body of `GET /v1/models`.
pub fn models_answer(model: &str) -> Vec<u8> {
    let model = json!({"id": model, "object": "model", "created": 0, "owned_by": "rollcage"});
    json!({"object": "list", "data": [model]})
        .to_string()
        .into_bytes()
}

fn missing(member: &str) -> TranslateError {
    wrong(member, "is missing")
}

fn wrong(member: &str, problem: &str) -> TranslateError {
    TranslateError::Member {
        member: member.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests;
