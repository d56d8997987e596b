//! What a process has to offer to a request, given to the engine from outside: nothing below reads a file or an
//! environment variable to find it.

use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::Agent;
use rollcage_endpoints::provider::Providers;
use rollcage_model::budget::Price;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::outbound::Guard;

use crate::network::HostNetwork;

/// Finds something by its name.
pub type LookUp<T> = Arc<dyn Fn(&str) -> Option<T> + Send + Sync>;

/// Agents, providers, and where keys and prices are found.
#[derive(Clone)]
pub struct Catalogue {
    pub agents: Vec<Arc<dyn Agent>>,
    pub providers: Providers,
    /// The process' environment.
    pub variables: LookUp<String>,
    /// The same for names that hold API keys, which have more places.
    pub keys: LookUp<String>,
    /// By model.
    pub prices: LookUp<Price>,
    /// What clients may name; `None` where they are the operator's own.
    pub guard: Option<Arc<Guard>>,
    pub network: Arc<HostNetwork>,
    /// For an endpoint that is out of order.
    pub upstream_patience: Duration,
}

impl Catalogue {
    /// What comes with the program, and no environment.
    pub fn built_in() -> Self {
        Catalogue {
            agents: rollcage_agents::all(),
            providers: Providers::built_in().clone(),
            variables: Arc::new(|_| None),
            keys: Arc::new(|_| None),
            prices: Arc::new(|_| None),
            guard: None,
            network: Arc::default(),
            upstream_patience: ModelSettings::default().upstream_patience,
        }
    }

    /// A variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        let look_up = match self.providers.is_key(name) {
            true => &self.keys,
            false => &self.variables,
        };
        look_up(name).filter(|value| !value.is_empty())
    }
}
