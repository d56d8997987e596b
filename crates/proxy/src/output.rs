//! How a call's outcome becomes what the agent gets: its stream as it comes (`live`), a whole answer, or a stream made from
//! a whole answer (`replayed`).
//!
//! Until anything was sent an outcome has a status to be told by, and is told in the same way in all three. A stream that
//! has begun can only go on or break: that is the one difference, and [`break_off`] is all that is to it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use rollcage_dialect::Route;

use crate::answer::{self, Body};
use crate::outcome::{CallOutcome, GIVEN_UP, Refusal, SHOULD_RETRY, WholeAnswer};
use crate::question::{AnswerForm, refuse};
use crate::session::Session;

mod live;
mod replayed;

/// What an agent is told of a call that we gave up. OpenCode asks again whatever the status is when it finds a number such
/// as 429, or words such as `server error` and `connection refused`, anywhere in the body; so the cause stands beside it.
const GIVEN_UP_TEXT: &str = "The model endpoint gave no usable answer, as often as it was asked. This call has failed for good; the header x-rollcage-cause says why.";
/// What the endpoint answered, shortened; the record has it as it came.
const CAUSE: HeaderName = HeaderName::from_static("x-rollcage-cause");
const CAUSE_CHARS_MAX: usize = 500;

/// How an answer gets to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputMode {
    /// The endpoint's stream, passed on as it comes.
    Live,
    Whole,
    /// A stream made from a whole answer, for endpoints whose own streams lose token ids.
    Replayed,
}

impl OutputMode {
    pub(crate) fn of(wants_stream: bool, has_live_streams: bool) -> Self {
        match (wants_stream, has_live_streams) {
            (false, _) => OutputMode::Whole,
            (true, true) => OutputMode::Live,
            (true, false) => OutputMode::Replayed,
        }
    }
}

/// Where one call's outcome goes.
pub(crate) struct Output {
    pub(crate) session: Arc<Session>,
    pub(crate) route: Route,
    pub(crate) mode: OutputMode,
    pub(crate) form: AnswerForm,
}

impl Output {
    /// Answers with what the call comes to.
    pub(crate) async fn give(
        self,
        calling: impl Future<Output = CallOutcome> + Send + 'static,
    ) -> Response<Body> {
        match self.mode {
            OutputMode::Live | OutputMode::Whole => self.respond(calling.await),
            OutputMode::Replayed => replayed::respond(self, Box::pin(calling)).await,
        }
    }

    /// The response to an agent that was sent nothing so far.
    pub(crate) fn respond(self, outcome: CallOutcome) -> Response<Body> {
        let model = &self.session.options.endpoint.model;
        match outcome {
            CallOutcome::Streaming(streaming) => live::respond(self.form, *streaming),
            CallOutcome::Answered(WholeAnswer::Body(body)) => {
                answer::whole(StatusCode::OK, answer::JSON, body)
            }
            CallOutcome::Answered(WholeAnswer::Reply(reply)) | CallOutcome::Stopped(reply) => {
                match self.mode {
                    OutputMode::Whole => self.form.whole(model, &reply),
                    OutputMode::Live | OutputMode::Replayed => self.form.stream(model, &reply),
                }
            }
            CallOutcome::Refused(refusal) => self.refused(*refusal),
            CallOutcome::Failed { status, problem } => failed(&self.route, status, &problem),
        }
    }

    /// As it came to an agent of the endpoint's dialect, else in the agent's own.
    fn refused(self, refusal: Refusal) -> Response<Body> {
        let Refusal {
            status,
            text,
            content_type,
            headers,
        } = refusal;
        let dialect = self.session.options.endpoint.dialect;
        let mut response = match self.form.render {
            None => answer::whole(status, &content_type, text),
            Some(_) => {
                let message = dialect.error_message(&text).unwrap_or(text);
                refuse(&self.route, status, &message)
            }
        };
        response.headers_mut().extend(headers);
        response
    }
}

/// A failure, told so that no agent tries again what we gave up.
fn failed(route: &Route, status: StatusCode, problem: &str) -> Response<Body> {
    if status != GIVEN_UP {
        return refuse(route, status, problem);
    }
    let mut response = refuse(route, status, GIVEN_UP_TEXT);
    let headers = response.headers_mut();
    headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    let plain = problem.chars().map(|letter| match letter {
        ' '..='~' => letter,
        _ => ' ',
    });
    let cause: String = plain.take(CAUSE_CHARS_MAX).collect();
    if let Ok(cause) = HeaderValue::from_str(&cause) {
        headers.insert(CAUSE, cause);
    }
    response
}

/// The end of a stream that has begun and gets no further. There is no status to tell it by any more; agents take a broken
/// connection for what it is, while a stream that ended cleanly without a finish reason would make some of them ask again
/// without end. Clients that do not ask again after either are `told` what their dialect has for it.
async fn break_off(told: Option<&'static [u8]>, problem: String) -> io::Result<Bytes> {
    if told.is_none() {
        // The server sends what it has once it has to wait; what it has when the body breaks is lost.
        tokio::task::yield_now().await;
    }
    told.map(Bytes::from_static)
        .ok_or_else(|| io::Error::other(problem))
}
