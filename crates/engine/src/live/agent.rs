//! One live agent: its state, and how what it runs in is opened and closed.
//!
//! Whoever uses the sandbox or the server holds one of many permits; whoever opens or closes them holds all. Opening and
//! closing run in tasks of the agent, so that a caller who goes away leaves nothing half done.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use rollcage_live::forward::Forwarder;
use rollcage_live::{Credentials, Health};
use rollcage_model::event::Event;
use rollcage_model::id::RolloutId;
use rollcage_model::live::{Reply, ReplyKind};
use rollcage_proxy::Session;

use super::disk::{LiveDirectory, Stored};
use super::launch;
use super::machine;
use super::place::{Base, Open};
use super::turn::LiveTurn;
use super::{LiveError, LiveRequest, LiveState, LiveView, TurnInput, TurnSummary};
use crate::context::Context;
use crate::feed::Feed;
use crate::metrics::Metrics;
use crate::rollout::run_blocking;
use crate::store::{StoreError, read_tail};

mod files;
mod life;

pub(super) use life::{InUse, completed};

/// Turns that wait for one agent.
pub(super) const QUEUE_MAX: usize = 16;
/// Ended turns that stay in memory.
const ENDED_TURNS_MAX: usize = 20;
/// Those who may use the sandbox at the same time.
const USES: u32 = 1 << 10;

/// What all live agents of an engine share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) cx: Arc<Context>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: TaskTracker,
    pub(super) listener: Option<mpsc::UnboundedSender<Event>>,
    /// See [`crate::EngineLimits::live_age_max`].
    pub(super) age_max: Duration,
}

/// Why an agent ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StopReason {
    #[default]
    Asked,
    /// Rollcage ends.
    ShutDown,
}

/// One live agent.
pub struct LiveAgent {
    this: Weak<LiveAgent>,
    pub(super) shared: Shared,
    id: String,
    pub(super) directory: LiveDirectory,
    pub(super) request: LiveRequest,
    /// The server's own.
    inner: Credentials,
    /// For our own address of the server.
    outer: Credentials,
    uses: Semaphore,
    pub(super) stop: CancellationToken,
    /// It was opened, perhaps by somebody who drives no turn.
    pub(super) woken: Notify,
    /// Nothing of it is left.
    pub(super) ended: CancellationToken,
    queue: mpsc::Sender<Arc<LiveTurn>>,
    state: Mutex<AgentState>,
}

/// What changes while an agent lives.
pub(super) struct AgentState {
    /// As it is known without asking anybody.
    pub(super) view: LiveView,
    /// Taken out while it is opened or closed.
    base: Option<Base>,
    open: Option<Open>,
    forwarder: Option<Forwarder>,
    pub(super) turns: VecDeque<Arc<LiveTurn>>,
    pub(super) last_active: Instant,
    opened_at: Instant,
    counted_at: Instant,
    pub(super) reason: StopReason,
    /// The latest session was used since the agent was opened last.
    pub(super) is_session_known: bool,
    session: Option<Arc<Session>>,
    feed: Option<Arc<Feed>>,
    /// What it used in earlier records.
    earlier: Totals,
    /// Held by this process for as long as this is locked.
    lock: Option<File>,
}

#[derive(Clone, Copy, Default)]
struct Totals {
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    cost_usd: f64,
}

impl LiveAgent {
    /// An agent that is to be started. The receiver is for the task that drives its turns.
    pub(super) fn new(
        shared: Shared,
        directory: LiveDirectory,
        request: LiveRequest,
        view: LiveView,
        lock: File,
    ) -> Result<(Arc<Self>, mpsc::Receiver<Arc<LiveTurn>>), LiveError> {
        let (queue, turns) = mpsc::channel(QUEUE_MAX);
        let generate = || {
            let made = Credentials::generate();
            made.map_err(|error| LiveError::Start(format!("make a password: {error}")))
        };
        // A server that an earlier process left has the password of that time.
        let inner = match directory.read_process() {
            Some(left) => machine::credentials(left.password),
            None => generate()?,
        };
        let credentials = (inner, generate()?);
        let stored = (view, request);
        let agent = Self::with(shared, directory, stored, credentials, queue, Some(lock));
        Ok((agent, turns))
    }

    /// An agent that this process does not run, to read its turns.
    pub(super) fn stored(shared: Shared, directory: LiveDirectory, stored: Stored) -> Arc<Self> {
        let Stored { view, request, .. } = stored;
        let nobody = Credentials {
            username: String::new(),
            password: String::new(),
        };
        let (queue, _) = mpsc::channel(1);
        let (stored, nobody) = ((view, request), (nobody.clone(), nobody));
        let agent = Self::with(shared, directory, stored, nobody, queue, None);
        agent.stop.cancel();
        agent.ended.cancel();
        agent
    }

    fn with(
        shared: Shared,
        directory: LiveDirectory,
        (view, request): (LiveView, LiveRequest),
        (inner, outer): (Credentials, Credentials),
        queue: mpsc::Sender<Arc<LiveTurn>>,
        lock: Option<File>,
    ) -> Arc<Self> {
        let earlier = Totals {
            calls: view.calls,
            prompt_tokens: view.prompt_tokens,
            completion_tokens: view.completion_tokens,
            cost_usd: view.cost_usd.unwrap_or_default(),
        };
        Arc::new_cyclic(|this| LiveAgent {
            this: this.clone(),
            shared,
            id: view.id.clone(),
            directory,
            request,
            inner,
            outer,
            uses: Semaphore::new(USES as usize),
            stop: CancellationToken::new(),
            woken: Notify::new(),
            ended: CancellationToken::new(),
            queue,
            state: Mutex::new(AgentState {
                view,
                base: None,
                open: None,
                forwarder: None,
                turns: VecDeque::new(),
                last_active: Instant::now(),
                opened_at: Instant::now(),
                counted_at: Instant::now(),
                reason: StopReason::default(),
                is_session_known: false,
                session: None,
                feed: None,
                earlier,
                lock,
            }),
        })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn view(&self) -> LiveView {
        let state = self.state();
        let mut view = state.view.clone();
        if self.ended.is_cancelled() {
            return view;
        }
        let open_turns = state.turns.iter().filter(|turn| !turn.is_ended());
        view.open_turns = open_turns.count();
        let server = state.open.as_ref().map(Open::server);
        let is_running = server.is_some_and(|server| server.is_running());
        view.state = match (view.state, server) {
            (LiveState::Starting, _) => LiveState::Starting,
            (_, Some(_)) if view.open_turns > 0 => LiveState::Busy,
            (_, Some(_)) if is_running => LiveState::Idle,
            (_, Some(_)) => LiveState::Unhealthy,
            (_, None) if view.open_turns > 0 => LiveState::Busy,
            // It is being saved, or opened again.
            (before, None) if state.base.is_none() => before,
            (_, None) => LiveState::Sleeping,
        };
        let address = state.forwarder.as_ref().filter(|_| is_running);
        view.base_url = address.map(Forwarder::base_url);
        state.totals().note(&mut view);
        view
    }

    /// User and password for [`LiveView::base_url`]; only for its owner.
    pub fn credentials(&self) -> Credentials {
        self.outer.clone()
    }

    pub async fn ensure_running(&self) -> Result<(), LiveError> {
        self.ready().await.map(drop)
    }

    pub async fn health(&self) -> Health {
        let server = self.state().open.as_ref().map(|open| open.server().clone());
        match server {
            Some(server) => server.health().await,
            None => Health::Refused,
        }
    }

    /// Whether a process of its server is alive, without asking it.
    pub fn is_running(&self) -> bool {
        let state = self.state();
        state
            .open
            .as_ref()
            .is_some_and(|open| open.server().is_running())
    }

    /// Ends a hung or dead server with all that it started; true if there was one. The next turn starts another.
    pub async fn reap(&self) -> bool {
        let server = self.state().open.as_ref().map(|open| open.server().clone());
        match server {
            Some(server) => server.reap().await,
            None => false,
        }
    }

    /// Queues a turn; it runs after those before it.
    pub fn turn(&self, input: TurnInput) -> Result<Arc<LiveTurn>, LiveError> {
        self.check_here()?;
        input.check()?;
        if let Some(model) = &input.model {
            self.known_model(model)?;
        }
        // Reserved first, so that a turn that is refused leaves nothing on disk.
        let place = self.queue.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => LiveError::Full(QUEUE_MAX),
            mpsc::error::TrySendError::Closed(()) => LiveError::Stopped,
        })?;
        let turn = Arc::new(LiveTurn::begin(input, &self.directory, &self.stop)?);
        {
            let mut state = self.state();
            state.view.turns += 1;
            state.turns.push_back(Arc::clone(&turn));
            let ended = state.turns.iter().filter(|turn| turn.is_ended()).count();
            let mut excess = ended.saturating_sub(ENDED_TURNS_MAX);
            state.turns.retain(|turn| {
                let is_dropped = excess > 0 && turn.is_ended();
                excess -= usize::from(is_dropped);
                !is_dropped
            });
        }
        place.send(Arc::clone(&turn));
        Ok(turn)
    }

    /// A model of its configuration, by its name with or without the provider's.
    pub(super) fn known_model(&self, name: &str) -> Result<String, LiveError> {
        let model = self.state().view.model.clone();
        let models = launch::models(&model, &self.request);
        let prefix = format!("{}/", launch::PROVIDER);
        let bare = name.strip_prefix(&prefix).unwrap_or(name);
        let known = models.iter().find(|known| *known == name || *known == bare);
        known.cloned().ok_or_else(|| {
            let known = models.join(", ");
            LiveError::Request(format!("no model `{name}`: this agent has {known}"))
        })
    }

    /// An open turn, or one of the latest.
    pub fn find_turn(&self, turn_id: &str) -> Option<Arc<LiveTurn>> {
        let state = self.state();
        let mut turns = state.turns.iter();
        turns.find(|turn| turn.id() == turn_id).cloned()
    }

    /// The newest first, from disk.
    pub async fn turns(&self, offset: usize, limit: usize) -> Result<Vec<TurnSummary>, LiveError> {
        let turns = self.on_disk(LiveDirectory::turns).await?;
        Ok(turns.into_iter().rev().skip(offset).take(limit).collect())
    }

    /// All replies of a turn that ended, from disk.
    pub async fn stored_replies(&self, turn_id: &str) -> Result<Vec<Reply>, LiveError> {
        let unknown = || LiveError::UnknownTurn(turn_id.to_owned());
        let id: RolloutId = turn_id.parse().map_err(|_| unknown())?;
        let replies = move |directory: &LiveDirectory| directory.replies(&id.to_string());
        match self.on_disk(replies).await? {
            replies if replies.is_empty() => Err(unknown()),
            replies => Ok(replies),
        }
    }

    /// OpenCode's own transcript of a session.
    pub async fn messages(&self, session_id: &str) -> Result<Vec<Value>, LiveError> {
        let in_use = self.ready().await?;
        let client = in_use.server.client();
        let client = client.ok_or_else(|| LiveError::Start("the server has ended".to_owned()))?;
        let messages = client.messages(session_id).await;
        messages.map_err(|error| LiveError::Request(error.to_string()))
    }

    /// The end of its log, at most so many bytes.
    pub async fn log(&self, bytes_max: usize) -> Result<String, LiveError> {
        let read = move |directory: &LiveDirectory| {
            let path = directory.log();
            match read_tail(&path, bytes_max as u64) {
                Ok(text) => Ok(text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
                Err(source) => Err(StoreError::Read { path, source }),
            }
        };
        self.on_disk(read).await
    }

    /// Keeps what a turn leaves for the next, before anybody sees that it is over.
    pub(super) fn note_reply(&self, reply: &Reply) {
        if !reply.kind.is_terminal() {
            return;
        }
        let mut state = self.state();
        state.view.last_turn_at = Some(rollcage_proxy::clock::now());
        // Of a turn that failed at once the session may not exist.
        let is_used = reply.seq > 1 || matches!(reply.kind, ReplyKind::Final { .. });
        if let Some(session_id) = reply.session_id.as_ref().filter(|_| is_used) {
            state.is_session_known = true;
            state.view.session_id = Some(session_id.clone());
        }
    }

    /// Counts a turn that is over.
    pub(super) fn note_end(&self, turn: &LiveTurn) {
        if let Some(end) = turn.end() {
            self.shared.metrics.count_turn(&end.kind);
        }
        self.state().last_active = Instant::now();
        self.persist();
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().open.is_some()
    }

    /// Asks its task to end it.
    pub(super) fn end(&self, reason: StopReason) {
        self.state().reason = reason;
        self.stop.cancel();
    }

    /// Notes why it could not be started.
    pub(super) fn fail(&self, error: &LiveError) {
        let mut state = self.state();
        state.view.state = LiveState::Failed;
        state.view.error = Some(error.to_string());
    }

    /// Refuses an agent that another process has.
    pub(super) fn check_ours(&self) -> Result<(), LiveError> {
        match self.check_here() {
            Err(LiveError::Stopped) => Ok(()),
            other => other,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AgentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses an agent that is stopped, or that another process has.
    fn check_here(&self) -> Result<(), LiveError> {
        if !self.stop.is_cancelled() {
            return Ok(());
        }
        match self.state().view.state {
            LiveState::Stopped | LiveState::Failed => Err(LiveError::Stopped),
            _ if self.ended.is_cancelled() => Err(LiveError::Request(
                "another process of rollcage has this live agent: ask that one".to_owned(),
            )),
            _ => Err(LiveError::Stopped),
        }
    }

    /// Runs disk work where it may block.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LiveDirectory) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, LiveError> {
        let directory = self.directory.clone();
        Ok(run_blocking(move || work(&directory)).await?)
    }
}

impl AgentState {
    fn totals(&self) -> Totals {
        let status = self.feed.as_ref().map(|feed| feed.status());
        let status = status.unwrap_or_default();
        let usd = self.session.as_ref().map(|session| session.spent().usd);
        Totals {
            calls: self.earlier.calls + status.calls,
            prompt_tokens: self.earlier.prompt_tokens + status.prompt_tokens,
            completion_tokens: self.earlier.completion_tokens + status.completion_tokens,
            cost_usd: self.earlier.cost_usd + usd.unwrap_or_default(),
        }
    }
}
