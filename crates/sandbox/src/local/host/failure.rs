//! Converts failures of zygote, init and processes into errors that a caller can act on.

use crate::Error;
use crate::local::shared::advice;
use crate::local::shared::wire::{Failure, FailureKind};

/// Classifies a failed start: some causes mean that this machine must be configured differently.
pub(crate) fn start_error(failure: &Failure) -> Error {
    let (step, cause) = (failure.step.clone(), failure.source());
    if failure.kind == FailureKind::Archive {
        return Error::Invalid { what: step };
    }
    match advice::of(failure.kind, &cause) {
        Some(fix) => Error::Unsupported { step, cause, fix },
        None => Error::Start {
            step,
            source: cause,
        },
    }
}

/// A file operation, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct FileOperation<'a> {
    pub(crate) operation: &'static str,
    pub(crate) path: &'a str,
    /// The limit of its output.
    pub(crate) bytes_max: u64,
}

pub(crate) fn parse_failure(status: &[u8]) -> Option<Failure> {
    serde_json::from_slice(status).ok()
}

pub(crate) fn spawn_error(failure: Failure, program: String) -> Error {
    let source = failure.source();
    match failure.kind {
        FailureKind::Exec => Error::Exec { program, source },
        FailureKind::Directory => Error::Directory {
            path: failure.step,
            source,
        },
        FailureKind::Setup
        | FailureKind::Namespaces
        | FailureKind::Proc
        | FailureKind::File
        | FailureKind::NotRegular
        | FailureKind::TooLarge
        | FailureKind::Archive => Error::Spawn {
            step: failure.step,
            source,
        },
    }
}

pub(crate) fn file_error(failure: &Failure, task: FileOperation<'_>) -> Error {
    let (path, source) = (task.path.to_owned(), failure.source());
    match failure.kind {
        FailureKind::NotRegular => Error::NotRegular { path },
        FailureKind::TooLarge => Error::TooLarge {
            path,
            bytes_max: task.bytes_max,
        },
        FailureKind::File => Error::File {
            operation: task.operation,
            path: failure.step.clone(),
            source,
        },
        FailureKind::Archive => Error::Invalid {
            what: failure.step.clone(),
        },
        FailureKind::Setup
        | FailureKind::Namespaces
        | FailureKind::Proc
        | FailureKind::Exec
        | FailureKind::Directory => Error::Spawn {
            step: failure.step.clone(),
            source,
        },
    }
}
