//! What a call came to, whichever way the agent wants its answer.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, RETRY_AFTER};

use rollcage_dialect::chat::Reply;

use crate::exchange::OpenExchange;
use crate::response::UpstreamResponse;

/// The status of a call that the endpoint did not answer however often it was asked, or answered with something else.
///
/// Agents take 429 and every 5xx for a wish to be asked again, and ask for minutes after we gave up. Failed Dependency is
/// true of us, is tried again by no client, and does not put the fault on the request as 400 would.
pub(crate) const GIVEN_UP: StatusCode = StatusCode::FAILED_DEPENDENCY;
/// The clients of OpenAI and Anthropic read this before the status.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What a call came to. All but a stream is on record already.
pub(crate) enum CallOutcome {
    /// The endpoint's own stream, of which nothing was passed on.
    Streaming(Box<Streaming>),
    Answered(WholeAnswer),
    /// A limit was reached: a last answer of our own.
    Stopped(Box<Reply>),
    Refused(Box<Refusal>),
    /// There is no answer. `GIVEN_UP` is told so that no agent tries again what we gave up.
    Failed {
        status: StatusCode,
        problem: String,
    },
}

/// An answer that comes, and its exchange, which is closed with it.
pub(crate) struct Streaming {
    pub(crate) exchange: OpenExchange,
    pub(crate) response: UpstreamResponse,
}

/// A good answer as the agent may see it, without what we asked for on top.
pub(crate) enum WholeAnswer {
    /// In the endpoint's own words.
    Body(Bytes),
    /// To be said in the agent's dialect, or as a stream.
    Reply(Box<Reply>),
}

/// An endpoint's refusal, without our key in it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    pub(crate) content_type: String,
    /// Those that the agent's client reads.
    pub(crate) headers: HeaderMap,
}

impl Refusal {
    /// What of an endpoint's headers a client may act on.
    pub(crate) fn headers_of(response: &UpstreamResponse) -> HeaderMap {
        let names = [
            RETRY_AFTER,
            HeaderName::from_static("retry-after-ms"),
            HeaderName::from_static("request-id"),
            SHOULD_RETRY,
        ];
        let found = names.into_iter().filter_map(|name| {
            let value = response.headers().get(&name)?.clone();
            Some((name, value))
        });
        found.collect()
    }
}

impl CallOutcome {
    /// What could not be recorded is not answered: a token that is not on disk was not captured.
    pub(crate) fn unrecorded(problem: String) -> Self {
        CallOutcome::Failed {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            problem,
        }
    }

    /// No endpoint would take the request.
    pub(crate) fn invalid(problem: String) -> Self {
        CallOutcome::Failed {
            status: StatusCode::BAD_REQUEST,
            problem,
        }
    }
}
