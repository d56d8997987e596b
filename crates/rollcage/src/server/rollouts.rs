//! One server's rollouts: what the API and the tools both stand on. Neither knows the other, and this knows neither.
//!
//! In: `arguments` and `request` read what a client asks for, `backend` takes it on. Out: `view` reads and renders what
//! was kept, away from the threads that answer requests; `tokens` are a result's forms, `conversation` is what was said,
//! `events` what happened. `catalogue` is what there is to ask for.

pub(crate) mod arguments;
pub(crate) mod backend;
pub(crate) mod catalogue;
mod conversation;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod request;
pub(crate) mod request_schema;
pub(crate) mod surroundings;
pub(crate) mod tokens;
pub(crate) mod view;

pub(crate) use backend::{Backend, SubmitError};
pub(crate) use error::ViewError;
