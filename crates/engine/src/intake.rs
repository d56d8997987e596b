//! How a rollout is asked for, by whoever asks: [`RolloutRequest`] → [`resolve()`] (which agent, which endpoint, all
//! defaults) → [`Resolved`] → `prepare` (an agent that is installed, a server that runs) → a plan.
//!
//! The command line, the tools and REST build the request; nothing that comes after it knows who asked.

mod catalogue;
mod prepare;
mod request;
mod resolve;
mod sealed;

pub use catalogue::{Catalogue, LookUp};
pub use prepare::PlanError;
pub(crate) use prepare::Preparation;
pub use request::{EndpointWish, Key, ModelOptions, Origin, RolloutRequest};
pub use resolve::{RequestError, Resolved, resolve};
pub use sealed::Sealed;

#[cfg(test)]
mod tests;
