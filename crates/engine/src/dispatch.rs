//! Runs many rollouts side by side: a queue, slots, cancellation, and a result for each, whatever breaks.
//!
//! Only this file changes where a rollout stands in the queue. Everything else reads it.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Event, Phase, What};
use rollcage_model::id::RolloutId;
use rollcage_model::record::{EndpointInfo, RolloutResult};

use crate::aborted::{Keeping, Stops};
use crate::feed::Feed;
use crate::job::Job;
use crate::judge::Ending;
use crate::limits::Limits;
use crate::result;
use crate::rollout::{self, Context};
use crate::tally::Tally;

/// Ended rollouts whose events stay in memory.
const ENDED_MAX: usize = 1000;
/// Events of ended rollouts that stay in memory, over all of them.
const ENDED_EVENTS_MAX: usize = 100_000;
/// Ended rollouts whose whole results stay in memory; a result can be megabytes, and the others are on disk.
const RESULTS_MAX: usize = 16;

/// Why a rollout was not taken on.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError {
    #[error("the queue is full ({waiting} rollouts wait, {max} may): try again later")]
    Full { waiting: usize, max: usize },
    #[error("the server is shutting down")]
    Closed,
}

/// A rollout that was taken on, until it is forgotten.
#[derive(Debug)]
pub struct Entry {
    pub id: RolloutId,
    pub owner: String,
    pub task_id: String,
    /// The same for all that were taken on together.
    pub group: String,
    pub agent: String,
    pub endpoint: EndpointInfo,
    /// Unix seconds.
    pub queued_at: f64,
    pub feed: Arc<Feed>,
    stops: Stops,
    result: Mutex<Option<Arc<RolloutResult>>>,
}

impl Entry {
    pub fn is_ended(&self) -> bool {
        self.feed.is_finished()
    }

    /// Whether it was aborted, and its sandbox kept for the grade.
    pub fn is_kept(&self) -> bool {
        self.stops.is_kept()
    }

    /// Says that somebody waits for the result: once the agent is over, also by an abort, it is graded at once.
    pub fn want(&self) {
        self.stops.want();
    }

    /// The result, while it is still in memory.
    pub fn result(&self) -> Option<Arc<RolloutResult>> {
        self.kept().clone()
    }

    pub async fn wait(&self) {
        self.feed.finished().await;
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<RolloutResult>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rollout in the queue.
struct Waiting {
    entry: Arc<Entry>,
    job: Job,
}

#[derive(Default)]
struct Board {
    is_closed: bool,
    entries: HashMap<RolloutId, Arc<Entry>>,
    queue: VecDeque<Waiting>,
    running: usize,
    running_of: HashMap<String, usize>,
    /// The oldest first.
    ended: VecDeque<Arc<Entry>>,
    ended_events: usize,
}

impl Board {
    /// The first in the queue whose owner has a slot left.
    fn next(&mut self, limits: &Limits) -> Option<Waiting> {
        if self.running >= limits.slots.max(1) {
            return None;
        }
        let owner_slots = limits.owner_slots.max(1);
        let held = |owner: &str| self.running_of.get(owner).copied().unwrap_or_default();
        let index = self
            .queue
            .iter()
            .position(|waiting| held(&waiting.entry.owner) < owner_slots)?;
        let waiting = self.queue.remove(index)?;
        self.running += 1;
        *self
            .running_of
            .entry(waiting.entry.owner.clone())
            .or_default() += 1;
        Some(waiting)
    }

    fn give_back(&mut self, owner: &str) {
        self.running -= 1;
        if let Some(held) = self.running_of.get_mut(owner) {
            *held -= 1;
            if *held == 0 {
                self.running_of.remove(owner);
            }
        }
    }

    /// Keeps an ended rollout, and forgets the oldest of those beyond what may be kept.
    fn keep(&mut self, entry: Arc<Entry>) {
        self.ended_events += entry.feed.len();
        self.ended.push_back(entry);
        while self.ended.len() > ENDED_MAX || self.ended_events > ENDED_EVENTS_MAX {
            let Some(oldest) = self.ended.pop_front() else {
                break;
            };
            self.ended_events -= oldest.feed.len();
            self.entries.remove(&oldest.id);
        }
        let stale = self.ended.len().checked_sub(RESULTS_MAX + 1);
        if let Some(entry) = stale.and_then(|index| self.ended.get(index)) {
            let mut kept = entry.kept();
            // A result that could not be written is nowhere else.
            kept.take_if(|result| !result.record.is_empty());
        }
    }
}

/// Takes jobs on and gives each a slot when it has one.
pub(crate) struct Dispatcher {
    cx: Arc<Context>,
    limits: Limits,
    board: Mutex<Board>,
    tasks: TaskTracker,
    /// Ends every rollout; each has a token below it.
    stop: CancellationToken,
    keeping: Keeping,
    pub(crate) tally: Arc<Tally>,
    listener: Option<mpsc::UnboundedSender<Event>>,
}

/// A slot, or none for a rollout that is ended without having run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Held,
    None,
}

impl Dispatcher {
    pub(crate) fn new(
        cx: Arc<Context>,
        limits: Limits,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Arc<Self> {
        Arc::new(Dispatcher {
            cx,
            keeping: Keeping::new(limits.keep_aborted, limits.slots.max(1)),
            limits,
            board: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            tally: Arc::default(),
            listener,
        })
    }

    /// Takes all of the jobs on, or none.
    pub(crate) fn submit(
        self: &Arc<Self>,
        owner: &str,
        jobs: Vec<Job>,
    ) -> Result<Vec<Arc<Entry>>, SubmitError> {
        let mut board = self.board();
        if board.is_closed {
            return Err(SubmitError::Closed);
        }
        let free = self.limits.slots.saturating_sub(board.running);
        let room = self.limits.queue_max.saturating_add(free);
        if board.queue.len() + jobs.len() > room {
            return Err(SubmitError::Full {
                waiting: board.queue.len(),
                max: self.limits.queue_max,
            });
        }
        let mut entries = Vec::new();
        for job in jobs {
            let entry = self.entry(owner, &job);
            entry.feed.tell(What::Queued);
            board.entries.insert(entry.id, Arc::clone(&entry));
            entries.push(Arc::clone(&entry));
            board.queue.push_back(Waiting { entry, job });
        }
        self.fill_slots(&mut board);
        Ok(entries)
    }

    fn entry(&self, owner: &str, job: &Job) -> Arc<Entry> {
        let id = RolloutId::generate();
        let feed = Feed::new(id, Arc::clone(&self.tally), self.listener.clone());
        Arc::new(Entry {
            id,
            owner: owner.to_owned(),
            task_id: job.task.id.clone(),
            group: job.group.clone(),
            agent: job.agent.name.clone(),
            endpoint: job.endpoint.clone(),
            queued_at: rollcage_proxy::clock::now(),
            feed: Arc::new(feed),
            stops: Stops::new(self.stop.child_token(), self.keeping.clone()),
            result: Mutex::default(),
        })
    }

    pub(crate) fn find(&self, id: RolloutId) -> Option<Arc<Entry>> {
        self.board().entries.get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.board().entries.values().cloned().collect()
    }

    /// Rollouts that run and that wait.
    pub(crate) fn load(&self) -> (usize, usize) {
        let board = self.board();
        (board.running, board.queue.len())
    }

    pub(crate) fn forget(&self, id: RolloutId) {
        let mut board = self.board();
        if let Some(index) = board.ended.iter().position(|entry| entry.id == id) {
            board.entries.remove(&id);
            if let Some(entry) = board.ended.remove(index) {
                board.ended_events -= entry.feed.len();
            }
        }
    }

    /// Ends a rollout, also one that waits: it gets its result at once, without a slot.
    pub(crate) fn cancel(self: &Arc<Self>, entry: &Entry) {
        entry.stops.cancel.cancel();
        let mut board = self.board();
        let index = board
            .queue
            .iter()
            .position(|waiting| waiting.entry.id == entry.id);
        if let Some(waiting) = index.and_then(|index| board.queue.remove(index)) {
            self.start(waiting, Slot::None);
        }
    }

    /// Ends a rollout's agent and keeps its sandbox for who wants the grade. Where there is no agent yet, or it is being
    /// graded, that is the end of the rollout. False when it is over, or was aborted before.
    pub(crate) fn abort(self: &Arc<Self>, entry: &Entry) -> bool {
        if entry.is_ended() || entry.stops.abort.is_cancelled() {
            return false;
        }
        match entry.feed.standing().phase {
            Some(Phase::Agent) => entry.stops.abort.cancel(),
            _ => self.cancel(entry),
        }
        true
    }

    pub(crate) fn cancel_all(self: &Arc<Self>) {
        for entry in self.all() {
            self.cancel(&entry);
        }
    }

    /// Ends everything, in phases: nothing new, no waiting, time for what runs, then the end of it. Returns when every
    /// rollout has its result.
    pub(crate) async fn shut_down(self: &Arc<Self>, grace: Duration) {
        // 1. Nothing new is taken on, and nothing is kept for later.
        self.board().is_closed = true;
        self.keeping.close();
        self.tasks.close();
        // 2. What waits ends without having run.
        let waiting: Vec<_> = {
            let board = self.board();
            board
                .queue
                .iter()
                .map(|waiting| Arc::clone(&waiting.entry))
                .collect()
        };
        for entry in waiting {
            self.cancel(&entry);
        }
        // 3. What runs may come to its own end.
        if tokio::time::timeout(grace, self.tasks.wait())
            .await
            .is_err()
        {
            // 4. What still runs is ended. Each step of that has its own limit, so this wait has an end.
            self.cancel_all();
            self.tasks.wait().await;
        }
    }

    fn fill_slots(self: &Arc<Self>, board: &mut Board) {
        while let Some(waiting) = board.next(&self.limits) {
            self.start(waiting, Slot::Held);
        }
    }

    fn start(self: &Arc<Self>, waiting: Waiting, slot: Slot) {
        let this = Arc::clone(self);
        let Waiting { entry, job } = waiting;
        let span = tracing::info_span!("rollout", id = %entry.id);
        self.tasks.spawn(
            async move {
                let (result, slot) = this.run(&entry, job, slot).await;
                this.finish(&entry, result, slot);
            }
            .instrument(span),
        );
    }

    /// A panic is our fault, but still one result. Also says whether the slot is still to be given back.
    async fn run(
        self: &Arc<Self>,
        entry: &Entry,
        job: Job,
        mut slot: Slot,
    ) -> (RolloutResult, Slot) {
        let begun = result::begin(entry.id, &job);
        let started = Instant::now();
        let run = rollout::run(&self.cx, job, &entry.feed, &entry.stops);
        let mut run = Box::pin(AssertUnwindSafe(run).catch_unwind());
        let ran = tokio::select! {
            biased;
            ran = &mut run => ran,
            () = entry.stops.kept() => {
                let held = std::mem::replace(&mut slot, Slot::None);
                self.release(&entry.owner, held, &mut self.board());
                run.await
            }
        };
        let result = match ran {
            Ok(result) => result,
            Err(panic) => {
                let said = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                let text = format!("the engine panicked: {said}");
                let ending = Ending::new(Cause::EngineFailed, text);
                self.commit_broken(entry.id, result::finish(begun, ending, started))
            }
        };
        (result, slot)
    }

    /// Gives a slot back, and to the next in the queue.
    fn release(self: &Arc<Self>, owner: &str, slot: Slot, board: &mut Board) {
        if slot == Slot::Held {
            board.give_back(owner);
        }
        self.fill_slots(board);
    }

    fn commit_broken(&self, id: RolloutId, mut result: RolloutResult) -> RolloutResult {
        let abandoned = self.cx.store.abandoned().unwrap_or_default();
        let found = abandoned.into_iter().find(|(found, _, _)| *found == id);
        if let Some((_, _, record)) = found {
            result.record = record.path().display().to_string();
            if let Err(error) = record.commit(&result) {
                tracing::error!(
                    error = rollcage_model::text::chain(&error),
                    "the result of a broken rollout was not written"
                );
            }
        }
        result
    }

    fn finish(self: &Arc<Self>, entry: &Arc<Entry>, result: RolloutResult, slot: Slot) {
        let finished = What::Finished {
            ended: result.ended,
            reward: result.reward,
            wall_s: result.wall_s,
            error: result.error.clone(),
        };
        *entry.kept() = Some(Arc::new(result));
        // From here on the rollout counts as ended, for every reader at once.
        entry.feed.tell(finished);
        let mut board = self.board();
        board.keep(Arc::clone(entry));
        self.release(&entry.owner, slot, &mut board);
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs every job and hands over each result as it comes. At most `slots` run at once; cancelling ends those that run
/// and gives those that wait a result without starting them.
pub(crate) async fn run_all(
    cx: Arc<Context>,
    jobs: Vec<Job>,
    slots: usize,
    events: mpsc::UnboundedSender<Event>,
    cancel: CancellationToken,
    mut deliver: impl FnMut(RolloutResult),
) {
    let limits = Limits {
        slots,
        queue_max: jobs.len(),
        owner_slots: slots,
        // Here nobody comes back for a grade.
        keep_aborted: Duration::ZERO,
    };
    let store = cx.store.clone();
    let dispatcher = Dispatcher::new(cx, limits, Some(events));
    // Whoever drops this future ends its rollouts.
    let _stop = dispatcher.stop.clone().drop_guard();
    // The queue is as long as the jobs and nobody closes it.
    let entries = dispatcher.submit("", jobs).unwrap_or_default();
    let mut waits: FuturesUnordered<_> = entries
        .into_iter()
        .map(|entry| async move {
            entry.wait().await;
            entry
        })
        .collect();
    let watch = async {
        cancel.cancelled().await;
        dispatcher.cancel_all();
        std::future::pending::<()>().await;
    };
    let collect = async {
        while let Some(entry) = waits.next().await {
            let kept = entry.kept().take();
            let result = match kept {
                Some(result) => Ok(Arc::unwrap_or_clone(result)),
                // Pushed out of memory by others that ended since.
                None => store.result(entry.id),
            };
            match result {
                Ok(result) => deliver(result),
                Err(error) => tracing::error!(
                    error = rollcage_model::text::chain(&error),
                    "a result was lost"
                ),
            }
        }
    };
    tokio::select! {
        () = collect => {}
        () = watch => {}
    }
}
