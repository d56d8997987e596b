//! An endpoint's answer while it comes. It is looked at before any of it is passed on, since what failed until then can be
//! asked for again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use tokio::time::Instant;

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::chat::{Usage, is_transient_status};
use rollcage_dialect::sse::SseError;
use rollcage_dialect::upstream::{EventKind, StreamEvent, StreamReader};
use rollcage_model::ending::Cause;

use crate::answer;
use crate::calls::Problem;
use crate::failure::{Failure, aborted};
use crate::patience::Silence;
use crate::scrub::{Scrub, Scrubbed};
use crate::transport::RawResponse;
use crate::unread::ANSWER_BYTES_MAX;

/// How long comments, pings and roles are held back while a stream's first word is waited for.
const PEEK_LIMIT: Duration = Duration::from_secs(10);
/// The first event may hold the ids of a long prompt.
const PEEK_BYTES_MAX: usize = 2 << 20;

/// An endpoint's answer. Its body is still to come.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    raw: RawResponse,
    /// Reads the events of a stream; `None` for whole answers and refusals.
    reader: Option<StreamReader>,
    /// Of the body, what was looked at before the answer was taken for one.
    peeked: VecDeque<Chunk>,
    /// What broke the body off while it was looked at.
    broken: Option<Failure>,
    /// The body ended while it was looked at.
    is_ended: bool,
    /// It began well, failed in a way that might have passed, and was the last try's.
    given_up: Option<Problem>,
    silence: Arc<Silence>,
    /// Takes our key out of the body.
    scrubbed: Option<Scrubbed>,
}

/// Some bytes of a body.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Bytes,
    /// The events that these bytes end, where the body is a stream.
    pub(crate) events: Result<Vec<StreamEvent>, SseError>,
}

impl UpstreamResponse {
    /// `reader` reads the body if it is a stream.
    pub(crate) fn new(
        mut raw: RawResponse,
        reader: StreamReader,
        scrub: Option<&Arc<Scrub>>,
        silence: &Arc<Silence>,
    ) -> Self {
        if let Some(scrub) = scrub {
            scrub.headers(raw.headers_mut());
        }
        let mut response = UpstreamResponse {
            scrubbed: scrub.cloned().map(Scrubbed::new),
            raw,
            reader: None,
            peeked: VecDeque::new(),
            broken: None,
            is_ended: false,
            given_up: None,
            silence: Arc::clone(silence),
        };
        if response.status().is_success() && response.is_stream() {
            response.reader = Some(reader);
        }
        response
    }

    /// No other try comes. What began well needs a reason not to be passed on.
    pub(crate) fn give_up(&mut self, problem: Problem) {
        if self.status().is_success() {
            self.given_up = Some(problem);
        }
    }

    /// Why it is no answer although it began like one, and may not be passed on.
    pub(crate) fn take_given_up(&mut self) -> Option<Problem> {
        self.given_up.take()
    }

    /// By its own account.
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

    /// Whether it calls itself a stream of events.
    pub(crate) fn is_stream(&self) -> bool {
        self.content_type().starts_with(answer::EVENTS)
    }

    /// What a stream used, by what it said so far.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.reader.as_ref().and_then(StreamReader::usage)
    }

    /// The reader of its stream, for what is known at the end.
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
            // All of it may be the beginning of the key.
            if !bytes.is_empty() {
                let read = self.reader.as_mut().map(|reader| reader.push(&bytes));
                let events = read.unwrap_or_else(|| Ok(Vec::new()));
                return Ok(Some(Chunk { bytes, events }));
            }
        }
    }

    /// Bytes without our key; `None` at the end, behind what was held back of it.
    fn scrub(&mut self, bytes: Option<Bytes>) -> Option<Bytes> {
        match (&mut self.scrubbed, bytes) {
            (None, bytes) => bytes,
            (Some(scrubbed), Some(bytes)) => Some(scrubbed.push(bytes)),
            (Some(scrubbed), None) => scrubbed.finish(),
        }
    }

    /// Looks at an answer before any of it is passed on, for what may pass when it is asked for again.
    pub(crate) async fn look(&mut self, dialect: EndpointDialect) -> Option<Problem> {
        let status = self.status();
        if !status.is_success() {
            let text = format!("endpoint answered {status}");
            let problem = Problem::new(Cause::of_status(status.as_u16()), text);
            return is_transient_status(status.as_u16()).then_some(problem);
        }
        match self.reader.is_some() {
            true => self.look_at_stream().await,
            false => self.look_at_whole(dialect).await,
        }
    }

    /// Looks at a stream up to the first word in it. An error, an end, or a completion that the engine gave up on before
    /// that can be asked for again.
    async fn look_at_stream(&mut self) -> Option<Problem> {
        let since = Instant::now();
        let mut peeked_bytes = 0;
        loop {
            let chunk = match self.next().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    self.is_ended = true;
                    return Some(Problem::new(Cause::AnswerBroken, "the stream was empty"));
                }
                Err(failure) => return self.break_off(failure, "stream"),
            };
            peeked_bytes += chunk.bytes.len();
            let beginning = match &chunk.events {
                Ok(events) => events.iter().map(Beginning::of).collect(),
                // Whoever passes it on tells what is wrong with it.
                Err(_) => Beginning::Something,
            };
            self.peeked.push_back(chunk);
            match beginning {
                Beginning::Nothing => {}
                Beginning::Something => return None,
                Beginning::Failed(problem) => return Some(problem),
            }
            // A sign of life must not be kept from the agent for long.
            if since.elapsed() > PEEK_LIMIT || peeked_bytes > PEEK_BYTES_MAX {
                return None;
            }
        }
    }

    /// Reads a whole answer, of which the agent sees nothing before its end anyway.
    async fn look_at_whole(&mut self, dialect: EndpointDialect) -> Option<Problem> {
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
            // Each is let go as soon as it is copied: together they may be large.
            for piece in self.peeked.drain(..) {
                whole.extend_from_slice(&piece.bytes);
            }
            self.peeked.push_back(Chunk {
                bytes: whole.into(),
                events: Ok(Vec::new()),
            });
        }
        let whole = &self.peeked.front()?.bytes;
        let reason = dialect.abort_reason(std::str::from_utf8(whole).ok()?)?;
        Some(aborted(&reason))
    }

    fn break_off(&mut self, failure: Failure, what: &str) -> Option<Problem> {
        let problem = failure.is_passing.then(|| failure.broken_off(what));
        self.broken = Some(failure);
        problem
    }
}

pub(crate) fn too_large() -> Problem {
    let text = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes");
    Problem::new(Cause::AnswerBroken, text)
}

/// What the beginning of a stream says.
enum Beginning {
    Nothing,
    /// Something that the agent is to see.
    Something,
    Failed(Problem),
}

impl Beginning {
    fn of(event: &StreamEvent) -> Self {
        match &event.kind {
            EventKind::Nothing => Beginning::Nothing,
            EventKind::Aborted(reason) => Beginning::Failed(aborted(reason)),
            EventKind::Error(error) if error.is_transient() => {
                let message = error.message.clone();
                Beginning::Failed(Problem::new(Cause::EndpointError, message))
            }
            EventKind::Content | EventKind::Final | EventKind::Done | EventKind::Error(_) => {
                Beginning::Something
            }
        }
    }
}

impl FromIterator<Beginning> for Beginning {
    /// An error behind a first word is the agent's to see; a completion that the engine gave up on is none, as long as
    /// nothing of it has been passed on.
    fn from_iter<I: IntoIterator<Item = Beginning>>(events: I) -> Self {
        let then = |before, next| match (before, next) {
            (Beginning::Nothing, next) => next,
            (Beginning::Something, Beginning::Failed(problem))
                if problem.cause == Cause::EndpointAborted =>
            {
                Beginning::Failed(problem)
            }
            (before, _) => before,
        };
        events.into_iter().fold(Beginning::Nothing, then)
    }
}
