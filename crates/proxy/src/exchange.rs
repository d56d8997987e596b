//! One exchange under way. However it ends, exactly one response is written for it and its reservation is settled.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::StatusCode;

use rollcage_dialect::chat::{Usage, is_cut, is_malformed, last_usage, offers_tools};
use rollcage_dialect::{EndpointDialect, anthropic};
use rollcage_model::budget::{Reservation, Spent};
use rollcage_model::ending::Cause;
use rollcage_model::event::What;
use rollcage_model::exchange::{Line, Response};

use super::Session;
use super::calls::{Good, Outcome, Problem};
use super::patience::Trouble;
use super::refusal::is_context_overflow;
use crate::clock::now;

/// A call's place in the budget. Dropped, it has used nothing.
pub(super) struct Ticket {
    session: Arc<Session>,
    reservation: Option<Reservation>,
}

impl Ticket {
    pub(super) fn new(session: Arc<Session>, reservation: Reservation) -> Self {
        Ticket {
            session,
            reservation: Some(reservation),
        }
    }

    pub(super) fn tokens_max(&self) -> Option<u64> {
        let limits = &self.session.options.settings.budget;
        self.reservation
            .as_ref()
            .and_then(|reservation| reservation.completion_tokens_max(limits))
    }

    fn settle(&mut self, used: Option<Spent>) {
        if let Some(reservation) = self.reservation.take() {
            self.session.settle(reservation, used);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(None);
    }
}

/// What is known of an answer so far.
pub(super) struct Open {
    session: Arc<Session>,
    ticket: Option<Ticket>,
    exchange: u64,
    /// The agent's request.
    asked: Bytes,
    has_tools: bool,
    since: Instant,
    pub(super) status: Option<u16>,
    pub(super) is_stream: bool,
    pub(super) is_replayed: bool,
    pub(super) trouble: Trouble,
    /// What the answer says it used, where that was seen on the way.
    pub(super) usage: Option<Usage>,
    first_byte_s: Option<f64>,
    /// The body as it came, in pieces.
    pieces: Vec<Bytes>,
    bytes: usize,
    is_closed: bool,
}

impl Open {
    pub(super) fn new(session: Arc<Session>, exchange: u64, asked: Bytes, ticket: Ticket) -> Self {
        Open {
            session,
            ticket: Some(ticket),
            exchange,
            has_tools: offers_tools(&asked),
            asked,
            since: Instant::now(),
            status: None,
            is_stream: false,
            is_replayed: false,
            trouble: Trouble::default(),
            usage: None,
            first_byte_s: None,
            pieces: Vec::new(),
            bytes: 0,
            is_closed: false,
        }
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        self.first_byte_s
            .get_or_insert_with(|| self.since.elapsed().as_secs_f64());
        self.bytes += bytes.len();
        self.pieces.push(bytes);
    }

    pub(super) fn forget_request(&mut self) {
        self.asked = Bytes::new();
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// A text without the endpoint's key, when that is in it.
    pub(super) fn scrub(&self, text: &str) -> Option<String> {
        let scrubbed = self.session.options.endpoint.key.as_ref()?.scrub(text);
        (scrubbed != text).then_some(scrubbed)
    }

    /// How much of the body has come.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The body so far, in one piece.
    pub(super) fn body(&mut self) -> Bytes {
        let body = match self.pieces.as_mut_slice() {
            [] => Bytes::new(),
            [whole] => compact(std::mem::take(whole)),
            _ => {
                let mut whole = Vec::with_capacity(self.bytes);
                // Each is let go as soon as it is copied: together they may be large.
                for piece in self.pieces.drain(..) {
                    whole.extend_from_slice(&piece);
                }
                whole.into()
            }
        };
        self.pieces = vec![body.clone()];
        body
    }

    /// Keeps the beginning of an answer that is too large to be one.
    pub(super) fn cut(&mut self) {
        const KEPT_BYTES: usize = 64 << 10;
        let mut kept = Vec::new();
        for piece in self.pieces.drain(..) {
            let room = KEPT_BYTES - kept.len();
            kept.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        self.bytes = kept.len();
        self.pieces = vec![kept.into()];
    }

    /// For another try at the same call.
    pub(super) fn take_ticket(&mut self) -> Option<Ticket> {
        self.ticket.take()
    }

    /// Writes the answer down. After this, and only then, may the agent see its end.
    pub(super) fn close(&mut self, problem: Option<Problem>) -> Result<(), String> {
        self.finish(problem, Ending::Answered)
    }

    fn finish(&mut self, problem: Option<Problem>, ending: Ending) -> Result<(), String> {
        self.is_closed = true;
        let (cause, error) = match problem {
            Some(Problem { cause, text }) => (Some(cause), Some(text)),
            None => (None, None),
        };
        self.session.note_echoed_key(self.exchange);
        let mut body = self.body();
        // An upstream that repeats our key in an error must not put it into the record.
        let is_error = error.is_some() || self.status.is_none_or(|status| status >= 300);
        if is_error && let Some(scrubbed) = self.scrub(&String::from_utf8_lossy(&body)) {
            body = scrubbed.into();
        }
        let response = Response {
            exchange: self.exchange,
            at: now(),
            status: self.status,
            is_stream: self.is_stream,
            first_byte_s: self.first_byte_s,
            total_s: self.since.elapsed().as_secs_f64(),
            error,
            attempts: std::mem::take(&mut self.trouble.attempts),
            is_replayed: self.is_replayed,
            body,
        };
        let outcome = match ending {
            Ending::HungUp => self.outcome_without_agent(),
            Ending::Answered => self.outcome(&response, cause),
        };
        let usage = self
            .usage
            .or_else(|| match self.session.options.endpoint.dialect {
                EndpointDialect::Chat => last_usage(&response.body),
                EndpointDialect::Anthropic => anthropic::usage_of(&response.body),
            });
        let noted = Noted::of(&response, usage);
        let (exchange, status) = (response.exchange, response.status);
        let is_answered = status.is_some_and(|status| (200..300).contains(&status));
        let written = self.session.record(Line::Response(response));
        if let Some(ticket) = &mut self.ticket
            && is_answered
        {
            ticket.settle(Some(spent(usage)));
        }
        let what = What::Call {
            exchange,
            status,
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            completion_tokens: usage.map(|usage| usage.completion_tokens),
        };
        self.session.note(noted, outcome, what);
        written
    }

    /// What an answer says of the endpoint; `cause` is what broke it.
    fn outcome(&self, response: &Response, cause: Option<Cause>) -> Outcome {
        if self.is_refused_for_its_body(response) {
            return match is_too_long(response) {
                true => self.too_long(),
                false => Outcome::AgentsDoing(Cause::AgentRequestRefused),
            };
        }
        match failure(response, cause) {
            Some(_) if is_too_long(response) => self.too_long(),
            Some(problem) => Outcome::Failed(problem),
            None => Outcome::Good(Good {
                is_cut: is_cut(&response.body),
                has_tools: self.has_tools,
                longest_silence: self.trouble.silence.longest(),
            }),
        }
    }

    fn too_long(&self) -> Outcome {
        Outcome::TooLong {
            has_tools: self.has_tools,
        }
    }

    /// Who hung up on an endpoint that had failed, or that said nothing for far too long, is not to blame.
    fn outcome_without_agent(&mut self) -> Outcome {
        if let Some(problem) = self.trouble.failing.take() {
            return Outcome::Failed(problem);
        }
        match self.trouble.silence.since() {
            Some(since) if self.session.is_hung(since) => {
                let seconds = since.elapsed().as_secs();
                let text = format!("endpoint failed: nothing came from it for {seconds} s");
                Outcome::Failed(Problem::new(Cause::EndpointSilent, text))
            }
            _ => Outcome::AgentsDoing(Cause::AgentHungUp),
        }
    }

    /// Whether the agent's own words were refused, which is no fault of the endpoint: it answered this agent before, or
    /// no endpoint would take them. The first refusals of a request that looks well may as well mean that agent and
    /// endpoint do not go together.
    fn is_refused_for_its_body(&self, response: &Response) -> bool {
        matches!(response.status, Some(400 | 413 | 422))
            && response.error.is_none()
            && (self.session.has_answers() || is_malformed(&self.asked))
    }
}

/// A small piece of a large buffer, by itself: records keep the last bodies, and should not keep what is around them.
pub(super) fn compact(bytes: Bytes) -> Bytes {
    const SMALL: usize = 16 << 10;
    match bytes.len() < SMALL {
        true => Bytes::copy_from_slice(&bytes),
        false => bytes,
    }
}

fn spent(usage: Option<Usage>) -> Spent {
    let usage = usage.unwrap_or_default();
    Spent {
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        completion_tokens: usage.completion_tokens,
        ..Spent::default()
    }
}

/// What the log says of an exchange. Put into words only when somebody reads it: calls are many, readers few.
pub(super) struct Noted {
    exchange: u64,
    status: Option<u16>,
    mode: &'static str,
    total_s: f64,
    usage: Option<Usage>,
    tries: usize,
    error: Option<String>,
}

impl Noted {
    fn of(response: &Response, usage: Option<Usage>) -> Self {
        Noted {
            exchange: response.exchange,
            status: response.status,
            mode: match (response.is_stream, response.is_replayed) {
                (true, _) => "stream",
                (false, true) => "replayed",
                (false, false) => "whole",
            },
            total_s: response.total_s,
            usage,
            tries: response.attempts.len(),
            error: response.error.clone(),
        }
    }
}

impl Noted {
    /// It was asked for so often that the endpoint must have been away. Once is a connection that was closed meanwhile.
    pub(super) fn is_late(&self) -> bool {
        self.tries > 1
    }
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} ", self.exchange)?;
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => write!(f, "no answer")?,
        }
        write!(f, " {} {:.3} s, ", self.mode, self.total_s)?;
        match self.usage {
            Some(it) => write!(f, "{} + {} tokens", it.prompt_tokens, it.completion_tokens)?,
            None => write!(f, "no usage")?,
        }
        if self.tries > 0 {
            write!(f, ", after {} failed tries", self.tries)?;
        }
        match &self.error {
            Some(error) => write!(f, ", {error}"),
            None => Ok(()),
        }
    }
}

/// What ended an exchange.
enum Ending {
    /// The upstream, with an answer or without.
    Answered,
    HungUp,
}

/// Why this exchange is the upstream's failure, if it is one.
fn failure(response: &Response, cause: Option<Cause>) -> Option<Problem> {
    match (response.status, &response.error) {
        (Some(status), None) if (200..300).contains(&status) => None,
        (Some(status), None) => {
            let body: String = response.text().chars().take(300).collect();
            let text = format!("endpoint answered {status}: {}", body.trim());
            Some(Problem::new(Cause::of_status(status), text))
        }
        (_, Some(error)) => Some(Problem::new(
            cause.unwrap_or(Cause::AnswerBroken),
            format!("endpoint failed: {error}"),
        )),
        (None, None) => Some(Problem::new(
            Cause::EndpointUnreachable,
            "endpoint gave no answer",
        )),
    }
}

fn is_too_long(response: &Response) -> bool {
    let status = response.status.and_then(|it| StatusCode::from_u16(it).ok());
    status.is_some_and(|status| is_context_overflow(status, &response.text()))
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_closed {
            // What cannot be written here shows as a request without a response.
            let text = "the agent hung up before the answer ended";
            let problem = Problem::new(Cause::AgentHungUp, text);
            let _ = self.finish(Some(problem), Ending::HungUp);
        }
    }
}
