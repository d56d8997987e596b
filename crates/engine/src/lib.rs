//! Runs rollouts. A library: no printing, no argument parsing, no environment variables.
//!
//! [`Engine`] is the entry point, [`intake`] turns a request into something runnable, and one rollout reads top to
//! bottom in `rollout.rs`.

mod artifacts;
mod collect;
mod controls;
mod dispatch;
mod drive;
mod engine;
mod environment;
pub mod feed;
mod installed;
pub mod intake;
mod judge;
mod layout;
mod limits;
mod listing;
pub mod metrics;
mod mount;
pub mod network;
pub mod openenv_trace;
mod patch;
mod place;
mod plan;
pub mod result;
mod rollout;
mod schedule;
mod shell;
pub mod store;
mod trial;
mod upload;
mod verify;

#[cfg(test)]
mod tests;

pub use controls::{CommandError, RolloutCommand};
pub use dispatch::RolloutEntry;
pub use engine::{
    Engine, EngineError, EngineOptions, LOCAL, Load, OpenError, RolloutLookup, forget_home,
};
pub use limits::{EngineLimits, KEEP_ABORTED};
pub use listing::{EndedFilter, Filter, Page};
pub use schedule::QueueError;
pub use trial::TrialError;
