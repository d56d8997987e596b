//! Runs many rollouts side by side: each gets a slot when it is its turn ([`Schedule`]), and a result, whatever breaks.
//!
//! Only this file changes where a rollout stands in the queue. Everything else reads it.

use std::collections::{HashMap, VecDeque};
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

use crate::controls::{Command, CommandError, Controls, Keeping};
use crate::feed::Feed;
use crate::intake::Resolved;
use crate::judge::Ending;
use crate::limits::Limits;
use crate::result;
use crate::rollout::{self, Context};
use crate::schedule::{QueueError, Schedule};
use crate::tally::Tally;

/// Ended rollouts whose events stay in memory.
const ENDED_MAX: usize = 1000;
/// Events of ended rollouts that stay in memory, over all of them.
const ENDED_EVENTS_MAX: usize = 100_000;
/// Ended rollouts whose whole results stay in memory; a result can be megabytes, and the others are on disk.
const RESULTS_MAX: usize = 16;

/// A rollout that was taken on, until it is forgotten.
#[derive(Debug)]
pub struct Entry {
    pub id: RolloutId,
    /// `None` for one that was made on this machine, which everybody may see.
    pub owner: Option<String>,
    pub task_id: String,
    /// The same for all that were taken on together.
    pub group: String,
    pub agent: String,
    pub endpoint: EndpointInfo,
    /// Unix seconds.
    pub queued_at: f64,
    pub feed: Arc<Feed>,
    controls: Controls,
    result: Mutex<Option<Arc<RolloutResult>>>,
}

impl Entry {
    pub fn is_ended(&self) -> bool {
        self.feed.is_finished()
    }

    /// Whether it was aborted, and its sandbox kept for the grade.
    pub fn is_kept(&self) -> bool {
        self.controls.is_kept()
    }

    /// The result, while it is still in memory.
    pub fn result(&self) -> Option<Arc<RolloutResult>> {
        self.kept().clone()
    }

    pub async fn wait(&self) {
        self.feed.finished().await;
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Option<Arc<RolloutResult>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Board {
    schedule: Schedule,
    entries: HashMap<RolloutId, Arc<Entry>>,
    /// Those that wait.
    waiting: HashMap<RolloutId, Resolved>,
    /// The oldest first.
    ended: VecDeque<Arc<Entry>>,
    ended_events: usize,
}

impl Board {
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

/// Takes rollouts on and gives each a slot when there is one for it.
pub(crate) struct Dispatcher {
    cx: Arc<Context>,
    board: Mutex<Board>,
    tasks: TaskTracker,
    /// Ends every rollout; each has a token below it.
    stop: CancellationToken,
    keeping: Keeping,
    pub(crate) tally: Arc<Tally>,
    listener: Option<mpsc::UnboundedSender<Event>>,
}

impl Dispatcher {
    pub(crate) fn new(
        cx: Arc<Context>,
        limits: Limits,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Arc<Self> {
        let board = Board {
            schedule: Schedule::new(limits),
            entries: HashMap::new(),
            waiting: HashMap::new(),
            ended: VecDeque::new(),
            ended_events: 0,
        };
        Arc::new(Dispatcher {
            cx,
            keeping: Keeping::new(limits.keep_aborted, limits.slots.max(1)),
            board: Mutex::new(board),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            tally: Arc::default(),
            listener,
        })
    }

    /// Takes `count` rollouts on, all or none.
    pub(crate) fn submit(
        self: &Arc<Self>,
        rollout: &Resolved,
        count: usize,
    ) -> Result<Vec<Arc<Entry>>, QueueError> {
        let entries: Vec<_> = (0..count).map(|_| self.entry(rollout)).collect();
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let mut board = self.board();
        board
            .schedule
            .add(rollout.owner.as_deref().unwrap_or_default(), &ids)?;
        for entry in &entries {
            entry.feed.tell(What::Queued);
            board.entries.insert(entry.id, Arc::clone(entry));
            board.waiting.insert(entry.id, rollout.clone());
        }
        self.fill_slots(&mut board);
        Ok(entries)
    }

    fn entry(&self, rollout: &Resolved) -> Arc<Entry> {
        let id = RolloutId::generate();
        let feed = Feed::new(id, Arc::clone(&self.tally), self.listener.clone());
        Arc::new(Entry {
            id,
            owner: rollout.owner.clone(),
            task_id: rollout.task.id.clone(),
            group: rollout.group.clone().unwrap_or_default(),
            agent: rollout.agent.name().to_owned(),
            endpoint: rollout.endpoint_info(),
            queued_at: rollcage_proxy::clock::now(),
            feed: Arc::new(feed),
            controls: Controls::new(self.stop.child_token(), self.keeping.clone()),
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
        (board.schedule.running(), board.schedule.waiting())
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
        entry.controls.cancel.cancel();
        let mut board = self.board();
        if board.schedule.withdraw(entry.id) {
            self.start(&mut board, entry.id);
        }
    }

    /// Ends a rollout's agent and keeps its sandbox for who wants the grade. Where there is no agent yet, or it is being
    /// graded, that is the end of the rollout. False when it is over, or was aborted before.
    fn abort(self: &Arc<Self>, entry: &Entry) -> bool {
        if entry.is_ended() || entry.controls.abort.is_cancelled() {
            return false;
        }
        match entry.feed.standing().phase {
            Some(Phase::Agent) => entry.controls.abort.cancel(),
            _ => self.cancel(entry),
        }
        true
    }

    pub(crate) fn command(
        self: &Arc<Self>,
        entry: &Entry,
        command: Command,
    ) -> Result<(), CommandError> {
        match command {
            Command::Abort if self.abort(entry) => Ok(()),
            Command::Abort => Err(CommandError::Over),
            _ if entry.is_ended() => Err(CommandError::Over),
            Command::Message(text) => entry.controls.message(text),
            Command::Finalize => {
                entry.controls.want();
                Ok(())
            }
        }
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
        let waiting = self.board().schedule.close();
        self.keeping.close();
        self.tasks.close();
        // 2. What waits ends without having run.
        for entry in waiting.into_iter().filter_map(|id| self.find(id)) {
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
        while let Some(id) = board.schedule.start_next() {
            self.start(board, id);
        }
    }

    /// Runs a rollout that has left the queue, be it to end at once.
    fn start(self: &Arc<Self>, board: &mut Board, id: RolloutId) {
        let rollout = board.waiting.remove(&id);
        let (Some(entry), Some(rollout)) = (board.entries.get(&id).cloned(), rollout) else {
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

    /// A panic is our fault, but still one result.
    async fn run(self: &Arc<Self>, entry: &Entry, rollout: Resolved) -> RolloutResult {
        let begun = result::begin(entry.id, &rollout);
        let started = Instant::now();
        let run = rollout::run(&self.cx, rollout, &entry.feed, &entry.controls);
        let mut run = Box::pin(AssertUnwindSafe(run).catch_unwind());
        let ran = tokio::select! {
            biased;
            ran = &mut run => ran,
            () = entry.controls.kept() => {
                self.release(entry.id, &mut self.board());
                run.await
            }
        };
        match ran {
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
        }
    }

    /// Gives a slot back, and to the next in the queue.
    fn release(self: &Arc<Self>, id: RolloutId, board: &mut Board) {
        board.schedule.release(id);
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

    fn finish(self: &Arc<Self>, entry: &Arc<Entry>, result: RolloutResult) {
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
        self.release(entry.id, &mut board);
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
