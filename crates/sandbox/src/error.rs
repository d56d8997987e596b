//! Errors of sandboxes, in terms a caller can act on.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request itself is invalid; nothing was tried.
    #[error("invalid sandbox request: {what}")]
    Invalid { what: String },
    /// A step of starting a sandbox failed.
    #[error("start sandbox: {step}")]
    Start { step: String, source: io::Error },
    /// As [`Error::Start`], but because a kernel feature or a permission is missing, with a way to fix it.
    #[error("start sandbox: {step}: {cause}; to fix it: {fix}")]
    Unsupported {
        step: String,
        cause: io::Error,
        fix: String,
    },
    #[error("run {program} in the sandbox")]
    Exec { program: String, source: io::Error },
    #[error("enter directory {path} in the sandbox")]
    Directory { path: String, source: io::Error },
    /// The kernel refused a step between the request and the program's start, e.g. a fork.
    #[error("start a process in the sandbox: {step}")]
    Spawn { step: String, source: io::Error },
    #[error("connect to port {port} in the sandbox")]
    Connect { port: u16, source: io::Error },
    #[error("commands run as root only where rollcage itself runs as root")]
    RootUser,
    #[error("{operation} {path} in the sandbox")]
    File {
        operation: &'static str,
        path: String,
        source: io::Error,
    },
    #[error("{path} in the sandbox is not a regular file")]
    NotRegular { path: String },
    #[error("{path} in the sandbox is larger than {bytes_max} bytes")]
    TooLarge { path: String, bytes_max: u64 },
    #[error("{operation} took longer than {} s", limit.as_secs())]
    Deadline {
        operation: &'static str,
        limit: Duration,
    },
    /// Its first process is dead, e.g. killed for lack of memory.
    #[error("sandbox {id} is gone")]
    Gone { id: String },
    /// An operation of the engine itself failed.
    #[error("{operation}")]
    Engine {
        operation: &'static str,
        source: io::Error,
    },
}
