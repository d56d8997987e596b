//! One exchange in progress. However it ends, exactly one response is recorded for it and its budget reservation is
//! settled.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use rollcage_dialect::chat::{Usage, is_context_overflow, is_malformed, offers_tools};
use rollcage_model::budget::{Reservation, Spent};
use rollcage_model::ending::Cause;
use rollcage_model::event::{Said, What};
use rollcage_model::exchange::{Line, Response};

use crate::body::compact;
use crate::calls::{AnsweredCall, CallVerdict, Problem};
use crate::clock::now;
use crate::log::CallLine;
use crate::patience::RetryState;
use crate::session::Session;

/// A call's reservation in the budget. Dropped without being settled, it is released: the call has used nothing.
pub(crate) struct BudgetHold {
    session: Arc<Session>,
    reservation: Option<Reservation>,
}

impl BudgetHold {
    pub(crate) fn new(session: Arc<Session>, reservation: Reservation) -> Self {
        BudgetHold {
            session,
            reservation: Some(reservation),
        }
    }

    pub(crate) fn tokens_max(&self) -> Option<u64> {
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

impl Drop for BudgetHold {
    fn drop(&mut self) {
        self.settle(None);
    }
}

/// A recorded request, and its answer as far as it has arrived.
pub(crate) struct OpenExchange {
    session: Arc<Session>,
    hold: Option<BudgetHold>,
    exchange: u64,
    /// The agent's request.
    request_body: Bytes,
    has_tools: bool,
    since: Instant,
    pub(crate) status: Option<u16>,
    pub(crate) is_stream: bool,
    pub(crate) is_replayed: bool,
    pub(crate) retry: RetryState,
    /// The answer's own usage numbers, where they were read while it was passed on.
    pub(crate) usage: Option<Usage>,
    first_byte_s: Option<f64>,
    /// The chunks of the body, as received.
    pieces: Vec<Bytes>,
    bytes: usize,
    is_closed: bool,
}

impl OpenExchange {
    pub(crate) fn new(
        session: Arc<Session>,
        exchange: u64,
        request_body: Bytes,
        hold: BudgetHold,
    ) -> Self {
        OpenExchange {
            session,
            hold: Some(hold),
            exchange,
            has_tools: offers_tools(&request_body),
            request_body,
            since: Instant::now(),
            status: None,
            is_stream: false,
            is_replayed: false,
            retry: RetryState::default(),
            usage: None,
            first_byte_s: None,
            pieces: Vec::new(),
            bytes: 0,
            is_closed: false,
        }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.first_byte_s
            .get_or_insert_with(|| self.since.elapsed().as_secs_f64());
        self.bytes += bytes.len();
        self.pieces.push(bytes);
    }

    pub(crate) fn drop_request_body(&mut self) {
        self.request_body = Bytes::new();
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The number of body bytes received so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The body so far, as one contiguous buffer.
    pub(crate) fn body(&mut self) -> Bytes {
        let body = match self.pieces.as_mut_slice() {
            [] => Bytes::new(),
            [whole] => compact(std::mem::take(whole)),
            _ => {
                let mut whole = Vec::with_capacity(self.bytes);
                // Each is freed as soon as it is copied, since together they may be large.
                for piece in self.pieces.drain(..) {
                    whole.extend_from_slice(&piece);
                }
                whole.into()
            }
        };
        self.pieces = vec![body.clone()];
        body
    }

    /// Keeps only the beginning of an answer that exceeds the size limit.
    pub(crate) fn cut(&mut self) {
        const KEPT_BYTES: usize = 64 << 10;
        let mut kept = Vec::new();
        for piece in self.pieces.drain(..) {
            let room = KEPT_BYTES - kept.len();
            kept.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        self.bytes = kept.len();
        self.pieces = vec![kept.into()];
    }

    /// Takes the reservation over to another attempt at the same call.
    pub(crate) fn take_hold(&mut self) -> Option<BudgetHold> {
        self.hold.take()
    }

    /// Records the answer. The agent may see the end of the answer only after this.
    pub(crate) fn close(&mut self, problem: Option<Problem>) -> Result<(), String> {
        self.finish(problem, CloseReason::UpstreamEnded)
    }

    fn finish(&mut self, problem: Option<Problem>, ending: CloseReason) -> Result<(), String> {
        self.is_closed = true;
        let (cause, error) = match problem {
            Some(Problem { cause, text }) => (Some(cause), Some(text)),
            None => (None, None),
        };
        self.session.note_echoed_key(self.exchange);
        let mut body = self.body();
        // An upstream that echoes our key in an error must not get it into the record.
        let is_error = error.is_some() || self.status.is_none_or(|status| status >= 300);
        if is_error {
            body = self.session.scrub_body(body);
        }
        let response = Response {
            exchange: self.exchange,
            at: now(),
            status: self.status,
            is_stream: self.is_stream,
            first_byte_s: self.first_byte_s,
            total_s: self.since.elapsed().as_secs_f64(),
            error,
            attempts: std::mem::take(&mut self.retry.attempts),
            is_replayed: self.is_replayed,
            body,
        };
        let verdict = match ending {
            CloseReason::AgentHungUp => self.verdict_without_agent(),
            CloseReason::UpstreamEnded => self.verdict(&response, cause),
        };
        let dialect = self.session.options.endpoint.dialect;
        let usage = self.usage.or_else(|| dialect.usage(&response.body));
        let line = CallLine::of(&response, usage);
        let (exchange, status) = (response.exchange, response.status);
        let is_answered = status.is_some_and(|status| (200..300).contains(&status));
        // Parsed only where somebody can read it: an error has no message.
        let said = match (is_answered, std::str::from_utf8(&response.body)) {
            (true, Ok(body)) => Said::of(&dialect.message(body, response.is_stream)),
            _ => Said::default(),
        };
        let written = self.session.record(Line::Response(response));
        if let Some(hold) = &mut self.hold
            && is_answered
        {
            hold.settle(Some(spent(usage)));
        }
        let spent_usd = self.session.spent().usd;
        let what = What::Call {
            exchange,
            status,
            spent_usd: (spent_usd > 0.0).then_some(spent_usd),
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            completion_tokens: usage.map(|usage| usage.completion_tokens),
            said,
        };
        self.session.note(line, verdict, what);
        written
    }

    /// Who is responsible for this result; `cause` is what broke the answer, if anything did.
    fn verdict(&self, response: &Response, cause: Option<Cause>) -> CallVerdict {
        if self.is_refused_for_its_body(response) {
            return match is_too_long(response) {
                true => self.too_long(),
                false => CallVerdict::AgentFault(Cause::AgentRequestRefused),
            };
        }
        match failure(response, cause) {
            Some(Problem {
                cause: Cause::ContextOverflow,
                ..
            }) => self.too_long(),
            Some(_) if is_too_long(response) => self.too_long(),
            Some(problem) => CallVerdict::Failed(problem),
            None => CallVerdict::Good(AnsweredCall {
                is_cut: self
                    .session
                    .options
                    .endpoint
                    .dialect
                    .is_truncated(&response.body),
                has_tools: self.has_tools,
                longest_silence: self.retry.silence.longest(),
            }),
        }
    }

    fn too_long(&self) -> CallVerdict {
        CallVerdict::TooLong {
            has_tools: self.has_tools,
        }
    }

    /// An agent that hangs up is not to blame if the endpoint had failed before, or was silent for far too long.
    fn verdict_without_agent(&mut self) -> CallVerdict {
        if let Some(problem) = self.retry.last_problem.take() {
            return CallVerdict::Failed(problem);
        }
        match self.retry.silence.since() {
            Some(since) if self.session.is_hung(since) => {
                let seconds = since.elapsed().as_secs();
                let text = format!("endpoint failed: nothing came from it for {seconds} s");
                CallVerdict::Failed(Problem::new(Cause::EndpointSilent, text))
            }
            _ => CallVerdict::AgentFault(Cause::AgentHungUp),
        }
    }

    /// Whether the request was refused for its content, which is the agent's fault: the endpoint has answered this
    /// agent before, or the request is malformed for every endpoint. If the first well-formed requests are refused,
    /// agent and endpoint may instead be incompatible.
    fn is_refused_for_its_body(&self, response: &Response) -> bool {
        matches!(response.status, Some(400 | 413 | 422))
            && response.error.is_none()
            && (self.session.has_answers() || is_malformed(&self.request_body))
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

/// Which side ended an exchange.
enum CloseReason {
    /// The upstream, with or without an answer.
    UpstreamEnded,
    AgentHungUp,
}

/// The upstream's failure in this exchange, if there is one.
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

/// Whether a refusal says so. What a good status hides is found before the answer is passed on.
fn is_too_long(response: &Response) -> bool {
    let status = response.status.filter(|status| *status >= 400);
    status.is_some_and(|status| is_context_overflow(status, &response.text()))
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        if !self.is_closed {
            // If this cannot be written, the record shows a request without a response.
            let text = "the agent hung up before the answer ended";
            let problem = Problem::new(Cause::AgentHungUp, text);
            let _ = self.finish(Some(problem), CloseReason::AgentHungUp);
        }
    }
}
