//! Checks of what this machine permits sandboxes to do.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// Sandboxes work, with weaker isolation or a weaker limit.
    Degraded,
    /// Sandboxes do not work.
    Missing,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    pub detail: String,
    /// How to fix it, if known.
    pub fix: Option<String>,
}

impl Check {
    pub(crate) fn new(name: &str, status: Status, detail: impl Into<String>) -> Check {
        Check {
            name: name.to_owned(),
            status,
            detail: detail.into(),
            fix: None,
        }
    }

    pub(crate) fn with_fix(self, fix: impl Into<String>) -> Check {
        Check {
            fix: Some(fix.into()),
            ..self
        }
    }
}
