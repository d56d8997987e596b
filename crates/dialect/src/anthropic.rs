//! The Anthropic Messages dialect, on both sides. The requests of an agent that speaks it are translated to chat, and
//! the answers back (`to_chat`, `MessagesRenderer`); chat requests to an endpoint that speaks it are translated to
//! Messages, and the answers back (`from_chat_request`, `read_with_thoughts`, `DeltaReader`). Where both speak it, the
//! request is forwarded with few members changed (`prepare`), and the answer unchanged.
//!
//! Nothing is lost silently: a feature without a counterpart becomes an error, text that the model can read, or an
//! entry in `Translation::dropped`.

mod answer;
mod block;
mod content;
mod from_chat;
mod prepare;
mod reader;
mod request;
mod thought;

use serde_json::{Map, Value, json};

use super::TranslateError;

pub use answer::MessagesRenderer;
pub use from_chat::{MessagesRequest, from_chat_request};
pub use prepare::prepare;
pub use reader::{CallThoughts, error_message, read_message, read_with_thoughts, usage_of};
pub(crate) use reader::{DeltaReader, UsageCounts};
pub use request::{Translation, messages_of, to_chat};
pub use thought::Thoughts;

/// An error body in Anthropic's format. Clients decide by its type whether to retry.
pub fn error_body(status: u16, message: &str) -> Vec<u8> {
    let kind = match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        // Failed dependency: the fault is on our side, not in the request.
        424 => "api_error",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    };
    error_value(kind, message).to_string().into_bytes()
}

/// The answer to `POST /v1/messages/count_tokens`.
pub fn count_tokens_answer(input_tokens: u64) -> Vec<u8> {
    json!({ "input_tokens": input_tokens })
        .to_string()
        .into_bytes()
}

/// The answer to `GET /v1/models`, for a session that has one model.
pub fn models_answer(model: &str) -> Vec<u8> {
    let entry = json!({
        "type": "model",
        "id": model,
        "display_name": model,
        // The member is required, but the date is unknown.
        "created_at": "1970-01-01T00:00:00Z",
    });
    json!({ "data": [entry], "has_more": false, "first_id": model, "last_id": model })
        .to_string()
        .into_bytes()
}

fn error_value(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

fn object(body: &[u8]) -> Result<Map<String, Value>, TranslateError> {
    serde_json::from_slice(body).map_err(|error| TranslateError::NotObject(error.to_string()))
}

fn wrong(member: impl Into<String>, problem: &str) -> TranslateError {
    TranslateError::Member {
        member: member.into(),
        problem: problem.to_owned(),
    }
}

fn unsupported(what: impl Into<String>) -> TranslateError {
    TranslateError::Unsupported { what: what.into() }
}

/// A string member of an object, or an error that names its path.
fn string<'a>(value: &'a Value, name: &str, place: &str) -> Result<&'a str, TranslateError> {
    let text = value.get(name).and_then(Value::as_str);
    text.ok_or_else(|| wrong(format!("{place}.{name}"), "is no string"))
}

fn list<'a>(value: &'a Value, place: &str) -> Result<&'a [Value], TranslateError> {
    let list = value.as_array().map(Vec::as_slice);
    list.ok_or_else(|| wrong(place, "is no list"))
}

/// A tool call's arguments as the JSON object that Anthropic requires. Anything else is wrapped in an object under the
/// name that Anthropic's documentation uses for that case, so that the model can still read it.
fn input_of(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(input)) => Value::Object(input),
        Ok(_) | Err(_) => json!({ "INVALID_JSON": arguments }),
    }
}

#[cfg(test)]
mod tests;
