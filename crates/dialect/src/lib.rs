//! The four API dialects that agents speak. Chat completions are the common format: requests in the other dialects are
//! translated to chat, and answers rendered from chat, by pure functions in one module per dialect.

pub mod anthropic;
mod assistant;
pub mod chat;
pub mod gemini;
pub mod inbound;
pub mod responses;
mod route;
pub mod sampling;
pub mod sse;
pub mod upstream;

pub use chat::Render;
pub use route::{Route, TranslatedRequest};
pub use upstream::EndpointDialect;

/// The API dialect of an agent.
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

/// Why a request cannot be translated to another dialect. The text goes to the agent, with status 400.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TranslateError {
    #[error("the request body is not a JSON object: {0}")]
    NotObject(String),
    #[error("the request's member `{member}` {problem}")]
    Member { member: String, problem: String },
    #[error("{what} cannot be asked of this endpoint")]
    Unsupported { what: String },
}
