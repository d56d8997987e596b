//! A cache of endpoint profiles, so that each endpoint is probed once per process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::probe::probe_within;
use crate::profile::Profile;
use crate::reach::{ReachLimits, Unusable, reach};
use crate::settings::ModelSettings;

/// A server may use many endpoints; at this size the cache is cleared and endpoints are probed again.
const PROFILES_MAX: usize = 1024;

/// The profiles of endpoints. Concurrent rollouts with the same endpoint share one probe.
#[derive(Default)]
pub struct Profiles {
    /// By endpoint, and by how many alternatives per token its calls ask for: more may be refused where fewer are not.
    by_endpoint: Mutex<HashMap<(String, u32), Arc<ProfileSlot>>>,
}

/// The cached profile of one endpoint, or its last failure.
#[derive(Default)]
struct ProfileSlot {
    profile: OnceCell<Profile>,
    /// When it was last found to be unusable, and why.
    failed: Mutex<Option<(Instant, Unusable)>>,
}

impl ProfileSlot {
    /// The profile, probed by the first caller. If the probe fails it fails for all who waited for it: if they probed
    /// one after the other, they would hold their slots for nothing.
    async fn of(
        &self,
        client: &reqwest::Client,
        endpoint: &Endpoint,
        top_logprobs: u32,
        limits: ReachLimits,
    ) -> Result<Profile, Unusable> {
        let since = Instant::now();
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || async {
            if let Some((at, why)) = failed().clone().filter(|(at, _)| *at >= since) {
                tracing::debug!(?at, "found to be of no use while we waited");
                return Err(why);
            }
            let probed = probe_within(client, endpoint, top_logprobs, limits).await;
            probed.inspect_err(|error| *failed() = Some((Instant::now(), error.clone())))
        };
        self.profile.get_or_try_init(find).await.cloned()
    }
}

impl Profiles {
    /// The endpoint's profile, probed if it is not cached.
    pub async fn of(
        &self,
        client: &reqwest::Client,
        endpoint: &Endpoint,
        settings: &ModelSettings,
    ) -> Result<Profile, Unusable> {
        if endpoint.is_none() {
            return Ok(Profile::whole());
        }
        let limits = ReachLimits {
            reach: settings.reach_limit,
            loading: settings.upstream_patience,
        };
        if let Some(profile) = &endpoint.profile {
            reach(client, endpoint, limits).await?;
            return Ok(profile.clone());
        }
        let name = (name_of(endpoint), settings.top_logprobs);
        let slot = {
            let mut slots = self
                .by_endpoint
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if slots.len() >= PROFILES_MAX && !slots.contains_key(&name) {
                slots.clear();
            }
            Arc::clone(slots.entry(name).or_default())
        };
        slot.of(client, endpoint, settings.top_logprobs, limits)
            .await
    }

    /// Drops a profile. After an outage another server, or one with other settings, may be running at the same URL.
    pub fn forget(&self, endpoint: &Endpoint) {
        let slots = self.by_endpoint.lock();
        let mut slots = slots.unwrap_or_else(PoisonError::into_inner);
        let name = name_of(endpoint);
        slots.retain(|(known, _), _| *known != name);
    }
}

fn name_of(endpoint: &Endpoint) -> String {
    format!("{} {}", endpoint.base_url, endpoint.model)
}
