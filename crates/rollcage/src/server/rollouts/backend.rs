//! The engine of one server, and the way in: arguments become rollouts.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::{Map, Value};

use rollcage_engine::{Engine, QueueError, RolloutEntry};

use super::request::{self, RolloutArguments};
use super::surroundings::Surroundings;
use crate::server::tasks::Tasks;

/// Why a rollout was not started.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SubmitError {
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
    ) -> Result<Vec<Arc<RolloutEntry>>, SubmitError> {
        let this = Arc::clone(self);
        // A task of the server's is read from disk.
        let read =
            tokio::task::spawn_blocking(move || request::read(tool, values, &this.around)).await;
        let arguments = read
            .map_err(|error| SubmitError::Failed(format!("read the arguments: {error}")))?
            .map_err(SubmitError::Arguments)?;
        let RolloutArguments { mut request, count } = arguments;
        request.owner = Some(owner.to_owned());
        let resolved = self.engine.resolve(request).await;
        let resolved = resolved.map_err(|error| SubmitError::Arguments(request::explain(error)))?;
        Ok(self.engine.submit(resolved, count)?)
    }
}
