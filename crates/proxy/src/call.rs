//! One model call, from top to bottom: read the question, set its budget aside, prepare it for the endpoint, record it,
//! send it, receive what comes; learn from a refusal and ask again for less; and hand the outcome to `output`, which gives
//! it to the agent live, whole or replayed.
//!
//! Whatever goes wrong on the way becomes a [`CallOutcome`] here, on record, in the same way for all three.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};

use rollcage_dialect::chat::render::farewell;
use rollcage_dialect::chat::{
    Reply, StreamError, is_context_overflow, is_passing_status, tokens_wanted,
};
use rollcage_dialect::upstream::{PassedHead, UpstreamRequest, View};
use rollcage_dialect::{Route, anthropic};
use rollcage_model::ending::Cause;
use rollcage_model::exchange::{self, Line, Sent};

use crate::answer::{self, Body};
use crate::calls::Problem;
use crate::clock::now;
use crate::exchange::{OpenExchange, Ticket};
use crate::learned::Lesson;
use crate::outcome::{CallOutcome, GIVEN_UP, Refusal, Streaming, WholeAnswer};
use crate::output::{Output, OutputMode};
use crate::policy::OnOverflow;
use crate::question::{Question, answer_aside, refuse};
use crate::response::{UpstreamResponse, too_large};
use crate::session::Session;
use crate::unread::{ANSWER_BYTES_MAX, close_after, read_agent_request};
use crate::upstream::{Outgoing, count_tokens, send};

/// How often a call is made again with less in it.
const LESS_MAX: usize = 3;
/// For the rest of a stream that failed.
const REST_LIMIT: Duration = Duration::from_millis(200);
const REST_BYTES_MAX: usize = 1 << 20;

/// A call while it is being made.
struct Call {
    session: Arc<Session>,
    question: Question,
    mode: OutputMode,
    /// Where the agent sent it, and with what.
    path: String,
    headers: HeaderMap,
    /// What of that the endpoint sees.
    passed: PassedHead,
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
    let passed = endpoint.dialect.passed(&head.headers, head.uri.query());
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
    let mut ticket = match reserve(&session, &question, body.len()) {
        Ok(ticket) => ticket,
        Err(stopped) => {
            let mode = OutputMode::of(question.is_stream(), session.has_live_streams);
            return output(mode).respond(stopped);
        }
    };
    let prepared = prepare(&session, &question, &mut ticket);
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
    let wanted = is_counted.then(|| tokens_wanted(&question.body)).flatten();
    match session.reserve(body_bytes, wanted) {
        Ok(reservation) => Ok(Ticket::new(Arc::clone(session), reservation)),
        Err(limit) => {
            let limit = limit.as_str();
            let text = format!("The budget of this task is used up ({limit}). I stop here.");
            Err(CallOutcome::Stopped(Box::new(farewell(&text))))
        }
    }
}

/// The request as it is to be sent, by all that was learnt of the endpoint so far.
fn prepare(
    session: &Session,
    question: &Question,
    ticket: &mut Ticket,
) -> Result<UpstreamRequest, CallOutcome> {
    let rewrite = session.rewrite(ticket.tokens_max(), question.is_thinking_disabled);
    let dialect = session.options.endpoint.dialect;
    let prepared = dialect.prepare(
        &question.body,
        question.dialect,
        &rewrite,
        &session.thoughts(),
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
            Attempt::Settled(outcome) => return outcome,
            Attempt::Refused(refused) => refused,
        };
        let again = refused
            .ticket
            .filter(|_| is_worth_another(refused.lesson, tries));
        let Some(kept) = again else {
            return settle_refusal(&call, refused.refusal);
        };
        ticket = kept;
        request = match prepare(&call.session, &call.question, &mut ticket) {
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

/// What one attempt came to.
enum Attempt {
    Settled(CallOutcome),
    Refused(Refused),
}

/// A refusal, on record.
struct Refused {
    refusal: Refusal,
    /// What it taught about the endpoint.
    lesson: Option<Lesson>,
    /// For another attempt at the same call.
    ticket: Option<Ticket>,
}

/// Records, sends and receives.
async fn attempt(call: &Call, ticket: Ticket, mut request: UpstreamRequest) -> Attempt {
    let mut exchange = match record(call, ticket, &mut request) {
        Ok(exchange) => exchange,
        Err(problem) => return Attempt::Settled(CallOutcome::unrecorded(problem)),
    };
    let outgoing = Outgoing {
        passed: &call.passed,
        body: request.prepared.body,
        view: match call.question.is_translated {
            true => View::Pieces,
            false => View::Own,
        },
        added: request.prepared.added,
    };
    match send(&call.session, &outgoing, &mut exchange.trouble).await {
        Ok(response) => receive(call, exchange, response, &outgoing).await,
        Err(failure) => Attempt::Settled(fail(exchange, GIVEN_UP, failure.unanswered())),
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

/// Looks at what came: a stream to pass on, a whole answer, a refusal, or none of them.
async fn receive(
    call: &Call,
    mut exchange: OpenExchange,
    mut response: UpstreamResponse,
    outgoing: &Outgoing<'_>,
) -> Attempt {
    let status = response.status();
    exchange.status = Some(status.as_u16());
    exchange.is_stream = response.is_stream();
    if let Some(problem) = response.take_given_up() {
        return Attempt::Settled(give_up(exchange, response, problem).await);
    }
    if call.mode == OutputMode::Live && status.is_success() && response.is_stream() {
        let streaming = Streaming { exchange, response };
        return Attempt::Settled(CallOutcome::Streaming(Box::new(streaming)));
    }
    if let Err(problem) = read_whole(&mut exchange, &mut response).await {
        return Attempt::Settled(fail(exchange, StatusCode::BAD_GATEWAY, problem));
    }
    match status.is_success() {
        true => Attempt::Settled(take_whole(call, exchange, &response, outgoing)),
        false => take_refusal(call, exchange, &response),
    }
}

/// Reads a whole body into the exchange.
async fn read_whole(
    exchange: &mut OpenExchange,
    response: &mut UpstreamResponse,
) -> Result<(), Problem> {
    if response.is_too_large() {
        return Err(too_large());
    }
    loop {
        match response.bytes().await {
            Ok(Some(bytes)) => exchange.push(bytes),
            Ok(None) => return Ok(()),
            Err(failure) => return Err(failure.broken_off("answer")),
        }
        if exchange.bytes() > ANSWER_BYTES_MAX {
            exchange.cut();
            return Err(too_large());
        }
    }
}

/// A good answer as the agent may see it, once it is on record.
fn take_whole(
    call: &Call,
    mut exchange: OpenExchange,
    response: &UpstreamResponse,
    outgoing: &Outgoing<'_>,
) -> CallOutcome {
    let content_type = response.content_type();
    let wanted = match call.mode {
        OutputMode::Live => "an event stream",
        OutputMode::Whole | OutputMode::Replayed => "JSON",
    };
    if call.mode == OutputMode::Live || !content_type.starts_with(answer::JSON) {
        // Agents given something else than what they asked for loop without end.
        let text = format!("the endpoint was asked for {wanted} and answered {content_type}");
        let problem = Problem::new(Cause::AnswerBroken, text);
        return fail(exchange, GIVEN_UP, problem);
    }
    let dialect = call.session.options.endpoint.dialect;
    let body = exchange.body();
    let is_own = call.mode == OutputMode::Whole && !call.question.is_translated;
    let answer = if is_own {
        let (stripped, usage) = dialect.strip(&body, &outgoing.added);
        exchange.usage = usage;
        WholeAnswer::Body(stripped.map_or(body, Bytes::from))
    } else {
        let (mut reply, thoughts) = dialect.read(&String::from_utf8_lossy(&body), false);
        if call.mode == OutputMode::Replayed && !reply.is_complete {
            // No stream ends without its finish reason.
            let problem = Problem::new(Cause::AnswerBroken, "the answer has no finish reason");
            return fail(exchange, StatusCode::BAD_GATEWAY, problem);
        }
        keep_thoughts(call, thoughts);
        if outgoing.added.reasoning {
            reply = Reply::without_thoughts(reply);
        }
        WholeAnswer::Reply(Box::new(reply))
    };
    match exchange.close(None) {
        Ok(()) => CallOutcome::Answered(answer),
        Err(problem) => CallOutcome::unrecorded(problem),
    }
}

/// Agents that speak the endpoint's dialect send thoughts back themselves.
fn keep_thoughts(call: &Call, thoughts: Vec<anthropic::Kept>) {
    if call.question.is_translated {
        call.session.keep_thoughts(thoughts);
    }
}

/// Puts a refusal on record and learns from it.
fn take_refusal(call: &Call, mut exchange: OpenExchange, response: &UpstreamResponse) -> Attempt {
    let body = exchange.body();
    let ticket = exchange.take_ticket();
    if let Err(problem) = exchange.close(None) {
        return Attempt::Settled(CallOutcome::unrecorded(problem));
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    let status = response.status();
    let lesson = match status.as_u16() {
        400 | 422 => call.session.learn_from(&text, &call.question.body),
        _ => None,
    };
    Attempt::Refused(Refused {
        refusal: Refusal {
            status,
            text: call.session.scrub_text(text),
            content_type: response.content_type().to_owned(),
            headers: Refusal::headers_of(response),
        },
        lesson,
        ticket,
    })
}

/// A refusal that no other attempt follows. A conversation that no longer fits ends with a last answer instead where that
/// ends the rollout, since agents would send the same again.
fn settle_refusal(call: &Call, refusal: Refusal) -> CallOutcome {
    let session = &call.session;
    let status = refusal.status;
    // Agents that speak the endpoint's dialect know this one, and ask for less.
    let is_too_much = refusal.text.contains("exceed context limit") && call.question.is_translated;
    let is_overflow = is_context_overflow(status.as_u16(), &refusal.text) || is_too_much;
    if is_overflow && session.options.on_overflow == OnOverflow::Stop {
        session.stop("context");
        let reply = farewell("The conversation no longer fits the model's context. I stop here.");
        return CallOutcome::Stopped(Box::new(reply));
    }
    if is_passing_status(status.as_u16()) {
        let said = StreamError::read(&refusal.text).map(|error| error.message);
        let said = said.as_deref().unwrap_or(&refusal.text).trim();
        return CallOutcome::Failed {
            status: GIVEN_UP,
            problem: format!("the endpoint answered {status}: {said}"),
        };
    }
    CallOutcome::Refused(Box::new(refusal))
}

/// An answer that began well and failed in a way that might have passed; nothing of it was passed on.
async fn give_up(
    mut exchange: OpenExchange,
    mut response: UpstreamResponse,
    problem: Problem,
) -> CallOutcome {
    let mut broken = None;
    let reading = async {
        while exchange.bytes() < REST_BYTES_MAX {
            match response.bytes().await {
                Ok(Some(bytes)) => exchange.push(bytes),
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
    let body = exchange.body();
    let body = String::from_utf8_lossy(&body);
    let mut data = body.lines().filter_map(|line| line.strip_prefix("data:"));
    let said = data.find_map(StreamError::read).map(|error| error.message);
    let text = said.or(broken).unwrap_or(problem.text);
    let text = exchange.session().scrub_text(text);
    fail(exchange, GIVEN_UP, Problem::new(problem.cause, text))
}

/// Closes an exchange that has no answer.
fn fail(mut exchange: OpenExchange, status: StatusCode, problem: Problem) -> CallOutcome {
    let text = problem.text.clone();
    match exchange.close(Some(problem)) {
        Ok(()) => CallOutcome::Failed {
            status,
            problem: text,
        },
        Err(unwritten) => CallOutcome::unrecorded(unwritten),
    }
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
