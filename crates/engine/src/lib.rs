//! Runs rollouts. A library: no printing, no argument parsing, no environment variables.
//!
//! [`Engine`] is the front; [`intake`] is how a rollout is asked for, and one rollout reads top to bottom in `rollout.rs`.

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
mod limits;
mod listing;
pub mod network;
mod places;
mod plan;
pub mod result;
mod rollout;
mod schedule;
mod shell;
pub mod store;
pub mod tally;
pub mod traced;
mod trial;
mod verify;

#[cfg(test)]
mod tests;

pub use controls::{Command, CommandError};
pub use dispatch::Entry;
pub use engine::{Engine, EngineError, EngineOptions, Found, LOCAL, Load, OpenError, forget_home};
pub use limits::{KEEP_ABORTED, Limits};
pub use listing::{EndedFilter, Filter, Page};
pub use schedule::QueueError;
pub use trial::TrialError;
