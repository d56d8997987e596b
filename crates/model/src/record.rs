//! The result of a rollout: one JSON object, a superset of OpenEnv's original `RolloutResult` in both its variants.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::Spent;
use crate::id::RolloutId;
use crate::sampling::LogprobsMode;
use crate::trace::{CaptureLevel, Finding, RolloutType};
use crate::transcript::Report;

/// How a rollout ended. Every rollout ends in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Completed,
    AgentFailed,
    SetupFailed,
    TimedOut,
    Budget,
    Cancelled,
    SandboxFailed,
    UpstreamFailed,
    VerifierFailed,
    EngineFailed,
}

impl Ended {
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Completed => "completed",
            Ended::AgentFailed => "agent_failed",
            Ended::SetupFailed => "setup_failed",
            Ended::TimedOut => "timed_out",
            Ended::Budget => "budget",
            Ended::Cancelled => "cancelled",
            Ended::SandboxFailed => "sandbox_failed",
            Ended::UpstreamFailed => "upstream_failed",
            Ended::VerifierFailed => "verifier_failed",
            Ended::EngineFailed => "engine_failed",
        }
    }

    /// Whether the same rollout may end better when tried again, unless it has a valid reward: the cause lies outside
    /// agent and task, or the agent crashed.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Ended::SandboxFailed | Ended::UpstreamFailed | Ended::EngineFailed | Ended::AgentFailed
        )
    }

    /// Whether a reward of such a rollout says something about the agent: an agent that ran out of its own time
    /// or budget, crashed or was ended by itself failed by itself; one whose model or sandbox broke did not.
    pub fn is_reward_valid(self) -> bool {
        matches!(
            self,
            Ended::Completed | Ended::TimedOut | Ended::Budget | Ended::AgentFailed
        )
    }
}

/// One setup or verify command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CommandResult {
    pub cmd: String,
    /// 128 + the signal's number after a signal; -1 when the command could not be run or took too long.
    pub exit_code: i32,
    /// The last 2000 characters.
    pub stdout: String,
    pub stderr: String,
    pub duration_s: f64,
    #[serde(default)]
    pub timed_out: bool,
}

/// One model call, in the original's words and with what training needs beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RolloutTurn {
    /// Counts from 1.
    pub turn: u64,
    pub finish_reason: Option<String>,
    pub completion_tokens: Vec<String>,
    pub completion_token_ids: Vec<u32>,
    pub per_token_logps: Vec<f64>,
    pub latency_s: f64,
    /// Unix seconds.
    pub timestamp: f64,
    pub upstream_status: Option<u16>,
    pub upstream_error: Option<serde_json::Value>,
    /// How many ids the prompt has; the ids themselves are in the training trace.
    pub prompt_tokens: usize,
    pub node_id: String,
    /// `agent`, `auxiliary`, `discarded` or `failed`.
    pub role: String,
    /// The earlier variant's compact forms.
    pub request: serde_json::Value,
    pub response: serde_json::Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AgentInfo {
    pub name: String,
    pub version: String,
    /// Every package it is made of, with its exact version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndpointInfo {
    pub kind: String,
    /// Without credentials.
    pub base_url: String,
    pub model: String,
    /// What the endpoint says that it serves.
    #[serde(default)]
    pub served_model: Option<String>,
    #[serde(default)]
    pub context_tokens: Option<u64>,
    /// `live`, or `replayed` where the endpoint's own streams lose token ids.
    #[serde(default)]
    pub streams: String,
    /// What its logprobs are of, as measured: `raw`, `temperature`, `processed` or `unknown`.
    #[serde(default)]
    pub logprobs: LogprobsMode,
}

/// Seconds spent in each phase; a phase that was not reached is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Timings {
    pub sandbox_s: f64,
    pub setup_s: f64,
    pub agent_s: f64,
    /// From the agent's start to its first model call.
    pub first_call_s: Option<f64>,
    pub verify_s: f64,
    pub collect_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    pub calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
    /// Model calls that are trained on.
    #[serde(default)]
    pub trainable_turns: u64,
    /// Tokens with a loss mask of 1.
    pub trainable_tokens: u64,
    pub memory_peak_bytes: Option<u64>,
    pub cpu_s: Option<f64>,
    pub oom_kills: Option<u64>,
}

/// What bounded the rollout and what of it was used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Budget {
    pub agent_timeout_s: f64,
    /// Which limit ended the rollout, if one did.
    pub stopped_by: Option<String>,
    #[serde(default)]
    pub spent: Spent,
    /// Model calls that a limit answered instead of the model.
    #[serde(default)]
    pub stops: u64,
}

/// How strong the sandbox's walls were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SandboxInfo {
    pub kind: String,
    pub tier: String,
    /// Which mechanism holds each limit.
    pub memory: String,
    pub pids: String,
    pub cpu: String,
}

/// What is kept of a rollout beside its exchanges. Field names of OpenEnv's original come first. Tokens are not here: they
/// are read from the record when they are asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RolloutResult {
    pub task_id: String,
    pub sandbox_id: String,
    pub reward: Option<f64>,
    pub agent_exit_code: Option<i32>,
    pub wall_s: f64,
    pub mode: String,
    pub setup_results: Vec<CommandResult>,
    pub verify_results: Vec<CommandResult>,
    pub files: BTreeMap<String, String>,
    pub files_extra: Vec<String>,
    pub agent_log_tail: String,
    pub proxy_log_tail: String,
    pub error: Option<String>,

    /// The earlier variant's names for some of the same things.
    pub exit_code: Option<i32>,
    pub workdir_files: BTreeMap<String, String>,
    pub verifier_stdout: String,
    pub verifier_stderr: String,
    pub test_exit_code: Option<i32>,
    pub install_log_tail: String,

    pub schema_version: u32,
    pub rollout_id: RolloutId,
    /// The same for all rollouts that were asked for together: what GRPO compares with each other.
    #[serde(default)]
    pub group: String,
    pub ended: Ended,
    pub retryable: bool,
    /// The verify commands ran to a reward.
    pub graded: bool,
    pub reward_valid: bool,
    pub rollout_type: RolloutType,
    pub capture_level: CaptureLevel,
    pub findings: Vec<Finding>,
    pub timings: Timings,
    pub usage: Usage,
    pub budget: Budget,
    pub agent: AgentInfo,
    /// The agent's own account: its last words, what it counted, what went wrong.
    #[serde(default)]
    pub agent_report: Report,
    pub endpoint: EndpointInfo,
    pub sandbox: SandboxInfo,
    /// Unix seconds.
    pub started_at: f64,
    /// Where everything kept of this rollout lies.
    pub record: String,
}

/// Written as `schema_version`. Results of version 1 held their tokens; they are read without them, since the record has
/// them, too.
pub const SCHEMA_VERSION: u32 = 2;
