//! What happens to rollouts, as one stream that every reader (progress, server, page) sees in the same order.

use serde::{Deserialize, Serialize};

use crate::id::RolloutId;
use crate::record::Ended;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub rollout: RolloutId,
    /// Unix seconds.
    pub at: f64,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// Waits for a free slot.
    Queued,
    Entered {
        phase: Phase,
    },
    /// A setup or verify command ended.
    Command {
        phase: Phase,
        number: usize,
        of: usize,
        cmd: String,
        exit_code: i32,
    },
    /// A model call was answered.
    Call {
        exchange: u64,
        status: Option<u16>,
        prompt_tokens: Option<u64>,
        completion_tokens: Option<u64>,
    },
    Finished {
        ended: Ended,
        reward: Option<f64>,
        wall_s: f64,
        error: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The agent is installed and the endpoint is looked at.
    Prepare,
    Sandbox,
    Setup,
    Agent,
    Verify,
    Collect,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Prepare => "prepare",
            Phase::Sandbox => "sandbox",
            Phase::Setup => "setup",
            Phase::Agent => "agent",
            Phase::Verify => "verify",
            Phase::Collect => "collect",
        }
    }
}
