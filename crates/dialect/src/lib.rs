//! The APIs through which agents talk to models, as pure functions on bytes and JSON: OpenAI chat completions, OpenAI
//! Responses, Anthropic Messages and Gemini.
//!
//! Chat completions are the common format: a request in another dialect is translated to chat, and an answer in it is
//! rendered from chat, so each dialect needs one translator and all answers have one reader. In reading order:
//!
//! - [`sse`]: event streams, however they are chunked.
//! - [`chat`]: `prepare` rewrites a request for the endpoint, `strip` removes from an answer what the agent did not
//!   request, `reply` parses a stored answer; `delta` and `render` are what answers in all dialects are rendered from.
//! - [`responses`], [`anthropic`], [`gemini`]: one translator each.
//! - [`inbound`] and [`Route`]: the dialect and the key of a request, for servers that accept all four.
//! - [`upstream`]: the dialects of endpoints; callers use [`EndpointDialect`] and never ask which one it is.
//! - [`sampling`]: whether logprobs are of the distribution that was sampled from.
//!
//! There is no I/O here, and nothing about rollouts, sandboxes or rewards (a test checks both). The proxy and the
//! scripted endpoint call this crate.

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
