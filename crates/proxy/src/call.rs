//! One model call, from top to bottom: read the question, set its budget aside, prepare it for the endpoint, record it,
//! send it, receive what comes (`receive`); ask again for less after a refusal that teaches something; and hand the
//! outcome to `output`, which gives it to the agent live, whole or replayed.
//!
//! Whatever goes wrong on the way becomes a [`CallOutcome`], on record, in the same way for all three.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};

use rollcage_dialect::Route;
use rollcage_dialect::chat::render::closing_reply;
use rollcage_dialect::chat::requested_max_tokens;
use rollcage_dialect::upstream::{ForwardedHead, StreamView, UpstreamRequest};
use rollcage_model::exchange::{self, Line, Sent};

use crate::answer::{self, Body};
use crate::clock::now;
use crate::exchange::{OpenExchange, Ticket};
use crate::learned::Lesson;
use crate::outcome::{CallOutcome, GIVEN_UP};
use crate::output::{Output, OutputMode};
use crate::question::{Question, answer_aside, refuse};
use crate::receive::{Expected, Received, fail, receive, settle_refusal};
use crate::session::Session;
use crate::unread::{close_after, read_agent_request};
use crate::upstream::{Outgoing, count_tokens, send};

/// How often a call is made again with less in it.
const LESS_MAX: usize = 3;

/// A call while it is being made.
struct Call {
    session: Arc<Session>,
    question: Question,
    mode: OutputMode,
    /// Where the agent sent it, and with what.
    path: String,
    headers: HeaderMap,
    /// What of that the endpoint sees.
    passed: ForwardedHead,
    /// The agent's own bytes.
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
    let _room = held.room.enter(&head.headers).await;
    let body = match read_agent_request(body).await {
        Ok(body) => body,
        Err(unread) => {
            session.note_refused_request();
            return close_after(refuse(&route, unread.status(), &unread.to_string()));
        }
    };
    let endpoint = &session.options.endpoint;
    let passed = endpoint
        .dialect
        .forwarded_head(&head.headers, head.uri.query());
    if let Some(count) = count_tokens(&session, &route, &passed, &body).await {
        return answer::whole(StatusCode::OK, answer::JSON, count);
    }
    if let Some(answer) = answer_aside(&route, &endpoint.model, body.len()) {
        return answer;
    }
    let (question, form) = match Question::read(&route, &body, endpoint.dialect) {
        Ok(read) => read,
        Err(problem) => {
            session.note_refused_request();
            return refuse(&route, StatusCode::BAD_REQUEST, &problem);
        }
    };
    let output = |mode: OutputMode| Output {
        session: Arc::clone(&held),
        route,
        mode,
        form,
    };
    let ticket = match reserve(&session, &question, body.len()) {
        Ok(ticket) => ticket,
        Err(stopped) => {
            let mode = OutputMode::of(question.is_stream(), session.has_live_streams);
            return output(mode).respond(stopped);
        }
    };
    let prepared = prepare(&session, &question, &ticket);
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
    output.give(make(call, ticket, request)).await
}

/// Sets aside what the call may use. At a limit the agent gets a last answer.
fn reserve(
    session: &Arc<Session>,
    question: &Question,
    body_bytes: usize,
) -> Result<Ticket, CallOutcome> {
    let limits = &session.options.settings.budget;
    let is_counted = limits.completion_tokens.is_some() || limits.usd.is_some();
    let wanted = is_counted
        .then(|| requested_max_tokens(&question.body))
        .flatten();
    match session.reserve(body_bytes, wanted) {
        Ok(reservation) => Ok(Ticket::new(Arc::clone(session), reservation)),
        Err(limit) => {
            let limit = limit.as_str();
            let text = format!("The budget of this task is used up ({limit}). I stop here.");
            Err(CallOutcome::Stopped(Box::new(closing_reply(&text))))
        }
    }
}

/// The request as it is to be sent, by all that was learnt of the endpoint so far.
fn prepare(
    session: &Session,
    question: &Question,
    ticket: &Ticket,
) -> Result<UpstreamRequest, CallOutcome> {
    let rewrite = session.rewrite(ticket.tokens_max(), question.is_thinking_disabled);
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

/// Makes the call, again for as long as each refusal teaches to ask for less.
async fn make(call: Call, mut ticket: Ticket, mut request: UpstreamRequest) -> CallOutcome {
    let mut tries = 0;
    loop {
        let refused = match attempt(&call, ticket, request).await {
            Received::Settled(outcome) => return outcome,
            Received::Refused(refused) => refused,
        };
        let again = refused
            .ticket
            .filter(|_| is_worth_another(refused.lesson, tries));
        let Some(kept) = again else {
            return settle_refusal(&call.session, &call.question, refused.refusal);
        };
        ticket = kept;
        request = match prepare(&call.session, &call.question, &ticket) {
            Ok(request) => request,
            Err(invalid) => return invalid,
        };
        tries += 1;
    }
}

/// Whether a call is made again with less in it. A known lesson helps one that was under way when it was learnt.
fn is_worth_another(lesson: Option<Lesson>, tries: usize) -> bool {
    let is_new = match lesson {
        None => false,
        Some(Lesson::New) => true,
        Some(Lesson::Known) => tries == 0,
    };
    is_new && tries < LESS_MAX
}

/// Records, sends and receives.
async fn attempt(call: &Call, ticket: Ticket, mut request: UpstreamRequest) -> Received {
    let mut exchange = match record(call, ticket, &mut request) {
        Ok(exchange) => exchange,
        Err(problem) => return Received::Settled(CallOutcome::unrecorded(problem)),
    };
    let outgoing = Outgoing {
        passed: &call.passed,
        body: request.prepared.body,
        view: match call.question.is_translated {
            true => StreamView::Deltas,
            false => StreamView::Original,
        },
        added: request.prepared.added,
    };
    match send(&call.session, &outgoing, &mut exchange.trouble).await {
        Ok(response) => {
            let expected = Expected {
                session: &call.session,
                question: &call.question,
                mode: call.mode,
                added: outgoing.added,
            };
            receive(&expected, exchange, response).await
        }
        Err(failure) => Received::Settled(fail(exchange, GIVEN_UP, failure.unanswered())),
    }
}

/// Written before anything is sent, so that a lost answer shows as a hole.
fn record(
    call: &Call,
    ticket: Ticket,
    request: &mut UpstreamRequest,
) -> Result<OpenExchange, String> {
    let session = &call.session;
    let exchange = session.next_exchange();
    let (logprobs_of, refused) = session.known_of_endpoint();
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
    let asked = call.question.body.clone();
    let mut open = OpenExchange::new(Arc::clone(session), exchange, asked, ticket);
    open.is_replayed = call.mode == OutputMode::Replayed;
    Ok(open)
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
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests;
