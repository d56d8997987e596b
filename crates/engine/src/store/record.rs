//! One rollout's record while it is being written: its start information, and its commit.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use rollcage_model::record::{AgentInfo, EndpointInfo, RolloutResult};
use rollcage_model::task::Mode;
use rollcage_model::trace::Facts;
use rollcage_model::transcript::McpNames;

use super::disk::{remove_partial_files, sync_directory, sync_file, write_atomic, write_unsynced};
use super::{EXCHANGES_FILE, Index, StoreError, Summary};

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

    pub(crate) fn read(record: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(record.join(START)).ok()?).ok()
    }
}

/// One rollout's directory while it runs.
#[derive(Debug)]
pub struct Record {
    pub(super) path: PathBuf,
    pub(super) marker_path: PathBuf,
    pub(super) owner: Option<String>,
    pub(super) index: Index,
    /// Locked for as long as the rollout runs.
    pub(super) _marker: File,
}

impl Record {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `None` if the process was killed before it wrote this, or in records of older versions.
    pub fn start(&self) -> Option<StartInfo> {
        StartInfo::read(&self.path)
    }

    pub fn exchanges(&self) -> PathBuf {
        self.path.join(EXCHANGES_FILE)
    }

    /// Writes the result and removes the running marker. This is the commit point, also for power loss: the exchanges
    /// are synced before the result that was made from them.
    pub fn commit(self, result: &RolloutResult) -> Result<(), StoreError> {
        let format = |source| StoreError::Format {
            path: self.path.join("result.json"),
            source,
        };
        let summary = Summary::of(result, self.owner.clone());
        let summary_text = serde_json::to_vec(&summary).map_err(format)?;
        let text = serde_json::to_vec(result).map_err(format)?;
        let synced = |path: &Path, done: io::Result<()>| {
            done.map_err(|source| StoreError::Write {
                path: path.to_owned(),
                source,
            })
        };
        let exchanges = self.exchanges();
        synced(&exchanges, sync_file(&exchanges))?;
        // What a cancelled rollout was still writing.
        remove_partial_files(&self.path);
        write_atomic(&self.path.join("summary.json"), &summary_text)?;
        write_atomic(&self.path.join("result.json"), &text)?;
        synced(&self.path, sync_directory(&self.path))?;
        let _ = fs::remove_file(&self.marker_path);
        // The record is complete without it: a list adds what is missing in the index.
        if let Err(error) = self.index.append([&summary]) {
            let error = rollcage_model::text::chain(&error);
            tracing::warn!(error, "the index over the records was not written");
        }
        Ok(())
    }
}
