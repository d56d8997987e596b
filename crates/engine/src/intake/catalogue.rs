//! The agents, endpoints, keys and prices available to requests. They are injected into the engine: nothing below reads
//! a file or an environment variable to find them.

use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::Agent;
use rollcage_endpoints::provider::Providers;
use rollcage_model::budget::Price;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::outbound::Guard;

use crate::network::HostNetwork;

/// Finds something by its name.
pub type Lookup<T> = Arc<dyn Fn(&str) -> Option<T> + Send + Sync>;

/// Agents, providers, and lookups of keys and prices.
#[derive(Clone)]
pub struct Catalogue {
    pub agents: Vec<Arc<dyn Agent>>,
    /// Agents that come and go while the program runs, before those of the same names in `agents`.
    pub more_agents: Arc<dyn Fn() -> Vec<Arc<dyn Agent>> + Send + Sync>,
    pub providers: Providers,
    /// Environment variables of the process.
    pub variables: Lookup<String>,
    /// As `variables`, for names that hold API keys, which may come from more sources.
    pub keys: Lookup<String>,
    /// By model name.
    pub prices: Lookup<Price>,
    /// Which addresses clients may name; `None` where clients are trusted like the operator.
    pub guard: Option<Arc<Guard>>,
    pub network: Arc<HostNetwork>,
    /// For an endpoint that is out of order.
    pub upstream_patience: Duration,
}

impl Catalogue {
    /// The built-in agents and providers, with empty lookups.
    pub fn built_in() -> Self {
        Catalogue {
            agents: rollcage_agents::all(),
            more_agents: Arc::new(Vec::new),
            providers: Providers::built_in().clone(),
            variables: Arc::new(|_| None),
            keys: Arc::new(|_| None),
            prices: Arc::new(|_| None),
            guard: None,
            network: Arc::default(),
            upstream_patience: ModelSettings::default().upstream_patience,
        }
    }

    /// Every agent that there is now.
    pub fn agents(&self) -> Vec<Arc<dyn Agent>> {
        rollcage_agents::over((self.more_agents)(), &self.agents)
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
