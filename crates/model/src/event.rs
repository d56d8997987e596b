//! What happens to rollouts, as one stream that every reader (progress, server, page) sees in the same order.

use serde::{Deserialize, Serialize};

use crate::ending::Ended;
use crate::id::RolloutId;

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
    /// A setup or verify command begins.
    CommandStarted {
        phase: Phase,
        number: usize,
        of: usize,
        cmd: String,
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
    /// The agent is over, and so is everything it started.
    AgentExited {
        /// 128 + the signal's number after a signal; none when it had to be killed.
        exit_code: Option<i32>,
    },
    /// What was kept of the work directory, by path.
    Collected {
        files: Vec<String>,
        /// Listed only: no text, or too large.
        files_extra: Vec<String>,
    },
    Finished {
        ended: Ended,
        reward: Option<f64>,
        wall_s: f64,
        error: Option<String>,
    },
}

impl What {
    /// The event's name, as it is written.
    pub fn name(&self) -> &'static str {
        match self {
            What::Queued => "queued",
            What::Entered { .. } => "entered",
            What::CommandStarted { .. } => "command_started",
            What::Command { .. } => "command",
            What::Call { .. } => "call",
            What::AgentExited { .. } => "agent_exited",
            What::Collected { .. } => "collected",
            What::Finished { .. } => "finished",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The agent is installed and the endpoint is looked at.
    Prepare,
    Sandbox,
    Setup,
    Agent,
    /// Aborted, with the agent dead: the sandbox waits for somebody who wants the grade.
    Kept,
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
            Phase::Kept => "kept",
            Phase::Verify => "verify",
            Phase::Collect => "collect",
        }
    }
}
