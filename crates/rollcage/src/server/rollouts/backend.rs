//! The engine of a server, and the submission of rollouts from a client's arguments.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::{Map, Value};

use rollcage_engine::{Engine, QueueError, RolloutEntry};

use super::context::RequestContext;
use super::readings::Readings;
use super::request::{self, RolloutArguments};
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
    pub(crate) context: RequestContext,
    /// Records that somebody looks at.
    pub(super) readings: Readings,
    /// The number of OpenEnv sessions, updated by the OpenEnv server and shown in the metrics.
    pub(crate) open_sessions: Arc<AtomicUsize>,
    /// Another one after each start, so that clients can tell that what they know of running rollouts is outdated.
    pub(crate) server_id: uuid::Uuid,
}

impl Backend {
    pub(crate) fn new(engine: Engine, tasks: Arc<Tasks>, body_limit: Duration) -> Arc<Self> {
        let context = RequestContext {
            tasks,
            catalogue: Arc::clone(engine.catalogue()),
            body_limit,
        };
        Arc::new(Backend {
            engine,
            context,
            readings: Readings::default(),
            open_sessions: Arc::default(),
            server_id: uuid::Uuid::now_v7(),
        })
    }

    /// Validates the arguments and submits the rollouts. Returns before anything is prepared for them.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        tool: &'static str,
        owner: &str,
        values: Map<String, Value>,
    ) -> Result<Vec<Arc<RolloutEntry>>, SubmitError> {
        let this = Arc::clone(self);
        // Blocking, since the server's own tasks are read from disk.
        let read =
            tokio::task::spawn_blocking(move || request::read(tool, values, &this.context)).await;
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
