//! One server process, kept running.
//!
//! A task, the keeper, owns the process, so whatever is asked of it at once is done one after the other: `server/keeper`
//! decides what to do, `server/start` starts, `server/running` is a process that became healthy.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rollcage_sandbox::BoxedStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::client::{Client, Connect, Credentials, Health};
use crate::forward::ForwardTarget;
use crate::log::{RotatingLog, SharedLog};
use crate::place::{Place, ProcessIdentity, ServeProcess};

mod keeper;
mod running;
mod start;

use keeper::{Command, Keeper};

/// A server sends a heartbeat every ten seconds.
pub const SILENCE_MAX: Duration = Duration::from_secs(25);
/// Of one probe: a server that starts accepts connections on which it never answers, so a new one is tried soon.
const PROBE_LIMIT: Duration = Duration::from_millis(250);
/// Of one probe after many without an answer: on a busy machine a healthy server may take longer.
const PROBE_LIMIT_MAX: Duration = Duration::from_secs(2);
/// Callers beyond it wait for their turn to ask.
const COMMANDS_MAX: usize = 64;

/// How a server is started and watched.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// `{port}` stands for the port.
    pub argv: Vec<String>,
    /// Without the server's password, which is added.
    pub env: BTreeMap<String, String>,
    /// Empty means the place's own work directory.
    pub cwd: String,
    /// 0 takes a free one.
    pub port: u16,
    pub credentials: Credentials,
    /// How long a start may take.
    pub deadline: Duration,
    /// The pause between two probes.
    pub poll: Duration,
    /// A server that answers no probe counts as hung after so long without a heartbeat; see [`SILENCE_MAX`].
    pub silence_max: Duration,
    /// `serve.log`; everything that the server prints goes there, and it rotates.
    pub log: PathBuf,
}

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the agent's server was not healthy within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("port {0} is taken by another program")]
    PortTaken(u16),
    #[error("the agent's server ended at its start ({how}){}", .said.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    Ended { how: String, said: Option<String> },
    #[error("start the agent's server")]
    Spawn(#[source] io::Error),
    #[error(
        "the agent's server ended {0} times in a row and is not started again before {1} s have passed"
    )]
    BackOff(u32, u64),
    #[error("the live agent is stopped")]
    Stopped,
}

impl StartError {
    /// For others who waited for the same start.
    fn copy(&self) -> Self {
        match self {
            StartError::Timeout(limit) => StartError::Timeout(*limit),
            StartError::PortTaken(port) => StartError::PortTaken(*port),
            StartError::Ended { how, said } => StartError::Ended {
                how: how.clone(),
                said: said.clone(),
            },
            StartError::Spawn(source) => {
                StartError::Spawn(io::Error::new(source.kind(), source.to_string()))
            }
            StartError::BackOff(times, wait_s) => StartError::BackOff(*times, *wait_s),
            StartError::Stopped => StartError::Stopped,
        }
    }
}

/// A server process in a place. Dropping it kills the process.
pub struct LiveServer {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    /// The keeper; aborted on drop.
    keeper: Mutex<JoinSet<()>>,
    log: SharedLog,
}

/// What the keeper lets others see.
struct Shared {
    current: Mutex<Option<Current>>,
    turns: Arc<AtomicUsize>,
    /// Counts requests to stop: a start that was asked for before one ends with it.
    stops: watch::Sender<u64>,
}

/// The healthy process that runs now.
#[derive(Clone)]
struct Current {
    port: u16,
    connect: Arc<dyn Connect>,
    credentials: Credentials,
    identity: Option<ProcessIdentity>,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<String>>,
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stops(&self) -> u64 {
        *self.stops.borrow()
    }

    /// Returns once somebody asked to stop after that many times.
    async fn stopped_after(&self, stops: u64) {
        let mut receiver = self.stops.subscribe();
        // The sender is in `self`, so it cannot be gone.
        let _ = receiver.wait_for(|now| *now > stops).await;
    }
}

impl LiveServer {
    /// Starts nothing yet. Must be called within a tokio runtime.
    pub fn new(place: Arc<dyn Place>, options: ServerOptions) -> Arc<Self> {
        let shared = Arc::new(Shared {
            current: Mutex::new(None),
            turns: Arc::default(),
            stops: watch::Sender::new(0),
        });
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let mut tasks = JoinSet::new();
        let log = RotatingLog::shared(options.log.clone());
        let keeper = Keeper::new(place, options, Arc::clone(&shared), Arc::clone(&log));
        tasks.spawn(keeper.run(received));
        Arc::new(LiveServer {
            shared,
            commands,
            keeper: Mutex::new(tasks),
            log,
        })
    }

    /// Healthy: nothing is done. Starting: waits for it. Unhealthy or dead: ends what is left and starts exactly one anew.
    /// Returns whether a process was started by this call. The start goes on if the caller goes away.
    pub async fn ensure_running(&self) -> Result<bool, StartError> {
        let stops = self.shared.stops();
        let command = |reply| Command::Ensure { stops, reply };
        self.ask(command).await.unwrap_or(Err(StartError::Stopped))
    }

    /// Takes over a process that an earlier process of ours started; false, and its end, if it is not healthy.
    pub async fn adopt(&self, process: Box<dyn ServeProcess>, port: u16) -> bool {
        let command = |reply| Command::Adopt {
            process,
            port,
            reply,
        };
        self.ask(command).await.unwrap_or(false)
    }

    /// Probes once.
    pub async fn health(&self) -> Health {
        match self.client() {
            Some(client) => client.health(PROBE_LIMIT).await,
            None => Health::Refused,
        }
    }

    /// Whether a process that became healthy is alive, without asking it.
    pub fn is_running(&self) -> bool {
        self.shared.current().is_some()
    }

    /// Where it listens inside its place, once it runs.
    pub fn base_url(&self) -> Option<String> {
        let port = self.port()?;
        Some(format!("http://127.0.0.1:{port}"))
    }

    pub fn port(&self) -> Option<u16> {
        Some(self.shared.current().as_ref()?.port)
    }

    /// What [`crate::HostPlace::adopt`] needs after our own restart, where that is possible.
    pub fn identity(&self) -> Option<ProcessIdentity> {
        self.shared.current().as_ref()?.identity.clone()
    }

    /// How to reach the running process, and its own credentials.
    pub fn target(&self) -> Option<(Arc<dyn Connect>, Credentials)> {
        let current = self.shared.current();
        let current = current.as_ref()?;
        Some((Arc::clone(&current.connect), current.credentials.clone()))
    }

    /// A client of the running process.
    pub fn client(&self) -> Option<Client> {
        let (connect, credentials) = self.target()?;
        Some(Client::new(connect, Some(credentials)))
    }

    /// Returns once the process that runs now has ended, with how it did; at once if none runs.
    pub async fn ended(&self) -> String {
        let ended = self.shared.current().as_ref().map(|it| it.ended.clone());
        let Some(mut ended) = ended else {
            return "it does not run".to_owned();
        };
        let how = ended.wait_for(Option::is_some).await;
        let how = how.ok().and_then(|how| how.clone());
        how.unwrap_or_else(|| "it was killed with its owner".to_owned())
    }

    /// While this lives, a slow server is not taken for a hung one.
    pub fn turn_in_progress(&self) -> TurnGuard {
        self.shared.turns.fetch_add(1, Ordering::AcqRel);
        TurnGuard {
            turns: Arc::clone(&self.shared.turns),
        }
    }

    /// Its log is this file from now on, with what it has now.
    pub fn move_log(&self, path: PathBuf) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.move_to(path);
    }

    /// Ends an unhealthy or dead process with all that it started; true if there was one.
    pub async fn reap(&self) -> bool {
        let command = |reply| Command::Reap { reply };
        self.ask(command).await.unwrap_or(false)
    }

    /// Terminates, waits, kills the whole tree, closes the log. It can be started again. Starts in progress end with
    /// [`StartError::Stopped`].
    pub async fn stop(&self) {
        self.shared.stops.send_modify(|stops| *stops += 1);
        self.ask(|reply| Command::Stop { reply }).await;
    }

    /// Stops for good, and lets go of the place: nothing of ours holds it afterwards but clients that others took.
    pub async fn close(&self) {
        self.shared.stops.send_modify(|stops| *stops += 1);
        self.ask(|reply| Command::Close { reply }).await;
        let mut keeper = {
            let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *keeper)
        };
        while keeper.join_next().await.is_some() {}
    }

    /// `None` once the server is closed.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

impl ForwardTarget for LiveServer {
    fn target(&self) -> Option<(Arc<dyn Connect>, Credentials)> {
        LiveServer::target(self)
    }
}

/// See [`LiveServer::turn_in_progress`].
pub struct TurnGuard {
    turns: Arc<AtomicUsize>,
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.turns.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Of a probe after so many without an answer.
fn probe_limit(unanswered: u32) -> Duration {
    let limit = PROBE_LIMIT.saturating_mul(2_u32.saturating_pow(unanswered / 3));
    limit.min(PROBE_LIMIT_MAX)
}

/// One port of a place.
struct PortOfPlace {
    place: Arc<dyn Place>,
    port: u16,
}

#[async_trait]
impl Connect for PortOfPlace {
    async fn connect(&self) -> io::Result<BoxedStream> {
        self.place.connect(self.port).await
    }
}

#[cfg(test)]
mod tests;
