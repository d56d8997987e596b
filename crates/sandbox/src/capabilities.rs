//! The features of a backend, as data, so that callers need not know which backend it is.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The backend's name, as recorded in results.
    pub kind: String,
    /// Commands can run as [`crate::User::Root`].
    pub root_inside: bool,
    /// [`crate::Content::HostTree`] is supported; otherwise all content must be archives.
    pub host_trees: bool,
    /// [`crate::Sandbox::snapshot`] works, and so does starting from one.
    pub snapshot: bool,
    /// The supported network policies.
    pub network: Vec<NetworkPolicy>,
    /// The isolation of its sandboxes, and what enforces which limit. A single sandbox may have less:
    /// [`crate::Sandbox::isolation`].
    pub isolation: Isolation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// Nothing is reachable but the model's entrance.
    EntranceOnly,
}

/// How a sandbox is isolated, for the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// `container` (root, own uid range) or `userns` (ordinary user).
    pub tier: String,
    /// `cgroup-v1`, `cgroup-v2` or `rlimits`, for each limit.
    pub memory: String,
    pub pids: String,
    pub cpu: String,
}
