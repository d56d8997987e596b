//! The first step of a rollout: install its agent, start its endpoint's server, find out its model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{OnceCell, Semaphore};

use rollcage_agents::bundle::{
    self, Bundles, InstallError, InstallStatus, Npm, OnProgress, Origin, VersionRequest,
};
use rollcage_agents::{Agent, ReadyAgent, WarmError, warm_up};
use rollcage_endpoints::choice::EndpointChoice;
use rollcage_endpoints::serving::{OnServingStep, Servers, ServingError};
use rollcage_model::ending::Cause;
use rollcage_proxy::Unusable;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::{ClientError, Clients};
use rollcage_sandbox::Sandboxes;
use rollcage_scripted::{Lease, Script, ScriptedEndpoint, ScriptedError};

use super::catalogue::Catalogue;
use super::resolve::{RequestError, ResolvedRollout};
use crate::judge::Ending;
use crate::plan::Plan;

/// Why a rollout cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("install the agent")]
    Install(#[from] InstallError),
    #[error(transparent)]
    Warm(#[from] WarmError),
    #[error("start the scripted endpoint")]
    Scripted(#[from] ScriptedError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The endpoint could not say which model it serves.
    #[error(transparent)]
    Endpoint(#[from] Unusable),
}

impl From<PlanError> for Ending {
    fn from(error: PlanError) -> Self {
        let cause = match &error {
            PlanError::Warm(WarmError::Sandbox(_)) => Cause::SandboxFailed,
            PlanError::Request(_) => Cause::SetupFailed,
            PlanError::Endpoint(error) => error.cause(),
            PlanError::Serving(_) | PlanError::Client(ClientError::Forbidden(_)) => {
                Cause::EndpointUnreachable
            }
            PlanError::Install(_)
            | PlanError::Warm(_)
            | PlanError::Scripted(_)
            | PlanError::Client(ClientError::Http(_)) => Cause::EngineFailed,
        };
        Ending::new(cause, rollcage_model::text::chain(&error))
    }
}

/// A plan, with the script lease that must live as long as its rollout.
pub(crate) struct PreparedRollout {
    pub(crate) plan: Arc<Plan>,
    pub(crate) _script: Option<Lease>,
}

/// Prepares rollouts. One per process.
pub(crate) struct Preparer {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) bundles: Bundles,
    /// The directory of pre-baked home directories.
    layers: PathBuf,
    sandboxes: Arc<dyn Sandboxes>,
    pub(crate) clients: Arc<Clients>,
    servers: Servers,
    scripted: OnceCell<ScriptedEndpoint>,
    scripted_log: OnceLock<Arc<rollcage_scripted::Log>>,
    /// Called with the progress of agent installations.
    on_install: Option<Box<dyn Fn(InstallStatus) + Send + Sync>>,
    /// One permit per agent: otherwise its first concurrent rollouts would all install and warm it up.
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Preparer {
    pub(crate) fn new(
        home: &std::path::Path,
        catalogue: Arc<Catalogue>,
        bundles: Bundles,
        sandboxes: Arc<dyn Sandboxes>,
        on_install: Option<Box<dyn Fn(InstallStatus) + Send + Sync>>,
    ) -> Self {
        Preparer {
            catalogue,
            bundles,
            layers: home.join("layers"),
            sandboxes,
            clients: Arc::default(),
            servers: Servers::new(home),
            scripted: OnceCell::new(),
            scripted_log: OnceLock::new(),
            on_install,
            turns: Mutex::default(),
        }
    }

    /// Logs what the scripted endpoint sends. Call it before the first rollout.
    pub(crate) fn log_scripted(&self, log: Arc<rollcage_scripted::Log>) {
        let _ = self.scripted_log.set(log);
    }

    /// Makes a rollout ready to run.
    pub(crate) async fn prepare(
        &self,
        mut rollout: ResolvedRollout,
    ) -> Result<PreparedRollout, PlanError> {
        let has_script = matches!(rollout.endpoint, EndpointChoice::Scripted);
        let endpoint = self.settle(&mut rollout, &|_| ()).await?;
        let script = has_script.then(|| self.lease(&endpoint)).flatten();
        let ready = match rollout.ready {
            Some(ready) => ready,
            None => {
                let turn = self.turn(rollout.agent.name());
                // The semaphore is never closed, so this cannot fail.
                let _turn = turn.acquire().await;
                let report = |step: InstallStatus| {
                    if let Some(on_install) = &self.on_install {
                        on_install(step);
                    }
                };
                self.ready(&*rollout.agent, rollout.version, &report)
                    .await?
            }
        };
        let plan = Plan {
            task: rollout.task,
            uploads: rollout.uploads,
            mounts: rollout.mounts,
            agent: rollout.agent,
            ready,
            endpoint,
            settings: rollout.settings,
            mcp: rollout.mcp,
            network: rollout.network,
            owner: rollout.owner,
        };
        Ok(PreparedRollout {
            plan: Arc::new(plan),
            _script: script,
        })
    }

    /// Determines endpoint and model, and starts a server if that is ours to manage. The outcome is stored in
    /// `rollout`, so that this is done once.
    pub(crate) async fn settle(
        &self,
        rollout: &mut ResolvedRollout,
        on_step: OnServingStep<'_>,
    ) -> Result<Endpoint, PlanError> {
        if rollout.agent.dialect().is_none() {
            return Ok(Endpoint::none());
        }
        let endpoint = match &rollout.endpoint {
            // A script lives only as long as its lease, so each rollout adds its own.
            EndpointChoice::Scripted => return self.script(rollout).await,
            EndpointChoice::Managed(managed) => self.servers.endpoint(managed, on_step).await?,
            EndpointChoice::Url(endpoint) => {
                let mut endpoint = endpoint.clone();
                let client = (self.clients).of(&endpoint.base_url, endpoint.guard.as_ref())?;
                rollcage_proxy::settle_model(&client, &mut endpoint).await?;
                endpoint
            }
        };
        rollout.endpoint = EndpointChoice::Url(endpoint.clone());
        rollout.set_price(&self.catalogue)?;
        Ok(endpoint)
    }

    async fn script(&self, rollout: &ResolvedRollout) -> Result<Endpoint, PlanError> {
        if rollout.task.solution.is_empty() {
            return Err(RequestError::NoSolution.into());
        }
        let options = rollcage_scripted::Options {
            log: self.scripted_log.get().cloned(),
            ..rollcage_scripted::Options::default()
        };
        let start = || ScriptedEndpoint::start(options);
        let scripted = self.scripted.get_or_try_init(start).await?;
        let key = scripted.add(Script::new(rollout.task.solution.clone()))?;
        Ok(Endpoint::scripted(
            scripted.base_url(),
            rollcage_scripted::MODEL,
            key,
        ))
    }

    /// Installs the agent if necessary and prepares its pre-baked home directory.
    pub(crate) async fn ready(
        &self,
        agent: &dyn Agent,
        version: VersionRequest,
        on_progress: OnProgress<'_>,
    ) -> Result<ReadyAgent, PlanError> {
        let source = agent.source();
        let bundle = self.bundles.ensure(source, version, on_progress).await?;
        let node = match &source.origin {
            Origin::Npm(Npm {
                node: Some(version),
                ..
            }) => {
                let node = bundle::node(version);
                let ensured = self
                    .bundles
                    .ensure(&node, VersionRequest::Default, on_progress);
                Some(ensured.await?)
            }
            _ => None,
        };
        let parts = (bundle, node);
        Ok(warm_up(agent, parts, &self.layers, &*self.sandboxes).await?)
    }

    fn turn(&self, agent: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.entry(agent.to_owned());
        Arc::clone(turn.or_insert_with(|| Arc::new(Semaphore::new(1))))
    }

    /// Keeps the script of a scripted endpoint alive for as long as the returned lease.
    fn lease(&self, endpoint: &Endpoint) -> Option<Lease> {
        let key = endpoint.key.as_ref()?;
        Some(self.scripted.get()?.lease(key.expose()))
    }

    /// Stops the servers that were started for rollouts.
    pub(crate) async fn close(&self) {
        if let Some(scripted) = self.scripted.get() {
            scripted.close().await;
        }
        self.servers.close().await;
    }
}
