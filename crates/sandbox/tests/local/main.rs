//! The embedded backend on the real kernel. As root this suite runs a second time as an ordinary user,
//! from `rootless.rs`. Where the kernel does not let us build sandboxes, every test fails and says why.
#![expect(clippy::unwrap_used, reason = "tests")]

mod as_agent;
mod connect;
mod content;
mod exec;
mod files;
mod gates;
mod kit;
mod life;
mod limits;
mod machines;
mod many;
mod rootless;
mod snapshot;
mod spare;
mod traces;
mod verifier;
mod walls;
