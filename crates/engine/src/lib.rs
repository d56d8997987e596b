//! Runs rollouts. A library: no printing, no argument parsing, no environment variables.
//!
//! Start at `rollout.rs`: one rollout reads from top to bottom there. What leads to it: [`Engine`] is the public
//! interface, [`intake`] turns a request into something runnable, `dispatch` gives each rollout a slot (`schedule` is
//! its queue, as pure data) and a result, [`feed`] has a rollout's events, `controls` the commands to it while it runs.
//!
//! What it calls, in order: `layout` (the sandbox's specification and files), `drive` (runs the agent to its end;
//! `drive/driver` is the interface to a kind of agent), `judge` (the cause of the end, pure), `verify`, `collect`,
//! [`result`] and [`store`]. `listing`, [`metrics`] and [`openenv_trace`] are for readers.
//!
//! The engine uses all the other libraries: sandboxes through their traits, models through the proxy, agents as what
//! their manifests say. It knows no command line, no server and no terminal.

mod artifacts;
mod collect;
mod context;
mod controls;
mod dispatch;
mod drive;
mod engine;
mod environment;
pub mod feed;
mod history;
mod installed;
pub mod intake;
mod judge;
mod layout;
mod limits;
mod listing;
pub mod live;
mod locale;
mod messages;
pub mod metrics;
mod model;
mod mount;
pub mod network;
pub mod openenv_trace;
mod patch;
mod place;
mod plan;
mod release;
pub mod result;
mod rollout;
mod schedule;
mod services;
mod shell;
mod stage;
mod start;
pub mod store;
mod trial;
mod upload;
mod usage;
mod verify;
mod warm;

#[cfg(test)]
mod tests;

pub use collect::{FILE_CHARS_MAX, FILES_MAX};
pub use controls::{CommandError, RolloutCommand};
pub use dispatch::RolloutEntry;
pub use engine::{
    Engine, EngineError, EngineOptions, Load, OpenError, Removal, RolloutLookup, forget_home,
};
pub use limits::{EngineLimits, KEEP_ABORTED, WarmLimits};
pub use listing::{EndedFilter, Filter, IndexTail, LOCAL, Order, Place, SortKey, Window};
pub use messages::ServedMessages;
pub use schedule::QueueError;
pub use trial::TrialError;
pub use warm::WarmCounters;
