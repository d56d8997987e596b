//! Sends a prepared request to the endpoint. What may pass by itself (a busy or restarting server) is tried again here,
//! within the rollout's time, rather than handed to agents that give up or spin.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};

use rollcage_model::dialect::EndpointDialect;
use rollcage_model::exchange::Attempt;

use super::{Session, answer};
use crate::endpoint::Endpoint;
use crate::result::now;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// For a count of tokens.
const COUNT_LIMIT: Duration = Duration::from_secs(30);
/// Of a failed try's body, for the record.
const ERROR_CHARS_MAX: usize = 2000;

/// The version of the dialect that is asked in when the agent names none.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// What of an agent's head the endpoint sees, where both speak the same dialect.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    pub(super) headers: HeaderMap,
    pub(super) query: Option<String>,
}

/// Asks until there is an answer to pass on. The tries before it are returned with it.
pub(super) async fn send(
    session: &Session,
    passed: &Passed,
    body: Bytes,
) -> (reqwest::Result<reqwest::Response>, Vec<Attempt>) {
    let mut attempts = Vec::new();
    loop {
        let sent = send_once(session, passed, &body).await;
        let advised = match &sent {
            Ok(response) if is_passing(response.status().as_u16()) => advised_delay(response),
            Err(error) if error.is_connect() || error.is_request() => None,
            _ => return (sent, attempts),
        };
        let Some(delay) = session.delay_before_retry(attempts.len(), advised) else {
            return (sent, attempts);
        };
        attempts.push(describe(session, sent).await);
        tokio::time::sleep(delay).await;
    }
}

async fn send_once(
    session: &Session,
    passed: &Passed,
    body: &Bytes,
) -> reqwest::Result<reqwest::Response> {
    let mut url = session.url.clone();
    url.set_query(passed.query.as_deref());
    let request = session.options.client.post(url);
    let request = authorised(&session.options.endpoint, request)
        // Replaces those that are there.
        .headers(passed.headers.clone())
        .header(CONTENT_TYPE, answer::JSON)
        .body(body.clone());
    request.send().await
}

/// The endpoint's key, in the header of its dialect.
pub(super) fn authorised(
    endpoint: &Endpoint,
    request: reqwest::RequestBuilder,
) -> reqwest::RequestBuilder {
    match (endpoint.dialect, &endpoint.key) {
        (EndpointDialect::Chat, None) => request,
        (EndpointDialect::Chat, Some(key)) => request.bearer_auth(key.expose()),
        (EndpointDialect::Anthropic, key) => {
            let request = request.header("anthropic-version", ANTHROPIC_VERSION);
            match key {
                Some(key) => request.header("x-api-key", key.expose()),
                None => request,
            }
        }
    }
}

/// The endpoint's own count of a prompt's tokens; `None` when it gives none, since agents can do without.
pub(super) async fn count_tokens(session: &Session, passed: &Passed, body: &[u8]) -> Option<Bytes> {
    let rewrite = rollcage_model::chat::Rewrite {
        model: Some(session.options.endpoint.model.clone()),
        ..Default::default()
    };
    let prepared = rollcage_model::dialect::anthropic::prepare(body, &rewrite).ok()?;
    let mut url = session.url.clone();
    url.set_path(&format!("{}/count_tokens", session.url.path()));
    url.set_query(passed.query.as_deref());
    let request = session.options.client.post(url).timeout(COUNT_LIMIT);
    let request = authorised(&session.options.endpoint, request)
        .headers(passed.headers.clone())
        .header(CONTENT_TYPE, answer::JSON)
        .body(prepared.body);
    let answer = request.send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    answer.bytes().await.ok()
}

impl Session {
    /// How long to wait before the next try; `None` when there is to be none.
    fn delay_before_retry(&self, tries: usize, advised: Option<Duration>) -> Option<Duration> {
        if tries >= self.options.settings.retries_max {
            return None;
        }
        let doubled =
            FIRST_DELAY * 2_u32.saturating_pow(u32::try_from(tries).unwrap_or(u32::MAX).min(16));
        let delay = advised.unwrap_or(doubled).min(DELAY_MAX);
        let is_late = self
            .options
            .deadline
            .is_some_and(|deadline| Instant::now() + delay >= deadline);
        (!is_late).then_some(delay)
    }
}

/// Answers that another try may turn into a good one.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 529)
}

fn advised_delay(response: &reqwest::Response) -> Option<Duration> {
    let number = |name: &str| {
        let value = response.headers().get(name)?.to_str().ok()?;
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

async fn describe(session: &Session, sent: reqwest::Result<reqwest::Response>) -> Attempt {
    let (status, error) = match sent {
        Ok(response) => {
            let status = response.status().as_u16();
            let body = response.text().await.unwrap_or_default();
            (Some(status), body.chars().take(ERROR_CHARS_MAX).collect())
        }
        Err(error) => (None, cause(&error)),
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

/// Whether the endpoint answers at all. Agents retry for a minute what we can tell at once.
pub async fn reach(client: &reqwest::Client, endpoint: &Endpoint) -> Result<(), String> {
    let url = format!("{}/models", endpoint.base_url);
    let request = client.get(&url).timeout(Duration::from_secs(15));
    let request = authorised(endpoint, request);
    match request.send().await {
        Ok(answer) if answer.status() == 401 || answer.status() == 403 => Err(format!(
            "endpoint {} refuses the API key ({}): check the variable that holds it",
            endpoint.base_url,
            answer.status()
        )),
        // Not every endpoint lists its models; any other answer shows that somebody is there.
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "cannot reach endpoint {}: {}; is the server running and the URL right?",
            endpoint.base_url,
            cause(&error)
        )),
    }
}
