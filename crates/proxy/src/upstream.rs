//! Sends a prepared request to the endpoint. Transient failures (a busy or restarting server) are retried here, within
//! the rollout's time, since agents either give up too early or retry without a pause.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use rollcage_dialect::Route;
use rollcage_dialect::chat::{AddedFields, BodySegments, Rewrite};
use rollcage_dialect::upstream::{ForwardedHead, StreamView};
use rollcage_model::ending::Cause;
use rollcage_model::exchange::Attempt;

use crate::body::{SMALL_BYTES_MAX, read_text};
use crate::calls::Problem;
use crate::clock::now;
use crate::failure::Failure;
use crate::patience::{RetryState, Silence};
use crate::response::UpstreamResponse;
use crate::session::Session;

/// For a request that counts tokens.
const COUNT_LIMIT: Duration = Duration::from_secs(30);
/// For reading the rest of a failed try's body.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// How much of a failed try's body is recorded.
const ERROR_CHARS_MAX: usize = 2000;
const ERROR_BYTES_MAX: usize = 4 * ERROR_CHARS_MAX;

/// A request to send to the endpoint.
pub(crate) struct OutgoingRequest<'a> {
    pub(crate) passed: &'a ForwardedHead,
    pub(crate) body: BodySegments,
    /// How a streamed answer is presented to the agent.
    pub(crate) view: StreamView,
    /// What we requested and the agent must not see.
    pub(crate) added: AddedFields,
}

/// Sends the request, with retries for as long as patience lasts, until there is an answer to pass on. Failed tries are
/// noted as they happen, since this future is dropped when the agent hangs up. A stream counts as an answer from its
/// first content on.
pub(crate) async fn send(
    session: &Session,
    outgoing: &OutgoingRequest<'_>,
    retry: &mut RetryState,
) -> Result<UpstreamResponse, Failure> {
    let mut has_lost_connection = false;
    let mut outage = None;
    loop {
        let mut sent = send_once(session, outgoing, &retry.silence).await;
        let is_lost = sent.as_ref().is_err_and(|it| it.is_connection_lost);
        if is_lost && !std::mem::replace(&mut has_lost_connection, true) {
            // Usually an idle connection from the pool that the endpoint had just closed: retry at once. But the
            // endpoint may have read the request and sampled, so the try is recorded.
            retry
                .attempts
                .push(failed_attempt(session, sent, None).await);
            continue;
        }
        let problem = match &mut sent {
            Ok(answer) => {
                let dialect = session.options.endpoint.dialect;
                answer.inspect(dialect, &outgoing.added).await
            }
            Err(failure) => failure.is_transient.then(|| failure.unanswered()),
        };
        let Some(problem) = problem else {
            retry.last_problem = None;
            if sent.is_ok() {
                session.is_patience_used.store(false, Ordering::Relaxed);
            }
            return sent;
        };
        outage.get_or_insert_with(|| session.outages.begin());
        retry.last_problem = Some(problem.clone());
        let advised = sent.as_ref().ok().and_then(advised_delay);
        let Some(delay) = retry.delay(session.patience(), advised) else {
            session.is_patience_used.store(true, Ordering::Relaxed);
            if let Ok(answer) = &mut sent {
                answer.give_up(problem);
            }
            return sent;
        };
        retry
            .attempts
            .push(failed_attempt(session, sent, Some(problem)).await);
        tokio::time::sleep(delay).await;
    }
}

async fn send_once(
    session: &Session,
    outgoing: &OutgoingRequest<'_>,
    silence: &Arc<Silence>,
) -> Result<UpstreamResponse, Failure> {
    let OutgoingRequest {
        passed,
        body,
        view,
        added,
    } = outgoing;
    silence.begin();
    let raw = session.transport.post(passed, body).await;
    silence.end();
    let reader = session.options.endpoint.dialect.stream(*view, *added);
    let scrub = session.scrub.as_ref();
    Ok(UpstreamResponse::new(raw?, reader, scrub, silence))
}

/// The endpoint's own count of a prompt's tokens; `None` if it has none, and an estimate is returned instead.
pub(crate) async fn count_tokens(
    session: &Session,
    route: &Route,
    passed: &ForwardedHead,
    body: &Bytes,
) -> Option<Bytes> {
    let endpoint = &session.options.endpoint;
    let Route::CountTokens(agent) = *route else {
        return None;
    };
    let path = endpoint.dialect.count_path()?;
    if !endpoint.dialect.speaks(agent) {
        return None;
    }
    let rewrite = Rewrite {
        model: Some(endpoint.model.clone()),
        ..Rewrite::default()
    };
    let prepared = endpoint
        .dialect
        .prepare(body, agent, &rewrite, &session.thoughts);
    let body = prepared.ok()?.prepared.body.concat();
    let mut url: reqwest::Url = format!("{}{path}", endpoint.url()).parse().ok()?;
    url.set_query(passed.query.as_deref());
    let request = session.options.client.post(url).timeout(COUNT_LIMIT);
    // The agent's headers replace ours of the same name.
    let request = endpoint.authorise(request).headers(passed.headers.clone());
    let answer = request.body(body).send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    let count = read_text(answer, SMALL_BYTES_MAX, endpoint.key.as_ref()).await;
    count.ok().map(Bytes::from)
}

fn advised_delay(answer: &UpstreamResponse) -> Option<Duration> {
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

/// Turns a failed try into its entry in the record.
async fn failed_attempt(
    session: &Session,
    sent: Result<UpstreamResponse, Failure>,
    problem: Option<Problem>,
) -> Attempt {
    let aborted = problem.filter(|problem| problem.cause == Cause::EndpointAborted);
    let (status, error) = match sent {
        Ok(mut answer) => {
            let status = answer.status().as_u16();
            let mut body = Vec::new();
            // Read to its end, so that the connection can be reused.
            let reading = async {
                loop {
                    match answer.bytes().await {
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
                // The tokens sampled before the abort are of no use.
                error = aborted.text;
            } else if error.is_empty() {
                "the answer was empty".clone_into(&mut error);
            }
            (Some(status), error)
        }
        Err(failure) => (None, failure.text),
    };
    Attempt {
        at: now(),
        status,
        error: session.scrub_text(error),
    }
}

#[cfg(test)]
mod tests;
