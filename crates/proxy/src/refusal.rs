//! Refusals and failures, as an agent is told of them.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use rollcage_dialect::chat::render::farewell;
use rollcage_dialect::chat::{StreamError, is_passing_status};
use rollcage_dialect::{EndpointDialect, Route, anthropic};

use super::OnOverflow;
use super::answer::{self, Body};
use super::calls::Problem;
use super::exchange::Open;
use super::forward::Call;
use super::incoming::Answer;
use super::question::{AnswerItself as _, say};

/// The status of a call that the endpoint did not answer however often it was asked, or answered with something else.
///
/// Agents take 429 and every 5xx for a wish to be asked again, and ask for minutes after we gave up. Failed Dependency is
/// true of us, is tried again by no client, and does not put the fault on the request as 400 would.
pub(super) const GIVEN_UP: StatusCode = StatusCode::FAILED_DEPENDENCY;
/// What an agent is told then. OpenCode asks again whatever the status is when it finds a number such as 429, or words such
/// as `server error` and `connection refused`, anywhere in the body; so the cause stands beside it.
const GIVEN_UP_TEXT: &str = "The model endpoint gave no usable answer, as often as it was asked. This call has failed for good; the header x-rollcage-cause says why.";
/// What the endpoint answered, shortened; the record has it as it came.
const CAUSE: HeaderName = HeaderName::from_static("x-rollcage-cause");
const CAUSE_CHARS_MAX: usize = 500;
/// The clients of OpenAI and Anthropic read this before the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// For the rest of a stream that failed.
const REST_LIMIT: Duration = Duration::from_millis(200);
const REST_BYTES_MAX: usize = 1 << 20;

/// A refusal as the agent may see it, and never with our key in it. A conversation that no longer fits ends with a
/// last answer instead where that ends the rollout, since agents would send the same again.
pub(super) fn refusal(
    call: Call,
    upstream: &Answer,
    content_type: &str,
    body: &[u8],
) -> Response<Body> {
    let session = &call.session;
    let text = String::from_utf8_lossy(body);
    let status = upstream.status();
    // Agents that speak the endpoint's dialect know this one, and ask for less.
    let is_too_much = text.contains("exceed context limit") && call.question.render.is_some();
    let is_overflow = is_context_overflow(status, &text) || is_too_much;
    if is_overflow && session.options.on_overflow == OnOverflow::Stop {
        session.stop("context");
        let reply = farewell("The conversation no longer fits the model's context. I stop here.");
        return say(call.question, &session.options.endpoint.model, &reply);
    }
    let text = match &session.options.endpoint.key {
        Some(key) => key.scrub(&text),
        None => text.into_owned(),
    };
    if is_passing_status(status.as_u16()) {
        return give_up(&call.route, status, &text);
    }
    let mut response = match (&call.question.render, session.options.endpoint.dialect) {
        (None, _) => answer::whole(status, content_type, text),
        (Some(_), EndpointDialect::Chat) => call.route.refuse(status, &text),
        (Some(_), EndpointDialect::Anthropic) => {
            let message = anthropic::error_message(&text).unwrap_or(text);
            call.route.refuse(status, &message)
        }
    };
    let passed = [RETRY_AFTER.as_str(), "retry-after-ms", "request-id"];
    for name in passed.into_iter().chain([SHOULD_RETRY.as_str()]) {
        if let Some(value) = upstream.headers().get(name)
            && let Ok(name) = HeaderName::from_bytes(name.as_bytes())
        {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// An answer that might have passed, and did not while we asked again.
pub(super) fn give_up(route: &Route, status: StatusCode, text: &str) -> Response<Body> {
    let told = StreamError::read(text).map(|error| error.message);
    let told = told.as_deref().unwrap_or(text).trim();
    failed(
        route,
        GIVEN_UP,
        &format!("the endpoint answered {status}: {told}"),
    )
}

/// An answer that began well and failed in a way that might have passed; nothing of it was passed on.
pub(super) async fn give_up_begun(
    route: &Route,
    mut open: Open,
    mut upstream: Answer,
    problem: Problem,
) -> Response<Body> {
    let mut broken = None;
    let reading = async {
        while open.bytes() < REST_BYTES_MAX {
            match upstream.chunk().await {
                Ok(Some(bytes)) => open.push(bytes),
                Ok(None) => return,
                Err(failure) => {
                    broken = Some(format!("the answer broke off: {}", failure.text));
                    return;
                }
            }
        }
    };
    // It said all that it has to say, and may stay open.
    let _ = tokio::time::timeout(REST_LIMIT, reading).await;
    let body = open.body();
    let body = String::from_utf8_lossy(&body);
    let mut data = body.lines().filter_map(|line| line.strip_prefix("data:"));
    let told = data.find_map(StreamError::read).map(|error| error.message);
    let text = told.or(broken).unwrap_or(problem.text);
    let text = open.scrub(&text).unwrap_or(text);
    close_with(
        route,
        &mut open,
        GIVEN_UP,
        Problem::new(problem.cause, text),
    )
}

/// What engines say when a prompt is longer than the model can take.
pub(super) fn is_context_overflow(status: StatusCode, text: &str) -> bool {
    const SIGNS: [&str; 5] = [
        "context_length_exceeded",
        "maximum context length",
        "exceeds the model's context",
        "prompt is too long",
        "longer than the maximum model length",
    ];
    matches!(status.as_u16(), 400 | 413 | 422) && SIGNS.iter().any(|sign| text.contains(sign))
}

pub(super) fn close_with(
    route: &Route,
    open: &mut Open,
    status: StatusCode,
    problem: Problem,
) -> Response<Body> {
    let text = problem.text.clone();
    match open.close(Some(problem)) {
        Ok(()) => failed(route, status, &text),
        Err(unwritten) => unrecorded(route, &unwritten),
    }
}

/// A failure, told so that no agent tries again what we gave up.
pub(super) fn failed(route: &Route, status: StatusCode, problem: &str) -> Response<Body> {
    if status != GIVEN_UP {
        return route.refuse(status, problem);
    }
    let mut response = route.refuse(status, GIVEN_UP_TEXT);
    let headers = response.headers_mut();
    headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    let plain = problem.chars().map(|letter| match letter {
        ' '..='~' => letter,
        _ => ' ',
    });
    let cause: String = plain.take(CAUSE_CHARS_MAX).collect();
    if let Ok(cause) = HeaderValue::from_str(&cause) {
        headers.insert(CAUSE, cause);
    }
    response
}

/// What could not be recorded is not answered: a token that is not on disk was not captured.
pub(super) fn unrecorded(route: &Route, problem: &str) -> Response<Body> {
    route.refuse(StatusCode::INTERNAL_SERVER_ERROR, problem)
}
