//! A sandbox's files, kept to start others from.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// All files of a sandbox as they were at one time: made, changed and removed, with owners, modes and times. Neither
/// processes nor what is the verifier's, nor logs, pipes, sockets and extended attributes. Its clones share what it
/// holds, which is freed with the last of them.
#[derive(Clone)]
pub struct Snapshot {
    kind: String,
    bytes: u64,
    state: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// For backends: `kind` is theirs, `state` is what they start from.
    pub fn new(kind: &str, bytes: u64, state: impl Any + Send + Sync) -> Snapshot {
        Snapshot {
            kind: kind.to_owned(),
            bytes,
            state: Arc::new(state),
        }
    }

    /// The backend that it was made by, and that alone can start from it.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// For backends: what they gave to [`Snapshot::new`], if it was of this type.
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
