//! The outcome of a model call, independent of how the agent wants its answer.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, RETRY_AFTER};

use rollcage_dialect::chat::Reply;

use crate::exchange::OpenExchange;
use crate::response::UpstreamResponse;

/// The status of a call that we gave up on: no retry got an answer, or the answer was not usable.
///
/// Agents retry after 429 and every 5xx, some for minutes after we gave up. Failed Dependency (424) describes our
/// situation, is not retried by any client, and does not blame the request as 400 would.
pub(crate) const GIVEN_UP: StatusCode = StatusCode::FAILED_DEPENDENCY;
/// The clients of OpenAI and Anthropic read this before the status.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The outcome of a model call. Everything except a stream is already recorded.
pub(crate) enum CallOutcome {
    /// The endpoint's own stream; nothing of it has been passed on yet.
    Streaming(Box<StreamedAnswer>),
    Answered(WholeAnswer),
    /// A limit was reached: the final answer is our own.
    Stopped(Box<Reply>),
    Refused(Box<Refusal>),
    /// There is no answer. With status `GIVEN_UP` the response is worded so that agents do not retry.
    Failed {
        status: StatusCode,
        problem: String,
    },
}

/// A stream that is still arriving, and its exchange, which is closed when the stream ends.
pub(crate) struct StreamedAnswer {
    pub(crate) exchange: OpenExchange,
    pub(crate) response: UpstreamResponse,
}

/// A complete good answer, without the data that only we requested.
pub(crate) enum WholeAnswer {
    /// The endpoint's own body.
    Body(Bytes),
    /// To be rendered in the agent's dialect, or as a stream.
    Reply(Box<Reply>),
}

/// An endpoint's error response, with our key removed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    pub(crate) content_type: String,
    /// The response headers that the agent's client may act on.
    pub(crate) headers: HeaderMap,
}

impl Refusal {
    /// The endpoint's headers that a client may act on.
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
    /// An answer that could not be recorded is withheld: a token that is not on disk was not captured.
    pub(crate) fn unrecorded(problem: String) -> Self {
        CallOutcome::Failed {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            problem,
        }
    }

    /// The request is invalid for every endpoint.
    pub(crate) fn invalid(problem: String) -> Self {
        CallOutcome::Failed {
            status: StatusCode::BAD_REQUEST,
            problem,
        }
    }
}
