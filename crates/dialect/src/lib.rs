//! The four dialects in which agents ask. Chat completions are the common tongue: the others are translated to chat on
//! the way up and rendered from chat on the way down, each in a module of its own and each a pure function.

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
