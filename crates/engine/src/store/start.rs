//! What is known of a rollout when it starts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use rollcage_model::record::{AgentInfo, EndpointInfo, RolloutResult};
use rollcage_model::task::Mode;
use rollcage_model::trace::Facts;
use rollcage_model::transcript::McpNames;

use super::StoreError;
use super::disk::write_unsynced;

/// The file that holds [`StartInfo`].
const START: &str = "start.json";

/// What is known about a rollout when it starts, to close its record if its process is killed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartInfo {
    /// Unix seconds.
    pub started_at: f64,
    pub agent: AgentInfo,
    pub endpoint: EndpointInfo,
    #[serde(default)]
    pub group: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// As in the result; empty in records of older versions.
    #[serde(default)]
    pub mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_names: Option<McpNames>,
}

impl StartInfo {
    /// Fills in the result of a rollout whose process was killed.
    pub(crate) fn apply_to(self, result: &mut RolloutResult) {
        result.started_at = self.started_at;
        result.agent = self.agent;
        result.endpoint = self.endpoint;
        result.group = self.group;
        result.labels = self.labels;
        result.agent_report.mcp_names = self.mcp_names;
        if !self.mode.is_empty() {
            result.mode = self.mode;
        }
    }

    /// What is needed to interpret the calls of a rollout that has no result yet.
    pub(crate) fn facts(self) -> Facts {
        Facts {
            is_eval: false,
            is_black_box: self.mode == Mode::BlackBox.as_str(),
            mcp_names: self.mcp_names,
            context_tokens: self.endpoint.context_tokens,
        }
    }

    /// Writes or replaces `start.json` in a rollout's directory.
    pub(crate) fn write(&self, record: &Path) -> Result<(), StoreError> {
        let path = record.join(START);
        match serde_json::to_vec(self) {
            Ok(text) => write_unsynced(&path, &text),
            Err(source) => Err(StoreError::Format { path, source }),
        }
    }

    /// `None` if the process was killed before it wrote this, or in records of older versions.
    pub(crate) fn read(record: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(record.join(START)).ok()?).ok()
    }
}
