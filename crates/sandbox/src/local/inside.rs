//! What runs in a sandbox: its first process, and what becomes of that one's children.

mod builtin;
mod copy;
pub(crate) mod init;
mod layout;
pub(crate) mod net;
pub(crate) mod payload;
mod programs;
mod pseudo;
mod restore;
mod rootfs;
pub(crate) mod seccomp;
mod snapshot;
mod understudy;
mod unpack;
