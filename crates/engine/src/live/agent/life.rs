//! How what a live agent runs in is opened, saved and closed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use rollcage_live::client::Connect;
use rollcage_live::forward::{ForwardTarget, Forwarder};
use rollcage_live::{Credentials, LiveServer, StartError};
use rollcage_model::ending::Cause;
use rollcage_proxy::Session;
use rollcage_sandbox::Sandbox;

use super::{LiveAgent, Totals, USES};
use crate::judge::Ending;
use crate::live::disk::ServerProcess;
use crate::live::place::{Base, Open};
use crate::live::sandboxed::ServerPlace;
use crate::live::{LiveError, LiveState};
use crate::shell::run_command;

/// A sandbox is closed and restored when it holds more of its memory than this part of it.
const MEMORY_PERCENT_MAX: u64 = 80;
/// A sandbox whose files alone take up that much is not restored all the time.
const RECYCLE_PAUSE: Duration = Duration::from_secs(600);
/// Of one process in a sandbox: a fresh server has about forty.
const DESCRIPTORS_MAX: usize = 2000;
/// Prints the largest number of descriptors that any process has open.
const COUNT_DESCRIPTORS: &str = "most=0; for process in /proc/[0-9]*; do set -- $process/fd/*; \
    test $# -gt $most && most=$#; done; echo $most";
const COUNT_LIMIT: Duration = Duration::from_secs(10);
/// Between two counts, which start a shell.
const COUNT_PAUSE: Duration = Duration::from_secs(60);

/// A server that does not go away while this lives.
pub(in crate::live) struct InUse<'a> {
    _permit: SemaphorePermit<'a>,
    pub(in crate::live) server: Arc<LiveServer>,
    pub(in crate::live) sandbox: Option<Arc<Box<dyn Sandbox>>>,
    pub(in crate::live) variant: Option<String>,
    pub(in crate::live) session: Option<Arc<Session>>,
}

impl LiveAgent {
    /// Gives it the parts that its sandboxes come and go around.
    pub(in crate::live) async fn begin(&self, base: Base) -> Result<(), LiveError> {
        let target = Arc::new(ServerOfAgent(self.this.clone()));
        let forwarder = Forwarder::start(target, self.outer.clone()).await;
        let forwarder = forwarder
            .map_err(|error| LiveError::Start(format!("listen on a port of loopback: {error}")))?;
        let mut state = self.state();
        state.forwarder = Some(forwarder);
        state.view.version = base.version().to_owned();
        state.view.model = base.model().to_owned();
        if let Some((id, session, feed)) = base.recorded() {
            state.view.records.push(id.to_string());
            state.session = Some(Arc::clone(session));
            state.feed = Some(Arc::clone(feed));
        }
        state.base = Some(base);
        Ok(())
    }

    /// Opens what is closed, and starts the server if it does not run.
    pub(in crate::live) async fn ready(&self) -> Result<InUse<'_>, LiveError> {
        let mut is_first = true;
        loop {
            let in_use = self.in_use().await?;
            match in_use.server.ensure_running().await {
                Ok(is_restarted) => {
                    if is_restarted {
                        self.note_start(&in_use.server);
                        self.state().view.restarts += 1;
                    }
                    return Ok(in_use);
                }
                // The sandbox itself may be gone: another one is started from what was saved last.
                Err(StartError::Spawn(_)) if is_first => {
                    is_first = false;
                    drop(in_use);
                    self.discard().await;
                }
                Err(error) => return Err(self.start_error(error)),
            }
        }
    }

    /// Opens what is closed. Files can be used without the server.
    pub(super) async fn in_use(&self) -> Result<InUse<'_>, LiveError> {
        loop {
            self.check_here()?;
            let permit = self.uses.acquire().await.map_err(|_| LiveError::Stopped)?;
            {
                let mut state = self.state();
                state.last_active = Instant::now();
                if let Some(open) = &state.open {
                    return Ok(InUse {
                        _permit: permit,
                        server: Arc::clone(open.server()),
                        sandbox: open.sandbox().cloned(),
                        variant: open.variant().cloned(),
                        session: state.session.clone(),
                    });
                }
            }
            drop(permit);
            self.wake().await?;
        }
    }

    /// Opens the agent's place and starts its server, unless that was done meanwhile.
    pub(in crate::live) async fn wake(&self) -> Result<(), LiveError> {
        let this = self.this.upgrade().ok_or(LiveError::Stopped)?;
        let waking = async move { this.wake_now().await };
        let woken = self.shared.tasks.spawn(waking).await;
        woken.unwrap_or_else(|error| Err(LiveError::Start(error.to_string())))
    }

    async fn wake_now(&self) -> Result<(), LiveError> {
        let _all = self.uses.acquire_many(USES).await;
        self.check_here()?;
        if self.state().open.is_some() {
            return Ok(());
        }
        let base = self.state().base.take();
        let mut base = base.ok_or(LiveError::Stopped)?;
        let opening = Box::pin(self.open(&mut base));
        let opened = self.stop.run_until_cancelled(opening).await;
        let opened = opened.unwrap_or(Err(LiveError::Stopped));
        let mut state = self.state();
        state.base = Some(base);
        state.opened_at = Instant::now();
        state.is_session_known = false;
        state.view.error = opened.as_ref().err().map(ToString::to_string);
        state.open = Some(opened?);
        if state.view.state == LiveState::Sleeping {
            state.view.state = LiveState::Idle;
        }
        drop(state);
        self.woken.notify_one();
        Ok(())
    }

    async fn open(&self, base: &mut Base) -> Result<Open, LiveError> {
        let open = base.open(&self.shared.cx, &self.place()).await?;
        match open.server().ensure_running().await {
            Ok(_) => {
                self.note_start(open.server());
                Ok(open)
            }
            Err(error) => {
                base.close(open).await;
                Err(self.start_error(error))
            }
        }
    }

    /// Saves its files and closes what it runs in, until it is used again. When they cannot be saved it stays open.
    pub(in crate::live) async fn sleep(&self) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let sleeping = async move {
            let _all = this.uses.acquire_many(USES).await;
            this.sleep_now().await;
        };
        if let Err(error) = self.shared.tasks.spawn(sleeping).await {
            tracing::error!(%error, "a live agent was not saved");
        }
    }

    /// Closes what it runs in without saving it.
    async fn discard(&self) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let discarding = async move {
            let _all = this.uses.acquire_many(USES).await;
            let (base, open) = {
                let mut state = this.state();
                (state.base.take(), state.open.take())
            };
            let Some(mut base) = base else { return };
            if let Some(open) = open {
                base.close(open).await;
            }
            let mut state = this.state();
            state.base = Some(base);
            state.view.state = LiveState::Sleeping;
        };
        if let Err(error) = self.shared.tasks.spawn(discarding).await {
            tracing::error!(%error, "a live agent was not closed");
        }
    }

    async fn sleep_now(&self) {
        let (base, open) = {
            let mut state = self.state();
            (state.base.take(), state.open.take())
        };
        let Some(mut base) = base else { return };
        let mut error = None;
        let mut left = None;
        if let Some(open) = open {
            match base.save(&self.shared.cx, &open, &self.place()).await {
                Ok(()) => base.close(open).await,
                Err(problem) => {
                    tracing::warn!(%problem, agent = self.id, "a live agent was not saved");
                    error = Some(problem.to_string());
                    left = Some(open);
                }
            }
        }
        let mut state = self.state();
        state.base = Some(base);
        state.view.memory_bytes = None;
        state.view.error = error;
        state.view.state = match left {
            None => LiveState::Sleeping,
            Some(_) => LiveState::Idle,
        };
        state.last_active = Instant::now();
        state.open = left;
        drop(state);
        self.persist();
    }

    /// Ends everything for good; nobody drives turns any more. Files are saved if the agent was ever healthy.
    pub(in crate::live) async fn shut(&self, ending: Ending) {
        let _all = self.uses.acquire_many(USES).await;
        let (base, open, forwarder) = {
            let mut state = self.state();
            (state.base.take(), state.open.take(), state.forwarder.take())
        };
        if let Some(mut forwarder) = forwarder {
            forwarder.close().await;
        }
        let mut problem = None;
        if let Some(mut base) = base {
            if let Some(open) = open {
                let saved = base.save(&self.shared.cx, &open, &self.place()).await;
                problem = saved.err();
                base.close(open).await;
            }
            let finished = base.finish(&self.shared.cx, ending).await;
            problem = problem.or(finished.err());
        }
        self.directory.forget_process();
        let mut state = self.state();
        let used = state.totals();
        // A session that is over is not added again.
        state.session = None;
        state.feed = None;
        state.earlier = used;
        let view = &mut state.view;
        view.state = match view.state {
            LiveState::Failed => LiveState::Failed,
            _ => LiveState::Stopped,
        };
        used.note(view);
        view.open_turns = 0;
        view.memory_bytes = None;
        if let Some(problem) = problem {
            tracing::warn!(%problem, agent = self.id, "a live agent was not stopped cleanly");
            view.error = Some(problem.to_string());
        }
        drop(state);
        self.persist();
        // Whoever takes it next must find it as it is now.
        self.state().lock = None;
        self.ended.cancel();
    }

    /// Whether to save, close and restore it, since it holds too much or has run for too long.
    pub(in crate::live) async fn is_worn(&self) -> bool {
        let (sandbox, memory_max, age, is_counted) = {
            let mut state = self.state();
            let memory_max = state.base.as_ref().and_then(Base::memory_bytes_max);
            let sandbox = state.open.as_ref().and_then(|open| open.sandbox().cloned());
            let is_counted = state.counted_at.elapsed() >= COUNT_PAUSE;
            if is_counted {
                state.counted_at = Instant::now();
            }
            (sandbox, memory_max, state.opened_at.elapsed(), is_counted)
        };
        if age >= self.shared.age_max {
            return true;
        }
        let Some(sandbox) = sandbox else { return false };
        let used = sandbox.usage().await.memory_bytes;
        self.state().view.memory_bytes = used;
        let is_large = match (used, memory_max) {
            (Some(used), Some(max)) => used > max / 100 * MEMORY_PERCENT_MAX,
            _ => false,
        };
        if is_large && age >= RECYCLE_PAUSE {
            return true;
        }
        is_counted && descriptors(&**sandbox).await > DESCRIPTORS_MAX
    }

    /// What others and later processes see of it.
    pub(in crate::live) fn persist(&self) {
        let mut view = self.view();
        // An address of this process is nobody's else.
        view.base_url = None;
        let written = self.directory.write_view(&view);
        if let Err(error) = written {
            let error = rollcage_model::text::chain(&error);
            tracing::warn!(
                error,
                agent = self.id,
                "the state of a live agent is not written"
            );
        }
    }

    /// Remembers a server without a sandbox, which outlives us if we are killed.
    fn note_start(&self, server: &LiveServer) {
        let (Some(identity), Some(port)) = (server.identity(), server.port()) else {
            return;
        };
        let process = ServerProcess {
            identity,
            port,
            password: self.inner.password.clone(),
        };
        if let Err(error) = self.directory.write_process(&process) {
            let error = rollcage_model::text::chain(&error);
            tracing::warn!(
                error,
                agent = self.id,
                "a server could not be adopted later"
            );
        }
    }

    fn place(&self) -> ServerPlace<'_> {
        ServerPlace {
            request: &self.request,
            directory: &self.directory,
            credentials: &self.inner,
        }
    }

    fn start_error(&self, error: StartError) -> LiveError {
        match error {
            StartError::Timeout(limit) => LiveError::Timeout(limit.as_secs_f64()),
            StartError::Stopped => LiveError::Stopped,
            StartError::PortTaken(_)
            | StartError::Ended { .. }
            | StartError::Spawn(_)
            | StartError::BackOff(..) => {
                let error = rollcage_model::text::chain(&error);
                LiveError::Start(self.without_secrets(error))
            }
        }
    }

    /// What a server said at its end may have its password in it.
    fn without_secrets(&self, text: String) -> String {
        text.replace(&self.inner.password, "***")
    }
}

impl Totals {
    pub(super) fn note(self, view: &mut crate::live::LiveView) {
        view.calls = self.calls;
        view.prompt_tokens = self.prompt_tokens;
        view.completion_tokens = self.completion_tokens;
        view.cost_usd = (self.cost_usd > 0.0).then_some(self.cost_usd);
    }
}

/// How an agent's record ends that nothing is wrong with.
pub(in crate::live) fn completed() -> Ending {
    Ending {
        cause: Cause::Completed,
        error: None,
    }
}

async fn descriptors(sandbox: &dyn Sandbox) -> usize {
    let env = rollcage_agents::base_environment(&Default::default());
    let counted = run_command(sandbox, COUNT_DESCRIPTORS, env, "/", COUNT_LIMIT).await;
    let text = counted.map(|counted| counted.stdout).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// The server that our own address leads to. A request counts as use.
struct ServerOfAgent(Weak<LiveAgent>);

impl ForwardTarget for ServerOfAgent {
    fn target(&self) -> Option<(Arc<dyn Connect>, Credentials)> {
        let agent = self.0.upgrade()?;
        let mut state = agent.state();
        state.last_active = Instant::now();
        state.open.as_ref()?.server().target()
    }
}
