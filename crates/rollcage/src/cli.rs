//! The commands, one file each. Read `run` first.
//!
//! A command parses its flags, builds what the engine or the server takes, and prints with `crate::output`; `main`
//! turns its outcome into the exit code. Shared by several: `engine` (an engine that is always closed afterwards),
//! `signals`, the flags in `dialect`, `mcp`, `patience` and `trace`, and `listen` (errors of listening).

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod dialect;
pub(crate) mod doctor;
pub(crate) mod endpoint;
pub(crate) mod engine;
pub(crate) mod export;
pub(crate) mod list;
pub(crate) mod listen;
pub(crate) mod live;
pub(crate) mod mcp;
pub(crate) mod patience;
pub(crate) mod proxy;
pub(crate) mod run;
pub(crate) mod scripted;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod signals;
mod trace;
