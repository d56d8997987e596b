//! The dialects in which endpoints are asked, and all that differs between them.
//!
//! Whoever asks an endpoint goes through [`EndpointDialect`] and never looks at which one it is. Another dialect is a file
//! beside `upstream/chat.rs` with the same functions, and a line in each `match` here.

use bytes::Bytes;
use http::HeaderMap;

use crate::anthropic::{Kept, Thoughts};
use crate::chat::{Added, Delta, PrepareError, Prepared, Reply, Rewrite, Usage};
use crate::sse::{Splitter, SseError, SseEvent};
use crate::{Dialect, TranslateError};

pub use crate::chat::Mark;

mod anthropic;
mod chat;

/// One event may hold the ids of a whole prompt.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// What an endpoint speaks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum EndpointDialect {
    #[default]
    Chat,
    Anthropic,
}

/// A request as an endpoint gets it.
#[derive(Debug)]
pub struct UpstreamRequest {
    pub prepared: Prepared,
    /// What `prepared` was made from, where that are not the agent's own bytes.
    pub translation: Option<Bytes>,
    /// What the endpoint's dialect has no word for.
    pub dropped: Vec<String>,
}

/// Why a request cannot be asked of an endpoint. The text goes to the agent, with status 400.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Translate(#[from] TranslateError),
}

/// What of an agent's request goes along to an endpoint that speaks its dialect.
#[derive(Clone, Debug, Default)]
pub struct PassedHead {
    pub headers: HeaderMap,
    pub query: Option<String>,
}

/// The header that carries an endpoint's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeader {
    /// Services differ; the endpoint's own settings say.
    AsConfigured,
    XApiKey,
}

impl EndpointDialect {
    pub fn is_chat(&self) -> bool {
        *self == EndpointDialect::Chat
    }

    /// Whether an agent's own bytes can go to the endpoint, and the endpoint's to the agent.
    pub fn speaks(self, agent: Dialect) -> bool {
        match self {
            EndpointDialect::Chat => agent == Dialect::Chat,
            EndpointDialect::Anthropic => agent == Dialect::Anthropic,
        }
    }

    /// Whether answers can have token ids and logprobs. Streams of a dialect without them have nothing to lose.
    pub fn has_tokens(self) -> bool {
        match self {
            EndpointDialect::Chat => true,
            EndpointDialect::Anthropic => false,
        }
    }

    /// Where model calls go, below the endpoint's base URL.
    pub fn path(self) -> &'static str {
        match self {
            EndpointDialect::Chat => chat::PATH,
            EndpointDialect::Anthropic => anthropic::PATH,
        }
    }

    /// Where tokens are counted, below [`Self::path`]; `None` where endpoints do not count.
    pub fn count_path(self) -> Option<&'static str> {
        match self {
            EndpointDialect::Chat => None,
            EndpointDialect::Anthropic => Some(anthropic::COUNT_PATH),
        }
    }

    /// Headers that every request has, unless the agent's own replace them.
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

    /// The dialect's own headers and query, out of an agent's.
    pub fn passed(self, headers: &HeaderMap, query: Option<&str>) -> PassedHead {
        match self {
            EndpointDialect::Chat => PassedHead::default(),
            EndpointDialect::Anthropic => anthropic::passed(headers, query),
        }
    }

    /// The request as it is sent. `body` is in the endpoint's dialect where that is the agent's, else in chat;
    /// `thoughts` are those of earlier answers in the same session.
    pub fn prepare(
        self,
        body: &Bytes,
        agent: Dialect,
        rewrite: &Rewrite,
        thoughts: &Thoughts,
    ) -> Result<UpstreamRequest, RequestError> {
        match self {
            EndpointDialect::Chat => chat::prepare(body, agent, rewrite),
            EndpointDialect::Anthropic => anthropic::prepare(body, agent, rewrite, thoughts),
        }
    }

    /// A stored answer, JSON or stream, and the thoughts that have to come back with its calls.
    pub fn read(self, body: &str, is_stream: bool) -> (Reply, Vec<Kept>) {
        match self {
            EndpointDialect::Chat => (crate::chat::read_reply(body, is_stream), Vec::new()),
            EndpointDialect::Anthropic => crate::anthropic::read_with_thoughts(body, is_stream),
        }
    }

    /// A whole answer without what the agent did not ask for, `None` when nothing changes; and what it used, where the
    /// same look finds that.
    pub fn strip(self, body: &[u8], added: &Added) -> (Option<Vec<u8>>, Option<Usage>) {
        match self {
            EndpointDialect::Chat => crate::chat::strip_body(body, added),
            EndpointDialect::Anthropic => (None, None),
        }
    }

    /// What an answer used, JSON or stream, without reading the rest of it.
    pub fn usage(self, body: &[u8]) -> Option<Usage> {
        match self {
            EndpointDialect::Chat => crate::chat::last_usage(body),
            EndpointDialect::Anthropic => crate::anthropic::usage_of(body),
        }
    }

    /// Whether an answer, JSON or stream, was cut by the limit on its length.
    pub fn is_cut(self, body: &[u8]) -> bool {
        match self {
            EndpointDialect::Chat => chat::is_cut(body),
            EndpointDialect::Anthropic => anthropic::is_cut(body),
        }
    }

    /// The finish reason of a whole answer that the engine gave up on, which is none.
    pub fn aborted(self, body: &str) -> Option<String> {
        match self {
            EndpointDialect::Chat => chat::aborted(body),
            EndpointDialect::Anthropic => None,
        }
    }

    /// What a refusal says, in words that agents of other dialects may see; `None` when it is best shown as it is.
    pub fn error_message(self, body: &str) -> Option<String> {
        match self {
            EndpointDialect::Chat => None,
            EndpointDialect::Anthropic => crate::anthropic::error_message(body),
        }
    }

    /// Reads one streamed answer as it comes.
    pub fn stream(self, view: View, added: Added) -> StreamReader {
        let events = match self {
            EndpointDialect::Chat => Events::Chat(chat::Events::new(view, added)),
            EndpointDialect::Anthropic => Events::Anthropic(anthropic::Events::new(view)),
        };
        StreamReader {
            splitter: Splitter::new(EVENT_BYTES_MAX),
            events,
        }
    }
}

/// What an agent is to see of a streamed answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The endpoint's own events, without what we asked for on top.
    Own,
    /// The pieces of the answer, for another dialect to be rendered from.
    Pieces,
}

/// One event, after it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEvent {
    pub mark: Mark,
    pub shown: Shown,
}

/// What an agent sees of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// In the endpoint's dialect: as they came, where nothing had to be taken out. An error's are always as they came.
    Bytes(Vec<u8>),
    Pieces(Vec<Delta>),
}

/// Reads a streamed answer. Each event is parsed once, and what everybody needs of it is taken from that.
#[derive(Debug)]
pub struct StreamReader {
    splitter: Splitter,
    events: Events,
}

#[derive(Debug)]
enum Events {
    Chat(chat::Events),
    Anthropic(anthropic::Events),
}

impl StreamReader {
    /// Takes the next bytes and gives the events that they end.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<StreamEvent>, SseError> {
        let events = self.splitter.push(bytes)?.into_iter();
        Ok(events.map(|event| self.events.read(event)).collect())
    }

    /// What the answer used, by what it said so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.events {
            Events::Chat(events) => events.usage(),
            Events::Anthropic(events) => events.usage(),
        }
    }

    /// The thoughts that have to come back with the answer's calls. Each is given once.
    pub fn take_thoughts(&mut self) -> Vec<Kept> {
        match &mut self.events {
            Events::Chat(_) => Vec::new(),
            Events::Anthropic(events) => events.take_thoughts(),
        }
    }
}

impl Events {
    fn read(&mut self, event: SseEvent) -> StreamEvent {
        match self {
            Events::Chat(events) => events.read(event),
            Events::Anthropic(events) => events.read(event),
        }
    }
}

/// An event that has no data, such as a comment that keeps a connection alive.
fn without_data(event: SseEvent, view: View) -> StreamEvent {
    StreamEvent {
        mark: Mark::Nothing,
        shown: match view {
            View::Own => Shown::Bytes(event.raw),
            View::Pieces => Shown::Pieces(Vec::new()),
        },
    }
}

#[cfg(test)]
mod tests;
