//! An endpoint's answer while it comes. It is looked at before any of it is passed on, since what failed until then can be
//! asked for again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::anthropic::is_ping;
use rollcage_dialect::chat::{
    Said, StreamError, failed_finish_of_whole, is_no_answer, is_passing_status, said_by,
};
use rollcage_dialect::sse::Splitter;
use rollcage_model::ending::Cause;

use super::answer;
use super::calls::Problem;
use super::failure::{Failure, aborted};
use super::forward::ANSWER_BYTES_MAX;
use super::patience::Silence;
use super::scrub::{Scrub, Scrubbed};

/// How long comments, pings and roles are held back while a stream's first word is waited for.
const PEEK_LIMIT: Duration = Duration::from_secs(10);
/// The first event may hold the ids of a long prompt.
const PEEK_BYTES_MAX: usize = 2 << 20;

/// An endpoint's answer. Its body is still to come.
#[derive(Debug)]
pub(super) struct Answer {
    response: reqwest::Response,
    /// Of the body, what was looked at before the answer was taken for one.
    peeked: VecDeque<Bytes>,
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

impl Answer {
    pub(super) fn new(
        mut response: reqwest::Response,
        scrub: Option<&Arc<Scrub>>,
        silence: &Arc<Silence>,
    ) -> Self {
        if let Some(scrub) = scrub {
            scrub.headers(response.headers_mut());
        }
        Answer {
            scrubbed: scrub.cloned().map(Scrubbed::new),
            response,
            peeked: VecDeque::new(),
            broken: None,
            is_ended: false,
            given_up: None,
            silence: Arc::clone(silence),
        }
    }

    /// No other try comes. What began well needs a reason not to be passed on.
    pub(super) fn give_up(&mut self, problem: Problem) {
        if self.status().is_success() {
            self.given_up = Some(problem);
        }
    }

    /// Why it is no answer although it began like one, and may not be passed on.
    pub(super) fn take_given_up(&mut self) -> Option<Problem> {
        self.given_up.take()
    }

    /// By its own account.
    pub(super) fn is_too_large(&self) -> bool {
        let length = self.header(CONTENT_LENGTH.as_str());
        let length = length.and_then(|length| length.parse::<usize>().ok());
        length.is_some_and(|length| length > ANSWER_BYTES_MAX)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    /// The next bytes of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        if let Some(bytes) = self.peeked.pop_front() {
            return Ok(Some(bytes));
        }
        match self.broken.take() {
            Some(failure) => Err(failure),
            None if self.is_ended => Ok(None),
            None => self.next().await,
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            self.silence.begin();
            let chunk = self.response.chunk().await;
            self.silence.end();
            let chunk = chunk?;
            let Some(scrubbed) = &mut self.scrubbed else {
                return Ok(chunk);
            };
            let Some(chunk) = chunk else {
                return Ok(scrubbed.finish());
            };
            let clean = scrubbed.push(chunk);
            // All of it may be the beginning of the key.
            if !clean.is_empty() {
                return Ok(Some(clean));
            }
        }
    }

    fn is_stream(&self) -> bool {
        let kind = self.header(CONTENT_TYPE.as_str());
        self.status().is_success() && kind.is_some_and(|kind| kind.starts_with(answer::EVENTS))
    }

    /// Looks at an answer before any of it is passed on, for what may pass when it is asked for again.
    pub(super) async fn look(&mut self, dialect: EndpointDialect) -> Option<Problem> {
        let status = self.status();
        if !status.is_success() {
            let text = format!("endpoint answered {status}");
            let problem = Problem::new(Cause::of_status(status.as_u16()), text);
            return is_passing_status(status.as_u16()).then_some(problem);
        }
        match self.is_stream() {
            true => self.look_at_stream(dialect).await,
            false => self.look_at_whole().await,
        }
    }

    /// Looks at a stream up to the first word in it. An error, an end, or a completion that the engine gave up on before
    /// that can be asked for again.
    async fn look_at_stream(&mut self, dialect: EndpointDialect) -> Option<Problem> {
        let since = Instant::now();
        let mut peeked_bytes = 0;
        let mut splitter = Splitter::new(PEEK_BYTES_MAX);
        loop {
            let bytes = match self.next().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    self.is_ended = true;
                    return Some(Problem::new(Cause::AnswerBroken, "the stream was empty"));
                }
                Err(failure) => return self.break_off(failure, "stream"),
            };
            let events = splitter.push(&bytes);
            peeked_bytes += bytes.len();
            self.peeked.push_back(bytes);
            // Too long to be held back.
            let Ok(events) = events else { return None };
            let told = events.iter().filter_map(|event| event.data.as_deref());
            match told
                .map(|data| Seen::of(data, dialect))
                .fold(Seen::Nothing, Seen::then)
            {
                Seen::Nothing => {}
                Seen::Something => return None,
                Seen::Failed(problem) => return Some(problem),
            }
            // A sign of life must not be kept from the agent for long.
            if since.elapsed() > PEEK_LIMIT || peeked_bytes > PEEK_BYTES_MAX {
                return None;
            }
        }
    }

    /// Reads a whole answer, of which the agent sees nothing before its end anyway.
    async fn look_at_whole(&mut self) -> Option<Problem> {
        let mut peeked_bytes = 0;
        while !self.is_ended {
            if self.is_too_large() || peeked_bytes > ANSWER_BYTES_MAX {
                return None;
            }
            match self.next().await {
                Ok(Some(bytes)) => {
                    peeked_bytes += bytes.len();
                    self.peeked.push_back(bytes);
                }
                Ok(None) => self.is_ended = true,
                Err(failure) => return self.break_off(failure, "answer"),
            }
        }
        if self.peeked.len() > 1 {
            let mut whole = Vec::with_capacity(peeked_bytes);
            // Each is let go as soon as it is copied: together they may be large.
            for piece in self.peeked.drain(..) {
                whole.extend_from_slice(&piece);
            }
            self.peeked.push_back(whole.into());
        }
        let whole = self.peeked.front()?;
        failed_finish_of_whole(whole).map(|reason| aborted(&reason))
    }

    fn break_off(&mut self, failure: Failure, what: &str) -> Option<Problem> {
        let problem = failure.is_passing.then(|| failure.broken_off(what));
        self.broken = Some(failure);
        problem
    }
}

/// What the beginning of a stream says.
enum Seen {
    Nothing,
    /// Something that the agent is to see.
    Something,
    Failed(Problem),
}

impl Seen {
    fn of(data: &str, dialect: EndpointDialect) -> Self {
        if is_ping(data) {
            return Seen::Nothing;
        }
        if let Some(error) = StreamError::read(data) {
            return match error.is_passing() {
                true => Seen::Failed(Problem::new(Cause::EndpointError, error.message)),
                false => Seen::Something,
            };
        }
        if dialect == EndpointDialect::Anthropic {
            return Seen::Something;
        }
        match said_by(data) {
            Said::Nothing => Seen::Nothing,
            Said::Finish(reason) if is_no_answer(&reason) => Seen::Failed(aborted(&reason)),
            Said::Something | Said::Finish(_) => Seen::Something,
        }
    }

    /// An error behind a first word is the agent's to see; a completion that the engine gave up on is none, as long as
    /// nothing of it has been passed on.
    fn then(self, next: Seen) -> Seen {
        match (self, next) {
            (Seen::Nothing, next) => next,
            (Seen::Something, Seen::Failed(problem)) if problem.cause == Cause::EndpointAborted => {
                Seen::Failed(problem)
            }
            (seen, _) => seen,
        }
    }
}
