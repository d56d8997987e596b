//! How the model calls of a rollout are made: what is sampled with, what they may cost, what is borne with.

use std::time::Duration;

use rollcage_dialect::chat::ConstraintPolicy;
use rollcage_model::budget::{self, Price};

use crate::policy::SamplingPolicy;

/// How model calls are changed on their way, and what they may cost.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// Caps what an agent may ask for in one call.
    pub tokens_max: Option<u64>,
    pub top_logprobs: u32,
    pub sampling: SamplingPolicy,
    /// What becomes of requests that constrain sampling; where nothing is said a pinned session refuses them, and any
    /// other keeps them and trains on none.
    pub constrained: Option<ConstraintPolicy>,
    pub budget: budget::SpendingLimits,
    pub price: Option<Price>,
    /// The endpoint is asked for no token ids or logprobs, and results list no calls; what was said is recorded still.
    pub is_black_box: bool,
    /// For how long a call that an endpoint failed is made again. Agents are told not to try again themselves, so this must
    /// outlast a server's restart. It is not the agent's time.
    pub upstream_patience: Duration,
    /// For how long an endpoint may say nothing at all when it is first reached.
    pub reach_limit: Duration,
    /// What the record of one rollout may take on disk, which an agent could fill with requests.
    pub record_bytes_max: u64,
}

impl Default for ModelSettings {
    fn default() -> Self {
        ModelSettings {
            tokens_max: None,
            top_logprobs: 0,
            sampling: SamplingPolicy::default(),
            constrained: None,
            budget: budget::SpendingLimits::default(),
            price: None,
            is_black_box: false,
            upstream_patience: Duration::from_secs(180),
            reach_limit: Duration::from_secs(10),
            record_bytes_max: 4 << 30,
        }
    }
}
