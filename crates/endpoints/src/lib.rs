//! Which model a rollout uses, and where it is served.
//!
//! Reading order: [`choice`] resolves what a user asks for (a name, a URL, a model, a key) to an endpoint; [`provider`]
//! has the services that are known by name, from `providers.toml`; [`serving`] finds or starts model servers: Ollama,
//! and commands from the user's own file. [`check`] validates names and URLs.
//!
//! The endpoint that comes out, and the secret in it, are types of `rollcage-proxy`, which makes the calls. Nothing
//! here knows about agents or sandboxes, or reads environment variables: whoever calls passes a function that looks
//! them up.

pub mod check;
pub mod choice;
pub mod provider;
pub mod serving;
