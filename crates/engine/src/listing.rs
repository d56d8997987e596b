//! Summaries of all records, read from disk once. A record never changes after its end, so what was read stays true.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rollcage_model::ending::Ended;
use rollcage_model::id::RolloutId;

use crate::dispatch::Entry;
use crate::store::{Store, StoreError, Summary};

/// Which rollouts are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub task: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub ended: Option<EndedFilter>,
    /// Unix seconds; started at or after.
    pub since: Option<f64>,
    /// Only those older than this one.
    pub before: Option<RolloutId>,
    pub limit: usize,
}

/// What a rollout's end is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedFilter {
    /// Has not ended.
    Not,
    As(Ended),
}

/// Some of the rollouts that were wanted.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The newest first.
    pub rollouts: Vec<Summary>,
    /// Where the next page goes on; `None` on the last.
    pub next: Option<RolloutId>,
}

pub(crate) struct Listing {
    store: Store,
    /// Ended rollouts that were read.
    read: Mutex<HashMap<RolloutId, Arc<Summary>>>,
}

impl Listing {
    pub(crate) fn new(store: Store) -> Self {
        Listing {
            store,
            read: Mutex::default(),
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
        self.read().remove(&id);
        self.store.remove(id)
    }

    pub(crate) fn list(
        &self,
        owner: &str,
        known: &[Arc<Entry>],
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
                // An ended one's result may have left the memory.
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
        if let Some(summary) = self.read().get(&id) {
            return Arc::clone(summary);
        }
        let summary = Arc::new(self.store.summary(id));
        if summary.ended.is_some() {
            self.read().insert(id, Arc::clone(&summary));
        }
        summary
    }

    /// Records may be removed by other processes too.
    fn drop_removed(&self, ids: &[RolloutId]) {
        let mut read = self.read();
        if read.len() > ids.len() {
            let there: std::collections::HashSet<_> = ids.iter().collect();
            read.retain(|id, _| there.contains(id));
        }
    }

    fn read(&self) -> std::sync::MutexGuard<'_, HashMap<RolloutId, Arc<Summary>>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A summary of a rollout that this process knows.
fn summary_of(entry: &Entry) -> Summary {
    if let Some(result) = entry.result() {
        return Summary {
            owner: entry.owner.clone(),
            ..Summary::from(&*result)
        };
    }
    let standing = entry.feed.standing();
    let now = standing
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
        calls: standing.calls,
        wall_s: standing.started_at.map_or(0.0, |started| now - started),
        started_at: standing.started_at.unwrap_or(entry.queued_at),
        owner: entry.owner.clone(),
    }
}
