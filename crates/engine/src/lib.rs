//! Runs rollouts. A library: no printing, no argument parsing, no environment variables.
//!
//! [`Engine`] is the front; one rollout reads top to bottom in `rollout.rs`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OnceCell, mpsc};
use tokio_util::sync::CancellationToken;

use rollcage_agents::bundle::{
    self, Bundles, InstallError, Npm, OnProgress, Origin, Registry, VersionRequest,
};
use rollcage_agents::{Agent, ReadyAgent, WarmError, warm_up};
use rollcage_endpoints::choice::EndpointChoice;
use rollcage_endpoints::serving::{OnStep, Servers, ServingError};
use rollcage_model::ending::Cause;
use rollcage_model::event::Event;
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::{ClientError, Clients};
use rollcage_proxy::{Profiles, Unusable};
use rollcage_sandbox::Sandboxes;
use rollcage_sandbox::local::Local;
use rollcage_scripted::{Lease, Script, Scripted, ScriptedError};

mod aborted;
mod collect;
mod dispatch;
mod drive;
pub mod feed;
mod job;
mod judge;
mod limits;
mod log;
mod places;
pub mod result;
mod rollout;
pub mod service;
mod shell;
pub mod store;
pub mod tally;
pub mod traced;
mod trial;
mod verify;

use job::Job;
use judge::Ending;
use rollout::Context;
use store::{Store, StoreError};

pub use rollout::Plan;
pub use trial::TrialError;

/// What an engine needs from outside.
#[derive(Debug)]
pub struct EngineOptions {
    /// Everything that is kept lies below this directory.
    pub home: PathBuf,
    pub registry: Registry,
    /// How to start this program as a zygote; it then calls `rollcage_sandbox::local::zygote_main`.
    pub zygote_program: PathBuf,
    pub zygote_arguments: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("start the sandboxes")]
    Sandbox(#[from] rollcage_sandbox::Error),
    #[error("set up HTTPS")]
    Http(#[from] reqwest::Error),
    #[error("use {path}")]
    Directory {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Why a rollout cannot even be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("install the agent")]
    Install(#[from] InstallError),
    #[error(transparent)]
    Warm(#[from] WarmError),
    #[error("start the scripted endpoint")]
    Scripted(#[from] ScriptedError),
    #[error(
        "no endpoint is given and the task has no `solution` that the scripted endpoint could play: \
         give --endpoint, or --base-url and --model, or a solution"
    )]
    NoSolution,
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error("set up HTTPS")]
    Http(#[from] reqwest::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The endpoint could not say which model it serves.
    #[error(transparent)]
    Endpoint(#[from] Unusable),
}

/// Runs rollouts of one process.
pub struct Engine {
    store: Store,
    bundles: Bundles,
    layers: PathBuf,
    sandboxes: Arc<Local>,
    scripted: OnceCell<Scripted>,
    scripted_log: Option<Arc<rollcage_scripted::Log>>,
    profiles: Arc<Profiles>,
    clients: Arc<Clients>,
    servers: Servers,
}

impl Engine {
    /// Opens the home directory, closes what a killed process left open, and starts the zygote.
    pub async fn open(options: EngineOptions) -> Result<Self, OpenError> {
        let store = Store::open(&options.home)?;
        close_abandoned(&store).await?;
        let layers = options.home.join("layers");
        private_directory(&layers)?;
        let sandboxes = Local::open(rollcage_sandbox::local::Options {
            program: options.zygote_program,
            args: options.zygote_arguments,
            state_dir: options.home.join("sandboxes"),
        })
        .await?;
        Ok(Engine {
            store,
            bundles: Bundles::new(options.home.join("bundles"), options.registry),
            layers,
            sandboxes: Arc::new(sandboxes),
            scripted: OnceCell::new(),
            scripted_log: None,
            profiles: Arc::default(),
            clients: Arc::default(),
            servers: Servers::new(&options.home),
        })
    }

    /// Keeps a copy of what the scripted endpoint sends, for tests that compare a trace with it.
    pub fn log_scripted(&mut self, log: Arc<rollcage_scripted::Log>) {
        self.scripted_log = Some(log);
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The agents that are installed.
    pub fn bundles(&self) -> &Bundles {
        &self.bundles
    }

    pub fn sandboxes(&self) -> &Arc<Local> {
        &self.sandboxes
    }

    /// Whether rollouts can run here, by starting a sandbox.
    pub async fn try_sandbox(&self) -> Result<(), TrialError> {
        trial::try_sandbox(&*self.sandboxes).await
    }

    /// Installs the agent if need be and bakes its home.
    pub async fn ready(
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

    /// The endpoint that a task's rollouts talk to; starts the scripted one when that is chosen.
    pub async fn endpoint(
        &self,
        choice: &EndpointChoice,
        task: &Task,
    ) -> Result<Endpoint, PlanError> {
        self.endpoint_with(choice, task, &|_| ()).await
    }

    /// The same, telling what takes long: a model server that starts, a model that is downloaded.
    pub async fn endpoint_with(
        &self,
        choice: &EndpointChoice,
        task: &Task,
        on_step: OnStep<'_>,
    ) -> Result<Endpoint, PlanError> {
        match choice {
            EndpointChoice::Url(endpoint) => self.with_model(endpoint.clone()).await,
            EndpointChoice::Managed(managed) => Ok(self.servers.endpoint(managed, on_step).await?),
            EndpointChoice::Scripted => {
                if task.solution.is_empty() {
                    return Err(PlanError::NoSolution);
                }
                let options = rollcage_scripted::Options {
                    log: self.scripted_log.clone(),
                    ..rollcage_scripted::Options::default()
                };
                let scripted = self
                    .scripted
                    .get_or_try_init(|| Scripted::start(options))
                    .await?;
                let key = scripted.add(Script::new(task.solution.clone()))?;
                Ok(Endpoint::scripted(
                    scripted.base_url(),
                    rollcage_scripted::MODEL,
                    key,
                ))
            }
        }
    }

    async fn with_model(&self, mut endpoint: Endpoint) -> Result<Endpoint, PlanError> {
        let client = (self.clients).of(&endpoint.base_url, endpoint.guard.as_ref())?;
        rollcage_proxy::settle_model(&client, &mut endpoint).await?;
        Ok(endpoint)
    }

    /// Runs every plan, at most `slots` at once, and hands over each result as it comes.
    pub async fn run(
        &self,
        plans: Vec<Arc<Plan>>,
        slots: usize,
        events: mpsc::UnboundedSender<Event>,
        cancel: CancellationToken,
        deliver: impl FnMut(RolloutResult),
    ) -> Result<(), OpenError> {
        let jobs = jobs_of(plans);
        dispatch::run_all(self.context(), jobs, slots, events, cancel, deliver).await;
        Ok(())
    }

    fn context(&self) -> Arc<Context> {
        Arc::new(Context {
            store: self.store.clone(),
            sandboxes: Arc::clone(&self.sandboxes) as Arc<dyn Sandboxes>,
            clients: Arc::clone(&self.clients),
            profiles: Arc::clone(&self.profiles),
        })
    }

    /// Keeps the script of a scripted endpoint for as long as the answer lives.
    fn lease(&self, endpoint: &Endpoint) -> Option<Lease> {
        let key = endpoint.key.as_ref()?;
        let scripted = self.scripted.get()?;
        (endpoint.kind == "scripted").then(|| scripted.lease(key.expose()))
    }

    /// Ends what the engine started.
    pub async fn close(&self) {
        if let Some(scripted) = self.scripted.get() {
            scripted.close().await;
        }
        self.servers.close().await;
        if let Err(error) = self.sandboxes.shutdown().await {
            tracing::warn!(
                error = rollcage_model::text::chain(&error),
                "the sandboxes did not shut down cleanly"
            );
        }
    }
}

/// Gives every rollout whose process was killed its one result, with what was captured until then.
async fn close_abandoned(store: &Store) -> Result<(), OpenError> {
    for (id, task, record) in store.abandoned()? {
        let mut result = result::begin_abandoned(id, task.unwrap_or_default());
        // An id tells its own time.
        result.started_at = id.unix_seconds();
        if let Some(start) = record.start() {
            result.started_at = start.started_at;
            result.agent = start.agent;
            result.endpoint = start.endpoint;
            result.group = start.group;
        }
        result.record = record.path().display().to_string();
        let ending = Ending::new(
            Cause::EngineFailed,
            "rollcage was killed while this rollout ran",
        );
        let ending = result::add_trace(&mut result, &record, None, ending).await;
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

/// The same plan several times is a group.
fn jobs_of(plans: Vec<Arc<Plan>>) -> Vec<Job> {
    let mut groups: HashMap<*const Plan, String> = HashMap::new();
    let job = |plan: Arc<Plan>| {
        let group = groups.entry(Arc::as_ptr(&plan));
        let group = group.or_insert_with(|| RolloutId::generate().to_string());
        Job::of(plan, group.clone())
    };
    plans.into_iter().map(job).collect()
}
