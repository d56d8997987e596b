//! One chat completion: record the request, ask the upstream, record the answer, release it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};

use rollcage_model::chat::{Prepared, prepare, strip_body};
use rollcage_model::exchange::{self, Line};

use super::Session;
use super::answer::{self, Body};
use super::exchange::Open;
use super::relay;
use crate::result::now;

/// An agent's request: a long conversation with images is some ten megabytes.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// An upstream's whole answer with token ids and logprobs.
const ANSWER_BYTES_MAX: usize = 256 << 20;

pub(super) async fn chat(session: Arc<Session>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, REQUEST_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the request body is larger than {REQUEST_BYTES_MAX} bytes");
            return answer::error(
                StatusCode::PAYLOAD_TOO_LARGE,
                "invalid_request_error",
                &message,
            );
        }
        Err(error) => {
            let message = format!("read the request body: {error}");
            return answer::error(StatusCode::BAD_REQUEST, "invalid_request_error", &message);
        }
    };
    // At most one try per capture level: each refusal makes us ask for less.
    for _ in 0..super::CAPTURES.len() {
        match attempt(&session, head.uri.path(), &head.headers, &body).await {
            Attempt::Answered(response) => return response,
            Attempt::AskForLess => {}
        }
    }
    answer::error(
        StatusCode::BAD_GATEWAY,
        "upstream_error",
        "the endpoint refuses what the agent asks for",
    )
}

enum Attempt {
    Answered(Response<Body>),
    /// The endpoint refused a member that we added.
    AskForLess,
}

async fn attempt(session: &Arc<Session>, path: &str, headers: &HeaderMap, body: &Bytes) -> Attempt {
    let prepared = match prepare(body, &session.rewrite()) {
        Ok(prepared) => prepared,
        Err(error) => {
            let message = crate::result::chain(&error);
            return Attempt::Answered(answer::error(
                StatusCode::BAD_REQUEST,
                "invalid_request_error",
                &message,
            ));
        }
    };
    let exchange = session.next_exchange();
    let line = Line::Request(exchange::Request {
        exchange,
        at: now(),
        path: path.to_owned(),
        headers: recorded_headers(headers),
        body: body.to_vec(),
        set: prepared.set.clone(),
        removed: prepared.removed.clone(),
    });
    // Written before anything is sent, so that a lost answer shows as a hole.
    if let Err(problem) = session.record(line) {
        return Attempt::Answered(unrecorded(&problem));
    }
    let mut open = Open::new(Arc::clone(session), exchange);
    match send(session, &prepared).await {
        Err(error) => {
            let problem = format!("no answer: {}", cause(&error));
            Attempt::Answered(close_with(&mut open, StatusCode::BAD_GATEWAY, &problem))
        }
        Ok(upstream) => receive(session, open, upstream, &prepared).await,
    }
}

async fn send(session: &Session, prepared: &Prepared) -> reqwest::Result<reqwest::Response> {
    let url = format!("{}/chat/completions", session.endpoint.base_url);
    let mut request = session
        .client
        .post(url)
        .header(CONTENT_TYPE, answer::JSON)
        .body(prepared.body.clone());
    if let Some(key) = &session.endpoint.key {
        request = request.bearer_auth(key.expose());
    }
    request.send().await
}

async fn receive(
    session: &Arc<Session>,
    mut open: Open,
    mut upstream: reqwest::Response,
    prepared: &Prepared,
) -> Attempt {
    let status = upstream.status();
    open.status = Some(status.as_u16());
    let content_type =
        header(&upstream, CONTENT_TYPE.as_str()).unwrap_or_else(|| answer::JSON.to_owned());
    open.is_stream = content_type.starts_with("text/event-stream");
    if status.is_success() && prepared.is_stream && open.is_stream {
        return Attempt::Answered(relay::stream(open, upstream, prepared.added));
    }
    loop {
        match upstream.chunk().await {
            Ok(Some(bytes)) => open.push(&bytes),
            Ok(None) => break,
            Err(error) => {
                let problem = format!("the answer broke off: {}", cause(&error));
                return Attempt::Answered(close_with(&mut open, StatusCode::BAD_GATEWAY, &problem));
            }
        }
        if open.body().len() > ANSWER_BYTES_MAX {
            let problem = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes");
            return Attempt::Answered(close_with(&mut open, StatusCode::BAD_GATEWAY, &problem));
        }
    }
    if status.is_success()
        && (prepared.is_stream || open.is_stream || !content_type.starts_with(answer::JSON))
    {
        // Agents given something else than what they asked for loop without end.
        let wanted = if prepared.is_stream {
            "an event stream"
        } else {
            "JSON"
        };
        let problem = format!("the endpoint was asked for {wanted} and answered {content_type}");
        return Attempt::Answered(close_with(&mut open, StatusCode::BAD_GATEWAY, &problem));
    }
    let body = open.body().to_vec();
    if let Err(problem) = open.close(None) {
        return Attempt::Answered(unrecorded(&problem));
    }
    if matches!(status.as_u16(), 400 | 422) && session.learn_from(&String::from_utf8_lossy(&body)) {
        return Attempt::AskForLess;
    }
    Attempt::Answered(pass_on(session, &upstream, &content_type, body, prepared))
}

/// The upstream's answer as the agent may see it: without what we added, and never with our key in it.
fn pass_on(
    session: &Session,
    upstream: &reqwest::Response,
    content_type: &str,
    body: Vec<u8>,
    prepared: &Prepared,
) -> Response<Body> {
    let is_success = upstream.status().is_success();
    let body = if is_success {
        strip_body(&body, &prepared.added)
    } else {
        body
    };
    let body = match &session.endpoint.key {
        Some(key) if !is_success => key.scrub(&String::from_utf8_lossy(&body)).into_bytes(),
        _ => body,
    };
    let mut response = answer::whole(upstream.status(), content_type, body);
    for name in [RETRY_AFTER.as_str(), "retry-after-ms"] {
        if let Some(value) = upstream.headers().get(name)
            && let Ok(name) = hyper::header::HeaderName::from_bytes(name.as_bytes())
        {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

fn close_with(open: &mut Open, status: StatusCode, problem: &str) -> Response<Body> {
    match open.close(Some(problem.to_owned())) {
        Ok(()) => answer::error(status, "upstream_error", problem),
        Err(unwritten) => unrecorded(&unwritten),
    }
}

/// What could not be recorded is not answered: a token that is not on disk was not captured.
fn unrecorded(problem: &str) -> Response<Body> {
    answer::error(StatusCode::INTERNAL_SERVER_ERROR, "rollcage_error", problem)
}

fn header(response: &reqwest::Response, name: &str) -> Option<String> {
    response
        .headers()
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

/// Everything but credentials.
fn recorded_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    const SECRET: [&str; 5] = [
        "authorization",
        "x-api-key",
        "x-goog-api-key",
        "cookie",
        "proxy-authorization",
    ];
    let shown = headers
        .iter()
        .filter(|(name, _)| !SECRET.contains(&name.as_str()));
    shown
        .map(|(name, value)| {
            (
                name.to_string(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect()
}

/// The innermost reason, without the URL that reqwest repeats.
pub(super) fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
