//! The embedded backend: Linux namespaces, built by a zygote process and kept by an init process in each sandbox.
//! Folders say which process a file runs in:
//!
//! - `host`: the engine's own process. [`Local`] starts sandboxes: `launcher` is the thread that talks to the zygote,
//!   `spare` has sandboxes made ahead of need, `sandbox` is one of them as the engine sees it, which asks its init by
//!   way of `control` and `channel`; `reaper` removes what is left of it. `cgroup` limits it, `skeleton` is the lowest
//!   layer of every root, `instance` sweeps what dead engines left.
//! - `zygote`: this same program, executed again, small and with a single thread. It makes a sandbox's cgroup and
//!   clones the sandbox's first process; `probe` is what it tries for `doctor`.
//! - `inside`: a sandbox's processes. `init` is the first: it builds the sandbox around itself (`rootfs` of `layout`,
//!   `programs`, `pseudo` and `copy`; `net`) and does what it is asked for. Every other process is an `understudy`
//!   first, then a `payload` under the filter `seccomp`, which becomes a program or does a file operation (`builtin`).
//! - `shared`: what several of them use: `wire` is what they say to each other.

mod host;
mod inside;
mod shared;
mod zygote;

pub use host::{Local, Options};
pub use zygote::main as zygote_main;
