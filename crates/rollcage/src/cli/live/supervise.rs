//! `rollcage live supervise`: the process that owns one live agent. It makes itself independent of whoever started it,
//! serves the agent's routes at a socket, and ends when the agent is stopped or SIGTERM comes, which saves it first.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use rollcage_agents::bundle::{InstallPhase, InstallStatus};
use rollcage_engine::live::{LiveAgent, LiveError};
use rollcage_engine::{EngineOptions, LOCAL};
use rollcage_model::event::{Event, Phase, What};
use rollcage_model::text::chain;

use super::directory::{AgentDirectory, NewLog, SupervisorLock};
use super::handover::{Handover, Report, Reporter};
use crate::cli::run::wrong_request;
use crate::server::api;
use crate::server::listen::BODY_LIMIT;
use crate::server::live::owner_view;
use crate::server::rollouts::Backend;
use crate::server::tasks::Tasks;
use crate::{Outcome, UsageError, output, settings, text};

mod listen;

/// Of the request on standard input: a task with its files.
const HANDOVER_BYTES_MAX: u64 = 256 << 20;
/// Whoever only looks for a supervisor holds its lock for less.
const TAKEN_AFTER: Duration = Duration::from_secs(1);
/// Of a setup command that is shown.
const COMMAND_CHARS: usize = 60;
/// For the agent to be saved and ended.
const STOP_LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn run() -> anyhow::Result<Outcome> {
    // A session of its own, so that a closed terminal and its Ctrl-C do not reach us. It fails for a process that has one
    // already.
    let _ = nix::unistd::setsid();
    let handover = tokio::task::spawn_blocking(read_handover).await??;
    let home = settings::home()?;
    let mut log = NewLog::create(&home).context("make the supervisor's log")?;
    let reporter = Arc::new(Reporter::new(output::detach(&log.file)?));
    let ended = Box::pin(supervise(handover, &home, &mut log, &reporter)).await;
    if let Err(error) = &ended {
        log.remove();
        reporter.tell(&Report::Failed {
            message: format!("{error:#}"),
            is_wrong_use: error.is::<UsageError>(),
        });
    }
    ended.map(|()| Outcome::Success)
}

fn read_handover() -> anyhow::Result<Handover> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(HANDOVER_BYTES_MAX);
    std::io::BufReader::new(read)
        .read_to_string(&mut text)
        .context("read the request")?;
    let wrong = |_| UsageError("`rollcage live start` runs this, with a request".to_owned());
    Ok(serde_json::from_str(&text).map_err(wrong)?)
}

/// What ends a supervisor from outside.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    /// Only caught: a lost terminal is none of our business.
    _hangup: Signal,
}

impl EndSignals {
    fn catch() -> std::io::Result<Self> {
        Ok(EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn supervise(
    handover: Handover,
    home: &Path,
    log: &mut NewLog,
    reporter: &Arc<Reporter>,
) -> anyhow::Result<()> {
    let mut signals = EndSignals::catch().context("catch signals")?;
    // Before anything is started: of several that start the same agent, one goes on.
    let lock = match &handover {
        Handover::New(_) => None,
        Handover::Again(id) => {
            let agent = AgentDirectory::new(home, id);
            let Some(lock) = agent.lock_soon(Instant::now() + TAKEN_AFTER).await? else {
                log.remove();
                reporter.tell(&Report::Taken);
                return Ok(());
            };
            Some(lock)
        }
    };
    let (listener, events) = mpsc::unbounded_channel();
    // Ends with this function.
    let mut steps = JoinSet::new();
    steps.spawn(report_steps(events, Arc::clone(reporter)));
    let options = EngineOptions {
        listener: Some(listener),
        on_install: Some(install_reports(Arc::clone(reporter))),
        ..settings::engine_options().await?
    };
    let engine = Box::pin(settings::open_engine(options)).await?;
    let backend = Backend::new(engine, Arc::new(Tasks::default()), BODY_LIMIT);
    let started = tokio::select! {
        started = start(&backend, handover, reporter) => started,
        () = signals.next() => Err(crate::Interrupted.into()),
    };
    let served = match started {
        Ok(agent) => serve(&agent, &backend, (home, log, lock), reporter, &mut signals).await,
        Err(error) => Err(error),
    };
    backend.engine.shut_down(Duration::ZERO).await;
    served
}

async fn start(
    backend: &Backend,
    handover: Handover,
    reporter: &Reporter,
) -> anyhow::Result<Arc<LiveAgent>> {
    let live = backend.engine.live();
    let started = match handover {
        Handover::New(request) => {
            reporter.tell(&Report::Progress("starting the agent".to_owned()));
            live.start(*request).await
        }
        Handover::Again(id) => {
            reporter.tell(&Report::Progress("starting the agent again".to_owned()));
            live.start_again(LOCAL, &id).await
        }
    };
    started.map_err(|error| match error {
        LiveError::Resolve(error) => wrong_request(error),
        LiveError::Request(_)
        | LiveError::NoServer { .. }
        | LiveError::Unknown(_)
        | LiveError::Quota(_) => UsageError(chain(&error)).into(),
        error => error.into(),
    })
}

/// Serves the agent until it is stopped, and leaves nothing of it but what is stored.
async fn serve(
    agent: &Arc<LiveAgent>,
    backend: &Arc<Backend>,
    (home, log, lock): (&Path, &mut NewLog, Option<SupervisorLock>),
    reporter: &Reporter,
    signals: &mut EndSignals,
) -> anyhow::Result<()> {
    let id = agent.id().to_owned();
    let directory = AgentDirectory::new(home, &id);
    let lock = match lock {
        Some(lock) => lock,
        None => {
            let lock = directory.lock_soon(Instant::now() + TAKEN_AFTER).await?;
            lock.context("another supervisor has the new agent")?
        }
    };
    log.move_to(&directory)
        .context("keep the supervisor's log")?;
    let listener = directory.listen(&lock).context("listen for commands")?;
    reporter.tell(&Report::Ready(serde_json::json!(owner_view(agent))));
    let ends = listen::Ends::default();
    let router = routes(backend, &ends.stopped);
    let serving = listen::serve(listener, router, ends.clone());
    let ending = async {
        tokio::select! {
            () = ends.stopped.cancelled() => {}
            () = signals.next() => {
                let stopping = backend.engine.live().stop(LOCAL, &id);
                match tokio::time::timeout(STOP_LIMIT, stopping).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => tracing::error!(error = chain(&error), "stop the agent"),
                    Err(_) => tracing::error!("the agent was not stopped in time"),
                }
            }
        }
        ends.closing.cancel();
    };
    tokio::join!(serving, ending);
    directory.remove_socket(&lock).context("remove the socket")
}

/// The agent's routes. When it was stopped through them, the supervisor ends.
fn routes(backend: &Arc<Backend>, stopped: &CancellationToken) -> Router {
    let note = axum::middleware::from_fn_with_state(stopped.clone(), note_stop);
    api::agent_routes(Arc::clone(backend)).layer(note)
}

async fn note_stop(
    State(stopped): State<CancellationToken>,
    request: Request,
    next: Next,
) -> Response {
    let is_stop = request.uri().path().ends_with("/stop");
    let response = next.run(request).await;
    if is_stop && response.status().is_success() {
        stopped.cancel();
    }
    response
}

/// Tells the starter how far the agent is. Later events, of model calls, are only taken out of the queue.
async fn report_steps(mut events: mpsc::UnboundedReceiver<Event>, reporter: Arc<Reporter>) {
    let mut is_started = false;
    while let Some(event) = events.recv().await {
        let step = match event.what {
            _ if is_started => continue,
            What::CommandStarted {
                number, of, cmd, ..
            } => format!("setup {number}/{of}: {}", text::line(&cmd, COMMAND_CHARS)),
            What::Entered {
                phase: Phase::Agent,
            } => {
                is_started = true;
                "waiting for its server".to_owned()
            }
            _ => continue,
        };
        reporter.tell(&Report::Progress(step));
    }
}

/// Tells the starter what is installed, once per phase.
fn install_reports(reporter: Arc<Reporter>) -> Box<dyn Fn(InstallStatus) + Send + Sync> {
    let last = std::sync::Mutex::new(None);
    Box::new(move |status| {
        let mut last = last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.replace(status.phase) == Some(status.phase) {
            return;
        }
        let what = match status.phase {
            InstallPhase::Resolving => "looking up",
            InstallPhase::Waiting => "waiting for another process that installs",
            InstallPhase::Downloading => "downloading",
            InstallPhase::Unpacking => "unpacking",
            InstallPhase::Done => "installed",
        };
        let step = format!("{what} {} {}", status.agent, status.version);
        reporter.tell(&Report::Progress(step));
    })
}
