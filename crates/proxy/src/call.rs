//! One model call, from top to bottom: read the request, reserve its budget, prepare it for the endpoint, record it,
//! send it, receive the answer (`receive`), and pass the outcome to `output`, which sends it to the agent live, whole
//! or replayed. When the endpoint refuses a parameter, the call is repeated without that parameter.
//!
//! Every failure on the way becomes a recorded [`CallOutcome`], in the same way for all three output modes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};

use rollcage_dialect::Route;
use rollcage_dialect::chat::render::closing_reply;
use rollcage_dialect::chat::requested_max_tokens;
use rollcage_dialect::upstream::{ForwardedHead, StreamView, UpstreamRequest};
use rollcage_model::exchange::{self, Line, Sent};

use crate::answer::{self, Body};
use crate::body::close_after;
use crate::clock::now;
use crate::exchange::{BudgetHold, OpenExchange};
use crate::lessons::Lesson;
use crate::outcome::{CallOutcome, GIVEN_UP};
use crate::output::{OutputMode, Responder};
use crate::question::{Question, answer_without_model, refuse};
use crate::receive::{AttemptOutcome, CallContext, fail, receive, settle_refusal};
use crate::request::{NO_ROOM, UnreadRequest, later, read_agent_request};
use crate::request_memory::Reserved;
use crate::session::Session;
use crate::upstream::{OutgoingRequest, count_tokens, send};

/// How often a call is repeated with fewer parameters after refusals.
const REDUCED_RETRIES_MAX: usize = 3;

/// A call in progress.
struct Call {
    session: Arc<Session>,
    question: Question,
    mode: OutputMode,
    /// Path and headers of the agent's request.
    path: String,
    headers: HeaderMap,
    /// The query and headers that are forwarded to the endpoint.
    passed: ForwardedHead,
    /// The agent's body, unchanged.
    body: Bytes,
}

/// Answers one request of an agent.
pub(crate) async fn answer<B>(
    session: Arc<Session>,
    route: Route,
    request: Request<B>,
) -> Response<Body>
where
    B: hyper::body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let held = Arc::clone(&session);
    let reading = read_agent_request(&session.request_memory, &head.headers, body).await;
    let (body, mut memory) = match reading {
        Ok(read) => read,
        Err(unread) => return close_after(refuse_unread(&session, &route, unread)),
    };
    let body_bytes = body.len();
    let endpoint = &session.options.endpoint;
    let passed = endpoint
        .dialect
        .forwarded_head(&head.headers, head.uri.query());
    if let Some(count) = count_tokens(&session, &route, &passed, &body).await {
        return answer::whole(StatusCode::OK, answer::JSON, count);
    }
    if let Some(answer) = answer_without_model(&route, &endpoint.model, body.len()) {
        return answer;
    }
    let (question, form) = match Question::read(&route, &body, endpoint.dialect) {
        Ok(read) => read,
        Err(problem) => {
            session.note_refused_request();
            return refuse(&route, StatusCode::BAD_REQUEST, &problem);
        }
    };
    let output = |mode: OutputMode| Responder {
        session: Arc::clone(&held),
        route,
        mode,
        form,
    };
    let hold = match reserve(&session, &question, body.len()) {
        Ok(hold) => hold,
        Err(stopped) => {
            let mode = OutputMode::of(question.is_stream(), session.has_live_streams);
            return output(mode).respond(stopped);
        }
    };
    let prepared = prepare(&session, &question, &hold);
    let is_stream = prepared.as_ref().is_ok_and(|it| it.prepared.is_stream);
    let mode = OutputMode::of(is_stream, session.has_live_streams);
    let output = output(mode);
    let request = match prepared {
        Ok(request) => request,
        Err(invalid) => return output.respond(invalid),
    };
    let call = Call {
        session,
        question,
        mode,
        path: head.uri.path().to_owned(),
        headers: head.headers,
        passed,
        body,
    };
    let response = output.run(make(call, hold, request)).await;
    if mode != OutputMode::Replayed {
        memory.is_answered(body_bytes);
    }
    held_while_streaming(response, memory)
}

fn refuse_unread(session: &Session, route: &Route, unread: UnreadRequest) -> Response<Body> {
    match unread {
        UnreadRequest::Body(error) => {
            session.note_refused_request();
            refuse(route, error.status(), &error.to_string())
        }
        UnreadRequest::NoRoom(no_room) => {
            session.note_no_room(no_room);
            later(refuse(route, StatusCode::SERVICE_UNAVAILABLE, NO_ROOM))
        }
    }
}

/// A stream's body, which keeps the request's memory until it ends.
fn held_while_streaming(response: Response<Body>, memory: Reserved) -> Response<Body> {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| {
        let held = body.map_frame(move |frame| {
            let _ = &memory;
            frame
        });
        held.boxed_unsync()
    })
}

/// Reserves what the call may use of the budget. When a limit is reached the agent gets a final answer instead.
fn reserve(
    session: &Arc<Session>,
    question: &Question,
    body_bytes: usize,
) -> Result<BudgetHold, CallOutcome> {
    let limits = &session.options.settings.budget;
    let is_counted = limits.completion_tokens.is_some() || limits.usd.is_some();
    let wanted = is_counted
        .then(|| requested_max_tokens(&question.body))
        .flatten();
    match session.reserve(body_bytes, wanted) {
        Ok(reservation) => Ok(BudgetHold::new(Arc::clone(session), reservation)),
        Err(limit) => {
            let limit = limit.as_str();
            let text = format!("The budget of this task is used up ({limit}). I stop here.");
            Err(CallOutcome::Stopped(Box::new(closing_reply(&text))))
        }
    }
}

/// The request to send, without the parameters that the endpoint has refused so far.
fn prepare(
    session: &Session,
    question: &Question,
    hold: &BudgetHold,
) -> Result<UpstreamRequest, CallOutcome> {
    let rewrite = session.rewrite(hold.tokens_max(), question.is_thinking_disabled);
    let dialect = session.options.endpoint.dialect;
    let prepared = dialect.prepare(
        &question.body,
        question.dialect,
        &rewrite,
        &session.thoughts,
    );
    prepared.map_err(|error| {
        session.note_refused_request();
        CallOutcome::invalid(rollcage_model::text::chain(&error))
    })
}

/// Makes the call, and repeats it as long as each refusal names a parameter that can be left out.
async fn make(call: Call, mut hold: BudgetHold, mut request: UpstreamRequest) -> CallOutcome {
    let mut tries = 0;
    loop {
        let refused = match attempt(&call, hold, request).await {
            AttemptOutcome::Settled(outcome) => return outcome,
            AttemptOutcome::Refused(refused) => refused,
        };
        let retry_hold = refused
            .hold
            .filter(|_| should_retry_reduced(refused.lesson, tries));
        let Some(reused) = retry_hold else {
            return settle_refusal(&call.session, &call.question, refused.refusal);
        };
        hold = reused;
        request = match prepare(&call.session, &call.question, &hold) {
            Ok(request) => request,
            Err(invalid) => return invalid,
        };
        tries += 1;
    }
}

/// Whether to repeat a refused call with fewer parameters. A lesson that is already known justifies one repetition: a
/// concurrent call may have learnt it after this one was sent.
fn should_retry_reduced(lesson: Option<Lesson>, tries: usize) -> bool {
    let is_new = match lesson {
        None => false,
        Some(Lesson::New) => true,
        Some(Lesson::Known) => tries == 0,
    };
    is_new && tries < REDUCED_RETRIES_MAX
}

/// One attempt at the call: record, send, receive.
async fn attempt(call: &Call, hold: BudgetHold, mut request: UpstreamRequest) -> AttemptOutcome {
    let mut exchange = match record(call, hold, &mut request) {
        Ok(exchange) => exchange,
        Err(problem) => return AttemptOutcome::Settled(CallOutcome::unrecorded(problem)),
    };
    let outgoing = OutgoingRequest {
        passed: &call.passed,
        body: request.prepared.body,
        view: match call.question.is_translated {
            true => StreamView::Deltas,
            false => StreamView::Original,
        },
        added: request.prepared.added,
    };
    match send(&call.session, &outgoing, &mut exchange.retry).await {
        Ok(response) => {
            let context = CallContext {
                session: &call.session,
                question: &call.question,
                mode: call.mode,
                added: outgoing.added,
            };
            receive(&context, exchange, response).await
        }
        Err(failure) => AttemptOutcome::Settled(fail(exchange, GIVEN_UP, failure.unanswered())),
    }
}

/// Records the request before it is sent, so that a lost answer is visible as a request without a response.
fn record(
    call: &Call,
    hold: BudgetHold,
    request: &mut UpstreamRequest,
) -> Result<OpenExchange, String> {
    let session = &call.session;
    let exchange = session.next_exchange();
    let (logprobs_of, refused) = session.capture_notes();
    let mut dropped = call.question.dropped.clone();
    dropped.append(&mut request.dropped);
    session.record(Line::Request(exchange::Request {
        exchange,
        at: now(),
        path: call.path.clone(),
        dialect: call.question.dialect,
        endpoint_dialect: session.options.endpoint.dialect,
        headers: recorded_headers(&call.headers),
        set: std::mem::take(&mut request.prepared.set),
        removed: std::mem::take(&mut request.prepared.removed),
        dropped,
        refused,
        logprobs_of,
        body: call.body.clone(),
    }))?;
    if let Some(body) = request.translation.take() {
        session.record(Line::Sent(Sent { exchange, body }))?;
    }
    let request_body = call.question.body.clone();
    let mut open = OpenExchange::new(Arc::clone(session), exchange, request_body, hold);
    open.is_replayed = call.mode == OutputMode::Replayed;
    Ok(open)
}

/// All headers except credentials.
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
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests;
