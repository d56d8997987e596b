//! What can go wrong with a sandbox, in terms a caller can act on.

use std::io;
use std::time::Duration;

use crate::local::wire::{Failure, FailureKind};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request itself makes no sense; nothing was tried.
    #[error("invalid sandbox request: {what}")]
    Invalid { what: String },
    /// The machine could not do a step of starting a sandbox.
    #[error("start sandbox: {step}")]
    Start { step: String, source: io::Error },
    /// As [`Error::Start`], but for want of a kernel feature or a permission.
    #[error("start sandbox: {step} (`rollcage doctor` tells what is missing)")]
    Unsupported { step: String, source: io::Error },
    #[error("run {program} in the sandbox")]
    Exec { program: String, source: io::Error },
    #[error("enter directory {path} in the sandbox")]
    Directory { path: String, source: io::Error },
    /// The kernel refused a step between the request and the program's start, e.g. a fork.
    #[error("start a process in the sandbox: {step}")]
    Spawn { step: String, source: io::Error },
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
    /// Its first process is dead, e.g. killed for want of memory.
    #[error("sandbox {id} is gone")]
    Gone { id: String },
    /// Our own plumbing failed.
    #[error("{operation}")]
    Engine {
        operation: &'static str,
        source: io::Error,
    },
}

impl Error {
    /// Sorts a failed start by its cause: some of them mean that this machine needs another setup.
    pub(crate) fn start(failure: &Failure) -> Error {
        let (step, source) = (failure.step.clone(), failure.source());
        // What a full disk is for other steps is a sysctl for this one, e.g. user.max_user_namespaces.
        let no_namespaces_left =
            failure.kind == FailureKind::Namespaces && failure.errno == libc::ENOSPC;
        let unsupported = no_namespaces_left
            || matches!(
                source.raw_os_error(),
                Some(
                    libc::EPERM
                        | libc::EACCES
                        | libc::ENOSYS
                        | libc::EOPNOTSUPP
                        | libc::ENODEV
                        | libc::EINVAL
                        | libc::EROFS
                )
            );
        if unsupported {
            Error::Unsupported { step, source }
        } else {
            Error::Start { step, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: FailureKind, errno: i32, expected: &str) {
        let failure = Failure {
            kind,
            step: String::from("step"),
            errno,
        };
        assert_eq!(Error::start(&failure).to_string(), expected);
    }

    #[test]
    fn no_space_means_another_setup_only_for_namespaces() {
        let hint = "start sandbox: step (`rollcage doctor` tells what is missing)";
        check(FailureKind::Namespaces, libc::ENOSPC, hint);
        check(FailureKind::Setup, libc::ENOSPC, "start sandbox: step");
        check(FailureKind::Setup, libc::EPERM, hint);
        check(FailureKind::Namespaces, libc::ENOMEM, "start sandbox: step");
    }
}
