//! Sends a prepared request to the endpoint. What may pass by itself (a busy or restarting server) is tried again here,
//! within the rollout's time, rather than handed to agents that give up or spin.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    InvalidHeaderValue,
};

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::chat::Pieces;
use rollcage_model::ending::Cause;
use rollcage_model::exchange::Attempt;

use super::calls::Problem;
use super::failure::Failure;
use super::incoming::Answer;
use super::patience::{Silence, Trouble};
use super::unread::{SMALL_BYTES_MAX, read_text};
use super::{Session, answer};
use crate::clock::now;
use crate::endpoint::Auth;
use crate::endpoint::Endpoint;

/// For a count of tokens.
const COUNT_LIMIT: Duration = Duration::from_secs(30);
/// For the rest of a failed try's body.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// Of a failed try's body, for the record.
const ERROR_CHARS_MAX: usize = 2000;
const ERROR_BYTES_MAX: usize = 4 * ERROR_CHARS_MAX;

/// The version of the dialect that is asked in when the agent names none.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// What of an agent's head the endpoint sees, where both speak the same dialect.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    pub(super) headers: HeaderMap,
    pub(super) query: Option<String>,
}

/// Asks until there is an answer to pass on, for as long as patience lasts. The tries before it are noted as they are
/// made, since nobody may be there to take the answer. A stream is an answer from its first word on.
pub(super) async fn send(
    session: &Session,
    passed: &Passed,
    body: Pieces,
    trouble: &mut Trouble,
) -> Result<Answer, Failure> {
    let mut has_lost_connection = false;
    let mut outage = None;
    loop {
        let mut sent = send_once(session, passed, &body, &trouble.silence).await;
        let is_lost = sent.as_ref().is_err_and(|it| it.is_connection_lost);
        if is_lost && !std::mem::replace(&mut has_lost_connection, true) {
            // As a rule it had waited for this call, and the endpoint had just closed it: nothing to wait for. But the
            // endpoint may have read the request, and sampled, so it is told of.
            trouble.attempts.push(describe(session, sent, None).await);
            continue;
        }
        let problem = match &mut sent {
            Ok(answer) => answer.look(session.options.endpoint.dialect).await,
            Err(failure) => failure.is_passing.then(|| failure.unanswered()),
        };
        let Some(problem) = problem else {
            trouble.failing = None;
            if sent.is_ok() {
                session.is_patience_used.store(false, Ordering::Relaxed);
            }
            return sent;
        };
        outage.get_or_insert_with(|| session.outages.begin());
        trouble.failing = Some(problem.clone());
        let advised = sent.as_ref().ok().and_then(advised_delay);
        let Some(delay) = trouble.delay(session.patience(), advised) else {
            session.is_patience_used.store(true, Ordering::Relaxed);
            if let Ok(answer) = &mut sent {
                answer.give_up(problem);
            }
            return sent;
        };
        trouble
            .attempts
            .push(describe(session, sent, Some(problem)).await);
        tokio::time::sleep(delay).await;
    }
}

async fn send_once(
    session: &Session,
    passed: &Passed,
    body: &Pieces,
    silence: &Arc<Silence>,
) -> Result<Answer, Failure> {
    let mut url = session.url.clone();
    url.set_query(passed.query.as_deref());
    let request = session.options.client.post(url);
    let request = request
        .headers(session.headers.clone())
        // Replaces those that are there.
        .headers(passed.headers.clone())
        // Not every server takes a body whose length it is not told.
        .header(CONTENT_LENGTH, body.bytes());
    let pieces = stream::iter(body.clone()).map(Ok::<_, Infallible>);
    let request = request.body(reqwest::Body::wrap_stream(pieces));
    silence.begin();
    let response = request.send().await;
    silence.end();
    Ok(Answer::new(response?, session.scrub.as_ref(), silence))
}

/// What every request to an endpoint is sent with: the key in the header that it reads.
pub(super) fn headers_of(endpoint: &Endpoint) -> Result<HeaderMap, InvalidHeaderValue> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer::JSON));
    if endpoint.dialect == EndpointDialect::Anthropic {
        let version = HeaderValue::from_static(ANTHROPIC_VERSION);
        headers.insert("anthropic-version", version);
    }
    if let Some(key) = &endpoint.key {
        let auth = match endpoint.dialect {
            EndpointDialect::Chat => endpoint.auth,
            EndpointDialect::Anthropic => Auth::XApiKey,
        };
        let (name, mut value) = match auth {
            Auth::Bearer => {
                let value = format!("Bearer {}", key.expose());
                (AUTHORIZATION, HeaderValue::from_str(&value)?)
            }
            Auth::ApiKey => {
                let name = HeaderName::from_static("api-key");
                (name, HeaderValue::from_str(key.expose())?)
            }
            Auth::XApiKey => {
                let name = HeaderName::from_static("x-api-key");
                (name, HeaderValue::from_str(key.expose())?)
            }
        };
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// A request that is no model call, with the endpoint's key.
pub(super) fn authorised(
    endpoint: &Endpoint,
    request: reqwest::RequestBuilder,
) -> reqwest::RequestBuilder {
    // A key that no header can hold is told of when a session opens.
    request.headers(headers_of(endpoint).unwrap_or_default())
}

/// The endpoint's own count of a prompt's tokens; `None` when it gives none, since agents can do without.
pub(super) async fn count_tokens(
    session: &Session,
    passed: &Passed,
    body: &Bytes,
) -> Option<Bytes> {
    let rewrite = rollcage_dialect::chat::Rewrite {
        model: Some(session.options.endpoint.model.clone()),
        ..Default::default()
    };
    let prepared = rollcage_dialect::anthropic::prepare(body, &rewrite).ok()?;
    let mut url = session.url.clone();
    url.set_path(&format!("{}/count_tokens", session.url.path()));
    url.set_query(passed.query.as_deref());
    let request = session.options.client.post(url).timeout(COUNT_LIMIT);
    let request = authorised(&session.options.endpoint, request)
        // Replaces those that are there.
        .headers(passed.headers.clone())
        .body(prepared.body.concat());
    let answer = request.send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    let count = read_text(
        answer,
        SMALL_BYTES_MAX,
        session.options.endpoint.key.as_ref(),
    )
    .await;
    count.ok().map(Bytes::from)
}

fn advised_delay(answer: &Answer) -> Option<Duration> {
    let number = |name: &str| {
        let value = answer.header(name)?;
        value
            .trim()
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite() && *number >= 0.0)
    };
    let milliseconds = number("retry-after-ms").map(|number| number / 1000.0);
    milliseconds
        .or_else(|| number("retry-after"))
        .map(|seconds| Duration::from_secs_f64(seconds.min(3600.0)))
}

async fn describe(
    session: &Session,
    sent: Result<Answer, Failure>,
    problem: Option<Problem>,
) -> Attempt {
    let aborted = problem.filter(|problem| problem.cause == Cause::EndpointAborted);
    let (status, error) = match sent {
        Ok(mut answer) => {
            let status = answer.status().as_u16();
            let mut body = Vec::new();
            // Read to its end, so that the connection can be used again; what breaks off was an error anyway.
            let reading = async {
                loop {
                    match answer.chunk().await {
                        Ok(Some(bytes)) => {
                            let room = ERROR_BYTES_MAX.saturating_sub(body.len());
                            body.extend_from_slice(&bytes[..bytes.len().min(room)]);
                        }
                        Ok(None) => return None,
                        Err(failure) => return Some(failure.text),
                    }
                }
            };
            let broken = tokio::time::timeout(REST_LIMIT, reading).await;
            let body = String::from_utf8_lossy(&body);
            let mut error: String = body.trim().chars().take(ERROR_CHARS_MAX).collect();
            if let Ok(Some(broken)) = broken {
                let sentence = format!("the answer broke off: {broken}");
                error = [error, sentence].join("\n").trim_start().to_owned();
            } else if let Some(aborted) = aborted {
                // What was sampled until then is of no use to anybody.
                error = aborted.text;
            } else if error.is_empty() {
                "the answer was empty".clone_into(&mut error);
            }
            (Some(status), error)
        }
        Err(failure) => (None, failure.text),
    };
    let error = match &session.options.endpoint.key {
        Some(key) => key.scrub(&error),
        None => error,
    };
    Attempt {
        at: now(),
        status,
        error,
    }
}

#[cfg(test)]
mod tests;
