//! Why an endpoint gave no answer, or no more of it.

use std::error::Error;

use rollcage_model::ending::Cause;

use crate::calls::Problem;
use crate::outbound::NoAddress;

const TOO_LONG: &str = "it took too long";

/// Why there is no answer, or no more of it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    cause: Cause,
    /// Another try may get further.
    pub(crate) is_passing: bool,
    /// The connection broke after some of the request was written, and before any of an answer came.
    pub(crate) is_connection_lost: bool,
}

impl Failure {
    /// A failure of a test's endpoint that may pass.
    #[cfg(test)]
    pub(crate) fn passing(error: &(dyn Error + 'static)) -> Self {
        Failure {
            text: innermost(error),
            cause: Cause::EndpointUnreachable,
            is_passing: true,
            is_connection_lost: false,
        }
    }

    /// As the problem of a call that has no answer.
    pub(crate) fn unanswered(&self) -> Problem {
        Problem::new(self.cause, format!("no answer: {}", self.text))
    }

    /// As the problem of a call whose `answer` or `stream` had begun.
    pub(crate) fn broken_off(&self, what: &str) -> Problem {
        let cause = match self.cause {
            Cause::EndpointSilent => Cause::EndpointSilent,
            _ => Cause::AnswerBroken,
        };
        Problem::new(cause, format!("the {what} broke off: {}", self.text))
    }
}

/// The problem of a completion that the engine gave up on.
pub(crate) fn aborted(finish_reason: &str) -> Problem {
    let text = format!("the engine broke the answer off (finish_reason {finish_reason})");
    Problem::new(Cause::EndpointAborted, text)
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let is_silent = error.is_timeout() && !error.is_connect();
        // A server that goes away is worth another try; one that speaks no HTTP is not.
        let is_broken = match find::<hyper::Error>(&error) {
            Some(error) => !error.is_parse() && !error.is_user(),
            None => error.is_request() || error.is_body(),
        };
        let is_passing = !is_forbidden(&error) && !is_silent && (error.is_connect() || is_broken);
        Failure {
            text: cause(&error),
            cause: match is_silent {
                true => Cause::EndpointSilent,
                false => Cause::EndpointUnreachable,
            },
            is_passing,
            is_connection_lost: is_passing && error.is_request() && !error.is_connect(),
        }
    }
}

/// The innermost reason, without the URL that reqwest repeats.
pub fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return TOO_LONG.to_owned();
    }
    innermost(error)
}

/// The address is one that may not be asked, today and tomorrow.
fn is_forbidden(error: &reqwest::Error) -> bool {
    matches!(find(error), Some(NoAddress::Forbidden(_)))
}

/// The first of its kind among an error's causes.
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
