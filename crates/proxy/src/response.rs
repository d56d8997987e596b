//! An endpoint's answer while it arrives. Its beginning is inspected before any of it is passed on, since a failure up
//! to then can still be retried.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use tokio::time::Instant;

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::chat::{
    AddedFields, StreamError, Usage, is_context_overflow, is_transient_status,
};
use rollcage_dialect::sse::SseError;
use rollcage_dialect::upstream::{AnswerFault, EventKind, StreamEvent, StreamReader};
use rollcage_model::ending::Cause;

use crate::answer;
use crate::body::ANSWER_BYTES_MAX;
use crate::calls::Problem;
use crate::failure::{Failure, aborted};
use crate::patience::Silence;
use crate::scrub::{KeyScrubber, ScrubbedBody};
use crate::transport::RawResponse;

/// How long comments, pings and roles are held back while we wait for a stream's first content.
const PEEK_LIMIT: Duration = Duration::from_secs(10);
/// Large, since the first event may hold the token ids of a long prompt.
const PEEK_BYTES_MAX: usize = 2 << 20;

/// An endpoint's answer, whose body is still arriving.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    raw: RawResponse,
    /// Reads the events of a stream; `None` for whole answers and refusals.
    reader: Option<StreamReader>,
    /// The chunks of the body that were read during inspection.
    peeked: VecDeque<Chunk>,
    /// The failure that broke the body off during inspection.
    broken: Option<Failure>,
    /// The body ended during inspection.
    is_ended: bool,
    /// The transient problem of an answer with a good status, when no retry is left.
    given_up: Option<Problem>,
    /// The error that an answer with a good status has in place of its beginning, if that is nothing transient.
    error: Option<StreamError>,
    silence: Arc<Silence>,
    /// Removes our key from the body.
    scrubbed: Option<ScrubbedBody>,
}

/// A chunk of a body.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Bytes,
    /// The events that these bytes complete, where the body is a stream.
    pub(crate) events: Result<Vec<StreamEvent>, SseError>,
}

impl UpstreamResponse {
    /// `reader` reads the body if it is a stream.
    pub(crate) fn new(
        mut raw: RawResponse,
        reader: StreamReader,
        scrub: Option<&Arc<KeyScrubber>>,
        silence: &Arc<Silence>,
    ) -> Self {
        if let Some(scrub) = scrub {
            scrub.headers(raw.headers_mut());
        }
        let mut response = UpstreamResponse {
            scrubbed: scrub.map(|scrub| ScrubbedBody::new([Arc::clone(scrub)])),
            raw,
            reader: None,
            peeked: VecDeque::new(),
            broken: None,
            is_ended: false,
            given_up: None,
            error: None,
            silence: Arc::clone(silence),
        };
        if response.status().is_success() && response.is_stream() {
            response.reader = Some(reader);
        }
        response
    }

    /// No retry is left. An answer with a good status is marked, so that it is not passed on.
    pub(crate) fn give_up(&mut self, problem: Problem) {
        if self.status().is_success() {
            self.given_up = Some(problem);
        }
    }

    /// Why an answer with a good status may not be passed on.
    pub(crate) fn take_given_up(&mut self) -> Option<Problem> {
        self.given_up.take()
    }

    /// The error that a good status hides.
    pub(crate) fn hidden_error(&self) -> Option<&StreamError> {
        self.error.as_ref()
    }

    /// Whether its declared length exceeds the limit.
    pub(crate) fn is_too_large(&self) -> bool {
        let length = self.header(CONTENT_LENGTH.as_str());
        let length = length.and_then(|length| length.parse::<usize>().ok());
        length.is_some_and(|length| length > ANSWER_BYTES_MAX)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.raw.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.raw.headers()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    pub(crate) fn content_type(&self) -> &str {
        self.header(CONTENT_TYPE.as_str()).unwrap_or(answer::JSON)
    }

    /// Whether its content type is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.content_type().starts_with(answer::EVENTS)
    }

    /// A stream's usage, as reported so far.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.reader.as_ref().and_then(StreamReader::usage)
    }

    /// The stream's reader, for the data that is complete at the end.
    pub(crate) fn reader(&mut self) -> Option<&mut StreamReader> {
        self.reader.as_mut()
    }

    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn bytes(&mut self) -> Result<Option<Bytes>, Failure> {
        Ok(self.chunk().await?.map(|chunk| chunk.bytes))
    }

    /// The next bytes of the body with their events; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Chunk>, Failure> {
        if let Some(chunk) = self.peeked.pop_front() {
            return Ok(Some(chunk));
        }
        match self.broken.take() {
            Some(failure) => Err(failure),
            None if self.is_ended => Ok(None),
            None => self.next().await,
        }
    }

    async fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        loop {
            self.silence.begin();
            let bytes = self.raw.chunk().await;
            self.silence.end();
            let Some(bytes) = self.scrub(bytes?) else {
                return Ok(None);
            };
            // Empty when all of it may be the beginning of the key, and is held back.
            if !bytes.is_empty() {
                let read = self.reader.as_mut().map(|reader| reader.push(&bytes));
                let events = read.unwrap_or_else(|| Ok(Vec::new()));
                return Ok(Some(Chunk { bytes, events }));
            }
        }
    }

    /// Removes our key; `None` at the end, after the bytes that were held back.
    fn scrub(&mut self, bytes: Option<Bytes>) -> Option<Bytes> {
        match (&mut self.scrubbed, bytes) {
            (None, bytes) => bytes,
            (Some(scrubbed), Some(bytes)) => Some(scrubbed.push(bytes)),
            (Some(scrubbed), None) => scrubbed.finish(),
        }
    }

    /// Inspects an answer before any of it is passed on; returns the problem if it is transient and worth a retry.
    /// `added` is what its agent does not see of it.
    pub(crate) async fn inspect(
        &mut self,
        dialect: EndpointDialect,
        added: &AddedFields,
    ) -> Option<Problem> {
        let status = self.status();
        if !status.is_success() {
            let text = format!("endpoint answered {status}");
            let problem = Problem::new(Cause::of_status(status.as_u16()), text);
            return is_transient_status(status.as_u16()).then_some(problem);
        }
        match self.reader.is_some() {
            true => self.inspect_stream().await,
            false => self.inspect_whole(dialect, added).await,
        }
    }

    /// Reads a stream up to its first content. An error, an end, or an aborted completion before that can be retried.
    async fn inspect_stream(&mut self) -> Option<Problem> {
        let since = Instant::now();
        let mut peeked_bytes = 0;
        loop {
            let chunk = match self.next().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    self.is_ended = true;
                    return Some(empty());
                }
                Err(failure) => return self.break_off(failure, "stream"),
            };
            peeked_bytes += chunk.bytes.len();
            let beginning = match &chunk.events {
                Ok(events) => events.iter().map(StreamStart::of).collect(),
                // Reported when it is passed on.
                Err(_) => StreamStart::Something,
            };
            self.peeked.push_back(chunk);
            match beginning {
                StreamStart::Nothing => {}
                StreamStart::Something => return None,
                StreamStart::Ended => return Some(empty()),
                StreamStart::Refused(error) => {
                    self.error = Some(error);
                    return None;
                }
                StreamStart::Failed(problem) => return Some(problem),
            }
            // Keep-alives must not be kept from the agent for long.
            if since.elapsed() > PEEK_LIMIT || peeked_bytes > PEEK_BYTES_MAX {
                return None;
            }
        }
    }

    /// Reads a whole answer; the agent sees none of it before its end anyway.
    async fn inspect_whole(
        &mut self,
        dialect: EndpointDialect,
        added: &AddedFields,
    ) -> Option<Problem> {
        let mut peeked_bytes = 0;
        while !self.is_ended {
            if self.is_too_large() || peeked_bytes > ANSWER_BYTES_MAX {
                return None;
            }
            match self.next().await {
                Ok(Some(chunk)) => {
                    peeked_bytes += chunk.bytes.len();
                    self.peeked.push_back(chunk);
                }
                Ok(None) => self.is_ended = true,
                Err(failure) => return self.break_off(failure, "answer"),
            }
        }
        if self.peeked.len() > 1 {
            let mut whole = Vec::with_capacity(peeked_bytes);
            // Each is freed as soon as it is copied, since together they may be large.
            for piece in self.peeked.drain(..) {
                whole.extend_from_slice(&piece.bytes);
            }
            self.peeked.push_back(Chunk {
                bytes: whole.into(),
                events: Ok(Vec::new()),
            });
        }
        if !self.content_type().starts_with(answer::JSON) {
            return None;
        }
        let whole = self.peeked.front().map_or(&[][..], |chunk| &chunk.bytes);
        let problem = match dialect.fault(whole, added)? {
            AnswerFault::Aborted(reason) => return Some(aborted(&reason)),
            AnswerFault::Error(error) if is_refusal(&error) => {
                self.error = Some(error);
                return None;
            }
            AnswerFault::Error(error) => format!("the answer is an error: {}", error.message),
            AnswerFault::Unreadable(why) => format!("the answer is none: {why}"),
        };
        Some(Problem::new(Cause::AnswerBroken, problem))
    }

    fn break_off(&mut self, failure: Failure, what: &str) -> Option<Problem> {
        let problem = failure.is_transient.then(|| failure.broken_off(what));
        self.broken = Some(failure);
        problem
    }
}

/// Whether an error behind a good status is of a prompt that does not fit, which would be the same when asked again.
pub(crate) fn is_refusal(error: &StreamError) -> bool {
    is_context_overflow(error.status.unwrap_or(400), &error.body)
}

fn empty() -> Problem {
    Problem::new(Cause::AnswerBroken, "the stream was empty")
}

pub(crate) fn unreadable(why: &str) -> Problem {
    let text = format!("the stream has an event that nobody can read: {why}");
    Problem::new(Cause::AnswerBroken, text)
}

pub(crate) fn too_large() -> Problem {
    let text = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes");
    Problem::new(Cause::AnswerBroken, text)
}

/// What a stream begins with.
enum StreamStart {
    Nothing,
    /// Something that must be passed on to the agent.
    Something,
    /// The end.
    Ended,
    /// An error that asking again would not change.
    Refused(StreamError),
    Failed(Problem),
}

impl StreamStart {
    fn of(event: &StreamEvent) -> Self {
        match &event.kind {
            EventKind::Nothing => StreamStart::Nothing,
            EventKind::Aborted(reason) => StreamStart::Failed(aborted(reason)),
            EventKind::Unreadable(why) => StreamStart::Failed(unreadable(why)),
            EventKind::Error(error) if error.is_transient() => {
                let message = error.message.clone();
                StreamStart::Failed(Problem::new(Cause::EndpointError, message))
            }
            EventKind::Error(error) => StreamStart::Refused(error.clone()),
            EventKind::Done => StreamStart::Ended,
            EventKind::Content | EventKind::Final => StreamStart::Something,
        }
    }
}

impl FromIterator<StreamStart> for StreamStart {
    /// Combines the events of one chunk. An error after the first content is passed on to the agent; a completion that
    /// was aborted or cannot be read is a failure even then, since nothing of this chunk has been passed on yet.
    fn from_iter<I: IntoIterator<Item = StreamStart>>(events: I) -> Self {
        let then = |before, next| match (before, next) {
            (StreamStart::Nothing, next) => next,
            (StreamStart::Something, StreamStart::Failed(problem))
                if problem.cause != Cause::EndpointError =>
            {
                StreamStart::Failed(problem)
            }
            (before, _) => before,
        };
        events.into_iter().fold(StreamStart::Nothing, then)
    }
}
