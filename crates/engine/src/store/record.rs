//! One rollout's record while it is being written, and its commit.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rollcage_model::record::RolloutResult;

use super::disk::{remove_partial_files, sync_directory, sync_file, write_atomic};
use super::{EXCHANGES_FILE, Index, StoreError, Summary};

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
