//! What an endpoint can deliver, as far as it is known before it is used.

use serde::{Deserialize, Serialize};

use rollcage_dialect::sampling::LogprobsMode;
use rollcage_model::finding::CaptureLevel;

/// What an endpoint can deliver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub level: CaptureLevel,
    /// Streams carry everything that whole answers do, so they may be passed on live.
    pub has_live_streams: bool,
    /// Token ids are requested with SGLang's own flags.
    #[serde(default)]
    pub has_sglext: bool,
    pub served_model: Option<String>,
    pub context_tokens: Option<u64>,
    pub logprobs: LogprobsMode,
    /// The most alternatives per token that it gives, where it refused as many as calls ask for.
    #[serde(default)]
    pub top_logprobs_max: Option<u32>,
}

impl Profile {
    /// As many alternatives per token of those that are wanted as the endpoint gives.
    pub(crate) fn allowed(&self, top_logprobs: u32) -> u32 {
        top_logprobs.min(self.top_logprobs_max.unwrap_or(u32::MAX))
    }

    /// Everything; the scripted endpoint's profile, and the one that tests assume.
    pub fn whole() -> Self {
        Profile {
            level: CaptureLevel::Tokens,
            has_live_streams: true,
            has_sglext: false,
            served_model: None,
            context_tokens: None,
            // They are those of the script, whatever the sampling parameters are.
            logprobs: LogprobsMode::Processed,
            top_logprobs_max: None,
        }
    }
}
