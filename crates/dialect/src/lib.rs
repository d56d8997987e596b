//! The four dialects in which agents ask. Chat completions are the common tongue: the others are translated to chat on
//! the way up and rendered from chat on the way down, each in a module of its own and each a pure function.

use crate::chat::{Delta, Reply};

pub mod anthropic;
mod assistant;
pub mod chat;
pub mod gemini;
pub mod inbound;
pub mod responses;
mod route;
pub mod sampling;
pub mod sse;

pub use route::{Asked, Route};

/// What an agent speaks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    #[default]
    Chat,
    Responses,
    Anthropic,
    Gemini,
}

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

impl EndpointDialect {
    pub fn is_chat(&self) -> bool {
        *self == EndpointDialect::Chat
    }
}

/// Why a request cannot be asked in another dialect. The text goes to the agent, with status 400.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TranslateError {
    #[error("the request body is not a JSON object: {0}")]
    NotObject(String),
    #[error("the request's member `{member}` {problem}")]
    Member { member: String, problem: String },
    #[error("{what} cannot be asked of this endpoint")]
    Unsupported { what: String },
}

/// Renders one streamed answer. Made from the request it answers, fed with what comes, and finished once.
pub trait Render: Send {
    /// Events to send before anything has come.
    fn start(&mut self) -> Vec<u8>;
    /// Whole events, ready to be sent; may be empty.
    fn push(&mut self, delta: &Delta) -> Vec<u8>;
    /// The events that end the answer. Called once, after a `Delta::Finish` was pushed.
    fn finish(&mut self) -> Vec<u8>;
    /// An event that says nothing, for a client that must not think the connection dead.
    fn keep_alive(&self) -> Vec<u8>;
    /// What tells the agent, in the middle of a stream, that there will be no more.
    fn error(&self, message: &str) -> Vec<u8>;
    /// What ends a stream that broke off, for clients that do not ask again when the connection breaks.
    fn broken_off(&self) -> Option<&'static [u8]> {
        None
    }
    /// The whole answer at once, for a request that asked for no stream.
    fn whole(&self, reply: &Reply) -> Vec<u8>;
}
