//! Runs many rollouts concurrently: each gets a slot in its turn ([`Schedule`]), and exactly one result, whatever
//! breaks.
//!
//! Only this file changes the position of a rollout in the queue; everything else reads it. Waiting rollouts are in
//! memory only: a record begins when a rollout gets its slot.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Event, Phase, What};
use rollcage_model::id::RolloutId;
use rollcage_model::record::{EndpointInfo, RolloutResult};
use rollcage_model::task::AgentDriver;

use crate::context::Context;
use crate::controls::{CommandError, Controls, RolloutCommand, SandboxRetention};
use crate::feed::Feed;
use crate::intake::ResolvedRollout;
use crate::judge::Ending;
use crate::limits::EngineLimits;
use crate::metrics::Metrics;
use crate::result;
use crate::rollout;
use crate::schedule::{QueueError, Schedule};

/// Ended rollouts whose events stay in memory.
const ENDED_MAX: usize = 1000;
/// Events of ended rollouts that stay in memory, over all of them, and their bytes.
const ENDED_EVENTS_MAX: usize = 100_000;
const ENDED_BYTES_MAX: usize = 64 << 20;
/// Ended rollouts whose whole results stay in memory: a result can be megabytes, and the others can be read from disk.
const RESULTS_MAX: usize = 16;

/// A rollout accepted by this process, until it is evicted from memory.
#[derive(Debug)]
pub struct RolloutEntry {
    pub id: RolloutId,
    /// `None` for a rollout made on this machine, which everybody may see.
    pub owner: Option<String>,
    pub task_id: String,
    /// Shared by the rollouts of one submission.
    pub group: String,
    pub labels: BTreeMap<String, String>,
    pub agent: String,
    pub driver: AgentDriver,
    pub endpoint: EndpointInfo,
    /// Unix seconds.
    pub queued_at: f64,
    pub feed: Arc<Feed>,
    pub(crate) controls: Controls,
    result: Mutex<Option<Arc<RolloutResult>>>,
}

impl RolloutEntry {
    pub fn is_ended(&self) -> bool {
        self.feed.is_finished()
    }

    /// Whether it was aborted and its sandbox is kept for grading.
    pub fn is_kept(&self) -> bool {
        self.controls.is_kept()
    }

    /// Whether its agent waits for a message, or for being finalized.
    pub fn is_idle(&self) -> bool {
        self.feed.status().idle_at.is_some()
    }

    /// The result, while it is still in memory.
    pub fn result(&self) -> Option<Arc<RolloutResult>> {
        self.result_slot().clone()
    }

    pub async fn wait(&self) {
        self.feed.finished().await;
    }

    pub(crate) fn result_slot(&self) -> MutexGuard<'_, Option<Arc<RolloutResult>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct DispatchState {
    schedule: Schedule,
    entries: HashMap<RolloutId, Arc<RolloutEntry>>,
    /// Rollouts without a slot yet.
    waiting: HashMap<RolloutId, ResolvedRollout>,
    /// The oldest first.
    ended: VecDeque<Arc<RolloutEntry>>,
    ended_events: usize,
    ended_bytes: usize,
}

impl DispatchState {
    fn forget_events(&mut self, feed: &Feed) {
        self.ended_events -= feed.len();
        self.ended_bytes -= feed.bytes();
    }

    /// Keeps an ended rollout in memory, and evicts the oldest beyond the limits.
    fn keep(&mut self, entry: Arc<RolloutEntry>) {
        self.ended_events += entry.feed.len();
        self.ended_bytes += entry.feed.bytes();
        self.ended.push_back(entry);
        while self.ended.len() > ENDED_MAX
            || self.ended_events > ENDED_EVENTS_MAX
            || self.ended_bytes > ENDED_BYTES_MAX
        {
            let Some(oldest) = self.ended.pop_front() else {
                break;
            };
            self.forget_events(&oldest.feed);
            self.entries.remove(&oldest.id);
        }
        let stale = self.ended.len().checked_sub(RESULTS_MAX + 1);
        if let Some(entry) = stale.and_then(|index| self.ended.get(index)) {
            let mut kept = entry.result_slot();
            // A result that could not be written exists only here.
            kept.take_if(|result| !result.record.is_empty());
        }
    }
}

/// Accepts rollouts and gives each a slot when one is free.
pub(crate) struct Dispatcher {
    cx: Arc<Context>,
    state: Mutex<DispatchState>,
    tasks: TaskTracker,
    /// Cancels every rollout; each has a child token.
    stop: CancellationToken,
    retention: SandboxRetention,
    pub(crate) metrics: Arc<Metrics>,
    listener: Option<mpsc::UnboundedSender<Event>>,
}

impl Dispatcher {
    pub(crate) fn new(
        cx: Arc<Context>,
        limits: EngineLimits,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Arc<Self> {
        let state = DispatchState {
            schedule: Schedule::new(limits),
            entries: HashMap::new(),
            waiting: HashMap::new(),
            ended: VecDeque::new(),
            ended_events: 0,
            ended_bytes: 0,
        };
        Arc::new(Dispatcher {
            cx,
            retention: SandboxRetention::new(limits.keep_aborted, limits.slots.max(1)),
            state: Mutex::new(state),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            metrics: Arc::default(),
            listener,
        })
    }

    /// Queues `count` rollouts, all or none.
    pub(crate) fn submit(
        self: &Arc<Self>,
        rollout: &ResolvedRollout,
        count: usize,
    ) -> Result<Vec<Arc<RolloutEntry>>, QueueError> {
        let entries: Vec<_> = (0..count).map(|_| self.entry(rollout)).collect();
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let mut state = self.state();
        state
            .schedule
            .add(rollout.owner.as_deref().unwrap_or_default(), &ids)?;
        for entry in &entries {
            entry.feed.publish(What::Queued);
            state.entries.insert(entry.id, Arc::clone(entry));
            state.waiting.insert(entry.id, rollout.clone());
        }
        self.fill_slots(&mut state);
        Ok(entries)
    }

    fn entry(&self, rollout: &ResolvedRollout) -> Arc<RolloutEntry> {
        let id = RolloutId::generate();
        let feed = Feed::new(id, Arc::clone(&self.metrics), self.listener.clone());
        let controls = Controls::new(self.stop.child_token(), self.retention.clone());
        let driver = rollout.task.driver.unwrap_or_default();
        Arc::new(RolloutEntry {
            id,
            owner: rollout.owner.clone(),
            task_id: rollout.task.id.clone(),
            group: rollout.group.clone().unwrap_or_default(),
            labels: rollout.labels.clone(),
            agent: rollout.agent.name().to_owned(),
            driver,
            endpoint: rollout.endpoint_info(),
            queued_at: rollcage_proxy::clock::now(),
            feed: Arc::new(feed),
            controls: match driver {
                AgentDriver::Cli => controls,
                AgentDriver::Serve if !rollout.takes_messages => controls.without_mailbox(),
                AgentDriver::Serve => controls.with_mailbox(),
            },
            result: Mutex::default(),
        })
    }

    pub(crate) fn find(&self, id: RolloutId) -> Option<Arc<RolloutEntry>> {
        self.state().entries.get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<RolloutEntry>> {
        self.state().entries.values().cloned().collect()
    }

    /// The numbers of running and waiting rollouts.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state();
        (state.schedule.running(), state.schedule.waiting())
    }

    pub(crate) fn forget(&self, id: RolloutId) {
        let mut state = self.state();
        if let Some(index) = state.ended.iter().position(|entry| entry.id == id) {
            state.entries.remove(&id);
            if let Some(entry) = state.ended.remove(index) {
                state.forget_events(&entry.feed);
            }
        }
    }

    /// Cancels a rollout. One that still waits gets its result at once, without a slot.
    pub(crate) fn cancel(self: &Arc<Self>, entry: &RolloutEntry) {
        entry.controls.cancel.cancel();
        let mut state = self.state();
        if state.schedule.withdraw(entry.id) {
            self.start(&mut state, entry.id);
        }
    }

    /// Stops the agent and keeps its sandbox for whoever requests the grade. If the agent has not started or has
    /// already ended, this cancels the whole rollout. False when the rollout has ended, or was aborted before.
    fn abort(self: &Arc<Self>, entry: &RolloutEntry) -> bool {
        if entry.is_ended() || entry.controls.abort.is_cancelled() {
            return false;
        }
        match entry.feed.status().phase {
            Some(Phase::Agent) => entry.controls.abort.cancel(),
            _ => self.cancel(entry),
        }
        true
    }

    pub(crate) fn command(
        self: &Arc<Self>,
        entry: &RolloutEntry,
        command: RolloutCommand,
    ) -> Result<(), CommandError> {
        match command {
            RolloutCommand::Abort if self.abort(entry) => Ok(()),
            RolloutCommand::Abort => Err(CommandError::Over),
            _ if entry.is_ended() => Err(CommandError::Over),
            RolloutCommand::Message(text) => entry.controls.message(text),
            RolloutCommand::Finalize => {
                entry.controls.request_grade();
                Ok(())
            }
        }
    }

    pub(crate) fn cancel_all(self: &Arc<Self>) {
        for entry in self.all() {
            self.cancel(&entry);
        }
    }

    /// Shuts down in phases: accept nothing, drop the queue, wait for running rollouts, then cancel them. Returns when
    /// every rollout has its result.
    pub(crate) async fn shut_down(self: &Arc<Self>, grace: Duration) {
        // 1. Accept nothing new, and keep no more sandboxes of aborted rollouts.
        let waiting = self.state().schedule.close();
        self.retention.close();
        self.tasks.close();
        // 2. Waiting rollouts end without having run.
        for entry in waiting.into_iter().filter_map(|id| self.find(id)) {
            self.cancel(&entry);
        }
        // 3. Running rollouts may finish by themselves.
        if tokio::time::timeout(grace, self.tasks.wait())
            .await
            .is_err()
        {
            // 4. The rest is cancelled. Every step of a cancellation has its own time limit, so this wait ends.
            self.cancel_all();
            self.tasks.wait().await;
        }
    }

    fn fill_slots(self: &Arc<Self>, state: &mut DispatchState) {
        while let Some(id) = state.schedule.start_next() {
            self.start(state, id);
        }
        self.cx.warm.set_waiting(state.schedule.waiting());
    }

    /// Runs a rollout that has left the queue, even if only to end it as cancelled.
    fn start(self: &Arc<Self>, state: &mut DispatchState, id: RolloutId) {
        let rollout = state.waiting.remove(&id);
        let (Some(entry), Some(rollout)) = (state.entries.get(&id).cloned(), rollout) else {
            return;
        };
        let this = Arc::clone(self);
        let span = tracing::info_span!("rollout", %id);
        self.tasks.spawn(
            async move {
                let result = this.run(&entry, rollout).await;
                this.finish(&entry, result);
            }
            .instrument(span),
        );
    }

    /// Runs a rollout; a panic becomes a result too.
    async fn run(
        self: &Arc<Self>,
        entry: &RolloutEntry,
        rollout: ResolvedRollout,
    ) -> RolloutResult {
        let begun = result::begin(entry.id, &rollout);
        let started = Instant::now();
        let run = rollout::run(&self.cx, rollout, &entry.feed, &entry.controls);
        let mut run = Box::pin(AssertUnwindSafe(run).catch_unwind());
        let ran = tokio::select! {
            biased;
            ran = &mut run => ran,
            () = entry.controls.released() => {
                self.release(entry.id, &mut self.state());
                run.await
            }
        };
        match ran {
            Ok(result) => result,
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                let text = format!("the engine panicked: {message}");
                let ending = Ending::new(Cause::EngineFailed, text);
                self.commit_broken(entry.id, result::finish(begun, ending, started))
            }
        }
    }

    /// Frees a slot and gives it to the next rollout in the queue.
    fn release(self: &Arc<Self>, id: RolloutId, state: &mut DispatchState) {
        state.schedule.release(id);
        self.fill_slots(state);
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

    fn finish(self: &Arc<Self>, entry: &Arc<RolloutEntry>, result: RolloutResult) {
        let finished = What::Finished {
            ended: result.ended,
            reward: result.reward,
            wall_s: result.wall_s,
            error: result.error.clone(),
        };
        *entry.result_slot() = Some(Arc::new(result));
        // The event after which every reader sees the rollout as ended.
        entry.feed.publish(finished);
        let mut state = self.state();
        state.keep(Arc::clone(entry));
        self.release(entry.id, &mut state);
    }

    fn state(&self) -> MutexGuard<'_, DispatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
