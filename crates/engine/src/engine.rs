//! The front of the engine: rollouts are submitted, looked at, cancelled, waited for, listed and deleted here.
//!
//! Every rollout belongs to an owner, and nobody else can tell that it is there. Records without an owner were made by
//! `rollcage run` on this machine: everybody may read them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_agents::bundle::{Bundles, OnProgress, Progress, Registry, VersionRequest};
use rollcage_agents::{Agent, ReadyAgent};
use rollcage_endpoints::serving::OnServingStep;
use rollcage_model::ending::Cause;
use rollcage_model::event::Event;
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_proxy::Profiles;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_sandbox::Sandboxes;

use crate::controls::{Command, CommandError};
use crate::dispatch::{Dispatcher, Entry};
use crate::intake::{
    Catalogue, PlanError, Preparation, RequestError, Resolved, RolloutRequest, resolve,
};
use crate::judge::Ending;
use crate::limits::Limits;
use crate::listing::{Filter, Listing, Page, is_visible};
use crate::result;
use crate::rollout::Context;
use crate::schedule::QueueError;
use crate::store::{Store, StoreError, Summary};
use crate::tally::Numbers;
use crate::trial::{self, TrialError};

/// The owner of whoever is not told apart from others.
pub const LOCAL: &str = "local";

/// What an engine needs from outside.
pub struct EngineOptions {
    /// Everything that is kept lies below this directory.
    pub home: PathBuf,
    pub registry: Registry,
    /// Where rollouts run. The engine shuts them down when it is closed.
    pub sandboxes: Arc<dyn Sandboxes>,
    pub catalogue: Arc<Catalogue>,
    pub limits: Limits,
    /// Hears the events of all rollouts.
    pub listener: Option<mpsc::UnboundedSender<Event>>,
    /// Is told how installations of agents go.
    pub on_install: Option<Box<dyn Fn(Progress) + Send + Sync>>,
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

/// Why a rollout cannot be looked at or deleted.
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

/// A rollout that was found.
#[derive(Clone, Debug)]
pub enum Found {
    /// Taken on by this process and still known in memory, ended or not.
    Known(Arc<Entry>),
    /// On disk only.
    Stored(Box<Summary>),
}

/// What a running process reports of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
    pub numbers: Numbers,
}

/// Runs the rollouts of one process.
pub struct Engine {
    cx: Arc<Context>,
    dispatcher: Arc<Dispatcher>,
    listing: Arc<Listing>,
}

impl Engine {
    /// Opens the home directory, closes what a killed process left open.
    pub async fn open(options: EngineOptions) -> Result<Self, OpenError> {
        let store = Store::open(&options.home)?;
        close_abandoned(&store).await?;
        private_directory(&options.home.join("layers"))?;
        let sandboxes = options.sandboxes;
        let preparation = Preparation::new(
            &options.home,
            options.catalogue,
            Bundles::new(options.home.join("bundles"), options.registry),
            Arc::clone(&sandboxes),
            options.on_install,
        );
        let cx = Arc::new(Context {
            store: store.clone(),
            clients: Arc::clone(&preparation.clients),
            profiles: Arc::new(Profiles::default()),
            preparation,
            sandboxes,
        });
        Ok(Engine {
            dispatcher: Dispatcher::new(Arc::clone(&cx), options.limits, options.listener),
            listing: Arc::new(Listing::new(store)),
            cx,
        })
    }

    /// Keeps a copy of what the scripted endpoint sends, for tests that compare a trace with it.
    pub fn log_scripted(&self, log: Arc<rollcage_scripted::Log>) {
        self.cx.preparation.log_scripted(log);
    }

    pub fn store(&self) -> &Store {
        &self.cx.store
    }

    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.cx.preparation.catalogue
    }

    /// The agents that are installed.
    pub fn bundles(&self) -> &Bundles {
        &self.cx.preparation.bundles
    }

    /// Whether rollouts can run here, by starting a sandbox.
    pub async fn try_sandbox(&self) -> Result<(), TrialError> {
        trial::try_sandbox(&*self.cx.sandboxes).await
    }

    /// Installs an agent if need be and bakes its home.
    pub async fn ready(
        &self,
        agent: &dyn Agent,
        version: VersionRequest,
        on_progress: OnProgress<'_>,
    ) -> Result<ReadyAgent, PlanError> {
        let preparation = &self.cx.preparation;
        preparation.ready(agent, version, on_progress).await
    }

    /// Settles on agent, endpoint and settings, and refuses what whoever asks may not name. Nothing is done for it yet.
    pub async fn resolve(&self, request: RolloutRequest) -> Result<Resolved, RequestError> {
        let resolved = resolve(request, self.catalogue())?;
        resolved.check_addresses().await?;
        Ok(resolved)
    }

    /// Asks the endpoint of a rollout what is not known of it yet, and starts its server where that is ours to do; for
    /// whoever wants to hear of a wrong endpoint before anything is submitted.
    pub async fn settle(
        &self,
        rollout: &mut Resolved,
        on_step: OnServingStep<'_>,
    ) -> Result<Endpoint, PlanError> {
        self.cx.preparation.settle(rollout, on_step).await
    }

    /// Takes `count` rollouts on, all or none, and returns before anything of them is prepared.
    pub fn submit(
        &self,
        mut rollout: Resolved,
        count: usize,
    ) -> Result<Vec<Arc<Entry>>, QueueError> {
        let new_group = || RolloutId::generate().to_string();
        rollout.group.get_or_insert_with(new_group);
        self.dispatcher.submit(&rollout, count)
    }

    /// Hands over each result as it comes. Cancelling ends those that run and gives those that wait a result without
    /// starting them; so does dropping this.
    pub async fn deliver(
        &self,
        entries: Vec<Arc<Entry>>,
        cancel: CancellationToken,
        mut deliver: impl FnMut(RolloutResult),
    ) {
        let ending = EndAll {
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
            ending.end();
            std::future::pending::<()>().await;
        };
        let collect = async {
            while let Some(entry) = waits.next().await {
                let kept = entry.kept().take();
                let result = match kept {
                    Some(result) => Ok(Arc::unwrap_or_clone(result)),
                    // Pushed out of memory by others that ended since.
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

    /// Whether it was taken on and has no slot yet.
    pub fn is_waiting(&self, id: RolloutId) -> bool {
        let entry = self.dispatcher.find(id);
        entry.is_some_and(|entry| entry.feed.standing().phase.is_none() && !entry.is_ended())
    }

    /// A rollout of the owner's, or one without an owner.
    pub async fn find(&self, owner: &str, id: &str) -> Result<Found, EngineError> {
        let unknown = || EngineError::Unknown(id.to_owned());
        let parsed: RolloutId = id.parse().map_err(|_| unknown())?;
        if let Some(entry) = self.dispatcher.find(parsed) {
            return if entry.owner.as_deref().is_none_or(|own| own == owner) {
                Ok(Found::Known(entry))
            } else {
                Err(unknown())
            };
        }
        let listing = Arc::clone(&self.listing);
        let summary = tokio::task::spawn_blocking(move || listing.get(parsed)).await?;
        match summary {
            Some(summary) if is_visible(&summary, owner) => Ok(Found::Stored(Box::new(summary))),
            _ => Err(unknown()),
        }
    }

    /// Asks a rollout to end; true when it had not. Its result comes a little later.
    pub fn cancel(&self, entry: &Entry) -> bool {
        let is_running = !entry.is_ended();
        if is_running {
            self.dispatcher.cancel(entry);
        }
        is_running
    }

    /// Says something to a rollout that runs.
    pub fn command(&self, entry: &Entry, command: Command) -> Result<(), CommandError> {
        self.dispatcher.command(entry, command)
    }

    /// Waits for the end. Whoever stops waiting does not stop the rollout.
    pub async fn wait(&self, entry: &Entry) -> Result<Arc<RolloutResult>, EngineError> {
        entry.wait().await;
        match entry.result() {
            Some(result) => Ok(result),
            None => self.stored(entry.id).await,
        }
    }

    /// A result from disk.
    pub async fn stored(&self, id: RolloutId) -> Result<Arc<RolloutResult>, EngineError> {
        let store = self.store().clone();
        let read = tokio::task::spawn_blocking(move || store.result(id)).await?;
        Ok(Arc::new(read?))
    }

    /// Rollouts of the owner and those without one, the newest first.
    pub async fn list(&self, owner: &str, filter: Filter) -> Result<Page, EngineError> {
        let known = self.dispatcher.all();
        let listing = Arc::clone(&self.listing);
        let owner = owner.to_owned();
        let listed = tokio::task::spawn_blocking(move || listing.list(&owner, &known, &filter));
        Ok(listed.await??)
    }

    /// Forgets an ended rollout and everything kept of it.
    pub async fn delete(&self, owner: &str, id: &str) -> Result<(), EngineError> {
        let id = match self.find(owner, id).await? {
            Found::Known(entry) if !entry.is_ended() => {
                return Err(EngineError::Running(entry.id));
            }
            Found::Known(entry) if entry.owner.is_none() && owner != LOCAL => {
                return Err(EngineError::NotYours(entry.id));
            }
            Found::Known(entry) => entry.id,
            Found::Stored(summary) if summary.owner.is_none() && owner != LOCAL => {
                return Err(EngineError::NotYours(summary.rollout_id));
            }
            Found::Stored(summary) if summary.ended.is_none() => {
                return Err(EngineError::Running(summary.rollout_id));
            }
            Found::Stored(summary) => summary.rollout_id,
        };
        let listing = Arc::clone(&self.listing);
        let removed = tokio::task::spawn_blocking(move || listing.remove(id)).await?;
        match removed {
            // One whose record could not be written is known in memory only.
            Ok(()) | Err(StoreError::Unknown(_)) => {
                self.dispatcher.forget(id);
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
            numbers: self.dispatcher.tally.numbers(),
        }
    }

    /// Takes nothing more on, lets what runs end within the grace period, ends the rest, and closes everything that was
    /// started. Every rollout has its result and record before this returns.
    pub async fn shut_down(&self, grace: Duration) {
        self.dispatcher.shut_down(grace).await;
        self.cx.preparation.close().await;
        if let Err(error) = self.cx.sandboxes.shutdown().await {
            tracing::warn!(
                error = rollcage_model::text::chain(&error),
                "the sandboxes did not shut down cleanly"
            );
        }
    }

    /// Ends what the engine started, at once.
    pub async fn close(&self) {
        self.shut_down(Duration::ZERO).await;
    }
}

/// Ends rollouts that nobody waits for any more.
struct EndAll<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    entries: Vec<Arc<Entry>>,
}

impl EndAll<'_> {
    fn end(&self) {
        for entry in self.entries.iter().filter(|entry| !entry.is_ended()) {
            self.dispatcher.cancel(entry);
        }
    }
}

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Gives every rollout whose process was killed its one result, with what was captured until then.
async fn close_abandoned(store: &Store) -> Result<(), OpenError> {
    for (id, task, record) in store.abandoned()? {
        let mut result = result::begin_abandoned(id, task.unwrap_or_default());
        // An id tells its own time.
        result.started_at = id.unix_seconds();
        if let Some(start) = record.start() {
            start.note(&mut result);
        }
        result.record = record.path().display().to_string();
        let ending = Ending::new(
            Cause::EngineFailed,
            "rollcage was killed while this rollout ran",
        );
        let ending = result::add_trace(&mut result, &record, ending).await;
        let result = result::finish(result, ending, Instant::now());
        record.commit(&result)?;
    }
    Ok(())
}

/// Removes the pre-baked homes of an agent's version, together with its bundle.
pub fn forget_home(home: &std::path::Path, agent: &str, version: &str) {
    let prefix = format!("{agent}-{version}-");
    for entry in std::fs::read_dir(home.join("layers"))
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // One that stays is made anew when it is next needed.
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
