//! Tells which rollouts ended, also those of other processes: by what is appended to the index.

use rollcage_model::browse::rollout::RolloutRow;

use super::is_visible;
use crate::store::{Index, Position, Store, StoreError};

/// One reader of the index, from its end on.
#[derive(Debug)]
pub struct IndexTail {
    store: Store,
    index: Index,
    position: Position,
}

impl IndexTail {
    pub(crate) fn new(store: &Store) -> Self {
        let index = store.index();
        IndexTail {
            position: index.end(),
            index,
            store: store.clone(),
        }
    }

    /// The rollouts that ended since the last time and are still there, as far as the owner may see them. `None` when the
    /// index was written anew, so that it cannot be told which ones are new. Reads from disk.
    pub fn read(&mut self, owner: &str) -> Result<Option<Vec<RolloutRow>>, StoreError> {
        let end = self.index.end();
        if end == self.position {
            return Ok(Some(Vec::new()));
        }
        if end.is_elsewhere(self.position) {
            // There may be many lines, and nothing is told of them.
            self.position = end;
            return Ok(None);
        }
        let appended = self.index.read_on(&mut self.position)?;
        let rows = appended
            .summaries
            .into_iter()
            .filter(|summary| is_visible(summary, owner))
            // The index keeps the lines of deleted rollouts.
            .filter(|summary| self.store.directory(summary.row.rollout_id).is_dir())
            .map(|summary| summary.row);
        Ok((!appended.is_new).then(|| rows.collect()))
    }
}
