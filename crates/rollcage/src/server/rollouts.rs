//! The rollouts of a server: the layer below both the API and the tools, which do not know each other.
//!
//! Input: `arguments` and `request` parse a client's request, `backend` submits it. Output: `view` reads and renders
//! stored rollouts on blocking threads; `readings` keeps those that somebody looks at; `tokens` has the forms of a result,
//! `conversation` the messages of agent and model as the proxy saw them, `messages` them or the agent's own, `events` the
//! events. `catalogue` lists what a client can choose from, and `command_line` says a request as one would type it.

pub(crate) mod arguments;
pub(crate) mod backend;
pub(crate) mod catalogue;
pub(crate) mod command_line;
pub(crate) mod context;
mod conversation;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod messages;
mod readings;
pub(crate) mod request;
pub(crate) mod request_schema;
pub(crate) mod tokens;
pub(crate) mod view;

pub(crate) use backend::{Backend, SubmitError};
pub(crate) use error::ViewError;
