//! What stands beside a result in its record, for readers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use rollcage_model::id::RolloutId;
use rollcage_model::network::Attempt;

use super::disk::write_unsynced;
use super::{NETWORK_FILE, Store, StoreError};

const START_FILES_FILE: &str = "files_start.json";

/// What setup left in the work directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFiles {
    /// Texts by absolute path.
    pub files: BTreeMap<String, String>,
    /// The paths of files that are not text or too large.
    pub files_extra: Vec<String>,
    /// There was more in the directory than was looked at, so a file that is missing here may have been there.
    #[serde(default)]
    pub is_cut: bool,
}

impl StartFiles {
    pub(crate) fn write(&self, record: &Path) -> Result<(), StoreError> {
        let path = record.join(START_FILES_FILE);
        match serde_json::to_vec(self) {
            Ok(text) => write_unsynced(&path, &text),
            Err(source) => Err(StoreError::Format { path, source }),
        }
    }
}

impl Store {
    /// `None` in records of older versions, and where setup failed or has not ended.
    pub fn start_files(&self, id: RolloutId) -> Result<Option<StartFiles>, StoreError> {
        let path = self.directory(id).join(START_FILES_FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::Read { path, source }),
        };
        let read = serde_json::from_slice(&text);
        read.map_err(|source| StoreError::Format { path, source })
    }

    /// What a rollout tried to reach, in order. It is written when the rollout's network is closed.
    pub fn network(&self, id: RolloutId) -> Result<Vec<Attempt>, StoreError> {
        let path = self.directory(id).join(NETWORK_FILE);
        let unreadable = |source| StoreError::Read {
            path: path.clone(),
            source,
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(unreadable(source)),
        };
        let mut attempts = Vec::new();
        for line in BufReader::new(file).split(b'\n') {
            // The last line is torn where our process was killed.
            attempts.extend(serde_json::from_slice(&line.map_err(unreadable)?).ok());
        }
        Ok(attempts)
    }
}
