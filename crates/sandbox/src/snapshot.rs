//! Saved files of a sandbox, to start others from.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The files that a sandbox had created, changed and removed at one time, with owners, modes and times. Without
/// processes, the verifier's directories, logs, pipes, sockets and extended attributes. Clones share the content, which
/// is freed with the last of them.
#[derive(Clone)]
pub struct Snapshot {
    kind: String,
    bytes: u64,
    state: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// For backends: `kind` is the backend's name, `state` is what it starts from.
    pub fn new(kind: &str, bytes: u64, state: impl Any + Send + Sync) -> Snapshot {
        Snapshot {
            kind: kind.to_owned(),
            bytes,
            state: Arc::new(state),
        }
    }

    /// The backend that made it, which is the only one that can start from it.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// For backends: the `state` passed to [`Snapshot::new`], if it has this type.
    pub fn state<T: Any>(&self) -> Option<&T> {
        self.state.downcast_ref()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Snapshot")
            .field("kind", &self.kind)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
