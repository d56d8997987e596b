//! For tests only: a model server with configurable faults, an agent that is a shell script, in-memory sandboxes, and
//! leak checks.
//!
//! [`sandbox`] is behind the same traits as real sandboxes and lets whole rollouts run in paused time; [`upstream`] is
//! a server on real sockets. The tests of proxy and engine use this crate, so it can use neither.

pub mod agent;
pub mod anthropic;
pub mod leak;
pub mod sandbox;
pub mod sglang;
pub mod upstream;
