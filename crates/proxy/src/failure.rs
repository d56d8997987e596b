//! Failures to get an answer from an endpoint, or the rest of one.

use std::error::Error;

use rollcage_model::ending::Cause;

use crate::calls::Problem;
use crate::outbound::AddressError;

const TOO_LONG: &str = "it took too long";

/// Why an endpoint gave no answer, or broke it off.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    cause: Cause,
    /// A retry may succeed.
    pub(crate) is_transient: bool,
    /// The connection broke after some of the request was written, and before any of an answer came.
    pub(crate) is_connection_lost: bool,
}

impl Failure {
    /// A transient failure of a test's endpoint.
    #[cfg(test)]
    pub(crate) fn transient(error: &(dyn Error + 'static)) -> Self {
        Failure {
            text: innermost(error),
            cause: Cause::EndpointUnreachable,
            is_transient: true,
            is_connection_lost: false,
        }
    }

    /// The problem of a call without an answer.
    pub(crate) fn unanswered(&self) -> Problem {
        Problem::new(self.cause, format!("no answer: {}", self.text))
    }

    /// The problem of a call whose answer had begun; `what` is `answer` or `stream`.
    pub(crate) fn broken_off(&self, what: &str) -> Problem {
        let cause = match self.cause {
            Cause::EndpointSilent => Cause::EndpointSilent,
            _ => Cause::AnswerBroken,
        };
        Problem::new(cause, format!("the {what} broke off: {}", self.text))
    }
}

/// The problem of a completion that the inference engine aborted.
pub(crate) fn aborted(finish_reason: &str) -> Problem {
    let text = format!("the engine broke the answer off (finish_reason {finish_reason})");
    Problem::new(Cause::EndpointAborted, text)
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let is_silent = error.is_timeout() && !error.is_connect();
        // A server that closes the connection is worth a retry; one that does not speak HTTP is not.
        let is_broken = match find::<hyper::Error>(&error) {
            Some(error) => !error.is_parse() && !error.is_user(),
            None => error.is_request() || error.is_body(),
        };
        let is_transient = !is_forbidden(&error) && !is_silent && (error.is_connect() || is_broken);
        Failure {
            text: cause(&error),
            cause: match is_silent {
                true => Cause::EndpointSilent,
                false => Cause::EndpointUnreachable,
            },
            is_transient,
            is_connection_lost: is_transient && error.is_request() && !error.is_connect(),
        }
    }
}

/// The innermost error, without the URL that reqwest repeats in the outer ones.
pub fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return TOO_LONG.to_owned();
    }
    innermost(error)
}

/// Whether the guard forbids the address, which no retry changes.
fn is_forbidden(error: &reqwest::Error) -> bool {
    matches!(find(error), Some(AddressError::Forbidden(_)))
}

/// The first error of type `E` in the chain of sources.
fn find<E: Error + 'static>(error: &reqwest::Error) -> Option<&E> {
    std::iter::successors(error.source(), |error| (*error).source())
        .find_map(|error| error.downcast_ref())
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
