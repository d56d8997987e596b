//! What a fake sandbox refuses to do, and how.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rollcage_sandbox::Error;

/// What can be asked of sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Start,
    Spawn,
    Write,
    Read,
    List,
    KillAll,
    Unseal,
    SealSetup,
    Connect,
    Snapshot,
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
            Operation::Read => "read",
            Operation::List => "list",
            Operation::KillAll => "kill_all",
            Operation::Unseal => "unseal",
            Operation::SealSetup => "seal_setup",
            Operation::Connect => "connect",
            Operation::Snapshot => "snapshot",
            Operation::Close => "close",
            Operation::Doctor => "doctor",
            Operation::Shutdown => "shutdown",
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error, and the sandbox lives on.
    Fails,
    /// The sandbox dies, and everything in it.
    Dies,
    /// [`Error::Deadline`] after this time, as backends have it for what does not answer.
    Late(Duration),
    /// Nothing ever happens.
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

    /// Waits, where that is the fault. `Ok(true)` means that the sandbox has to die.
    pub(super) async fn meet(&self, operation: Operation) -> Result<bool, Error> {
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

/// The kind of error that the local sandboxes have for each.
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
        Operation::Write | Operation::Read | Operation::List => Error::File {
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
        | Operation::SealSetup
        | Operation::Snapshot
        | Operation::Close
        | Operation::Doctor
        | Operation::Shutdown => Error::Engine {
            operation: name,
            source: source(),
        },
    }
}
