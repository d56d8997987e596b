//! The limits of a task's sandbox.

use serde::{Deserialize, Serialize};

use super::TaskError;

/// What the sandbox may use at most, and what is kept of it. Sizes are in MiB; `None` takes the default of the sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Limits")]
#[serde(deny_unknown_fields, default)]
pub struct SandboxLimits {
    /// Includes what is written to the sandbox's file system.
    pub memory_mb: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Processors.
    pub cpus: Option<f64>,
    /// What may be written.
    pub disk_mb: Option<u64>,
    /// The largest single file.
    pub file_mb: Option<u64>,
    /// The size of `/dev/shm`, apart from `disk_mb`; without it `/dev/shm` is part of that.
    pub shm_mb: Option<u64>,
    /// What is kept of `artifacts`, in all; 1024 when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifacts_mb: Option<u64>,
}

impl SandboxLimits {
    pub(super) fn check(&self) -> Result<(), TaskError> {
        let sizes = [
            ("memory_mb", self.memory_mb, 16),
            ("pids", self.pids, 8),
            ("disk_mb", self.disk_mb, 1),
            ("file_mb", self.file_mb, 1),
            ("shm_mb", self.shm_mb, 1),
            ("artifacts_mb", self.artifacts_mb, 1),
        ];
        for (key, value, least) in sizes {
            if value.is_some_and(|value| value < least || value > 1 << 30) {
                let wanted = match least {
                    16 => "at least 16",
                    8 => "at least 8",
                    _ => "at least 1",
                };
                return Err(TaskError::Limit { key, wanted });
            }
        }
        if self
            .cpus
            .is_some_and(|cpus| !(0.1..=4096.0).contains(&cpus))
        {
            return Err(TaskError::Limit {
                key: "cpus",
                wanted: "at least 0.1",
            });
        }
        Ok(())
    }
}
