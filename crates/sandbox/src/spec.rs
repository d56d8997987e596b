//! The specification of a sandbox.

use crate::{Content, Mount, Snapshot};

/// The specification of a sandbox.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// The name of the sandbox, also its host name: letters, digits and dashes, at most 63.
    pub id: String,
    pub limits: Limits,
    /// Trees laid over the base, uppermost first, e.g. an agent's pre-baked home directory. The sandbox may change its
    /// view of them; the originals are not changed.
    pub layers: Vec<Content>,
    pub mounts: Vec<Mount>,
    /// Whether programs inside can reach the model: see [`crate::Sandbox::take_entrance`].
    pub has_entrance: bool,
    /// Ports whose connections, to whatever address, are answered from outside; `None` is no network at all. See
    /// [`crate::Sandbox::take_gates`].
    pub intercepted_ports: Option<Vec<u16>>,
    /// Files to start with, of a sandbox of the same backend with the same layers. They lie over all others.
    pub snapshot: Option<Snapshot>,
}

/// The resource limits of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// Includes files written to the sandbox's file system, which lives in memory.
    pub memory_bytes: u64,
    pub pids: u64,
    /// A hard quota; `None` shares the machine fairly, which is faster for agents that use threads.
    pub cpus: Option<f64>,
    pub disk_bytes: u64,
    /// The largest single file.
    pub file_bytes: u64,
    /// The size of `/dev/shm`, which is then apart from `disk_bytes`; `None` makes it part of that.
    pub shm_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1 << 30;
        Limits {
            memory_bytes: 4 * GIB,
            pids: 1024,
            cpus: None,
            disk_bytes: 2 * GIB,
            file_bytes: GIB,
            shm_bytes: None,
        }
    }
}
