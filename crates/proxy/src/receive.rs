//! Classifies the endpoint's response as the outcome of a call: a stream to pass on, a whole answer, a refusal, or a
//! failure. All but the stream are recorded here.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;

use rollcage_dialect::chat::render::closing_reply;
use rollcage_dialect::chat::{
    AddedFields, StreamError, is_context_overflow, is_output_too_long, is_transient_status,
};
use rollcage_model::ending::Cause;

use crate::answer;
use crate::body::ANSWER_BYTES_MAX;
use crate::calls::Problem;
use crate::exchange::{BudgetHold, OpenExchange};
use crate::lessons::Lesson;
use crate::outcome::{CallOutcome, GIVEN_UP, Refusal, StreamedAnswer, WholeAnswer};
use crate::output::OutputMode;
use crate::policy::OnOverflow;
use crate::question::Question;
use crate::response::{UpstreamResponse, is_refusal, too_large};
use crate::session::Session;

/// For reading the rest of a stream that failed.
const REST_LIMIT: Duration = Duration::from_millis(200);
const REST_BYTES_MAX: usize = 1 << 20;

/// What a response is classified by: the call that it answers.
pub(crate) struct CallContext<'a> {
    pub(crate) session: &'a Session,
    pub(crate) question: &'a Question,
    pub(crate) mode: OutputMode,
    /// What we requested and the agent did not.
    pub(crate) added: AddedFields,
}

/// The outcome of one attempt at a call.
pub(crate) enum AttemptOutcome {
    Settled(CallOutcome),
    Refused(RecordedRefusal),
}

/// A refusal that has been recorded.
pub(crate) struct RecordedRefusal {
    pub(crate) refusal: Refusal,
    /// What was learnt about the endpoint from it.
    pub(crate) lesson: Option<Lesson>,
    /// The budget reservation, for another attempt at the same call.
    pub(crate) hold: Option<BudgetHold>,
}

/// Classifies a response, and records it unless it is a stream to pass on.
pub(crate) async fn receive(
    context: &CallContext<'_>,
    mut exchange: OpenExchange,
    mut response: UpstreamResponse,
) -> AttemptOutcome {
    let status = response.status();
    exchange.status = Some(status.as_u16());
    exchange.is_stream = response.is_stream();
    if let Some(problem) = response.take_given_up() {
        return AttemptOutcome::Settled(give_up(exchange, response, problem).await);
    }
    if let Some(error) = response.hidden_error().cloned() {
        let lesson = (context.session).learn_from(&error.body, &context.question.body);
        if lesson.is_some() || is_refusal(&error) {
            return take_hidden_refusal(exchange, response, &error, lesson).await;
        }
    }
    if context.mode == OutputMode::Live && status.is_success() && response.is_stream() {
        let streaming = StreamedAnswer { exchange, response };
        return AttemptOutcome::Settled(CallOutcome::Streaming(Box::new(streaming)));
    }
    if let Err(problem) = read_whole(&mut exchange, &mut response).await {
        return AttemptOutcome::Settled(fail(exchange, StatusCode::BAD_GATEWAY, problem));
    }
    match status.is_success() {
        true => AttemptOutcome::Settled(take_whole(context, exchange, &response)),
        false => take_refusal(context, exchange, &response),
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

/// Records a good answer and returns it as the agent may see it.
fn take_whole(
    context: &CallContext<'_>,
    mut exchange: OpenExchange,
    response: &UpstreamResponse,
) -> CallOutcome {
    let content_type = response.content_type();
    let wanted = match context.mode {
        OutputMode::Live => "an event stream",
        OutputMode::Whole | OutputMode::Replayed => "JSON",
    };
    if context.mode == OutputMode::Live || !content_type.starts_with(answer::JSON) {
        // Some agents retry forever when the content type is not the one they requested.
        let text = format!("the endpoint was asked for {wanted} and answered {content_type}");
        let problem = Problem::new(Cause::AnswerBroken, text);
        return fail(exchange, GIVEN_UP, problem);
    }
    let dialect = context.session.options.endpoint.dialect;
    let body = exchange.body();
    let is_own = context.mode == OutputMode::Whole && !context.question.is_translated;
    let answer = if is_own {
        let (stripped, usage) = dialect.strip(&body, &context.added);
        exchange.usage = usage;
        WholeAnswer::Body(stripped.map_or(body, Bytes::from))
    } else {
        let (mut reply, thoughts) = dialect.read(&String::from_utf8_lossy(&body), false);
        if context.mode == OutputMode::Replayed && !reply.is_complete {
            // A stream must end with a finish reason.
            let problem = Problem::new(Cause::AnswerBroken, "the answer has no finish reason");
            return fail(exchange, StatusCode::BAD_GATEWAY, problem);
        }
        if context.question.is_translated {
            // Agents that speak the endpoint's dialect send thoughts back themselves.
            context.session.thoughts.keep(thoughts);
        }
        if context.added.reasoning {
            reply = reply.without_thoughts();
        }
        WholeAnswer::Reply(Box::new(reply))
    };
    match exchange.close(None) {
        Ok(()) => CallOutcome::Answered(answer),
        Err(problem) => CallOutcome::unrecorded(problem),
    }
}

/// Records a refusal and learns from it.
fn take_refusal(
    context: &CallContext<'_>,
    mut exchange: OpenExchange,
    response: &UpstreamResponse,
) -> AttemptOutcome {
    let body = exchange.body();
    let hold = exchange.take_hold();
    if let Err(problem) = exchange.close(None) {
        return AttemptOutcome::Settled(CallOutcome::unrecorded(problem));
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    let status = response.status();
    let lesson = match status.as_u16() {
        400 | 422 => context.session.learn_from(&text, &context.question.body),
        _ => None,
    };
    AttemptOutcome::Refused(RecordedRefusal {
        refusal: Refusal {
            status,
            text: context.session.scrub_text(text),
            content_type: response.content_type().to_owned(),
            headers: Refusal::headers_of(response),
        },
        lesson,
        hold,
    })
}

/// Records a refusal that came with a good status: vLLM and SGLang begin some streams before they look at the request.
async fn take_hidden_refusal(
    mut exchange: OpenExchange,
    mut response: UpstreamResponse,
    error: &StreamError,
    lesson: Option<Lesson>,
) -> AttemptOutcome {
    read_rest(&mut exchange, &mut response).await;
    let hold = exchange.take_hold();
    let text = exchange.session().scrub_text(error.body.clone());
    let cause = match is_refusal(error) {
        true => Cause::ContextOverflow,
        false => Cause::EndpointRefused,
    };
    let problem = Problem::new(cause, exchange.session().scrub_text(error.message.clone()));
    if let Err(problem) = exchange.close(Some(problem)) {
        return AttemptOutcome::Settled(CallOutcome::unrecorded(problem));
    }
    let status = error.status.and_then(|it| StatusCode::from_u16(it).ok());
    AttemptOutcome::Refused(RecordedRefusal {
        refusal: Refusal {
            status: status.unwrap_or(StatusCode::BAD_REQUEST),
            text,
            content_type: answer::JSON.to_owned(),
            headers: Refusal::headers_of(&response),
        },
        lesson,
        hold,
    })
}

/// The outcome of a refusal that no other attempt follows. If the conversation no longer fits the context and that is
/// to end the rollout, the agent gets a final answer instead, since it would send the same request again.
pub(crate) fn settle_refusal(
    session: &Session,
    question: &Question,
    refusal: Refusal,
) -> CallOutcome {
    let status = refusal.status;
    // Agents that speak the endpoint's dialect recognise this error and ask for less.
    let is_agents_to_shorten = is_output_too_long(&refusal.text) && !question.is_translated;
    let is_overflow = is_context_overflow(status.as_u16(), &refusal.text) && !is_agents_to_shorten;
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

/// The outcome of an answer with a good status that then failed in a transient way, after the last retry. Nothing of it
/// was passed on.
async fn give_up(
    mut exchange: OpenExchange,
    mut response: UpstreamResponse,
    problem: Problem,
) -> CallOutcome {
    let broken = read_rest(&mut exchange, &mut response).await;
    let body = exchange.body();
    let body = String::from_utf8_lossy(&body);
    let mut data = body.lines().filter_map(|line| line.strip_prefix("data:"));
    let said = data.find_map(StreamError::read).map(|error| error.message);
    let text = said.or(broken).unwrap_or(problem.text);
    let text = exchange.session().scrub_text(text);
    fail(exchange, GIVEN_UP, Problem::new(problem.cause, text))
}

/// Reads the rest of an answer that has failed into its exchange; returns how it broke off, if it did.
async fn read_rest(exchange: &mut OpenExchange, response: &mut UpstreamResponse) -> Option<String> {
    let reading = async {
        while exchange.bytes() < REST_BYTES_MAX {
            match response.bytes().await {
                Ok(Some(bytes)) => exchange.push(bytes),
                Ok(None) => break,
                Err(failure) => return Some(format!("the answer broke off: {}", failure.text)),
            }
        }
        None
    };
    // The error has been read; the connection may stay open without more data.
    let read = tokio::time::timeout(REST_LIMIT, reading).await;
    read.ok().flatten()
}

/// Closes an exchange without an answer.
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
