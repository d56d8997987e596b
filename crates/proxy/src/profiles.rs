//! What is known of the endpoints of this process, so that each is probed once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::probe::probe_within;
use crate::profile::Profile;
use crate::reach::{Bounds, Unusable, reach};
use crate::settings::ModelSettings;

/// A server meets many endpoints; past this it forgets what it learnt and asks again.
const PROFILES_MAX: usize = 1024;

/// What was found out about endpoints, shared by rollouts that need it at the same time.
#[derive(Default)]
pub struct Profiles {
    by_endpoint: Mutex<HashMap<String, Arc<Known>>>,
}

/// What is known of one endpoint.
#[derive(Default)]
struct Known {
    profile: OnceCell<Profile>,
    /// When it was last found to be of no use, and why.
    failed: Mutex<Option<(Instant, Unusable)>>,
}

impl Known {
    /// The profile, found out by whoever comes first. If that fails it has failed for all who waited for it: one after
    /// the other, they would hold their slots for nothing.
    async fn of(
        &self,
        client: &reqwest::Client,
        endpoint: &Endpoint,
        bounds: Bounds,
    ) -> Result<Profile, Unusable> {
        let since = Instant::now();
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || async {
            if let Some((at, why)) = failed().clone().filter(|(at, _)| *at >= since) {
                tracing::debug!(?at, "found to be of no use while we waited");
                return Err(why);
            }
            let probed = probe_within(client, endpoint, bounds).await;
            probed.inspect_err(|error| *failed() = Some((Instant::now(), error.clone())))
        };
        self.profile.get_or_try_init(find).await.cloned()
    }
}

impl Profiles {
    /// Probes the endpoint unless somebody did.
    pub async fn of(
        &self,
        client: &reqwest::Client,
        endpoint: &Endpoint,
        settings: &ModelSettings,
    ) -> Result<Profile, Unusable> {
        if endpoint.is_none() {
            return Ok(Profile::whole());
        }
        let bounds = Bounds {
            reach: settings.reach_limit,
            loading: settings.upstream_patience,
        };
        if let Some(profile) = &endpoint.profile {
            reach(client, endpoint, bounds).await?;
            return Ok(profile.clone());
        }
        let name = name_of(endpoint);
        let known = {
            let mut known = self
                .by_endpoint
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if known.len() >= PROFILES_MAX && !known.contains_key(&name) {
                known.clear();
            }
            Arc::clone(known.entry(name).or_default())
        };
        known.of(client, endpoint, bounds).await
    }

    /// After an outage another server, or one with other settings, may be there: it is probed again when it is needed.
    pub fn forget(&self, endpoint: &Endpoint) {
        let known = self.by_endpoint.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.remove(&name_of(endpoint));
    }
}

fn name_of(endpoint: &Endpoint) -> String {
    format!("{} {}", endpoint.base_url, endpoint.model)
}
