//! Settings for the model calls of a rollout: sampling, budget and retries.

use std::time::Duration;

use rollcage_dialect::chat::ConstraintPolicy;
use rollcage_model::budget::{self, Price};

use crate::policy::SamplingPolicy;

/// How model calls are rewritten, limited and retried.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// Caps the completion tokens of one call.
    pub tokens_max: Option<u64>,
    /// Alternatives per token; fewer are requested where an endpoint refuses so many.
    pub top_logprobs: u32,
    pub sampling: SamplingPolicy,
    /// What happens to requests that constrain sampling. By default a session with pinned sampling refuses them; any
    /// other forwards them and excludes them from training.
    pub constrained: Option<ConstraintPolicy>,
    pub budget: budget::SpendingLimits,
    pub price: Option<Price>,
    /// No token ids or logprobs are requested, and results list no calls; the conversation is still recorded.
    pub is_black_box: bool,
    /// How long a failing call is retried. Agents are told not to retry themselves, so this must outlast a server's
    /// restart. It does not count towards the agent's time limit.
    pub upstream_patience: Duration,
    /// How long to wait for an endpoint's first response.
    pub reach_limit: Duration,
    /// The maximum size of one rollout's record, which an agent could otherwise fill the disk with.
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
