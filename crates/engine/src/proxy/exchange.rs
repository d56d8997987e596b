//! One exchange under way. However it ends, exactly one response is written for it and its reservation is settled.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use rollcage_model::budget::{Reservation, Spent};
use rollcage_model::chat::{Usage, is_malformed, last_usage};
use rollcage_model::dialect::{EndpointDialect, anthropic};
use rollcage_model::event::What;
use rollcage_model::exchange::{Attempt, Line, Response};

use super::Session;
use crate::result::now;

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
    since: Instant,
    pub(super) status: Option<u16>,
    pub(super) is_stream: bool,
    pub(super) is_replayed: bool,
    pub(super) attempts: Vec<Attempt>,
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
            asked,
            since: Instant::now(),
            status: None,
            is_stream: false,
            is_replayed: false,
            attempts: Vec::new(),
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
    pub(super) fn close(&mut self, error: Option<String>) -> Result<(), String> {
        self.finish(error, Ending::Answered)
    }

    fn finish(&mut self, error: Option<String>, ending: Ending) -> Result<(), String> {
        self.is_closed = true;
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
            attempts: std::mem::take(&mut self.attempts),
            is_replayed: self.is_replayed,
            body,
        };
        let outcome = match ending {
            Ending::HungUp => Outcome::AgentsDoing,
            Ending::Answered if self.is_refused_for_its_body(&response) => Outcome::AgentsDoing,
            Ending::Answered => failure(&response).map_or(Outcome::Good, Outcome::Failed),
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

/// What an exchange says of the endpoint.
pub(super) enum Outcome {
    Good,
    /// The endpoint's failure, and why.
    Failed(String),
    /// Nothing.
    AgentsDoing,
}

/// Why this exchange is the upstream's failure, if it is one.
fn failure(response: &Response) -> Option<String> {
    match (response.status, &response.error) {
        (Some(status), None) if (200..300).contains(&status) => None,
        (Some(status), None) => {
            let body: String = response.text().chars().take(300).collect();
            Some(format!("endpoint answered {status}: {}", body.trim()))
        }
        (_, Some(error)) => Some(format!("endpoint failed: {error}")),
        (None, None) => Some("endpoint gave no answer".to_owned()),
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_closed {
            // What cannot be written here shows as a request without a response.
            let _ = self.finish(
                Some("the agent hung up before the answer ended".to_owned()),
                Ending::HungUp,
            );
        }
    }
}
