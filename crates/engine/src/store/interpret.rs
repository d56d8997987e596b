//! Records read from disk. Whoever shows what was captured comes here: results, exports, servers, `rollcage show`.
//!
//! What a record says is [`interpret_record`]'s business; this finds the file and what else is known of its rollout.
//! Reading takes as long as the record is large, so a server calls these on a thread that may block.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::trace::{Facts, Interpretation, interpret_record};

use super::{EXCHANGES_FILE, Start, Store, StoreError};

/// Reads a file of exchanges; of one that is still written, no more than the `bytes_max` that are known to be whole. A
/// rollout that ended before its proxy opened has no file, and no calls.
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

/// The record that a result names, wherever it lies.
pub(crate) fn of_result(
    result: &RolloutResult,
    record: &Path,
) -> Result<Interpretation, StoreError> {
    let path = record.join(EXCHANGES_FILE);
    read_exchanges(&path, u64::MAX, &Facts::from(result))
}

impl Store {
    /// Everything that can be said of a rollout's calls so far, whether it has ended or not.
    pub fn interpret(&self, id: RolloutId) -> Result<Interpretation, StoreError> {
        self.interpret_with(id, &self.facts(id)?)
    }

    /// The same for a rollout whose result is at hand.
    pub fn interpret_result(&self, result: &RolloutResult) -> Result<Interpretation, StoreError> {
        of_result(result, &self.directory(result.rollout_id))
    }

    /// The same with other facts than the rollout's own.
    pub fn interpret_with(
        &self,
        id: RolloutId,
        facts: &Facts,
    ) -> Result<Interpretation, StoreError> {
        read_exchanges(&self.exchanges(id), u64::MAX, facts)
    }

    /// What bears on a rollout's calls beside their bytes: as its result says, or its start while it runs.
    pub fn facts(&self, id: RolloutId) -> Result<Facts, StoreError> {
        match self.result(id) {
            Ok(result) => Ok(Facts::from(&result)),
            Err(StoreError::Unfinished(_)) => {
                let start = Start::read(&self.directory(id)).unwrap_or_default();
                Ok(start.facts())
            }
            Err(error) => Err(error),
        }
    }

    /// Where a rollout's exchanges are.
    pub fn exchanges(&self, id: RolloutId) -> PathBuf {
        self.directory(id).join(EXCHANGES_FILE)
    }
}
