//! Rollouts for a process that lives long: submit, look at, cancel, wait for, list, delete. Start at [`Service`].
//!
//! Every rollout belongs to an owner, and nobody else can tell that it is there. Records without an owner were made by
//! `rollcage run` on this machine: everybody may read them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use rollcage_model::id::RolloutId;
use rollcage_model::record::{AgentInfo, EndpointInfo, RolloutResult};
use rollcage_model::task::Task;

use crate::dispatch::Dispatcher;
use crate::job::{Job, Planned};
use crate::rollout::Plan;
use crate::store::{Store, StoreError, Summary};
use crate::tally::Numbers;
use crate::{Engine, PlanError};
use rollcage_agents::Agent;
use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::VersionRequest;
use rollcage_endpoints::choice::EndpointChoice;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::Forbidden;
use rollcage_proxy::remote::Remotes;

mod catalog;

pub use crate::dispatch::{Entry, SubmitError};
pub use crate::limits::{KEEP_ABORTED, Limits};
pub use catalog::{EndedFilter, Filter, Page};

use catalog::Catalog;

/// The owner of whoever is not told apart from others.
pub const LOCAL: &str = "local";

/// A rollout as somebody asks for it: nothing of it is installed, resolved or started yet.
#[derive(Clone)]
pub struct Order {
    pub task: Task,
    /// The content of `task.upload`, by path inside.
    pub uploads: BTreeMap<String, Vec<u8>>,
    pub agent: Arc<dyn Agent>,
    pub version: VersionRequest,
    /// For an agent that is installed already.
    pub ready: Option<ReadyAgent>,
    pub endpoint: EndpointChoice,
    pub settings: ModelSettings,
    /// The task's MCP servers outside the sandbox.
    pub mcp: Remotes,
}

impl Order {
    fn endpoint_info(&self) -> EndpointInfo {
        if self.agent.dialect().is_none() {
            return Endpoint::none().info();
        }
        match &self.endpoint {
            EndpointChoice::Url(endpoint) => endpoint.info(),
            EndpointChoice::Managed(managed) => managed.endpoint.info(),
            EndpointChoice::Scripted => EndpointInfo {
                kind: "scripted".to_owned(),
                model: rollcage_scripted::MODEL.to_owned(),
                ..EndpointInfo::default()
            },
        }
    }

    /// Refuses what somebody else named and may not, before anything is done for it.
    pub async fn check_addresses(&self) -> Result<(), Forbidden> {
        self.endpoint.check_address().await?;
        self.mcp.check_addresses().await
    }

    async fn plan(self, engine: &Engine, turn: &Semaphore) -> Result<Planned, PlanError> {
        let ready = match self.ready {
            Some(ready) => ready,
            None => {
                // Nobody closes it, so this is always a turn.
                let _turn = turn.acquire().await;
                let installing = engine.ready(&*self.agent, self.version, &|_| {});
                installing.await?
            }
        };
        let endpoint = if self.agent.dialect().is_some() {
            engine.endpoint(&self.endpoint, &self.task).await?
        } else {
            Endpoint::none()
        };
        let script = engine.lease(&endpoint);
        let plan = Plan {
            task: self.task,
            uploads: self.uploads,
            agent: self.agent,
            ready,
            endpoint,
            settings: self.settings,
            mcp: self.mcp,
        };
        Ok(Planned {
            plan: Arc::new(plan),
            _script: script,
        })
    }
}

/// Why a rollout cannot be looked at or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
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

/// The rollouts of one process.
pub struct Service {
    engine: Arc<Engine>,
    dispatcher: Arc<Dispatcher>,
    catalog: Arc<Catalog>,
    /// By agent: its first rollouts would otherwise all bake its home at once.
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Service {
    pub fn new(engine: Engine, limits: Limits) -> Self {
        let dispatcher = Dispatcher::new(engine.context(), limits, None);
        let catalog = Catalog::new(engine.store().clone());
        Service {
            engine: Arc::new(engine),
            dispatcher,
            catalog: Arc::new(catalog),
            turns: Mutex::default(),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn store(&self) -> &Store {
        self.engine.store()
    }

    /// Takes `count` rollouts of the order on, all or none, and returns at once.
    pub fn submit(
        &self,
        owner: &str,
        order: Order,
        count: usize,
    ) -> Result<Vec<Arc<Entry>>, SubmitError> {
        let group = RolloutId::generate().to_string();
        let jobs = (0..count)
            .map(|_| self.job(owner, &group, order.clone()))
            .collect();
        self.dispatcher.submit(owner, jobs)
    }

    fn job(&self, owner: &str, group: &str, order: Order) -> Job {
        let engine = Arc::clone(&self.engine);
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = turns.entry(order.agent.name().to_owned());
            Arc::clone(turn.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        Job {
            task: order.task.clone(),
            owner: Some(owner.to_owned()),
            group: group.to_owned(),
            agent: AgentInfo {
                name: order.agent.name().to_owned(),
                ..AgentInfo::default()
            },
            endpoint: order.endpoint_info(),
            plan: Box::pin(async move { order.plan(&engine, &turn).await }),
        }
    }

    /// Whether it was taken on and has no slot yet.
    pub fn is_waiting(&self, id: RolloutId) -> bool {
        let entry = self.dispatcher.find(id);
        entry.is_some_and(|entry| entry.feed.standing().phase.is_none() && !entry.is_ended())
    }

    /// A rollout of the owner's, or one without an owner.
    pub async fn find(&self, owner: &str, id: &str) -> Result<Found, ServiceError> {
        let unknown = || ServiceError::Unknown(id.to_owned());
        let parsed: RolloutId = id.parse().map_err(|_| unknown())?;
        if let Some(entry) = self.dispatcher.find(parsed) {
            return if entry.owner == owner {
                Ok(Found::Known(entry))
            } else {
                Err(unknown())
            };
        }
        let catalog = Arc::clone(&self.catalog);
        let summary = tokio::task::spawn_blocking(move || catalog.get(parsed)).await?;
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

    /// Ends a rollout's agent and keeps its sandbox for a while: who wants the result meanwhile ([`Entry::want`]) gets it
    /// graded. True when it had not ended and was not aborted before.
    pub fn abort(&self, entry: &Entry) -> bool {
        self.dispatcher.abort(entry)
    }

    /// Waits for the end. Whoever stops waiting does not stop the rollout.
    pub async fn wait(&self, entry: &Entry) -> Result<Arc<RolloutResult>, ServiceError> {
        entry.wait().await;
        match entry.result() {
            Some(result) => Ok(result),
            None => self.stored(entry.id).await,
        }
    }

    /// A result from disk.
    pub async fn stored(&self, id: RolloutId) -> Result<Arc<RolloutResult>, ServiceError> {
        let store = self.store().clone();
        let read = tokio::task::spawn_blocking(move || store.result(id)).await?;
        Ok(Arc::new(read?))
    }

    /// Rollouts of the owner and those without one, the newest first.
    pub async fn list(&self, owner: &str, filter: Filter) -> Result<Page, ServiceError> {
        let known = self.dispatcher.all();
        let catalog = Arc::clone(&self.catalog);
        let owner = owner.to_owned();
        let listed = tokio::task::spawn_blocking(move || catalog.list(&owner, &known, &filter));
        Ok(listed.await??)
    }

    /// Forgets an ended rollout and everything kept of it.
    pub async fn delete(&self, owner: &str, id: &str) -> Result<(), ServiceError> {
        let id = match self.find(owner, id).await? {
            Found::Known(entry) if !entry.is_ended() => {
                return Err(ServiceError::Running(entry.id));
            }
            Found::Known(entry) => entry.id,
            Found::Stored(summary) if summary.owner.is_none() && owner != LOCAL => {
                return Err(ServiceError::NotYours(summary.rollout_id));
            }
            Found::Stored(summary) if summary.ended.is_none() => {
                return Err(ServiceError::Running(summary.rollout_id));
            }
            Found::Stored(summary) => summary.rollout_id,
        };
        let catalog = Arc::clone(&self.catalog);
        let removed = tokio::task::spawn_blocking(move || catalog.remove(id)).await?;
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

    /// Takes nothing more on, lets what runs end within the grace period, ends the rest, and closes the engine. Every
    /// rollout has its result and record before this returns.
    pub async fn shut_down(&self, grace: Duration) {
        self.dispatcher.shut_down(grace).await;
        self.engine.close().await;
    }
}

fn is_visible(summary: &Summary, owner: &str) -> bool {
    summary.owner.as_deref().is_none_or(|own| own == owner)
}

/// A summary of a rollout that this process knows.
fn summary_of(entry: &Entry) -> Summary {
    if let Some(result) = entry.result() {
        return Summary {
            owner: Some(entry.owner.clone()),
            ..Summary::from(&*result)
        };
    }
    let standing = entry.feed.standing();
    let now = standing
        .finished_at
        .unwrap_or_else(rollcage_proxy::clock::now);
    Summary {
        rollout_id: entry.id,
        task_id: entry.task_id.clone(),
        group: entry.group.clone(),
        agent: entry.agent.clone(),
        model: entry.endpoint.model.clone(),
        ended: None,
        reward: None,
        calls: standing.calls,
        wall_s: standing.started_at.map_or(0.0, |started| now - started),
        started_at: standing.started_at.unwrap_or(entry.queued_at),
        owner: Some(entry.owner.clone()),
    }
}
