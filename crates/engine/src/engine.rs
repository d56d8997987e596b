//! The public interface of the engine: submit, look up, cancel, wait for, list and delete rollouts.
//!
//! Every rollout belongs to an owner and is invisible to all others. Records without an owner were made by `rollcage
//! run` on this machine; everybody may read them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use rollcage_agents::bundle::{Bundles, InstallStatus, OnProgress, Registry, VersionRequest};
use rollcage_agents::{Agent, ReadyAgent};
use rollcage_endpoints::serving::OnServingStep;
use rollcage_model::event::Event;
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::{ModelSettings, Profiles, SamplingPolicy};
use rollcage_sandbox::Sandboxes;

use crate::context::Context;
use crate::controls::{CommandError, RolloutCommand};
use crate::dispatch::{Dispatcher, RolloutEntry};
use crate::intake::{
    Catalogue, PlanError, Preparer, RequestError, ResolvedRollout, RolloutRequest, resolve,
};
use crate::limits::EngineLimits;
use crate::listing::{LOCAL, Listing, is_visible};
use crate::live::{LiveAgents, LiveState};
use crate::metrics::Counters;
use crate::result;
use crate::rollout;
use crate::schedule::QueueError;
use crate::store::{Store, StoreError, Summary};
use crate::trial::{self, TrialError};
use crate::warm::{WarmAgents, WarmCounters};

mod lists;

/// The dependencies and settings of an engine.
pub struct EngineOptions {
    /// The root of everything the engine stores.
    pub home: PathBuf,
    pub registry: Registry,
    /// The sandbox backend. The engine shuts it down when it is closed.
    pub sandboxes: Arc<dyn Sandboxes>,
    pub catalogue: Arc<Catalogue>,
    pub limits: EngineLimits,
    /// Receives the events of all rollouts and live agents.
    pub listener: Option<mpsc::UnboundedSender<Event>>,
    /// Called with the progress of agent installations.
    pub on_install: Option<Box<dyn Fn(InstallStatus) + Send + Sync>>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("use {path}")]
    Directory {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Why a rollout cannot be read or deleted.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("no rollout `{0}`")]
    Unknown(String),
    #[error("rollout {0} has not ended: cancel it first")]
    Running(RolloutId),
    #[error("rollout {0} was run on the server's own machine and is not yours to delete")]
    NotYours(RolloutId),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the thread that reads records ended")]
    Thread(#[from] tokio::task::JoinError),
}

/// Where a rollout was found.
#[derive(Clone, Debug)]
pub enum RolloutLookup {
    /// Submitted to this process and still in memory, ended or not.
    InMemory(Arc<RolloutEntry>),
    /// On disk only.
    Stored(Box<Summary>),
}

/// The current load of a process, and its counters since it started.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
    pub counters: Counters,
    pub warm: WarmCounters,
    /// Live agents of this process, by state.
    pub live: Vec<(LiveState, usize)>,
}

/// A rollout that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub id: RolloutId,
    /// Whose it was; `None` for one that everybody could see.
    pub owner: Option<String>,
}

/// How many deletions a slow reader may be behind; then it is told that it missed some.
const REMOVALS_MAX: usize = 256;

/// Runs the rollouts of one process.
pub struct Engine {
    cx: Arc<Context>,
    dispatcher: Arc<Dispatcher>,
    listing: Arc<Listing>,
    live: LiveAgents,
    removals: broadcast::Sender<Removal>,
}

impl Engine {
    /// Opens the home directory and closes the records that a killed process left open.
    pub async fn open(options: EngineOptions) -> Result<Self, OpenError> {
        let store = Store::open(&options.home)?;
        close_abandoned(&store).await?;
        private_directory(&options.home.join("layers"))?;
        let warm_logs = options.home.join("warm");
        private_directory(&warm_logs)?;
        let sandboxes = options.sandboxes;
        let preparer = Preparer::new(
            &options.home,
            options.catalogue,
            Bundles::new(options.home.join("bundles"), options.registry),
            Arc::clone(&sandboxes),
            options.on_install,
        );
        let warm = WarmAgents::new(
            options.limits.warm,
            Arc::clone(&sandboxes),
            Arc::clone(&preparer.catalogue),
            warm_logs,
        );
        let cx = Arc::new(Context {
            warm,
            store: store.clone(),
            clients: Arc::clone(&preparer.clients),
            profiles: Arc::new(Profiles::default()),
            preparer,
            sandboxes,
        });
        let listener = options.listener;
        let dispatcher = Dispatcher::new(Arc::clone(&cx), options.limits, listener.clone());
        let metrics = Arc::clone(&dispatcher.metrics);
        let live = LiveAgents::new(Arc::clone(&cx), options.limits, metrics, listener);
        live.recover().await;
        Ok(Engine {
            dispatcher,
            listing: Arc::new(Listing::new(store)),
            live,
            cx,
            removals: broadcast::Sender::new(REMOVALS_MAX),
        })
    }

    /// Logs what the scripted endpoint sends, for tests that compare a trace with it.
    pub fn log_scripted(&self, log: Arc<rollcage_scripted::Log>) {
        self.cx.preparer.log_scripted(log);
    }

    pub fn store(&self) -> &Store {
        &self.cx.store
    }

    /// The agents that are kept running as servers.
    pub fn live(&self) -> &LiveAgents {
        &self.live
    }

    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.cx.preparer.catalogue
    }

    /// The installed agents.
    pub fn bundles(&self) -> &Bundles {
        &self.cx.preparer.bundles
    }

    /// Checks that rollouts can run here, by starting a sandbox.
    pub async fn try_sandbox(&self) -> Result<(), TrialError> {
        trial::try_sandbox(&*self.cx.sandboxes).await
    }

    /// Installs an agent if necessary and prepares its pre-baked home directory.
    pub async fn ready(
        &self,
        agent: &dyn Agent,
        version: VersionRequest,
        on_progress: OnProgress<'_>,
    ) -> Result<ReadyAgent, PlanError> {
        let preparer = &self.cx.preparer;
        preparer.ready(agent, version, on_progress).await
    }

    /// Chooses agent, endpoint and settings, and refuses addresses that the requester may not name. Has no side
    /// effects.
    pub async fn resolve(&self, request: RolloutRequest) -> Result<ResolvedRollout, RequestError> {
        let resolved = resolve(request, self.catalogue())?;
        resolved.check_addresses().await?;
        Ok(resolved)
    }

    /// Queries the endpoint of a rollout for what is still unknown (such as its model), and starts its server if that
    /// is ours to manage; for callers that want to report a wrong endpoint before anything is submitted.
    pub async fn settle(
        &self,
        rollout: &mut ResolvedRollout,
        on_step: OnServingStep<'_>,
    ) -> Result<Endpoint, PlanError> {
        self.cx.preparer.settle(rollout, on_step).await
    }

    /// Why nothing of a rollout could be trained on, where that is certain before it starts. An endpoint that cannot be
    /// reached says nothing, which its rollouts will tell.
    pub async fn untrainable(
        &self,
        endpoint: &Endpoint,
        settings: &ModelSettings,
    ) -> Option<String> {
        // Nothing is certain of what an agent chooses, so that needs no probe yet.
        if settings.is_black_box || !matches!(settings.sampling, SamplingPolicy::Pinned(_)) {
            return None;
        }
        let (_, profile) = rollout::reach(&self.cx, endpoint, settings).await.ok()?;
        settings.sampling.untrainable(&profile)
    }

    /// Queues `count` rollouts, all or none, and returns before any of them is prepared.
    pub fn submit(
        &self,
        mut rollout: ResolvedRollout,
        count: usize,
    ) -> Result<Vec<Arc<RolloutEntry>>, QueueError> {
        let new_group = || RolloutId::generate().to_string();
        rollout.group.get_or_insert_with(new_group);
        self.dispatcher.submit(&rollout, count)
    }

    /// Calls `deliver` with each result as it arrives. Cancelling ends the rollouts that run and gives those that wait
    /// a result without starting them; dropping this future does the same.
    pub async fn deliver(
        &self,
        entries: Vec<Arc<RolloutEntry>>,
        cancel: CancellationToken,
        mut deliver: impl FnMut(RolloutResult),
    ) {
        let guard = CancelOnDrop {
            dispatcher: &self.dispatcher,
            entries: entries.clone(),
        };
        let mut waits: FuturesUnordered<_> = entries
            .into_iter()
            .map(|entry| async move {
                entry.wait().await;
                entry
            })
            .collect();
        let watch = async {
            cancel.cancelled().await;
            guard.cancel_all();
            std::future::pending::<()>().await;
        };
        let collect = async {
            while let Some(entry) = waits.next().await {
                let kept = entry.result_slot().take();
                let result = match kept {
                    Some(result) => Ok(Arc::unwrap_or_clone(result)),
                    // Evicted from memory by rollouts that ended later.
                    None => self.store().result(entry.id),
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

    /// Finds a rollout that belongs to `owner` or has no owner.
    pub async fn find(&self, owner: &str, id: &str) -> Result<RolloutLookup, EngineError> {
        let unknown = || EngineError::Unknown(id.to_owned());
        let parsed: RolloutId = id.parse().map_err(|_| unknown())?;
        if let Some(entry) = self.dispatcher.find(parsed) {
            return if entry.owner.as_deref().is_none_or(|own| own == owner) {
                Ok(RolloutLookup::InMemory(entry))
            } else {
                Err(unknown())
            };
        }
        let listing = Arc::clone(&self.listing);
        let summary = tokio::task::spawn_blocking(move || listing.get(parsed)).await?;
        match summary {
            Some(summary) if is_visible(&summary, owner) => {
                Ok(RolloutLookup::Stored(Box::new(summary)))
            }
            _ => Err(unknown()),
        }
    }

    /// Requests cancellation; true unless the rollout had already ended. The result arrives a little later.
    pub fn cancel(&self, entry: &RolloutEntry) -> bool {
        let is_running = !entry.is_ended();
        if is_running {
            self.dispatcher.cancel(entry);
        }
        is_running
    }

    /// Sends a command to a running rollout.
    pub fn command(
        &self,
        entry: &RolloutEntry,
        command: RolloutCommand,
    ) -> Result<(), CommandError> {
        self.dispatcher.command(entry, command)
    }

    /// Waits for the end. Dropping this future does not stop the rollout.
    pub async fn wait(&self, entry: &RolloutEntry) -> Result<Arc<RolloutResult>, EngineError> {
        entry.wait().await;
        match entry.result() {
            Some(result) => Ok(result),
            None => self.stored(entry.id).await,
        }
    }

    /// Reads a result from disk.
    pub async fn stored(&self, id: RolloutId) -> Result<Arc<RolloutResult>, EngineError> {
        let store = self.store().clone();
        let read = tokio::task::spawn_blocking(move || store.result(id)).await?;
        Ok(Arc::new(read?))
    }

    /// Deletes an ended rollout with its record.
    pub async fn delete(&self, owner: &str, id: &str) -> Result<(), EngineError> {
        let (id, is_ended, own) = match self.find(owner, id).await? {
            RolloutLookup::InMemory(entry) => (entry.id, entry.is_ended(), entry.owner.clone()),
            RolloutLookup::Stored(summary) => {
                let is_ended = summary.is_ended();
                (summary.row.rollout_id, is_ended, summary.owner)
            }
        };
        if !is_ended {
            return Err(EngineError::Running(id));
        }
        if own.is_none() && owner != LOCAL {
            return Err(EngineError::NotYours(id));
        }
        let listing = Arc::clone(&self.listing);
        let removed = tokio::task::spawn_blocking(move || listing.remove(id)).await?;
        match removed {
            // A rollout whose record could not be written exists in memory only.
            Ok(()) | Err(StoreError::Unknown(_)) => {
                self.dispatcher.forget(id);
                // Nobody may be listening.
                let _ = self.removals.send(Removal { id, owner: own });
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn load(&self) -> Load {
        let (running, waiting) = self.dispatcher.load();
        Load {
            running,
            waiting,
            counters: self.dispatcher.metrics.counters(),
            warm: self.cx.warm.counters(),
            live: self.live.states(),
        }
    }

    /// Accepts no more rollouts, lets running ones finish within the grace period, cancels the rest, and closes
    /// everything that was started. Every rollout has its result and record before this returns.
    pub async fn shut_down(&self, grace: Duration) {
        tokio::join!(self.dispatcher.shut_down(grace), self.live.shut_down());
        self.cx.warm.close().await;
        self.cx.preparer.close().await;
        if let Err(error) = self.cx.sandboxes.shutdown().await {
            tracing::warn!(
                error = rollcage_model::text::chain(&error),
                "the sandboxes did not shut down cleanly"
            );
        }
    }

    /// Shuts down without a grace period.
    pub async fn close(&self) {
        self.shut_down(Duration::ZERO).await;
    }
}

/// Cancels rollouts on drop, when nobody waits for them any more.
struct CancelOnDrop<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    entries: Vec<Arc<RolloutEntry>>,
}

impl CancelOnDrop<'_> {
    fn cancel_all(&self) {
        for entry in self.entries.iter().filter(|entry| !entry.is_ended()) {
            self.dispatcher.cancel(entry);
        }
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

/// Commits the one result of every rollout whose process was killed, with what was captured until then.
async fn close_abandoned(store: &Store) -> Result<(), OpenError> {
    for (id, task, record) in store.abandoned()? {
        let path = record.path().to_owned();
        let reading = tokio::task::spawn_blocking(move || result::of_killed(id, task, &path));
        record.commit(&reading.await.map_err(StoreError::Thread)?)?;
    }
    Ok(())
}

/// Removes the pre-baked home directories of an agent's version; called when its bundle is removed.
pub fn forget_home(home: &std::path::Path, agent: &str, version: &str) {
    let prefix = format!("{agent}-{version}-");
    for entry in std::fs::read_dir(home.join("layers"))
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // Harmless if it fails: the next installation replaces it.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn private_directory(path: &std::path::Path) -> Result<(), OpenError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|source| OpenError::Directory {
        path: path.to_owned(),
        source,
    })
}
