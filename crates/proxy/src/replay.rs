//! A stream made from a whole answer, for endpoints whose own streams lose token ids. The agent's connection is kept
//! alive meanwhile.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};

use rollcage_dialect::chat::render::farewell;
use rollcage_dialect::chat::{Prepared, Reply, is_passing_status, read_reply};
use rollcage_dialect::{Render, Route};
use rollcage_model::ending::Cause;

use super::answer::{self, Body};
use super::calls::Problem;
use super::exchange::{Open, Ticket};
use super::forward::{Attempted, Call, is_worth_another, lesson_of, read_whole};
use super::learned::Lesson;
use super::question::{AnswerItself as _, stream_of};
use super::refusal::{GIVEN_UP, failed, give_up, is_context_overflow, unrecorded};
use super::upstream::{Passed, send};
use super::{OnOverflow, Session};

/// So long a refusal can still be told by its status; after it the stream begins and stays alive.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the call.
enum Outcome {
    Replied(Box<Reply>),
    Refused(Refused),
    Failed { status: StatusCode, problem: String },
    Unrecorded(String),
}

struct Refused {
    status: StatusCode,
    text: String,
    /// What it taught, and what the call needs to be made again.
    lesson: Option<Lesson>,
    ticket: Option<Ticket>,
}

type Asking = Pin<Box<dyn Future<Output = Outcome> + Send>>;

pub(super) async fn answer(call: Call, open: Open, prepared: Prepared, tries: usize) -> Attempted {
    let asked = call.question.body.clone();
    let session = std::sync::Arc::clone(&call.session);
    let mut asking: Asking = Box::pin(ask(session, open, prepared, asked));
    let outcome = tokio::time::timeout(PATIENCE, &mut asking).await;
    let outcome = match outcome {
        Ok(Outcome::Refused(Refused {
            lesson,
            ticket: Some(ticket),
            ..
        })) if is_worth_another(lesson, tries) => {
            return Attempted::AskForLess(Box::new((call, ticket)));
        }
        other => other,
    };
    let Call {
        session,
        route,
        question,
        ..
    } = call;
    let stream_type = question.stream_type;
    let mut render = question.into_render(&session.options.endpoint.model);
    Attempted::Answered(match outcome {
        Ok(outcome) => answer_at_once(&session, &route, render, outcome, stream_type),
        Err(_) => {
            let first = render.start();
            keep_alive(asking, render, first, stream_type)
        }
    })
}

fn answer_at_once(
    session: &Session,
    route: &Route,
    mut render: Box<dyn Render>,
    outcome: Outcome,
    stream_type: &str,
) -> Response<Body> {
    match outcome {
        Outcome::Replied(reply) => {
            answer::whole(StatusCode::OK, stream_type, stream_of(&mut *render, &reply))
        }
        Outcome::Refused(Refused { status, text, .. })
            if is_context_overflow(status, &text)
                && session.options.on_overflow == OnOverflow::Stop =>
        {
            session.stop("context");
            {
                let reply =
                    farewell("The conversation no longer fits the model's context. I stop here.");
                answer::whole(StatusCode::OK, stream_type, stream_of(&mut *render, &reply))
            }
        }
        Outcome::Refused(Refused { status, text, .. }) if is_passing_status(status.as_u16()) => {
            give_up(route, status, &text)
        }
        Outcome::Refused(Refused { status, text, .. }) => route.refuse(status, &text),
        Outcome::Failed { status, problem } => failed(route, status, &problem),
        Outcome::Unrecorded(problem) => unrecorded(route, &problem),
    }
}

async fn ask(
    session: std::sync::Arc<Session>,
    mut open: Open,
    prepared: Prepared,
    asked: Bytes,
) -> Outcome {
    open.is_replayed = true;
    let is_thoughtless = prepared.added.reasoning;
    let (passed, body) = (Passed::default(), prepared.body);
    let mut upstream = match send(&session, &passed, body, &mut open.trouble).await {
        Ok(upstream) => upstream,
        Err(failure) => return fail(&mut open, GIVEN_UP, failure.unanswered()),
    };
    let status = upstream.status();
    open.status = Some(status.as_u16());
    let read = read_whole(&mut open, &mut upstream).await;
    if let Some(problem) = upstream.take_given_up() {
        return fail(&mut open, GIVEN_UP, problem);
    }
    if let Err(problem) = read {
        return fail(&mut open, StatusCode::BAD_GATEWAY, problem);
    }
    let body = open.body();
    let text = String::from_utf8_lossy(&body);
    let reply = read_reply(&text, false);
    if status.is_success() && !reply.is_complete {
        let problem = Problem::new(Cause::AnswerBroken, "the answer has no finish reason");
        return fail(&mut open, StatusCode::BAD_GATEWAY, problem);
    }
    let ticket = if status.is_success() {
        None
    } else {
        open.take_ticket()
    };
    match open.close(None) {
        Err(problem) => Outcome::Unrecorded(problem),
        Ok(()) if status.is_success() && is_thoughtless => {
            Outcome::Replied(Box::new(reply.without_thoughts()))
        }
        Ok(()) if status.is_success() => Outcome::Replied(Box::new(reply)),
        Ok(()) => {
            // Learnt in any case: a stream that has begun cannot be made again, the agent's next one will be.
            let lesson = lesson_of(&session, status, &text, &asked);
            let text = session
                .options
                .endpoint
                .key
                .as_ref()
                .map_or_else(|| text.to_string(), |key| key.scrub(&text));
            Outcome::Refused(Refused {
                status,
                text,
                lesson,
                ticket,
            })
        }
    }
}

fn fail(open: &mut Open, status: StatusCode, problem: Problem) -> Outcome {
    let text = problem.text.clone();
    match open.close(Some(problem)) {
        Ok(()) => Outcome::Failed {
            status,
            problem: text,
        },
        Err(unwritten) => Outcome::Unrecorded(unwritten),
    }
}

/// A stream that has begun: it says nothing until the answer is there, and then all of it.
fn keep_alive(
    asking: Asking,
    render: Box<dyn Render>,
    first: Vec<u8>,
    stream_type: &str,
) -> Response<Body> {
    let state = Some((asking, render, Some(first)));
    let frames = stream::unfold(state, |state| async {
        let (mut asking, mut render, first) = state?;
        if let Some(first) = first {
            return Some((
                Ok(Frame::data(Bytes::from(first))),
                Some((asking, render, None)),
            ));
        }
        match tokio::time::timeout(PATIENCE, &mut asking).await {
            Err(_) => {
                let frame = Frame::data(Bytes::from(render.keep_alive()));
                Some((Ok(frame), Some((asking, render, None))))
            }
            Ok(Outcome::Replied(reply)) => {
                let mut out = Vec::new();
                for delta in reply.deltas() {
                    out.extend(render.push(&delta));
                }
                out.extend(render.finish());
                Some((Ok(Frame::data(Bytes::from(out))), None))
            }
            // There is no status to tell it by any more; a broken connection is taken for what it is.
            Ok(
                Outcome::Refused(Refused { text: problem, .. })
                | Outcome::Failed { problem, .. }
                | Outcome::Unrecorded(problem),
            ) => Some((Err(io::Error::other(problem)), None)),
        }
    });
    let mut response = answer::whole(StatusCode::OK, stream_type, Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}
