//! The commands, one file each.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod dialect;
pub(crate) mod doctor;
pub(crate) mod endpoint;
pub(crate) mod engine;
pub(crate) mod export;
pub(crate) mod list;
pub(crate) mod listen;
pub(crate) mod mcp;
pub(crate) mod patience;
pub(crate) mod proxy;
pub(crate) mod run;
pub(crate) mod scripted;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod signals;
mod trace;
