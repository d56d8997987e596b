//! Lists rollouts from memory and from disk. Summaries of ended rollouts never change, so each is read from disk once.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rollcage_model::ending::Ended;
use rollcage_model::id::RolloutId;

use crate::dispatch::RolloutEntry;
use crate::store::{Store, StoreError, Summary};

/// The owner of all rollouts when clients are not distinguished.
pub const LOCAL: &str = "local";

/// Which rollouts to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub task: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub ended: Option<EndedFilter>,
    /// Unix seconds; started at or after.
    pub since: Option<f64>,
    /// Only rollouts older than this one.
    pub before: Option<RolloutId>,
    pub limit: usize,
}

/// A condition on a rollout's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedFilter {
    /// Has not ended.
    Not,
    As(Ended),
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The newest first.
    pub rollouts: Vec<Summary>,
    /// Pass this as [`Filter::before`] for the next page; `None` on the last page.
    pub next: Option<RolloutId>,
}

pub(crate) struct Listing {
    store: Store,
    /// A cache of the summaries of ended rollouts.
    cache: Mutex<HashMap<RolloutId, Arc<Summary>>>,
}

impl Listing {
    pub(crate) fn new(store: Store) -> Self {
        Listing {
            store,
            cache: Mutex::default(),
        }
    }

    /// `None` when there is no such record.
    pub(crate) fn get(&self, id: RolloutId) -> Option<Summary> {
        self.store
            .directory(id)
            .is_dir()
            .then(|| (*self.summary(id)).clone())
    }

    pub(crate) fn remove(&self, id: RolloutId) -> Result<(), StoreError> {
        self.cache().remove(&id);
        self.store.remove(id)
    }

    pub(crate) fn list(
        &self,
        owner: &str,
        known: &[Arc<RolloutEntry>],
        filter: &Filter,
    ) -> Result<Page, StoreError> {
        let known: HashMap<_, _> = known.iter().map(|entry| (entry.id, entry)).collect();
        let mut ids = self.store.ids()?;
        self.drop_removed(&ids);
        ids.extend(known.keys());
        ids.sort_unstable_by_key(|id| Reverse(*id));
        ids.dedup();
        let mut page = Page::default();
        for id in ids {
            if filter.before.is_some_and(|before| id >= before) {
                continue;
            }
            let summary = match known.get(&id) {
                Some(entry) if !entry.is_ended() || entry.result().is_some() => {
                    Arc::new(summary_of(entry))
                }
                // The result of an ended rollout may have been evicted from memory.
                _ => self.summary(id),
            };
            if !is_visible(&summary, owner) || !filter.matches(&summary) {
                continue;
            }
            if page.rollouts.len() == filter.limit {
                page.next = page.rollouts.last().map(|summary| summary.rollout_id);
                break;
            }
            page.rollouts.push((*summary).clone());
        }
        Ok(page)
    }

    fn summary(&self, id: RolloutId) -> Arc<Summary> {
        if let Some(summary) = self.cache().get(&id) {
            return Arc::clone(summary);
        }
        let summary = Arc::new(self.store.summary(id));
        if summary.ended.is_some() {
            self.cache().insert(id, Arc::clone(&summary));
        }
        summary
    }

    /// Drops cached summaries of records that are gone: other processes may remove records too.
    fn drop_removed(&self, ids: &[RolloutId]) {
        let mut cache = self.cache();
        if cache.len() > ids.len() {
            let there: std::collections::HashSet<_> = ids.iter().collect();
            cache.retain(|id, _| there.contains(id));
        }
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, HashMap<RolloutId, Arc<Summary>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filter {
    fn matches(&self, summary: &Summary) -> bool {
        let is_same = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        let has_ended = match self.ended {
            None => true,
            Some(EndedFilter::Not) => summary.ended.is_none(),
            Some(EndedFilter::As(ended)) => summary.ended == Some(ended),
        };
        has_ended
            && is_same(&self.task, &summary.task_id)
            && is_same(&self.agent, &summary.agent)
            && is_same(&self.model, &summary.model)
            && self.since.is_none_or(|since| summary.started_at >= since)
    }
}

pub(crate) fn is_visible(summary: &Summary, owner: &str) -> bool {
    summary.owner.as_deref().is_none_or(|own| own == owner)
}

/// The summary of a rollout in memory.
fn summary_of(entry: &RolloutEntry) -> Summary {
    if let Some(result) = entry.result() {
        return Summary {
            owner: entry.owner.clone(),
            ..Summary::from(&*result)
        };
    }
    let status = entry.feed.status();
    let now = status
        .finished_at
        .unwrap_or_else(rollcage_proxy::clock::now);
    Summary {
        rollout_id: entry.id,
        task_id: entry.task_id.clone(),
        group: entry.group.clone(),
        agent: entry.agent.clone(),
        model: entry.endpoint.model.clone(),
        ended: None,
        reward: None,
        calls: status.calls,
        wall_s: status.started_at.map_or(0.0, |started| now - started),
        started_at: status.started_at.unwrap_or(entry.queued_at),
        owner: entry.owner.clone(),
    }
}
