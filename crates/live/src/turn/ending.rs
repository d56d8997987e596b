//! How a turn ended, as its last reply. Pure. No text of a server is passed on as it is.

use std::time::Duration;

use rollcage_model::live::{ErrorCode, ReplyKind};
use serde_json::Value;

use super::state::TurnState;
use crate::client::ClientError;
use crate::client::safe::safe_text;

const DETAIL_CHARS_MAX: usize = 300;
/// No model answers with more in one message; the replies before have all of it.
const TEXT_BYTES_MAX: usize = 4 << 20;
const FINISH_BYTES_MAX: usize = 100;

#[cfg(test)]
mod tests;

/// Why we ended a turn ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Aborted,
    TimedOut(Duration),
    /// It says more than is kept of a turn.
    TooMuch,
}

/// The end of a turn whose answer is in `state`.
pub(super) fn answered(state: &TurnState) -> ReplyKind {
    if state.is_full() {
        return too_much();
    }
    let Some(info) = state.last_info() else {
        return unanswered(state);
    };
    match (&info["error"], info["finish"].as_str()) {
        // Aborted by somebody while it waited to call the model again.
        (Value::Null, None) => unanswered(state),
        (Value::Null, finish) => success(state, finish),
        (error, _) if error["name"] == "MessageOutputLengthError" => success(state, Some("length")),
        (error, _) => failed(error),
    }
}

fn unanswered(state: &TurnState) -> ReplyKind {
    match state.session_error() {
        Some(error) => failed(error),
        None => upstream(
            "the agent ended the turn without an answer".to_owned(),
            true,
        ),
    }
}

/// The end of a turn that we stopped. An answer that was whole by then still counts.
pub(super) fn stopped(stop: Stop, state: Option<&TurnState>) -> ReplyKind {
    if let Some(state) = state
        && is_whole(state)
    {
        return answered(state);
    }
    match stop {
        Stop::Aborted => aborted(),
        Stop::TooMuch => too_much(),
        Stop::TimedOut(limit) => {
            let limit = limit.as_secs_f64();
            let retry = state.and_then(TurnState::retry);
            let message = match retry.map(|text| safe_text(text, DETAIL_CHARS_MAX)) {
                Some(why) => {
                    format!("no answer within {limit} s: the model failed again and again: {why}")
                }
                None => format!("no answer within {limit} s"),
            };
            error(ErrorCode::Timeout, message, true)
        }
    }
}

/// The end of a turn whose call broke, while the server works on nothing any more.
pub(super) fn lost(state: &TurnState) -> ReplyKind {
    let is_failed = state
        .last_info()
        .is_some_and(|info| !info["error"].is_null());
    if is_whole(state) || is_failed {
        return answered(state);
    }
    match state.is_prompt_seen() {
        true => crashed(),
        false => error(
            ErrorCode::Crashed,
            "the connection to the agent's server broke before it took the message".to_owned(),
            true,
        ),
    }
}

/// A request that the turn needs was not answered as it must be.
pub(super) fn refused(problem: &ClientError, state: Option<&TurnState>) -> ReplyKind {
    if let Some(error) = state.and_then(TurnState::session_error) {
        return failed(error);
    }
    match problem {
        ClientError::Unreachable(_) | ClientError::Closed => crashed(),
        ClientError::Deadline(_) => error(ErrorCode::Timeout, problem.to_string(), true),
        ClientError::Status { status, .. } => upstream(problem.to_string(), *status == 429),
        ClientError::Format => upstream(problem.to_string(), false),
    }
}

pub(super) fn crashed() -> ReplyKind {
    let message = "the agent's server ended during the turn".to_owned();
    error(ErrorCode::Crashed, message, true)
}

/// Whether the model has said its last word. A step that ends with tool calls is followed by another, unless a call was
/// refused.
fn is_whole(state: &TurnState) -> bool {
    state.last_info().is_some_and(|info| {
        let finish = info["finish"].as_str();
        info["error"].is_null()
            && info["time"]["completed"].is_number()
            && (finish.is_some_and(|finish| finish != "tool-calls") || state.has_failed_tool())
    })
}

fn success(state: &TurnState, finish: Option<&str>) -> ReplyKind {
    ReplyKind::Final {
        text: shortened(state.last_text(), TEXT_BYTES_MAX).to_owned(),
        usage: state.usage(),
        finish: finish.map(|finish| shortened(finish, FINISH_BYTES_MAX).to_owned()),
    }
}

fn shortened(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The agent's own errors, by their names.
fn failed(problem: &Value) -> ReplyKind {
    let data = &problem["data"];
    let name = problem["name"].as_str().unwrap_or_default();
    let detail = data["message"].as_str().filter(|text| !text.is_empty());
    let detail = detail.map(|text| format!(": {}", safe_text(text, DETAIL_CHARS_MAX)));
    let detail = detail.unwrap_or_default();
    match name {
        "MessageAbortedError" => aborted(),
        "ProviderAuthError" => upstream(
            format!("the model's endpoint refused the key{detail}"),
            false,
        ),
        "ContextOverflowError" => upstream(
            format!("the conversation is too long for the model{detail}"),
            false,
        ),
        "APIError" => api_error(data, &detail),
        _ => upstream(format!("the agent failed{detail}"), false),
    }
}

fn api_error(data: &Value, detail: &str) -> ReplyKind {
    let status = data["statusCode"].as_u64();
    let body = data["responseBody"].as_str().unwrap_or_default();
    let texts = format!("{detail} {body}").to_lowercase();
    if status == Some(402) || texts.contains("budget") && texts.contains("exceeded") {
        let message = format!("the budget at the model's endpoint is used up{detail}");
        return error(ErrorCode::Budget, message, false);
    }
    match status {
        Some(status) => {
            let is_retryable = matches!(status, 408 | 425 | 429 | 500..);
            upstream(
                format!("the model answered HTTP {status}{detail}"),
                is_retryable,
            )
        }
        // Without a status the endpoint was not reached, or its answer broke off.
        None => upstream(format!("the call of the model failed{detail}"), true),
    }
}

fn too_much() -> ReplyKind {
    let message = "the agent said more than is kept of a turn";
    upstream(message.to_owned(), false)
}

fn aborted() -> ReplyKind {
    error(ErrorCode::Aborted, "the turn was aborted".to_owned(), false)
}

fn upstream(message: String, retryable: bool) -> ReplyKind {
    error(ErrorCode::Upstream, message, retryable)
}

fn error(code: ErrorCode, message: String, retryable: bool) -> ReplyKind {
    ReplyKind::Error {
        code,
        message,
        retryable,
    }
}
