//! The dialects that endpoints speak, and everything that differs between them.
//!
//! Callers use the methods of [`EndpointDialect`] and never match on it. To add a dialect, add a file next to
//! `upstream/chat.rs` with the same functions, and an arm to each `match` here.

use bytes::Bytes;
use http::HeaderMap;

use crate::anthropic::{CallThoughts, Thoughts};
use crate::chat::{
    AddedFields, Delta, Message, PrepareError, PreparedRequest, Reply, Rewrite, Usage, fault_of,
};
use crate::sse::{Splitter, SseError, SseEvent};
use crate::{Dialect, TranslateError};

pub use crate::chat::{AnswerFault, EventKind};

mod anthropic;
mod chat;

/// Large, because one event may hold the token ids of a whole prompt.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// The API dialect of an endpoint.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum EndpointDialect {
    #[default]
    Chat,
    Anthropic,
}

/// A request as it is sent to an endpoint.
#[derive(Debug)]
pub struct UpstreamRequest {
    pub prepared: PreparedRequest,
    /// The translated request that `prepared` was made from; `None` if it was made from the agent's own bytes.
    pub translation: Option<Bytes>,
    /// What the endpoint's dialect cannot express.
    pub dropped: Vec<String>,
}

/// Why a request cannot be sent to an endpoint. The text goes to the agent, with status 400.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamRequestError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Translate(#[from] TranslateError),
}

/// The headers and query of an agent's request that are forwarded to an endpoint of the same dialect.
#[derive(Clone, Debug, Default)]
pub struct ForwardedHead {
    pub headers: HeaderMap,
    pub query: Option<String>,
}

/// The header that carries an endpoint's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeader {
    /// Differs between services; set in the endpoint's configuration.
    AsConfigured,
    XApiKey,
}

impl EndpointDialect {
    pub fn is_chat(&self) -> bool {
        *self == EndpointDialect::Chat
    }

    /// Whether requests and answers can pass between the agent and the endpoint without translation.
    pub fn speaks(self, agent: Dialect) -> bool {
        match self {
            EndpointDialect::Chat => agent == Dialect::Chat,
            EndpointDialect::Anthropic => agent == Dialect::Anthropic,
        }
    }

    /// Whether answers can have token ids and logprobs.
    pub fn has_tokens(self) -> bool {
        match self {
            EndpointDialect::Chat => true,
            EndpointDialect::Anthropic => false,
        }
    }

    /// Whether clients recognise an error in the middle of a stream. Chat defines no event for it.
    pub fn has_error_events(self) -> bool {
        match self {
            EndpointDialect::Chat => false,
            EndpointDialect::Anthropic => true,
        }
    }

    /// The path of model calls, relative to the endpoint's base URL.
    pub fn path(self) -> &'static str {
        match self {
            EndpointDialect::Chat => chat::PATH,
            EndpointDialect::Anthropic => anthropic::PATH,
        }
    }

    /// The path that counts tokens, relative to [`Self::path`]; `None` if the dialect has none.
    pub fn count_path(self) -> Option<&'static str> {
        match self {
            EndpointDialect::Chat => None,
            EndpointDialect::Anthropic => Some(anthropic::COUNT_PATH),
        }
    }

    /// Default headers of every request; the agent's own override them.
    pub fn headers(self) -> HeaderMap {
        match self {
            EndpointDialect::Chat => HeaderMap::new(),
            EndpointDialect::Anthropic => anthropic::headers(),
        }
    }

    pub fn key_header(self) -> KeyHeader {
        match self {
            EndpointDialect::Chat => KeyHeader::AsConfigured,
            EndpointDialect::Anthropic => KeyHeader::XApiKey,
        }
    }

    /// Selects the headers and query of an agent's request that are forwarded.
    pub fn forwarded_head(self, headers: &HeaderMap, query: Option<&str>) -> ForwardedHead {
        match self {
            EndpointDialect::Chat => ForwardedHead::default(),
            EndpointDialect::Anthropic => anthropic::forwarded_head(headers, query),
        }
    }

    /// Builds the request to send. `body` is in the endpoint's dialect if the agent speaks it, otherwise in chat;
    /// `thoughts` are those of earlier answers in the same session.
    pub fn prepare(
        self,
        body: &Bytes,
        agent: Dialect,
        rewrite: &Rewrite,
        thoughts: &Thoughts,
    ) -> Result<UpstreamRequest, UpstreamRequestError> {
        match self {
            EndpointDialect::Chat => chat::prepare(body, agent, rewrite),
            EndpointDialect::Anthropic => anthropic::prepare(body, agent, rewrite, thoughts),
        }
    }

    /// Parses a stored answer, JSON or stream. Also returns the thinking blocks that must be sent back with its tool
    /// calls.
    pub fn read(self, body: &str, is_stream: bool) -> (Reply, Vec<CallThoughts>) {
        match self {
            EndpointDialect::Chat => (crate::chat::read_reply(body, is_stream), Vec::new()),
            EndpointDialect::Anthropic => crate::anthropic::read_with_thoughts(body, is_stream),
        }
    }

    /// Only what a recorded answer says, without its tokens.
    pub fn message(self, body: &str, is_stream: bool) -> Message {
        match self {
            EndpointDialect::Chat => crate::chat::read_message(body, is_stream),
            EndpointDialect::Anthropic => self.read(body, is_stream).0.message,
        }
    }

    /// Removes what the agent did not request from a JSON answer; `None` if nothing changes. Also returns the usage, if
    /// the same pass finds it.
    pub fn strip(self, body: &[u8], added: &AddedFields) -> (Option<Vec<u8>>, Option<Usage>) {
        match self {
            EndpointDialect::Chat => crate::chat::strip_body(body, added),
            EndpointDialect::Anthropic => (None, None),
        }
    }

    /// The usage in an answer, JSON or stream, without parsing the rest.
    pub fn usage(self, body: &[u8]) -> Option<Usage> {
        match self {
            EndpointDialect::Chat => crate::chat::last_usage(body),
            EndpointDialect::Anthropic => crate::anthropic::usage_of(body),
        }
    }

    /// Whether an answer, JSON or stream, was truncated by the limit on completion tokens.
    pub fn is_truncated(self, body: &[u8]) -> bool {
        match self {
            EndpointDialect::Chat => chat::is_truncated(body),
            EndpointDialect::Anthropic => anthropic::is_truncated(body),
        }
    }

    /// What is wrong with a JSON answer that has a good status; `added` is what its agent does not see of it.
    pub fn fault(self, body: &[u8], added: &AddedFields) -> Option<AnswerFault> {
        match self {
            EndpointDialect::Chat => fault_of(body, added),
            EndpointDialect::Anthropic => anthropic::fault(body),
        }
    }

    /// The message of an error response, for agents of other dialects; `None` to pass on the body unchanged.
    pub fn error_message(self, body: &str) -> Option<String> {
        match self {
            EndpointDialect::Chat => None,
            EndpointDialect::Anthropic => crate::anthropic::error_message(body),
        }
    }

    /// A reader for one streamed answer.
    pub fn stream(self, view: StreamView, added: AddedFields) -> StreamReader {
        let events = match self {
            EndpointDialect::Chat => EventReader::Chat(chat::EventReader::new(view, added)),
            EndpointDialect::Anthropic => EventReader::Anthropic(anthropic::EventReader::new(view)),
        };
        StreamReader {
            splitter: Splitter::new(EVENT_BYTES_MAX),
            events,
        }
    }
}

/// The form in which a streamed answer is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamView {
    /// The endpoint's own events, without what we requested in addition.
    Original,
    /// Dialect-independent deltas, to render another dialect from.
    Deltas,
}

/// One parsed event.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEvent {
    pub kind: EventKind,
    pub output: EventOutput,
}

/// What is passed on of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum EventOutput {
    /// In the endpoint's dialect: the original bytes unless something was stripped. Errors are never changed.
    Bytes(Vec<u8>),
    Deltas(Vec<Delta>),
}

/// Reads a streamed answer. Parses each event once, for all consumers.
#[derive(Debug)]
pub struct StreamReader {
    splitter: Splitter,
    events: EventReader,
}

#[derive(Debug)]
enum EventReader {
    Chat(chat::EventReader),
    Anthropic(anthropic::EventReader),
}

impl StreamReader {
    /// Consumes bytes and returns the events that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<StreamEvent>, SseError> {
        let events = self.splitter.push(bytes)?.into_iter();
        let read = events.map(|event| {
            let is_text = event.data.is_none() || std::str::from_utf8(&event.raw).is_ok();
            let mut read = self.events.read(event);
            if !is_text {
                read.kind = EventKind::Unreadable("it is not UTF-8");
            }
            read
        });
        Ok(read.collect())
    }

    /// The usage reported so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.events {
            EventReader::Chat(events) => events.usage(),
            EventReader::Anthropic(events) => events.usage(),
        }
    }

    /// The thinking blocks that must be sent back with the answer's tool calls. Each is returned once.
    pub fn take_thoughts(&mut self) -> Vec<CallThoughts> {
        match &mut self.events {
            EventReader::Chat(_) => Vec::new(),
            EventReader::Anthropic(events) => events.take_thoughts(),
        }
    }
}

impl EventReader {
    fn read(&mut self, event: SseEvent) -> StreamEvent {
        match self {
            EventReader::Chat(events) => events.read(event),
            EventReader::Anthropic(events) => events.read(event),
        }
    }
}

/// An event without data, such as a keep-alive comment.
fn without_data(event: SseEvent, view: StreamView) -> StreamEvent {
    StreamEvent {
        kind: EventKind::Nothing,
        output: match view {
            StreamView::Original => EventOutput::Bytes(event.raw),
            StreamView::Deltas => EventOutput::Deltas(Vec::new()),
        },
    }
}

#[cfg(test)]
mod tests;
