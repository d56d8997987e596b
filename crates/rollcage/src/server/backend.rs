//! What the tools and the API share: the service that runs rollouts, the tasks it offers, and its settings.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::{Map, Value};

use rollcage_engine::intake::Catalogue;
use rollcage_engine::{Engine, Entry, QueueError};

use super::tasks::Tasks;
use super::tools::request::{self, RolloutArguments};

/// A task with its files takes a slow line some seconds; who needs longer holds a connection for nothing.
pub(crate) const BODY_LIMIT: Duration = Duration::from_secs(60);

/// What a request is read against. Nothing of it changes while the server runs.
pub(crate) struct Surroundings {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// For the body of a request.
    pub(crate) body_limit: Duration,
}

/// Why a rollout was not started.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Refused {
    #[error("{0}")]
    Arguments(String),
    #[error(transparent)]
    Busy(#[from] QueueError),
    #[error("{0}")]
    Failed(String),
}

/// One server's rollouts.
pub(crate) struct Backend {
    pub(crate) engine: Engine,
    pub(crate) around: Surroundings,
    /// Kept by whoever opens and closes OpenEnv sessions; shown among the metrics.
    pub(crate) open_sessions: Arc<AtomicUsize>,
}

impl Backend {
    pub(crate) fn new(engine: Engine, tasks: Arc<Tasks>, body_limit: Duration) -> Arc<Self> {
        let around = Surroundings {
            tasks,
            catalogue: Arc::clone(engine.catalogue()),
            body_limit,
        };
        Arc::new(Backend {
            engine,
            around,
            open_sessions: Arc::default(),
        })
    }

    /// Checks the arguments and takes the rollouts on. Returns before anything of them is prepared.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        tool: &'static str,
        owner: &str,
        values: Map<String, Value>,
    ) -> Result<Vec<Arc<Entry>>, Refused> {
        let this = Arc::clone(self);
        // A task of the server's is read from disk.
        let read =
            tokio::task::spawn_blocking(move || request::read(tool, values, &this.around)).await;
        let arguments = read
            .map_err(|error| Refused::Failed(format!("read the arguments: {error}")))?
            .map_err(Refused::Arguments)?;
        let RolloutArguments { mut request, count } = arguments;
        request.owner = Some(owner.to_owned());
        let resolved = self.engine.resolve(request).await;
        let resolved = resolved.map_err(|error| Refused::Arguments(request::explain(error)))?;
        Ok(self.engine.submit(resolved, count)?)
    }
}
