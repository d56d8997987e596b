//! All live agents of an engine: starting, finding, stopping.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use rollcage_model::ending::Cause;
use rollcage_model::event::Event;
use rollcage_model::id::RolloutId;

use super::agent::{LiveAgent, Shared, StopReason};
use super::disk::{LiveDirectory, Stored};
use super::machine::{self, Machine};
use super::place::Base;
use super::sandboxed::Recorded;
use super::turn::is_time;
use super::{LiveError, LiveRequest, LiveSandbox, LiveState, LiveView, launch, work};
use crate::context::Context;
use crate::intake::{RequestOrigin, ResolvedRollout, resolve};
use crate::judge::Ending;
use crate::limits::EngineLimits;
use crate::listing::LOCAL;
use crate::metrics::Metrics;

/// Stopped agents whose secrets are remembered, to start them again.
const REQUESTS_MAX: usize = 256;
/// How long another process may look at an agent that is to be started.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// What a record's instruction says where the request has none.
const NO_INSTRUCTION: &str = "A live agent: it is told what to do turn by turn.";

/// All live agents of an engine. `owner` is as for rollouts.
pub struct LiveAgents {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Shared,
    limits: EngineLimits,
    /// Those that this process runs.
    agents: Mutex<HashMap<String, Arc<LiveAgent>>>,
    /// Of stopped agents, with their secrets.
    requests: Mutex<HashMap<String, LiveRequest>>,
    is_closed: AtomicBool,
}

impl LiveAgents {
    pub(crate) fn new(
        cx: Arc<Context>,
        limits: EngineLimits,
        metrics: Arc<Metrics>,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Self {
        let shared = Shared {
            cx,
            metrics,
            tasks: TaskTracker::new(),
            listener,
            age_max: limits.live_age_max,
        };
        LiveAgents {
            inner: Arc::new(Inner {
                shared,
                limits,
                agents: Mutex::default(),
                requests: Mutex::default(),
                is_closed: AtomicBool::new(false),
            }),
        }
    }

    /// Closes what killed processes left: open turns end as interrupted, and servers without a sandbox end unless they
    /// may be adopted.
    pub(crate) async fn recover(&self) {
        for (_, directory) in LiveDirectory::all(self.inner.root()) {
            directory.settled();
            if directory.read_process().is_some()
                && let Ok(Some(_lock)) = directory.lock()
            {
                machine::end_orphan(&directory).await;
            }
        }
    }

    /// Starts an agent and waits until it is healthy. A failure leaves no process. It goes on if the caller goes away.
    pub async fn start(&self, request: LiveRequest) -> Result<Arc<LiveAgent>, LiveError> {
        check(&request)?;
        let owner = owner_of(&request).to_owned();
        if let Some(id) = &request.id
            && let Some(agent) = self.running(&owner, id)
        {
            agent.ensure_running().await?;
            return Ok(agent);
        }
        let inner = Arc::clone(&self.inner);
        let starting = async move { Box::pin(inner.start(request)).await };
        let started = self.inner.shared.tasks.spawn(starting).await;
        started.unwrap_or_else(|error| Err(LiveError::Start(error.to_string())))
    }

    /// Starts a stopped agent as it was started before. Where its secrets are not known any more, that fails.
    pub async fn start_again(&self, owner: &str, id: &str) -> Result<Arc<LiveAgent>, LiveError> {
        let request = self.stored_request(owner, id)?;
        self.start(request).await
    }

    /// How an agent was started; secrets are in it only if this process stopped it.
    pub fn stored_request(&self, owner: &str, id: &str) -> Result<LiveRequest, LiveError> {
        let agent = self.find(owner, id)?;
        let known = self.inner.requests().get(agent.id()).cloned();
        let mut request = known.unwrap_or_else(|| agent.request.clone());
        request.id = Some(agent.id().to_owned());
        Ok(request)
    }

    /// Those of this process, and those that are on disk; the newest first.
    pub fn list(&self, owner: &str) -> Vec<LiveView> {
        let mut views: Vec<LiveView> = Vec::new();
        for (id, directory) in LiveDirectory::all(self.inner.root()) {
            let running = self.inner.agents().get(&id).cloned();
            let view = match running {
                Some(agent) => Some(agent.view()),
                None => directory.settled(),
            };
            views.extend(view.filter(|view| is_owner(view, owner)));
        }
        views
    }

    /// Also agents that are stopped, whose turns can be read. By id, by the beginning or the end of one, or by name.
    pub fn find(&self, owner: &str, id: &str) -> Result<Arc<LiveAgent>, LiveError> {
        let unknown = || LiveError::Unknown(id.to_owned());
        if let Some(agent) = self.running(owner, id) {
            return Ok(agent);
        }
        let views = self.list(owner);
        let is_part =
            |view: &&LiveView| id.len() >= 4 && (view.id.starts_with(id) || view.id.ends_with(id));
        let is_over = |view: &LiveView| view.state == LiveState::Stopped;
        let mut named: Vec<&LiveView> = views.iter().filter(|view| view.name == id).collect();
        if named.iter().any(|view| !is_over(view)) {
            named.retain(|view| !is_over(view));
        }
        let exact = views.iter().find(|view| view.id == id);
        let found = match (exact, named.as_slice()) {
            (Some(view), _) => view,
            (None, [view]) if !id.is_empty() => *view,
            _ => {
                let mut parts = views.iter().filter(is_part);
                let first = parts.next().ok_or_else(unknown)?;
                match parts.next() {
                    None => first,
                    Some(_) => return Err(unknown()),
                }
            }
        };
        if let Some(agent) = self.running(owner, &found.id) {
            return Ok(agent);
        }
        let all = LiveDirectory::all(self.inner.root());
        let directory = all.into_iter().find(|(other, _)| *other == found.id);
        let (_, directory) = directory.ok_or_else(unknown)?;
        let stored = directory.read().ok_or_else(unknown)?;
        let shared = self.inner.shared.clone();
        Ok(LiveAgent::stored(shared, directory, stored))
    }

    /// Aborts its turns, saves its files, ends its processes.
    pub async fn stop(&self, owner: &str, id: &str) -> Result<LiveView, LiveError> {
        let agent = self.find(owner, id)?;
        agent.check_ours()?;
        self.inner.stop(&agent, StopReason::Asked).await;
        if let Ok(Some(_lock)) = agent.directory.lock() {
            machine::end_left(&agent.directory).await;
        }
        Ok(agent.view())
    }

    /// Removes a stopped agent with its files and turns; its records stay.
    pub async fn remove(&self, owner: &str, id: &str) -> Result<(), LiveError> {
        let agent = self.find(owner, id)?;
        let running = || LiveError::Request("the live agent runs: stop it first".to_owned());
        if !agent.ended.is_cancelled() {
            return Err(running());
        }
        let directory = agent.directory.clone();
        let _lock = directory.lock()?.ok_or_else(running)?;
        machine::end_left(&directory).await;
        self.inner.requests().remove(agent.id());
        let removing = move || directory.remove();
        Ok(crate::rollout::run_blocking(removing).await?)
    }

    /// The number of agents in each state.
    pub fn states(&self) -> Vec<(LiveState, usize)> {
        let agents: Vec<_> = self.inner.agents().values().cloned().collect();
        let mut counts: Vec<(LiveState, usize)> = Vec::new();
        for state in agents.iter().map(|agent| agent.view().state) {
            match counts.iter_mut().find(|(known, _)| *known == state) {
                Some((_, count)) => *count += 1,
                None => counts.push((state, 1)),
            }
        }
        counts
    }

    /// Stops all of them.
    pub async fn shut_down(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        let agents: Vec<_> = self.inner.agents().values().cloned().collect();
        let stopping = agents
            .iter()
            .map(|agent| self.inner.stop(agent, StopReason::ShutDown));
        futures::future::join_all(stopping).await;
        self.inner.shared.tasks.close();
        self.inner.shared.tasks.wait().await;
    }

    fn running(&self, owner: &str, id: &str) -> Option<Arc<LiveAgent>> {
        let agent = self.inner.agents().get(id).cloned()?;
        is_owner(&agent.view(), owner).then_some(agent)
    }
}

impl Inner {
    async fn start(&self, mut request: LiveRequest) -> Result<Arc<LiveAgent>, LiveError> {
        let known = self.known(&mut request)?;
        let is_new = known.is_none();
        let id = request.id.clone();
        let id = id.unwrap_or_else(|| RolloutId::generate().to_string());
        request.id = Some(id.clone());
        let rollout = self.resolve(&request, &id).await?;
        let directory = LiveDirectory::create(self.root(), &id)?;
        let view = match known {
            Some(stored) => restarted(stored.view, &request),
            None => new_view(&id, &request, &rollout),
        };
        let started = self.begin(directory.clone(), request, view, rollout).await;
        if is_new
            && started.is_err()
            && let Err(error) = directory.remove()
        {
            let error = rollcage_model::text::chain(&error);
            tracing::warn!(error, "what is left of a live agent is not removed");
        }
        started
    }

    async fn begin(
        &self,
        directory: LiveDirectory,
        request: LiveRequest,
        view: LiveView,
        rollout: ResolvedRollout,
    ) -> Result<Arc<LiveAgent>, LiveError> {
        let lock = lock(&directory).await?;
        directory.interrupt_turns()?;
        let made = LiveAgent::new(self.shared.clone(), directory, request, view, lock);
        let (agent, turns) = made?;
        self.admit(&agent)?;
        agent.persist();
        match Box::pin(self.open(&agent, rollout)).await {
            Ok(()) => {
                agent.persist();
                let working = work::work(Arc::clone(&agent), turns);
                self.shared.tasks.spawn(working);
                Ok(agent)
            }
            Err(error) => {
                agent.fail(&error);
                agent.stop.cancel();
                let ending = Ending::new(Cause::SetupFailed, error.to_string());
                agent.shut(ending).await;
                self.agents().remove(agent.id());
                Err(error)
            }
        }
    }

    /// The stored agent that a request names.
    fn known(&self, request: &mut LiveRequest) -> Result<Option<Stored>, LiveError> {
        let Some(id) = &request.id else {
            return Ok(None);
        };
        let unknown = || LiveError::Unknown(id.clone());
        let mut all = LiveDirectory::all(self.root()).into_iter();
        let (_, directory) = all.find(|(other, _)| other == id).ok_or_else(unknown)?;
        let stored = directory.read().ok_or_else(unknown)?;
        if !is_owner(&stored.view, owner_of(request)) {
            return Err(unknown());
        }
        if stored.view.sandbox != request.sandbox {
            let problem = "a live agent stays in its sandbox, or without one: start a new one";
            return Err(LiveError::Request(problem.to_owned()));
        }
        Ok(Some(stored))
    }

    async fn resolve(&self, request: &LiveRequest, id: &str) -> Result<ResolvedRollout, LiveError> {
        let mut rollout = request.rollout.clone();
        if rollout.task.instruction.trim().is_empty() {
            rollout.task.instruction = NO_INSTRUCTION.to_owned();
        }
        rollout.group = Some(id.to_owned());
        let label = match request.name.is_empty() {
            true => id.to_owned(),
            false => request.name.clone(),
        };
        rollout.labels.insert("live".to_owned(), label);
        let resolved = resolve(rollout, &self.shared.cx.preparer.catalogue)?;
        let checked = resolved.check_addresses().await;
        checked.map_err(crate::intake::RequestError::from)?;
        launch::check(&*resolved.agent)?;
        Ok(resolved)
    }

    /// Counts the agent among those that run, unless there are too many.
    fn admit(&self, agent: &Arc<LiveAgent>) -> Result<(), LiveError> {
        let view = agent.view();
        let owner = view.owner.as_deref().unwrap_or(LOCAL);
        let mut agents = self.agents();
        if self.is_closed.load(Ordering::Acquire) {
            return Err(LiveError::Start("rollcage is ending".to_owned()));
        }
        if agents.contains_key(agent.id()) {
            let problem = "the live agent is being started or stopped: try again in a moment";
            return Err(LiveError::Request(problem.to_owned()));
        }
        let own = agents
            .values()
            .filter(|other| is_owner(&other.view(), owner));
        if own.count() >= self.limits.live_per_owner {
            return Err(LiveError::Quota(self.limits.live_per_owner));
        }
        if agents.len() >= self.limits.live_max {
            let problem = format!("{} live agents run already", self.limits.live_max);
            return Err(LiveError::Start(problem));
        }
        agents.insert(agent.id().to_owned(), Arc::clone(agent));
        Ok(())
    }

    async fn open(&self, agent: &LiveAgent, rollout: ResolvedRollout) -> Result<(), LiveError> {
        agent.directory.write_request(&agent.request)?;
        let Shared {
            cx,
            metrics,
            listener,
            ..
        } = &self.shared;
        let base = match agent.request.sandbox {
            LiveSandbox::Local => {
                let recorded = Recorded::begin(cx, rollout, metrics, listener.clone()).await?;
                Base::Sandboxed(Box::new(recorded))
            }
            LiveSandbox::None => Base::Machine(Box::new(Machine::begin(cx, rollout).await?)),
        };
        agent.begin(base).await?;
        agent.wake().await?;
        agent.state().view.state = LiveState::Idle;
        Ok(())
    }

    /// Returns once nothing of the agent is left.
    async fn stop(&self, agent: &Arc<LiveAgent>, reason: StopReason) {
        agent.end(reason);
        agent.ended.cancelled().await;
        let mut agents = self.agents();
        let is_same = |other: &Arc<LiveAgent>| Arc::ptr_eq(other, agent);
        if agents.get(agent.id()).is_some_and(is_same) {
            agents.remove(agent.id());
            drop(agents);
            let mut requests = self.requests();
            if requests.len() < REQUESTS_MAX {
                requests.insert(agent.id().to_owned(), agent.request.clone());
            }
        }
    }

    fn root(&self) -> &std::path::Path {
        self.shared.cx.store.root()
    }

    fn agents(&self) -> MutexGuard<'_, HashMap<String, Arc<LiveAgent>>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<String, LiveRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims an agent. A process that has just been started may look at it for a moment.
async fn lock(directory: &LiveDirectory) -> Result<File, LiveError> {
    let deadline = Instant::now() + LOCK_LIMIT;
    loop {
        if let Some(lock) = directory.lock()? {
            return Ok(lock);
        }
        if Instant::now() >= deadline {
            let problem = "another process of rollcage has this live agent: ask that one";
            return Err(LiveError::Request(problem.to_owned()));
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

fn check(request: &LiveRequest) -> Result<(), LiveError> {
    let is_client = matches!(request.rollout.origin, RequestOrigin::Client { .. });
    if request.sandbox == LiveSandbox::None && is_client {
        return Err(LiveError::NoSandbox);
    }
    if request.sandbox == LiveSandbox::Local && request.directory.is_some() {
        let problem = "a work directory of this machine is for agents without a sandbox: `files` bring files into one";
        return Err(LiveError::Request(problem.to_owned()));
    }
    for (name, seconds) in [
        ("deadline_s", request.deadline_s),
        ("poll_s", request.poll_s),
        ("idle_s", request.idle_s),
        ("turn_timeout_s", request.turn_timeout_s),
    ] {
        if !is_time(seconds) {
            let problem = format!("`{name}` must be a positive number of seconds");
            return Err(LiveError::Request(problem));
        }
    }
    Ok(())
}

fn owner_of(request: &LiveRequest) -> &str {
    request.rollout.owner.as_deref().unwrap_or(LOCAL)
}

/// Unlike rollouts, agents of this machine are not everybody's.
fn is_owner(view: &LiveView, owner: &str) -> bool {
    view.owner.as_deref().unwrap_or(LOCAL) == owner
}

fn new_view(id: &str, request: &LiveRequest, rollout: &ResolvedRollout) -> LiveView {
    LiveView {
        id: id.to_owned(),
        name: request.name.clone(),
        agent: rollout.agent.name().to_owned(),
        version: String::new(),
        model: rollout.endpoint_info().model,
        sandbox: request.sandbox,
        state: LiveState::Starting,
        base_url: None,
        created_at: rollcage_proxy::clock::now(),
        last_turn_at: None,
        turns: 0,
        open_turns: 0,
        restarts: 0,
        calls: 0,
        prompt_tokens: 0,
        completion_tokens: 0,
        cost_usd: None,
        memory_bytes: None,
        session_id: None,
        records: Vec::new(),
        error: None,
        owner: request.rollout.owner.clone(),
    }
}

fn restarted(view: LiveView, request: &LiveRequest) -> LiveView {
    LiveView {
        name: match request.name.is_empty() {
            true => view.name.clone(),
            false => request.name.clone(),
        },
        state: LiveState::Starting,
        error: None,
        open_turns: 0,
        ..view
    }
}
