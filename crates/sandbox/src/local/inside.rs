//! Code that runs in a sandbox: in its first process, and in the children of that.

mod agent_view;
pub(crate) mod as_agent;
mod builtin;
mod copy;
mod home;
pub(crate) mod init;
mod layout;
mod many;
mod modules;
pub(crate) mod net;
pub(crate) mod payload;
mod programs;
mod pseudo;
mod remove;
mod restore;
mod rootfs;
pub(crate) mod seccomp;
mod snapshot;
mod standby;
mod unpack;
