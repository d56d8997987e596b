//! What comes back from the endpoint, as the outcome of a call: a stream to pass on, a whole answer, a refusal, or none of
//! them. All but the stream is on record when this is done with it.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;

use rollcage_dialect::chat::render::closing_reply;
use rollcage_dialect::chat::{AddedFields, StreamError, is_context_overflow, is_transient_status};
use rollcage_model::ending::Cause;

use crate::answer;
use crate::calls::Problem;
use crate::exchange::{OpenExchange, Ticket};
use crate::learned::Lesson;
use crate::outcome::{CallOutcome, GIVEN_UP, Refusal, Streaming, WholeAnswer};
use crate::output::OutputMode;
use crate::policy::OnOverflow;
use crate::question::Question;
use crate::response::{UpstreamResponse, too_large};
use crate::session::Session;
use crate::unread::ANSWER_BYTES_MAX;

/// For the rest of a stream that failed.
const REST_LIMIT: Duration = Duration::from_millis(200);
const REST_BYTES_MAX: usize = 1 << 20;

/// What was asked for, and how the agent wants it.
pub(crate) struct Expected<'a> {
    pub(crate) session: &'a Session,
    pub(crate) question: &'a Question,
    pub(crate) mode: OutputMode,
    /// What we asked for and the agent did not.
    pub(crate) added: AddedFields,
}

/// What one attempt at a call came to.
pub(crate) enum Received {
    Settled(CallOutcome),
    Refused(Refused),
}

/// A refusal, on record.
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    /// What it taught about the endpoint.
    pub(crate) lesson: Option<Lesson>,
    /// For another attempt at the same call.
    pub(crate) ticket: Option<Ticket>,
}

/// Looks at what came: a stream to pass on, a whole answer, a refusal, or none of them.
pub(crate) async fn receive(
    expected: &Expected<'_>,
    mut exchange: OpenExchange,
    mut response: UpstreamResponse,
) -> Received {
    let status = response.status();
    exchange.status = Some(status.as_u16());
    exchange.is_stream = response.is_stream();
    if let Some(problem) = response.take_given_up() {
        return Received::Settled(give_up(exchange, response, problem).await);
    }
    if expected.mode == OutputMode::Live && status.is_success() && response.is_stream() {
        let streaming = Streaming { exchange, response };
        return Received::Settled(CallOutcome::Streaming(Box::new(streaming)));
    }
    if let Err(problem) = read_whole(&mut exchange, &mut response).await {
        return Received::Settled(fail(exchange, StatusCode::BAD_GATEWAY, problem));
    }
    match status.is_success() {
        true => Received::Settled(take_whole(expected, exchange, &response)),
        false => take_refusal(expected, exchange, &response),
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
    expected: &Expected<'_>,
    mut exchange: OpenExchange,
    response: &UpstreamResponse,
) -> CallOutcome {
    let content_type = response.content_type();
    let wanted = match expected.mode {
        OutputMode::Live => "an event stream",
        OutputMode::Whole | OutputMode::Replayed => "JSON",
    };
    if expected.mode == OutputMode::Live || !content_type.starts_with(answer::JSON) {
        // Agents given something else than what they asked for loop without end.
        let text = format!("the endpoint was asked for {wanted} and answered {content_type}");
        let problem = Problem::new(Cause::AnswerBroken, text);
        return fail(exchange, GIVEN_UP, problem);
    }
    let dialect = expected.session.options.endpoint.dialect;
    let body = exchange.body();
    let is_own = expected.mode == OutputMode::Whole && !expected.question.is_translated;
    let answer = if is_own {
        let (stripped, usage) = dialect.strip(&body, &expected.added);
        exchange.usage = usage;
        WholeAnswer::Body(stripped.map_or(body, Bytes::from))
    } else {
        let (mut reply, thoughts) = dialect.read(&String::from_utf8_lossy(&body), false);
        if expected.mode == OutputMode::Replayed && !reply.is_complete {
            // No stream ends without its finish reason.
            let problem = Problem::new(Cause::AnswerBroken, "the answer has no finish reason");
            return fail(exchange, StatusCode::BAD_GATEWAY, problem);
        }
        if expected.question.is_translated {
            // Agents that speak the endpoint's dialect send them back themselves.
            expected.session.thoughts.keep(thoughts);
        }
        if expected.added.reasoning {
            reply = reply.without_thoughts();
        }
        WholeAnswer::Reply(Box::new(reply))
    };
    match exchange.close(None) {
        Ok(()) => CallOutcome::Answered(answer),
        Err(problem) => CallOutcome::unrecorded(problem),
    }
}

/// Puts a refusal on record and learns from it.
fn take_refusal(
    expected: &Expected<'_>,
    mut exchange: OpenExchange,
    response: &UpstreamResponse,
) -> Received {
    let body = exchange.body();
    let ticket = exchange.take_ticket();
    if let Err(problem) = exchange.close(None) {
        return Received::Settled(CallOutcome::unrecorded(problem));
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    let status = response.status();
    let lesson = match status.as_u16() {
        400 | 422 => expected.session.learn_from(&text, &expected.question.body),
        _ => None,
    };
    Received::Refused(Refused {
        refusal: Refusal {
            status,
            text: expected.session.scrub_text(text),
            content_type: response.content_type().to_owned(),
            headers: Refusal::headers_of(response),
        },
        lesson,
        ticket,
    })
}

/// A refusal that no other attempt follows. A conversation that no longer fits ends with a last answer instead where that
/// ends the rollout, since agents would send the same again.
pub(crate) fn settle_refusal(
    session: &Session,
    question: &Question,
    refusal: Refusal,
) -> CallOutcome {
    let status = refusal.status;
    // Agents that speak the endpoint's dialect know this one, and ask for less.
    let is_too_much = refusal.text.contains("exceed context limit") && question.is_translated;
    let is_overflow = is_context_overflow(status.as_u16(), &refusal.text) || is_too_much;
    if is_overflow && session.options.on_overflow == OnOverflow::Stop {
        session.stop("context");
        let reply =
            closing_reply("The conversation no longer fits the model's context. I stop here.");
        return CallOutcome::Stopped(Box::new(reply));
    }
    if is_transient_status(status.as_u16()) {
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
pub(crate) fn fail(
    mut exchange: OpenExchange,
    status: StatusCode,
    problem: Problem,
) -> CallOutcome {
    let text = problem.text.clone();
    match exchange.close(Some(problem)) {
        Ok(()) => CallOutcome::Failed {
            status,
            problem: text,
        },
        Err(unwritten) => CallOutcome::unrecorded(unwritten),
    }
}
