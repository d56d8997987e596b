//! Lists rollouts from memory and from disk. Which ones are on disk is told by the directory of records, and what they are
//! by the index, which is read once and then as far as it has grown.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rollcage_model::browse::rollout::{RolloutRow, Status, Verdict};
use rollcage_model::id::RolloutId;

use crate::dispatch::RolloutEntry;
use crate::store::{Index, Position, Store, StoreError, Summary};

mod facets;
mod figures;
mod filter;
mod tail;

pub use filter::{EndedFilter, Filter, Order, Place, SortKey, Window};
pub use tail::IndexTail;

pub(crate) use facets::facets;
pub(crate) use figures::figures;
pub(crate) use filter::page;

/// The owner of all rollouts when clients are not distinguished.
pub const LOCAL: &str = "local";
/// The index is written anew when so many of its lines, and half of all, are of no use.
const STALE_LINES_MAX: usize = 1000;

pub(crate) struct Listing {
    store: Store,
    index: Index,
    state: Mutex<ListingState>,
}

/// What was read of the index.
#[derive(Default)]
struct ListingState {
    /// Of ended rollouts; they never change.
    summaries: HashMap<RolloutId, Arc<Summary>>,
    position: Position,
    /// Of the file as it is now.
    lines: usize,
}

impl Listing {
    pub(crate) fn new(store: Store) -> Self {
        Listing {
            index: store.index(),
            store,
            state: Mutex::default(),
        }
    }

    /// `None` when there is no such record.
    pub(crate) fn get(&self, id: RolloutId) -> Option<Summary> {
        if !self.store.directory(id).is_dir() {
            return None;
        }
        // While a list reads many records, one of them is read here rather than waited for.
        let known = self.try_state();
        let known = known.and_then(|state| state.summaries.get(&id).cloned());
        match known {
            Some(summary) => Some((*summary).clone()),
            None => self.store.summary(id),
        }
    }

    pub(crate) fn remove(&self, id: RolloutId) -> Result<(), StoreError> {
        // What stays is dropped by a later list, and shown by none: which rollouts there are is told by the directory.
        if let Some(mut state) = self.try_state() {
            state.summaries.remove(&id);
        }
        self.store.remove(id)
    }

    /// All rollouts that the owner may see, the newest first.
    pub(crate) fn visible(
        &self,
        owner: &str,
        known: &[Arc<RolloutEntry>],
    ) -> Result<Vec<Arc<Summary>>, StoreError> {
        let known: HashMap<_, _> = known.iter().map(|entry| (entry.id, entry)).collect();
        let mut ids = self.store.ids()?;
        let mut state = self.state();
        state.read_on(&self.index);
        state.drop_removed(&ids);
        ids.extend(known.keys());
        ids.sort_unstable_by_key(|id| Reverse(*id));
        ids.dedup();
        let mut missing = Vec::new();
        let mut visible = Vec::with_capacity(ids.len());
        for id in ids {
            let in_memory = known.get(&id).and_then(|entry| summary_of(entry));
            let summary = match (in_memory, state.summaries.get(&id)) {
                (Some(summary), _) => Arc::new(summary),
                (None, Some(summary)) => Arc::clone(summary),
                (None, None) => {
                    // Another process may have removed it just now.
                    let Some(summary) = self.store.summary(id) else {
                        continue;
                    };
                    let summary = Arc::new(summary);
                    if summary.is_ended() && self.store.is_committed(id) {
                        missing.push(Arc::clone(&summary));
                    }
                    summary
                }
            };
            if is_visible(&summary, owner) {
                visible.push(summary);
            }
        }
        state.add(&self.index, missing);
        Ok(visible)
    }

    /// A rollout in memory; `None` when it was deleted meanwhile.
    pub(crate) fn row(&self, entry: &RolloutEntry) -> Option<RolloutRow> {
        let summary = summary_of(entry).or_else(|| self.get(entry.id));
        summary.map(|summary| summary.row)
    }

    /// Waits while a list is made.
    fn state(&self) -> MutexGuard<'_, ListingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while a list is made.
    fn try_state(&self) -> Option<MutexGuard<'_, ListingState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl ListingState {
    fn read_on(&mut self, index: &Index) {
        match index.read_on(&mut self.position) {
            Ok(appended) => {
                if appended.is_new {
                    self.lines = 0;
                }
                self.lines += appended.lines;
                self.keep(appended.summaries.into_iter().map(Arc::new));
            }
            // Records can be read without it.
            Err(error) => warn(&error),
        }
    }

    fn keep(&mut self, summaries: impl IntoIterator<Item = Arc<Summary>>) {
        let by_id = |summary: Arc<Summary>| (summary.row.rollout_id, summary);
        self.summaries.extend(summaries.into_iter().map(by_id));
    }

    /// Drops summaries of records that are gone: other processes may remove records too.
    fn drop_removed(&mut self, ids: &[RolloutId]) {
        if self.summaries.len() > ids.len() {
            let there: HashSet<_> = ids.iter().collect();
            self.summaries.retain(|id, _| there.contains(id));
        }
    }

    /// Adds what the index lacks. It is written anew where most of it was missing or is of no use.
    fn add(&mut self, index: &Index, missing: Vec<Arc<Summary>>) {
        let count = missing.len();
        self.keep(missing.iter().cloned());
        let total = self.summaries.len();
        let stale = (self.lines + count).saturating_sub(total);
        let is_stale = stale > STALE_LINES_MAX && stale > total;
        let written = if is_stale || count > total / 2 {
            self.lines = total;
            let all = self.summaries.values().map(|summary| &**summary);
            index.replace(all, &mut self.position)
        } else if count > 0 {
            index.append(missing.iter().map(|summary| &**summary))
        } else {
            Ok(())
        };
        if let Err(error) = written {
            warn(&error);
        }
    }
}

fn warn(error: &StoreError) {
    let error = rollcage_model::text::chain(error);
    tracing::warn!(error, "the index over the records cannot be used");
}

pub(crate) fn is_visible(summary: &Summary, owner: &str) -> bool {
    summary.owner.as_deref().is_none_or(|own| own == owner)
}

/// The summary of a rollout in memory; `None` of one that has ended and whose result is on disk only.
fn summary_of(entry: &RolloutEntry) -> Option<Summary> {
    // Asked first: a rollout that ends now has its result before it counts as ended, and may lose it soon after.
    let is_ended = entry.is_ended();
    match entry.result() {
        Some(result) => Some(Summary::of(&result, entry.owner.clone())),
        None if is_ended => None,
        None => Some(Summary {
            row: entry.row(),
            owner: entry.owner.clone(),
        }),
    }
}

impl RolloutEntry {
    /// As lists show it while it has not ended.
    pub fn row(&self) -> RolloutRow {
        let status = self.feed.status();
        let now = status
            .finished_at
            .unwrap_or_else(rollcage_proxy::clock::now);
        RolloutRow {
            rollout_id: self.id,
            status: match status.phase {
                None => Status::Queued,
                Some(_) => Status::Running,
            },
            phase: status.phase,
            ended: None,
            verdict: Verdict::Open,
            reward: None,
            reward_valid: false,
            task_id: self.task_id.clone(),
            group: self.group.clone(),
            labels: self.labels.clone(),
            agent: self.agent.clone(),
            driver: self.driver,
            model: self.endpoint.model.clone(),
            endpoint: self.endpoint.kind.clone(),
            calls: status.calls,
            prompt_tokens: status.prompt_tokens,
            completion_tokens: status.completion_tokens,
            trainable_tokens: 0,
            cost_usd: status.spent_usd,
            wall_s: status.started_at.map_or(0.0, |started| now - started),
            started_at: status.started_at.unwrap_or(self.queued_at),
            error: None,
            rollout_type: None,
            capture_level: None,
            idle: status.idle_at.is_some(),
        }
    }
}

#[cfg(test)]
mod tests;
