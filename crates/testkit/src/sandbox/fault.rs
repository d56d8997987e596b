//! Faults of fake sandboxes, by operation.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rollcage_sandbox::Error;

/// The operations on sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Start,
    Spawn,
    Write,
    Unpack,
    Read,
    ReadFiles,
    Stat,
    Remove,
    List,
    KillAll,
    Unseal,
    Renew,
    KeepHome,
    LayHome,
    SealSetup,
    Connect,
    Snapshot,
    SaveSnapshot,
    LoadSnapshot,
    Close,
    Doctor,
    Shutdown,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Start => "start",
            Operation::Spawn => "spawn",
            Operation::Write => "write",
            Operation::Unpack => "unpack",
            Operation::Read => "read",
            Operation::ReadFiles => "read_files",
            Operation::Stat => "stat",
            Operation::Remove => "remove",
            Operation::List => "list",
            Operation::KillAll => "kill_all",
            Operation::Unseal => "unseal",
            Operation::Renew => "renew",
            Operation::KeepHome => "keep_home",
            Operation::LayHome => "lay_home",
            Operation::SealSetup => "seal_setup",
            Operation::Connect => "connect",
            Operation::Snapshot => "snapshot",
            Operation::SaveSnapshot => "save_snapshot",
            Operation::LoadSnapshot => "load_snapshot",
            Operation::Close => "close",
            Operation::Doctor => "doctor",
            Operation::Shutdown => "shutdown",
        }
    }
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Returns an error; the sandbox survives.
    Fails,
    /// The sandbox dies, with everything in it.
    Dies,
    /// Returns [`Error::Deadline`] after this time, as backends do if the sandbox does not answer.
    Late(Duration),
    /// Never returns.
    Hangs,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    by_operation: Mutex<BTreeMap<Operation, (Fault, bool)>>,
}

impl Faults {
    pub(super) fn set(&self, operation: Operation, fault: Fault, is_once: bool) {
        let mut faults = self.lock();
        faults.insert(operation, (fault, is_once));
    }

    pub(super) fn clear(&self, operation: Operation) {
        self.lock().remove(&operation);
    }

    /// Applies the operation's fault, which may wait. `Ok(true)` means that the sandbox must die.
    pub(super) async fn apply(&self, operation: Operation) -> Result<bool, Error> {
        let fault = {
            let mut faults = self.lock();
            let fault = faults.get(&operation).copied();
            if let Some((_, true)) = fault {
                faults.remove(&operation);
            }
            fault.map(|(fault, _)| fault)
        };
        match fault {
            None => Ok(false),
            Some(Fault::Dies) => Ok(true),
            Some(Fault::Fails) => Err(failure(operation)),
            Some(Fault::Late(limit)) => {
                tokio::time::sleep(limit).await;
                let operation = operation.name();
                Err(Error::Deadline { operation, limit })
            }
            Some(Fault::Hangs) => std::future::pending().await,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Operation, (Fault, bool)>> {
        self.by_operation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error variant that the local backend returns for each operation.
fn failure(operation: Operation) -> Error {
    let source = || io::Error::other("a fault of the test's");
    let name = operation.name();
    match operation {
        Operation::Start => Error::Start {
            step: "a step".to_owned(),
            source: source(),
        },
        Operation::Spawn => Error::Spawn {
            step: "fork".to_owned(),
            source: source(),
        },
        Operation::Write
        | Operation::Unpack
        | Operation::Read
        | Operation::ReadFiles
        | Operation::Stat
        | Operation::Remove
        | Operation::KeepHome
        | Operation::LayHome
        | Operation::List => Error::File {
            operation: name,
            path: "a path".to_owned(),
            source: source(),
        },
        Operation::Connect => Error::Connect {
            port: 0,
            source: source(),
        },
        Operation::KillAll
        | Operation::Unseal
        | Operation::Renew
        | Operation::SealSetup
        | Operation::Snapshot
        | Operation::SaveSnapshot
        | Operation::LoadSnapshot
        | Operation::Close
        | Operation::Doctor
        | Operation::Shutdown => Error::Engine {
            operation: name,
            source: source(),
        },
    }
}
