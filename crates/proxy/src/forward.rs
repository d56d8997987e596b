//! One model call: record the request, ask the endpoint, record the answer, release it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};

use rollcage_dialect::chat::render::farewell;
use rollcage_dialect::chat::{Prepared, Reply, prepare, read_reply, strip_body, tokens_wanted};
use rollcage_dialect::{Dialect, EndpointDialect, Route, anthropic};
use rollcage_model::ending::Cause;
use rollcage_model::exchange::{self, Line, Sent};

use super::Session;
use super::answer::{self, Body};
use super::calls::Problem;
use super::exchange::{Open, Ticket, compact};
use super::incoming::Answer;
use super::learned::Lesson;
use super::question::{AnswerItself as _, Question, say};
use super::refusal::{GIVEN_UP, close_with, give_up_begun, refusal, unrecorded};
use super::unread::{Unread, read_request_body};
use super::upstream::{Passed, count_tokens, send};
use super::{relay, replay};
use crate::clock::now;

/// An agent's request: a long conversation with images is some ten megabytes.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 20;
/// For an agent's request to arrive.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
/// An upstream's whole answer with token ids and logprobs.
pub(super) const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How often a call is made again with less in it.
const LESS_MAX: usize = 3;

/// A call while it is being made.
pub(super) struct Call {
    pub(super) session: Arc<Session>,
    pub(super) route: Route,
    pub(super) question: Question,
    pub(super) passed: Passed,
}

pub(super) async fn answer(
    session: Arc<Session>,
    route: Route,
    request: Request<Incoming>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let held = Arc::clone(&session);
    let _room = held.room.enter(&head.headers).await;
    let body = match read_request(body).await {
        Ok(body) => body,
        Err(unread) => {
            session.note_refused_request();
            return last(route.refuse(unread.status(), &unread.to_string()));
        }
    };
    let endpoint = &session.options.endpoint;
    let passed = passed(&head, endpoint.dialect);
    if route == Route::CountTokens(Dialect::Anthropic)
        && endpoint.dialect == EndpointDialect::Anthropic
        && let Some(count) = count_tokens(&session, &passed, &body).await
    {
        return answer::whole(StatusCode::OK, answer::JSON, count);
    }
    if let Some(answer) = route.answer_aside(&endpoint.model, body.len()) {
        return answer;
    }
    let question = match Question::read(&route, &body, endpoint.dialect) {
        Ok(question) => question,
        Err(problem) => {
            session.note_refused_request();
            return route.refuse(StatusCode::BAD_REQUEST, &problem);
        }
    };
    let limits = &session.options.settings.budget;
    let is_counted = limits.completion_tokens.is_some() || limits.usd.is_some();
    let wanted = if is_counted {
        tokens_wanted(&question.body)
    } else {
        None
    };
    let reservation = match session.reserve(body.len(), wanted) {
        Ok(reservation) => reservation,
        Err(limit) => {
            let text = format!(
                "The budget of this task is used up ({}). I stop here.",
                limit.as_str()
            );
            return say(question, &session.options.endpoint.model, &farewell(&text));
        }
    };
    let mut ticket = Ticket::new(Arc::clone(&session), reservation);
    let mut call = Call {
        session,
        route,
        question,
        passed,
    };
    // Each refusal makes us ask for less.
    let mut tries = 0;
    loop {
        match attempt(call, head.uri.path(), &head.headers, &body, ticket, tries).await {
            Attempted::Answered(response) => return response,
            Attempted::AskForLess(again) => (call, ticket) = *again,
        }
        tries += 1;
    }
}

pub(super) async fn read_request(body: Incoming) -> Result<Bytes, Unread> {
    let read = read_request_body(body, REQUEST_BYTES_MAX, REQUEST_LIMIT).await;
    read.map(compact)
}

/// The rest of a body that was not read is on the connection still, so nothing else can be.
pub(super) fn last(mut response: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

pub(super) enum Attempted {
    Answered(Response<Body>),
    /// The endpoint refused a member that we added.
    AskForLess(Box<(Call, Ticket)>),
}

async fn attempt(
    call: Call,
    path: &str,
    headers: &HeaderMap,
    body: &Bytes,
    ticket: Ticket,
    tries: usize,
) -> Attempted {
    let session = Arc::clone(&call.session);
    let Asked {
        mut prepared,
        translation,
        dropped,
    } = match ask(&session, &call.question, ticket.tokens_max()) {
        Ok(asked) => asked,
        Err(message) => {
            session.note_refused_request();
            return Attempted::Answered(call.route.refuse(StatusCode::BAD_REQUEST, &message));
        }
    };
    let exchange = session.next_exchange();
    let dialect = call.question.dialect;
    let (logprobs_of, refused) = session.known_of_endpoint();
    let line = Line::Request(exchange::Request {
        exchange,
        at: now(),
        path: path.to_owned(),
        dialect,
        endpoint_dialect: session.options.endpoint.dialect,
        headers: recorded_headers(headers),
        set: std::mem::take(&mut prepared.set),
        removed: std::mem::take(&mut prepared.removed),
        dropped,
        refused,
        logprobs_of,
        body: body.clone(),
    });
    // Written before anything is sent, so that a lost answer shows as a hole.
    let mut written = session.record(line);
    if let Some(body) = translation {
        written = written.and_then(|()| session.record(Line::Sent(Sent { exchange, body })));
    }
    if let Err(problem) = written {
        return Attempted::Answered(unrecorded(&call.route, &problem));
    }
    let asked = call.question.body.clone();
    let mut open = Open::new(Arc::clone(&session), exchange, asked, ticket);
    if prepared.is_stream && !session.options.profile.has_live_streams {
        return replay::answer(call, open, prepared, tries).await;
    }
    let sent = std::mem::take(&mut prepared.body);
    match send(&session, &call.passed, sent, &mut open.trouble).await {
        Err(failure) => {
            let problem = failure.unanswered();
            Attempted::Answered(close_with(&call.route, &mut open, GIVEN_UP, problem))
        }
        Ok(upstream) => receive(call, open, upstream, &prepared, tries).await,
    }
}

/// A request as it is sent.
struct Asked {
    prepared: Prepared,
    /// What was changed into it, where that are not the agent's own bytes.
    translation: Option<Bytes>,
    dropped: Vec<String>,
}

fn ask(session: &Session, question: &Question, tokens_max: Option<u64>) -> Result<Asked, String> {
    let rewrite = session.rewrite(tokens_max, question.is_thinking_disabled);
    let mut dropped = question.dropped.clone();
    let told = |error| rollcage_model::text::chain(&error);
    let (prepared, translation) = match (session.options.endpoint.dialect, question.dialect) {
        (EndpointDialect::Chat, dialect) => {
            let translation = (dialect != Dialect::Chat).then(|| question.body.clone());
            (
                prepare(&question.body, &rewrite).map_err(told)?,
                translation,
            )
        }
        (EndpointDialect::Anthropic, Dialect::Anthropic) => {
            let prepared = anthropic::prepare(&question.body, &rewrite).map_err(told)?;
            (prepared, None)
        }
        (EndpointDialect::Anthropic, _) => {
            let asked = anthropic::from_chat_request(&question.body, &session.thoughts());
            let asked = asked.map_err(|error| error.to_string())?;
            dropped.extend(asked.dropped);
            let body = Bytes::from(asked.body);
            let prepared = anthropic::prepare(&body, &rewrite).map_err(told)?;
            (prepared, Some(body))
        }
    };
    Ok(Asked {
        prepared,
        translation,
        dropped,
    })
}

/// The dialect's own headers, and the query.
fn passed(head: &hyper::http::request::Parts, endpoint: EndpointDialect) -> Passed {
    let mut passed = Passed::default();
    if endpoint == EndpointDialect::Anthropic {
        for name in ["anthropic-version", "anthropic-beta"] {
            if let Some(value) = head.headers.get(name) {
                passed.headers.insert(name, value.clone());
            }
        }
        // `beta=true` is all that clients ask with; a key in it is ours, not the endpoint's.
        let query = head.uri.query().filter(|query| *query == "beta=true");
        passed.query = query.map(str::to_owned);
    }
    passed
}

async fn receive(
    call: Call,
    mut open: Open,
    mut upstream: Answer,
    prepared: &Prepared,
    tries: usize,
) -> Attempted {
    let status = upstream.status();
    open.status = Some(status.as_u16());
    let content_type = upstream.header(CONTENT_TYPE.as_str());
    let content_type = content_type.unwrap_or(answer::JSON).to_owned();
    open.is_stream = content_type.starts_with(answer::EVENTS);
    if let Some(problem) = upstream.take_given_up() {
        return Attempted::Answered(give_up_begun(&call.route, open, upstream, problem).await);
    }
    if status.is_success() && prepared.is_stream && open.is_stream {
        return Attempted::Answered(relay::stream(call.question, open, upstream, prepared.added));
    }
    if let Err(problem) = read_whole(&mut open, &mut upstream).await {
        let status = StatusCode::BAD_GATEWAY;
        return Attempted::Answered(close_with(&call.route, &mut open, status, problem));
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
        let text = format!("the endpoint was asked for {wanted} and answered {content_type}");
        let problem = Problem::new(Cause::AnswerBroken, text);
        return Attempted::Answered(close_with(&call.route, &mut open, GIVEN_UP, problem));
    }
    if status.is_success() {
        let view = pass_on(&call, &mut open, prepared);
        return Attempted::Answered(match open.close(None) {
            Ok(()) => view,
            Err(problem) => unrecorded(&call.route, &problem),
        });
    }
    let body = open.body();
    let ticket = open.take_ticket();
    if let Err(problem) = open.close(None) {
        return Attempted::Answered(unrecorded(&call.route, &problem));
    }
    let text = String::from_utf8_lossy(&body);
    let lesson = lesson_of(&call.session, status, &text, &call.question.body);
    if is_worth_another(lesson, tries)
        && let Some(ticket) = ticket
    {
        return Attempted::AskForLess(Box::new((call, ticket)));
    }
    Attempted::Answered(refusal(call, &upstream, &content_type, &body))
}

/// What a refusal teaches about the endpoint.
pub(super) fn lesson_of(
    session: &Session,
    status: StatusCode,
    text: &str,
    asked: &[u8],
) -> Option<Lesson> {
    let is_refusal = matches!(status.as_u16(), 400 | 422);
    is_refusal
        .then(|| session.learn_from(text, asked))
        .flatten()
}

/// Whether a call is made again with less in it. A known lesson helps one that was under way when it was learnt.
pub(super) fn is_worth_another(lesson: Option<Lesson>, tries: usize) -> bool {
    let is_new = match lesson {
        None => false,
        Some(Lesson::New) => true,
        Some(Lesson::Known) => tries == 0,
    };
    is_new && tries < LESS_MAX
}

/// Reads a whole body into the exchange.
pub(super) async fn read_whole(open: &mut Open, upstream: &mut Answer) -> Result<(), Problem> {
    if upstream.is_too_large() {
        return Err(too_large());
    }
    loop {
        match upstream.chunk().await {
            Ok(Some(bytes)) => open.push(bytes),
            Ok(None) => return Ok(()),
            Err(failure) => return Err(failure.broken_off("answer")),
        }
        if open.bytes() > ANSWER_BYTES_MAX {
            open.cut();
            return Err(too_large());
        }
    }
}

pub(super) fn too_large() -> Problem {
    let text = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes");
    Problem::new(Cause::AnswerBroken, text)
}

/// A good answer as the agent may see it: in its dialect, without what we added.
fn pass_on(call: &Call, open: &mut Open, prepared: &Prepared) -> Response<Body> {
    let body = open.body();
    let text = || String::from_utf8_lossy(&body);
    let thoughtful = |reply: Reply| match prepared.added.reasoning {
        true => reply.without_thoughts(),
        false => reply,
    };
    let body: Bytes = match (&call.question.render, call.session.options.endpoint.dialect) {
        (None, EndpointDialect::Chat) => {
            let (stripped, usage) = strip_body(&body, &prepared.added);
            open.usage = usage;
            stripped.map_or(body, Bytes::from)
        }
        (None, EndpointDialect::Anthropic) => body,
        (Some(render), EndpointDialect::Chat) => {
            let reply = thoughtful(read_reply(&text(), false));
            render.whole(&reply).into()
        }
        (Some(render), EndpointDialect::Anthropic) => {
            let (reply, thoughts) = anthropic::read_with_thoughts(&text(), false);
            call.session.keep_thoughts(thoughts);
            render.whole(&reply).into()
        }
    };
    answer::whole(StatusCode::OK, answer::JSON, body)
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
