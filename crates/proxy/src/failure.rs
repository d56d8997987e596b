//! Why an endpoint gave no answer, or no more of it.

use std::error::Error as _;

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
    /// A connection broke that had waited for this call: as a rule the endpoint had just closed it.
    is_on_reused_connection: bool,
}

impl Failure {
    pub(crate) fn passing(error: &(dyn std::error::Error + 'static)) -> Self {
        Failure {
            text: innermost(error),
            cause: Cause::EndpointUnreachable,
            is_passing: true,
            is_on_reused_connection: false,
        }
    }

    pub(crate) fn lasting(text: &str) -> Self {
        Failure {
            text: text.to_owned(),
            cause: Cause::EndpointUnreachable,
            is_passing: false,
            is_on_reused_connection: false,
        }
    }

    pub(crate) fn too_slow() -> Self {
        Failure {
            cause: Cause::EndpointSilent,
            ..Failure::lasting(TOO_LONG)
        }
    }

    /// There was no connection in time, as while a machine restarts.
    pub(crate) fn unconnected() -> Self {
        Failure {
            is_passing: true,
            ..Failure::lasting(TOO_LONG)
        }
    }

    /// An error in the middle of a call; a server that goes away is worth another try.
    pub(crate) fn of_exchange(error: &hyper::Error) -> Self {
        match error.is_parse() || error.is_user() {
            true => Failure::lasting(&innermost(error)),
            false => Failure::passing(error),
        }
    }

    pub(crate) fn on_reused_connection(self) -> Self {
        Failure {
            is_on_reused_connection: self.is_passing,
            ..self
        }
    }

    pub(crate) fn is_on_reused_connection(&self) -> bool {
        self.is_on_reused_connection
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
        Failure {
            text: cause(&error),
            cause: match error.is_timeout() && !error.is_connect() {
                true => Cause::EndpointSilent,
                false => Cause::EndpointUnreachable,
            },
            is_passing: !is_forbidden(&error) && (error.is_connect() || error.is_request()),
            is_on_reused_connection: false,
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
    let mut cause = error.source();
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(NoAddress::Forbidden(_))) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
