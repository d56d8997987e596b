//! Turns a call's outcome into the agent's response: the endpoint's stream as it arrives (`live`), a whole answer, or a
//! stream made from a whole answer (`replayed`).
//!
//! Until the first byte is sent, every outcome can be expressed by an HTTP status, in the same way in all three modes.
//! A stream that has begun can only continue or break; [`break_off`] handles that one difference.

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

/// The error message of a call that we gave up on. OpenCode retries, whatever the status, when the body contains a
/// number such as 429 or words such as `server error` and `connection refused`; so the cause goes into a header.
const GIVEN_UP_TEXT: &str = "The model endpoint gave no usable answer, as often as it was asked. This call has failed for good; the header x-rollcage-cause says why.";
/// The endpoint's answer, shortened; the record has all of it.
const CAUSE: HeaderName = HeaderName::from_static("x-rollcage-cause");
const CAUSE_CHARS_MAX: usize = 500;

/// How an answer is delivered to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputMode {
    /// The endpoint's stream, passed on as it arrives.
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

/// Builds the agent's response from the outcome of one call.
pub(crate) struct Responder {
    pub(crate) session: Arc<Session>,
    pub(crate) route: Route,
    pub(crate) mode: OutputMode,
    pub(crate) form: AnswerForm,
}

impl Responder {
    /// Runs the call and responds with its outcome.
    pub(crate) async fn run(
        self,
        calling: impl Future<Output = CallOutcome> + Send + 'static,
    ) -> Response<Body> {
        match self.mode {
            OutputMode::Live | OutputMode::Whole => self.respond(calling.await),
            OutputMode::Replayed => replayed::respond(self, Box::pin(calling)).await,
        }
    }

    /// The response to an agent to which nothing has been sent so far.
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

    /// The refusal unchanged for an agent of the endpoint's dialect, else rendered in the agent's dialect.
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

/// A failure; with [`GIVEN_UP`] it is worded so that agents do not retry.
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

/// Ends a stream that has begun and cannot continue. The status is already sent, so the connection is broken: agents
/// treat that as an error, while a stream that ends cleanly without a finish reason makes some of them retry forever.
/// Where the agent's dialect has a closing event for this case, that is sent instead.
async fn break_off(closing_event: Option<&'static [u8]>, problem: String) -> io::Result<Bytes> {
    if closing_event.is_none() {
        // The server flushes buffered data when the body is pending; what is buffered when the body fails is lost.
        tokio::task::yield_now().await;
    }
    closing_event
        .map(Bytes::from_static)
        .ok_or_else(|| io::Error::other(problem))
}
