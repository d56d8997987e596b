//! Gemini's generateContent, as Gemini CLI uses it, translated to and from chat.
//!
//! The model and whether to stream are in the path, not in the body: see `ModelMethod`. Members are accepted under both
//! of their JSON names (`topP`, `top_p`), as Google does.

mod answer;
mod config;
mod contents;
mod schema;
mod signature;

use serde_json::{Map, Value, json};

pub use self::answer::GeminiRenderer;
use super::TranslateError;

/// A request translated to chat, and the renderer for its answer.
#[derive(Debug)]
pub struct Translation {
    /// A chat completions body.
    pub chat: Vec<u8>,
    pub is_stream: bool,
    pub answer: GeminiRenderer,
    /// What chat cannot express, by the request's own member names.
    pub dropped: Vec<String>,
}

/// The method that a request path calls, and on which model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelMethod {
    Generate {
        model: String,
        encoding: ResponseEncoding,
    },
    CountTokens {
        model: String,
    },
}

/// How an answer is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEncoding {
    /// One JSON object, for `generateContent`.
    Whole,
    /// Server-sent events, for `streamGenerateContent?alt=sse`.
    Events,
    /// One JSON array, sent element by element, for `streamGenerateContent` without `alt=sse`.
    Array,
}

impl ResponseEncoding {
    pub fn content_type(self) -> &'static str {
        match self {
            ResponseEncoding::Whole | ResponseEncoding::Array => "application/json",
            ResponseEncoding::Events => "text/event-stream",
        }
    }
}

impl ModelMethod {
    /// Parses `/v1beta/models/{model}:{method}`; the model's name may contain slashes.
    pub fn parse(path: &str, query: &str) -> Option<Self> {
        let (_, rest) = path.split_once("/models/")?;
        let (model, method) = rest.rsplit_once(':')?;
        let model = model.to_owned();
        let encoding = match method {
            "generateContent" => ResponseEncoding::Whole,
            "streamGenerateContent" if query.split('&').any(|pair| pair == "alt=sse") => {
                ResponseEncoding::Events
            }
            "streamGenerateContent" => ResponseEncoding::Array,
            "countTokens" => return Some(ModelMethod::CountTokens { model }),
            _ => return None,
        };
        Some(ModelMethod::Generate { model, encoding })
    }
}

/// Translates a request body. Deterministic: the same history yields the same messages, byte for byte.
pub fn to_chat(
    body: &[u8],
    model: &str,
    encoding: ResponseEncoding,
) -> Result<Translation, TranslateError> {
    let request: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| TranslateError::NotObject(error.to_string()))?;
    if member(&request, "cachedContent").is_some() {
        return Err(TranslateError::Unsupported {
            what: "`cachedContent` (nothing is stored here)".to_owned(),
        });
    }
    let mut dropped = Vec::new();
    let mut chat = Map::new();
    chat.insert("model".to_owned(), model.into());
    let (messages, n_calls) = contents::messages(&request)?;
    chat.insert("messages".to_owned(), messages.into());
    config::tools(&request, &mut chat, &mut dropped)?;
    config::generation(&request, &mut chat, &mut dropped)?;
    let is_stream = encoding != ResponseEncoding::Whole;
    if is_stream {
        chat.insert("stream".to_owned(), true.into());
        // The last chunk of the answer has to report the usage.
        let options = json!({"include_usage": true});
        chat.insert("stream_options".to_owned(), options);
    }
    let answer = GeminiRenderer::new(&request, model, encoding, n_calls);
    Ok(Translation {
        chat: Value::Object(chat).to_string().into_bytes(),
        is_stream,
        answer,
        dropped,
    })
}

/// The body of an error response.
pub fn error_body(status: u16, message: &str) -> Vec<u8> {
    error_value(status, message).to_string().into_bytes()
}

fn error_value(status: u16, message: &str) -> Value {
    let name = match status {
        400 | 413 | 422 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        500 => "INTERNAL",
        504 => "DEADLINE_EXCEEDED",
        501.. => "UNAVAILABLE",
        _ => "FAILED_PRECONDITION",
    };
    json!({"error": {"code": status, "message": message, "status": name}})
}

/// The response body of `GET /v1beta/models`.
pub fn models_answer(model: &str) -> Vec<u8> {
    let methods = ["generateContent", "countTokens"];
    let model = json!({
        "name": format!("models/{model}"),
        "displayName": model,
        "supportedGenerationMethods": methods,
    });
    json!({"models": [model]}).to_string().into_bytes()
}

/// The response body of `:countTokens`.
pub fn count_tokens_answer(n: u64) -> Vec<u8> {
    json!({"totalTokens": n}).to_string().into_bytes()
}

/// A member under its camel-case or its snake-case name; null counts as absent.
fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let found = object.get(name).or_else(|| {
        let snake = name.chars().fold(String::new(), |mut out, letter| {
            if letter.is_ascii_uppercase() {
                out.push('_');
            }
            out.push(letter.to_ascii_lowercase());
            out
        });
        object.get(&snake)
    });
    found.filter(|value| !value.is_null())
}

/// A member of `value`; `None` also if `value` is no object.
fn inside<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    member(value.as_object()?, name)
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    inside(value, name)?.as_str()
}

fn wrong(member: &str, problem: &str) -> TranslateError {
    TranslateError::Member {
        member: member.to_owned(),
        problem: problem.to_owned(),
    }
}

fn unsupported(what: impl Into<String>) -> TranslateError {
    TranslateError::Unsupported { what: what.into() }
}

#[cfg(test)]
mod tests;
