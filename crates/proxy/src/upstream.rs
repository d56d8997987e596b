//! Sends a prepared request to the endpoint. What may pass by itself (a busy or restarting server) is tried again here,
//! within the rollout's time, rather than handed to agents that give up or spin.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use rollcage_dialect::Route;
use rollcage_dialect::chat::{AddedFields, BodySegments, Rewrite};
use rollcage_dialect::upstream::{ForwardedHead, StreamView};
use rollcage_model::ending::Cause;
use rollcage_model::exchange::Attempt;

use crate::calls::Problem;
use crate::clock::now;
use crate::failure::Failure;
use crate::patience::{Silence, Trouble};
use crate::response::UpstreamResponse;
use crate::session::Session;
use crate::unread::{SMALL_BYTES_MAX, read_text};

/// For a count of tokens.
const COUNT_LIMIT: Duration = Duration::from_secs(30);
/// For the rest of a failed try's body.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// Of a failed try's body, for the record.
const ERROR_CHARS_MAX: usize = 2000;
const ERROR_BYTES_MAX: usize = 4 * ERROR_CHARS_MAX;

/// A request on its way to the endpoint.
pub(crate) struct Outgoing<'a> {
    pub(crate) passed: &'a ForwardedHead,
    pub(crate) body: BodySegments,
    /// What the agent is to see of a streamed answer.
    pub(crate) view: StreamView,
    /// What must not be in it.
    pub(crate) added: AddedFields,
}

/// Asks until there is an answer to pass on, for as long as patience lasts. The tries before it are noted as they are
/// made, since nobody may be there to take the answer. A stream is an answer from its first word on.
pub(crate) async fn send(
    session: &Session,
    outgoing: &Outgoing<'_>,
    trouble: &mut Trouble,
) -> Result<UpstreamResponse, Failure> {
    let mut has_lost_connection = false;
    let mut outage = None;
    loop {
        let mut sent = send_once(session, outgoing, &trouble.silence).await;
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
    outgoing: &Outgoing<'_>,
    silence: &Arc<Silence>,
) -> Result<UpstreamResponse, Failure> {
    let Outgoing {
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

/// The endpoint's own count of a prompt's tokens; `None` when it gives none, since agents can do without.
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
    // Replaces those that are there.
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

async fn describe(
    session: &Session,
    sent: Result<UpstreamResponse, Failure>,
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
                // What was sampled until then is of no use to anybody.
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
