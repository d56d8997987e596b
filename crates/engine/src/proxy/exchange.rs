//! One exchange under way. However it ends, exactly one response line is written for it.

use std::sync::Arc;
use std::time::Instant;

use rollcage_model::chat::read_reply;
use rollcage_model::event::What;
use rollcage_model::exchange::{Line, Response, VERSION};

use super::Session;
use crate::result::now;

/// What is known of an answer so far.
pub(super) struct Open {
    session: Arc<Session>,
    exchange: u64,
    since: Instant,
    pub(super) status: Option<u16>,
    pub(super) is_stream: bool,
    first_byte_s: Option<f64>,
    body: Vec<u8>,
    is_closed: bool,
}

impl Open {
    pub(super) fn new(session: Arc<Session>, exchange: u64) -> Self {
        Open {
            session,
            exchange,
            since: Instant::now(),
            status: None,
            is_stream: false,
            first_byte_s: None,
            body: Vec::new(),
            is_closed: false,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.first_byte_s
            .get_or_insert_with(|| self.since.elapsed().as_secs_f64());
        self.body.extend_from_slice(bytes);
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Writes the answer down. After this, and only then, may the agent see its end.
    pub(super) fn close(&mut self, error: Option<String>) -> Result<(), String> {
        self.finish(error, IsFailure::Judge)
    }

    fn finish(&mut self, error: Option<String>, is_failure: IsFailure) -> Result<(), String> {
        self.is_closed = true;
        let bytes = std::mem::take(&mut self.body);
        let (body, is_lossy) = match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
        };
        // An upstream that repeats our key in an error must not put it into the record.
        let body = match &self.session.endpoint.key {
            Some(key) if body.contains(key.expose()) => key.scrub(&body),
            _ => body,
        };
        let response = Response {
            version: VERSION,
            exchange: self.exchange,
            at: now(),
            status: self.status,
            is_stream: self.is_stream,
            body,
            is_lossy,
            first_byte_s: self.first_byte_s,
            total_s: self.since.elapsed().as_secs_f64(),
            error,
        };
        let line = Line::Response(response);
        let written = self.session.record(&line);
        if let Line::Response(response) = line {
            self.tell(&response, is_failure);
        }
        written
    }

    fn tell(&self, response: &Response, is_failure: IsFailure) {
        let reply = read_reply(&response.body, response.is_stream);
        let prompt_tokens = reply.usage.map(|usage| usage.prompt_tokens);
        let completion_tokens = reply.usage.map(|usage| usage.completion_tokens);
        let status = response
            .status
            .map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        let mode = if response.is_stream {
            "stream"
        } else {
            "whole"
        };
        let problem = response
            .error
            .as_deref()
            .map(|error| format!(", {error}"))
            .unwrap_or_default();
        let finish = reply.finish_reason.as_deref().unwrap_or("none");
        let line = format!(
            "#{} {status} {mode} {:.3} s, prompt {}, completion {}, finish {finish}{problem}",
            response.exchange,
            response.total_s,
            count(prompt_tokens),
            count(completion_tokens),
        );
        let failure = match is_failure {
            IsFailure::No => None,
            IsFailure::Judge => failure(response),
        };
        let exchange = response.exchange;
        self.session.note(
            line,
            failure,
            What::Call {
                exchange,
                status: response.status,
                prompt_tokens,
                completion_tokens,
            },
        );
    }
}

enum IsFailure {
    /// The upstream's answer decides.
    Judge,
    /// The agent's doing.
    No,
}

fn count(tokens: Option<u64>) -> String {
    tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string())
}

/// Why this exchange is the upstream's failure, if it is one.
fn failure(response: &Response) -> Option<String> {
    match (response.status, &response.error) {
        (Some(status), None) if (200..300).contains(&status) => None,
        (Some(status), None) => {
            let body: String = response.body.chars().take(300).collect();
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
                IsFailure::No,
            );
        }
    }
}
