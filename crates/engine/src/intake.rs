//! From a request to a runnable plan: [`RolloutRequest`] → [`resolve()`] (chooses agent and endpoint, applies all
//! defaults) → [`ResolvedRollout`] → `prepare` (installs the agent, starts the endpoint's server) → a plan.
//!
//! The command line, the tools and REST all build the same request; nothing after it depends on where it came from.

mod catalogue;
mod prepare;
mod request;
mod resolve;
mod sealed;

pub use catalogue::{Catalogue, Lookup};
pub use prepare::PlanError;
pub(crate) use prepare::{PreparedRollout, Preparer};
pub use request::{EndpointOptions, KeySource, ModelOptions, RequestOrigin, RolloutRequest};
pub use resolve::{RequestError, ResolvedRollout, resolve};
pub use sealed::Sealed;

pub use crate::mount::{HostMount, MountError};
pub use crate::upload::Upload;

#[cfg(test)]
mod tests;
