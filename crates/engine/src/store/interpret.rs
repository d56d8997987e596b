//! Reads records from disk: the one path for results, exports, servers and `rollcage show`.
//!
//! [`interpret_record`] interprets the bytes; this module finds the file and the facts about its rollout. The time
//! needed grows with the record, so a server calls these functions on a blocking thread.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::trace::{Facts, Interpretation, interpret_record};

use super::{EXCHANGES_FILE, StartInfo, Store, StoreError};

/// Reads a file of exchanges; if it is still being written, only the first `bytes_max` bytes, which are known to be
/// complete. A rollout that ended before its proxy opened has no file, and no calls.
pub fn read_exchanges(
    path: &Path,
    bytes_max: u64,
    facts: &Facts,
) -> Result<Interpretation, StoreError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(interpret_record(&bytes, facts)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(interpret_record(&[], facts)),
        Err(source) => Err(StoreError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Interprets the record of a result, at a path that the caller knows.
pub(crate) fn interpret_at(
    result: &RolloutResult,
    record: &Path,
) -> Result<Interpretation, StoreError> {
    let path = record.join(EXCHANGES_FILE);
    read_exchanges(&path, u64::MAX, &Facts::from(result))
}

impl Store {
    /// Interprets a rollout's calls so far, whether it has ended or not.
    pub fn interpret(&self, id: RolloutId) -> Result<Interpretation, StoreError> {
        self.interpret_with(id, &self.facts(id)?)
    }

    /// As [`Store::interpret`], for a result that is already loaded.
    pub fn interpret_result(&self, result: &RolloutResult) -> Result<Interpretation, StoreError> {
        interpret_at(result, &self.directory(result.rollout_id))
    }

    /// As [`Store::interpret`], with facts given by the caller.
    pub fn interpret_with(
        &self,
        id: RolloutId,
        facts: &Facts,
    ) -> Result<Interpretation, StoreError> {
        read_exchanges(&self.exchanges(id), u64::MAX, facts)
    }

    /// What is needed to interpret a rollout's calls beside their bytes: from its result, or from its start information
    /// while it runs.
    pub fn facts(&self, id: RolloutId) -> Result<Facts, StoreError> {
        match self.result(id) {
            Ok(result) => Ok(Facts::from(&result)),
            Err(StoreError::Unfinished(_)) => {
                let start = StartInfo::read(&self.directory(id)).unwrap_or_default();
                Ok(start.facts())
            }
            Err(error) => Err(error),
        }
    }

    /// The path of a rollout's exchanges.
    pub fn exchanges(&self, id: RolloutId) -> PathBuf {
        self.directory(id).join(EXCHANGES_FILE)
    }
}
