//! What a backend can do, as data, so that nobody has to know which one it is.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The backend's name, as results have it.
    pub kind: String,
    /// Commands can run as [`crate::User::Root`].
    pub root_inside: bool,
    /// [`crate::Content::HostTree`] can be shown; otherwise all content must be archives.
    pub host_trees: bool,
    /// [`crate::Sandbox::snapshot`] works, and so does starting from one.
    pub snapshot: bool,
    /// What can be made to hold for a sandbox's network.
    pub network: Vec<NetworkPolicy>,
    /// How strong the walls are, and what enforces which limit. A single sandbox may have less:
    /// [`crate::Sandbox::isolation`].
    pub isolation: Isolation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// Nothing is reached but the model's entrance.
    EntranceOnly,
}

/// How strong the walls are here, for the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// `container` (root, own uid range) or `userns` (ordinary user).
    pub tier: String,
    /// `cgroup-v1`, `cgroup-v2` or `rlimits`, per limited thing.
    pub memory: String,
    pub pids: String,
    pub cpu: String,
}
