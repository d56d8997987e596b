//! The embedded backend: Linux namespaces, created by a zygote process and held by an init process in each sandbox. The
//! folders are named after the process that a file runs in:
//!
//! - `host`: the engine's own process. [`Local`] starts sandboxes: `launcher` is the thread that talks to the zygote,
//!   `spare` keeps sandboxes cloned in advance, `sandbox` is the engine's handle of one, which sends requests to its init
//!   through `control` and `channel`; `reaper` removes what is left of it. `cgroup` limits it, `skeleton` is the lowest
//!   layer of every root, `instance` cleans up after dead engines.
//! - `zygote`: this same program, executed again, small and with a single thread. It creates a sandbox's cgroup and
//!   clones the sandbox's first process; `probe` runs the checks of `doctor`.
//! - `inside`: a sandbox's processes. `init` is the first: it builds the sandbox around itself (`rootfs` from the parts in
//!   `layout`, `programs`, `pseudo` and `copy`; `net`) and serves requests. Every other process is first a `standby`, then
//!   a `payload` under the filter `seccomp`, which becomes a program or does a file operation (`builtin`). `agent_view` runs what verify commands give
//!   to `as_agent`, this same program under another name.
//! - `shared`: code that several of them use: `wire` holds the messages between them.

mod host;
mod inside;
mod shared;
mod zygote;

pub use host::{Local, Options};
pub use inside::as_agent::run_if_called as run_as_agent_if_called;
pub use zygote::main as zygote_main;
