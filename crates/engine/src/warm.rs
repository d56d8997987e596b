//! Sandboxes in which an agent's server already stands ready, for the next served rollouts of the same kind.
//!
//! A server takes more than a second to start, most of it processor time. Whatever does not depend on the rollout is done in
//! advance: the sandbox, the server, its first session and first answer, after which it is as fast as it gets. That answer comes
//! from here, before there is a session on the proxy, so no model sees it and no record has it.
//!
//! A warm sandbox serves one rollout and is closed with it. It fits a rollout whose sandbox, files, variables, command, network
//! and model are the same ([`kind_of`]). How many are kept follows the demand ([`demand`]) and the machine's memory.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use rollcage_sandbox::Sandboxes;

use crate::intake::Catalogue;
use crate::limits::WarmLimits;
use crate::plan::Plan;

mod demand;
mod memory;
mod ready;

pub(crate) use ready::{WarmSandbox, kind_of};

use demand::Demand;

/// Between two looks at what is not needed any longer.
const SWEEP_PAUSE: Duration = Duration::from_secs(5);
/// After a failed start no other of its kind is tried for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// Each remembers a whole task, so that tasks which are all different must not be remembered without end.
const SHELVES_MAX: usize = 64;

/// No server stands ready for so long.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Counters since the process started, and what stands ready now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmCounters {
    pub ready: usize,
    pub starting: usize,
    /// Served rollouts that found a warm sandbox, and those that found none.
    pub hits: u64,
    pub misses: u64,
    /// Warm sandboxes that were closed without having been used.
    pub unused: u64,
    pub failed: u64,
}

/// The warm sandboxes of one process.
pub(crate) struct WarmAgents {
    pool: Arc<Pool>,
}

struct Pool {
    limits: WarmLimits,
    sandboxes: Arc<dyn Sandboxes>,
    catalogue: Arc<Catalogue>,
    /// Where servers log until a rollout takes them.
    logs: PathBuf,
    state: Mutex<State>,
    /// Rollouts that wait for a slot.
    waiting: AtomicUsize,
    tasks: TaskTracker,
    closing: CancellationToken,
}

#[derive(Default)]
struct State {
    shelves: HashMap<String, Shelf>,
    counters: WarmCounters,
    is_swept: bool,
}

/// The warm sandboxes of one kind.
struct Shelf {
    plan: Arc<Plan>,
    context_tokens: Option<u64>,
    demand: Demand,
    /// The oldest first.
    ready: VecDeque<WarmSandbox>,
    starting: usize,
    not_before: Option<Instant>,
}

impl State {
    fn count(&self) -> usize {
        let shelves = self.shelves.values();
        shelves
            .map(|shelf| shelf.ready.len() + shelf.starting)
            .sum()
    }

    /// Forgets the empty shelf that nobody has asked for the longest, where a new one would be too many.
    fn make_room(&mut self, kind: &str) {
        if self.shelves.contains_key(kind) || self.shelves.len() < SHELVES_MAX {
            return;
        }
        let empty = self.shelves.iter();
        let empty = empty.filter(|(_, shelf)| shelf.ready.is_empty() && shelf.starting == 0);
        let oldest = empty.min_by_key(|(_, shelf)| shelf.demand.last());
        if let Some(oldest) = oldest.map(|(kind, _)| kind.clone()) {
            self.shelves.remove(&oldest);
        }
    }
}

impl WarmAgents {
    pub(crate) fn new(
        limits: WarmLimits,
        sandboxes: Arc<dyn Sandboxes>,
        catalogue: Arc<Catalogue>,
        logs: PathBuf,
    ) -> Self {
        remove_stale(&logs);
        let pool = Pool {
            limits,
            sandboxes,
            catalogue,
            logs,
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        };
        WarmAgents {
            pool: Arc::new(pool),
        }
    }

    /// Notes how many rollouts wait for a slot.
    pub(crate) fn set_waiting(&self, waiting: usize) {
        self.pool.waiting.store(waiting, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> WarmCounters {
        let state = self.pool.state();
        let shelves = || state.shelves.values();
        WarmCounters {
            ready: shelves().map(|shelf| shelf.ready.len()).sum(),
            starting: shelves().map(|shelf| shelf.starting).sum(),
            ..state.counters
        }
    }

    /// A sandbox in which the agent of this rollout stands ready, if there is one. Others are started for the next ones.
    pub(crate) fn take(
        &self,
        plan: &Arc<Plan>,
        context_tokens: Option<u64>,
    ) -> Option<WarmSandbox> {
        let pool = &self.pool;
        if pool.limits.count_max == 0 || pool.closing.is_cancelled() {
            return None;
        }
        let kind = kind_of(plan, context_tokens, &pool.catalogue.network)?;
        let (taken, dead) = {
            let mut state = pool.state();
            state.make_room(&kind);
            let shelf = state.shelves.entry(kind.clone()).or_insert_with(|| Shelf {
                plan: Arc::clone(plan),
                context_tokens,
                demand: Demand::default(),
                ready: VecDeque::new(),
                starting: 0,
                not_before: None,
            });
            shelf.demand.note(Instant::now());
            let mut dead = Vec::new();
            let mut taken = None;
            while let Some(warm) = shelf.ready.pop_front() {
                if warm.is_alive() {
                    taken = Some(warm);
                    break;
                }
                dead.push(warm);
            }
            match taken {
                Some(_) => state.counters.hits += 1,
                None => state.counters.misses += 1,
            }
            (taken, dead)
        };
        pool.discard(dead);
        pool.refill(&kind);
        taken
    }

    /// Ends them all. Call it before the sandboxes are shut down.
    pub(crate) async fn close(&self) {
        let pool = &self.pool;
        pool.closing.cancel();
        pool.tasks.close();
        pool.tasks.wait().await;
        let shelves = std::mem::take(&mut pool.state().shelves);
        let ready = shelves.into_values().flat_map(|shelf| shelf.ready);
        futures::future::join_all(ready.map(WarmSandbox::close)).await;
    }
}

/// Removes the logs of servers whose process was killed before it could do so.
fn remove_stale(logs: &Path) {
    for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > STALE) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts as many as the demand for this kind asks for and the limits allow.
    fn refill(self: &Arc<Self>, kind: &str) {
        let (waiting, now) = (self.waiting.load(Ordering::Relaxed), Instant::now());
        let mut state = self.state();
        loop {
            let total = state.count();
            let Some(shelf) = state.shelves.get_mut(kind) else {
                return;
            };
            let wanted = shelf.demand.wanted(now, waiting, &self.limits);
            let is_paused = shelf.not_before.is_some_and(|until| until > now);
            let has_enough = shelf.ready.len() + shelf.starting >= wanted;
            if has_enough || is_paused || total >= self.limits.count_max {
                break;
            }
            if !memory::has_room(total) {
                tracing::debug!("no memory for another warm agent");
                break;
            }
            shelf.starting += 1;
            self.tasks.spawn(Arc::clone(self).add(kind.to_owned()));
        }
        if !state.is_swept {
            state.is_swept = true;
            self.tasks.spawn(Arc::clone(self).sweep());
        }
    }

    /// Starts one and puts it on its shelf.
    async fn add(self: Arc<Self>, kind: String) {
        let shelved = {
            let state = self.state();
            let shelf = state.shelves.get(&kind);
            shelf.map(|shelf| (Arc::clone(&shelf.plan), shelf.context_tokens))
        };
        let Some((plan, context_tokens)) = shelved else {
            return;
        };
        let host = &self.catalogue.network;
        let start = WarmSandbox::start(&plan, context_tokens, host, &*self.sandboxes, &self.logs);
        // Dropping it ends what has been started so far.
        let started = self.closing.run_until_cancelled(Box::pin(start)).await;
        let mut state = self.state();
        let failed = matches!(started, Some(Err(_)));
        state.counters.failed += u64::from(failed);
        let Some(shelf) = state.shelves.get_mut(&kind) else {
            return;
        };
        shelf.starting -= 1;
        match started {
            Some(Ok(warm)) => shelf.ready.push_back(warm),
            Some(Err(why)) => {
                tracing::warn!(why, "a warm agent did not start");
                shelf.not_before = Some(Instant::now() + FAILURE_PAUSE);
            }
            None => {}
        }
    }

    /// Closes what nobody asks for any longer, until nothing is left.
    async fn sweep(self: Arc<Self>) {
        loop {
            let pause = tokio::time::sleep(SWEEP_PAUSE);
            if self.closing.run_until_cancelled(pause).await.is_none() {
                return;
            }
            let is_short = !memory::has_room(0);
            let mut unneeded = Vec::new();
            {
                let mut state = self.state();
                let now = Instant::now();
                for shelf in state.shelves.values_mut() {
                    let wanted = match is_short {
                        true => 0,
                        false => {
                            let waiting = self.waiting.load(Ordering::Relaxed);
                            shelf.demand.wanted(now, waiting, &self.limits)
                        }
                    };
                    let excess = shelf.ready.len().saturating_sub(wanted);
                    unneeded.extend(shelf.ready.drain(..excess));
                }
                state.counters.unused += unneeded.len() as u64;
                let is_used = |shelf: &Shelf| {
                    !shelf.ready.is_empty()
                        || shelf.starting > 0
                        || shelf.demand.wanted(now, 0, &self.limits) > 0
                };
                state.shelves.retain(|_, shelf| is_used(shelf));
                state.is_swept = !state.shelves.is_empty();
                if !state.is_swept && unneeded.is_empty() {
                    return;
                }
            }
            futures::future::join_all(unneeded.into_iter().map(WarmSandbox::close)).await;
            if !self.state().is_swept {
                return;
            }
        }
    }

    fn discard(self: &Arc<Self>, dead: Vec<WarmSandbox>) {
        for warm in dead {
            self.tasks.spawn(warm.close());
        }
    }
}
