//! Sends a prepared request to the endpoint. What may pass by itself (a busy or restarting server) is tried again here,
//! within the rollout's time, rather than handed to agents that give up or spin.

use std::collections::VecDeque;
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue,
};

use rollcage_model::chat::{Pieces, StreamError, is_passing_status};
use rollcage_model::dialect::EndpointDialect;
use rollcage_model::dialect::anthropic::is_ping;
use rollcage_model::exchange::Attempt;
use rollcage_model::sse::Splitter;

use super::direct::{self, Connection};
use super::scrub::{Scrub, Scrubbed};
use super::unread::{SMALL_BYTES_MAX, read_text};
use super::{Session, answer};
use crate::endpoint::Endpoint;
use crate::outbound::NoAddress;
use crate::provider::Auth;
use crate::result::now;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// For a count of tokens.
const COUNT_LIMIT: Duration = Duration::from_secs(30);
/// For the rest of a failed try's body.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// How long comments and pings are held back while a stream's first event is waited for.
const PEEK_LIMIT: Duration = Duration::from_secs(10);
const FIRST_EVENT_BYTES_MAX: usize = 64 << 10;
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

/// Why there is no answer, or no more of it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) text: String,
    /// Another try may get further.
    is_passing: bool,
    /// A connection broke that had waited for this call: as a rule the endpoint had just closed it.
    is_on_reused_connection: bool,
}

impl Failure {
    pub(super) fn passing(error: &(dyn std::error::Error + 'static)) -> Self {
        Failure {
            text: innermost(error),
            is_passing: true,
            is_on_reused_connection: false,
        }
    }

    pub(super) fn lasting(text: &str) -> Self {
        Failure {
            text: text.to_owned(),
            is_passing: false,
            is_on_reused_connection: false,
        }
    }

    pub(super) fn too_slow() -> Self {
        Failure::lasting("it took too long")
    }

    /// An error in the middle of a call; a server that goes away is worth another try.
    pub(super) fn of_exchange(error: &hyper::Error) -> Self {
        match error.is_parse() || error.is_user() {
            true => Failure::lasting(&innermost(error)),
            false => Failure::passing(error),
        }
    }

    pub(super) fn on_reused_connection(self) -> Self {
        Failure {
            is_on_reused_connection: self.is_passing,
            ..self
        }
    }

    pub(super) fn is_on_reused_connection(&self) -> bool {
        self.is_on_reused_connection
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        Failure {
            text: cause(&error),
            is_passing: !is_forbidden(&error) && (error.is_connect() || error.is_request()),
            is_on_reused_connection: false,
        }
    }
}

/// An endpoint's answer. Its body is still to come.
#[derive(Debug)]
pub(super) struct Answer {
    way: Way,
    /// Of the body, what was looked at before the answer was taken for one.
    peeked: VecDeque<Bytes>,
    /// What broke the body off while it was looked at.
    broken: Option<Failure>,
    is_given_up: bool,
    /// Takes our key out of the body.
    scrubbed: Option<Scrubbed>,
}

/// Which way an answer comes.
#[derive(Debug)]
enum Way {
    Direct(direct::Answer),
    Client(reqwest::Response),
}

impl Answer {
    fn new(mut way: Way, scrub: Option<&Arc<Scrub>>) -> Self {
        if let Some(scrub) = scrub {
            scrub.headers(match &mut way {
                Way::Direct(answer) => &mut answer.head.headers,
                Way::Client(answer) => answer.headers_mut(),
            });
        }
        Answer {
            scrubbed: scrub.cloned().map(Scrubbed::new),
            way,
            peeked: VecDeque::new(),
            broken: None,
            is_given_up: false,
        }
    }

    /// It is a failure that might have passed, and the last try's.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    pub(super) fn status(&self) -> StatusCode {
        match &self.way {
            Way::Direct(answer) => answer.head.status,
            Way::Client(answer) => answer.status(),
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match &self.way {
            Way::Direct(answer) => &answer.head.headers,
            Way::Client(answer) => answer.headers(),
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    /// The next bytes of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        if let Some(bytes) = self.peeked.pop_front() {
            return Ok(Some(bytes));
        }
        match self.broken.take() {
            Some(failure) => Err(failure),
            None => self.next().await,
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let chunk = match &mut self.way {
                Way::Direct(answer) => answer.chunk().await?,
                Way::Client(answer) => answer.chunk().await?,
            };
            let Some(scrubbed) = &mut self.scrubbed else {
                return Ok(chunk);
            };
            let Some(chunk) = chunk else {
                return Ok(scrubbed.finish());
            };
            let clean = scrubbed.push(chunk);
            // All of it may be the beginning of the key.
            if !clean.is_empty() {
                return Ok(Some(clean));
            }
        }
    }

    fn is_stream(&self) -> bool {
        let kind = self.header(CONTENT_TYPE.as_str());
        self.status().is_success() && kind.is_some_and(|kind| kind.starts_with(answer::EVENTS))
    }

    /// Looks at a stream up to its first event that says something. True when that is an error which may pass by itself,
    /// or when there is none: nothing of the stream has been passed on yet, so it can be asked for again.
    async fn has_failed_at_once(&mut self) -> bool {
        let since = Instant::now();
        let mut peeked_bytes = 0;
        let mut splitter = Splitter::new(FIRST_EVENT_BYTES_MAX);
        loop {
            let bytes = match self.next().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return true,
                Err(failure) => {
                    let is_passing = failure.is_passing;
                    self.broken = Some(failure);
                    return is_passing;
                }
            };
            let events = splitter.push(&bytes);
            peeked_bytes += bytes.len();
            self.peeked.push_back(bytes);
            // Too long for an error.
            let Ok(events) = events else { return false };
            let mut told = events.iter().filter_map(|event| event.data.as_deref());
            if let Some(first) = told.find(|data| !is_ping(data)) {
                return StreamError::read(first).is_some_and(|error| error.is_passing());
            }
            // A sign of life must not be kept from the agent for long.
            if since.elapsed() > PEEK_LIMIT || peeked_bytes > FIRST_EVENT_BYTES_MAX {
                return false;
            }
        }
    }
}

/// Asks until there is an answer to pass on. The tries before it are noted as they are made, since nobody may be there to
/// take the answer. A stream is an answer from its first event on.
pub(super) async fn send(
    session: &Session,
    passed: &Passed,
    body: Pieces,
    attempts: &mut Vec<Attempt>,
) -> Result<Answer, Failure> {
    let mut connection = Connection::Any;
    let mut tries = 0;
    loop {
        let mut sent = send_once(session, passed, &body, connection).await;
        if sent.as_ref().is_err_and(Failure::is_on_reused_connection) {
            // Says nothing about the endpoint, so there is nothing to wait for. It happens once: the next is new.
            connection = Connection::New;
            attempts.push(describe(session, sent).await);
            continue;
        }
        let has_failed = match &mut sent {
            Ok(answer) if answer.is_stream() => answer.has_failed_at_once().await,
            Ok(answer) => is_passing_status(answer.status().as_u16()),
            Err(failure) => failure.is_passing,
        };
        if !has_failed {
            return sent;
        }
        let advised = sent.as_ref().ok().and_then(advised_delay);
        let Some(delay) = session.delay_before_retry(tries, advised) else {
            if let Ok(answer) = &mut sent {
                answer.is_given_up = true;
            }
            return sent;
        };
        tries += 1;
        attempts.push(describe(session, sent).await);
        tokio::time::sleep(delay).await;
    }
}

async fn send_once(
    session: &Session,
    passed: &Passed,
    body: &Pieces,
    connection: Connection,
) -> Result<Answer, Failure> {
    if let Some(direct) = &session.direct {
        let answer = direct.post(passed, body, connection).await?;
        return Ok(Answer::new(Way::Direct(answer), session.scrub.as_ref()));
    }
    let mut url = session.url.clone();
    url.set_query(passed.query.as_deref());
    let request = session.options.client.post(url);
    let request = request
        .headers(session.headers.clone())
        // Replaces those that are there.
        .headers(passed.headers.clone());
    let answer = request.body(body.concat()).send().await?;
    Ok(Answer::new(Way::Client(answer), session.scrub.as_ref()))
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

async fn describe(session: &Session, sent: Result<Answer, Failure>) -> Attempt {
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

/// The innermost reason, without the URL that reqwest repeats.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
    }
    innermost(error)
}

/// The address is one that may not be asked, today and tomorrow.
fn is_forbidden(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(NoAddress::Forbidden(_))) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
