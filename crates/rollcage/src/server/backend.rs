//! What the tools and the API share: the service that runs rollouts, the tasks it offers, and its settings.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::{Map, Value};

use rollcage_agents::Agent;
use rollcage_endpoints::provider::Providers;
use rollcage_engine::service::{Entry, Service, SubmitError};
use rollcage_model::budget::Price;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::outbound::Guard;

use super::tasks::Tasks;
use super::tools::request;
use crate::settings;

/// A task with its files takes a slow line some seconds; who needs longer holds a connection for nothing.
pub(crate) const BODY_LIMIT: Duration = Duration::from_secs(60);

/// What a request is read against. Nothing of it changes while the server runs.
pub(crate) struct Surroundings {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) agents: Vec<Arc<dyn Agent>>,
    pub(crate) providers: Providers,
    /// The server's environment.
    pub(crate) variables: fn(&str) -> Option<String>,
    /// The same for names that hold API keys, which have more places.
    pub(crate) keys: fn(&str) -> Option<String>,
    pub(crate) prices: fn(&str) -> Option<Price>,
    /// What clients may name; `None` where they are the operator's own.
    pub(crate) guard: Option<Arc<Guard>>,
    /// For the body of a request.
    pub(crate) body_limit: Duration,
    /// For an endpoint that is out of order.
    pub(crate) upstream_patience: Duration,
}

impl Surroundings {
    /// With this process' own environment and prices.
    pub(crate) fn of_this_process(
        tasks: Arc<Tasks>,
        agents: Vec<Arc<dyn Agent>>,
        providers: Providers,
        guard: Option<Arc<Guard>>,
    ) -> Self {
        Surroundings {
            tasks,
            agents,
            providers,
            variables: settings::variable,
            keys: settings::key_variable,
            prices: |model| match settings::price(model) {
                Ok(price) => price,
                Err(error) => {
                    tracing::warn!("{error:#}");
                    None
                }
            },
            guard,
            body_limit: BODY_LIMIT,
            upstream_patience: ModelSettings::default().upstream_patience,
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let look_up = match self.providers.is_key(name) {
            true => self.keys,
            false => self.variables,
        };
        look_up(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn price(&self, model: &str) -> Option<Price> {
        (self.prices)(model)
    }
}

/// Why a rollout was not started.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Refused {
    #[error("{0}")]
    Arguments(String),
    #[error(transparent)]
    Busy(#[from] SubmitError),
    #[error("{0}")]
    Failed(String),
}

/// One server's rollouts.
pub(crate) struct Backend {
    pub(crate) service: Service,
    pub(crate) around: Surroundings,
    /// Kept by whoever opens and closes OpenEnv sessions; shown among the metrics.
    pub(crate) open_sessions: Arc<AtomicUsize>,
}

impl Backend {
    pub(crate) fn new(service: Service, around: Surroundings) -> Arc<Self> {
        Arc::new(Backend {
            service,
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
        let request = read
            .map_err(|error| Refused::Failed(format!("read the arguments: {error}")))?
            .map_err(Refused::Arguments)?;
        let checked = request.order.check_addresses().await;
        checked.map_err(|forbidden| Refused::Arguments(forbidden.to_string()))?;
        let entries = self.service.submit(owner, request.order, request.count)?;
        Ok(entries)
    }
}
