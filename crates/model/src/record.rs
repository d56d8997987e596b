//! The result of a rollout: one JSON object, a superset of OpenEnv's original `RolloutResult` in both its variants.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::Spent;
use crate::ending::{Cause, Ended};
use crate::finding::{CaptureLevel, Finding, RolloutType};
use crate::id::RolloutId;
use crate::network::AttemptTotals;
use crate::task::AgentDriver;
use crate::transcript::Report;
use rollcage_dialect::sampling::LogprobsMode;

/// One setup or verify command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CommandResult {
    /// The command as the task has it.
    pub cmd: String,
    /// 128 + the signal's number after a signal; -1 when the command could not be run or took too long.
    pub exit_code: i32,
    /// The last 2000 characters.
    pub stdout: String,
    /// The same of standard error.
    pub stderr: String,
    /// Seconds.
    pub duration_s: f64,
    /// Whether it was ended for taking too long.
    #[serde(default)]
    pub timed_out: bool,
}

/// One model call, in the original's words and with what training needs beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RolloutTurn {
    /// Counts from 1.
    pub turn: u64,
    /// As the endpoint gave it.
    pub finish_reason: Option<String>,
    /// The texts of the sampled tokens.
    pub completion_tokens: Vec<String>,
    /// Their ids.
    pub completion_token_ids: Vec<u32>,
    /// Their logprobs.
    pub per_token_logps: Vec<f64>,
    /// Seconds until the whole answer was there.
    pub latency_s: f64,
    /// Unix seconds.
    pub timestamp: f64,
    /// The endpoint's HTTP status.
    pub upstream_status: Option<u16>,
    /// What the endpoint answered instead of a completion.
    pub upstream_error: Option<serde_json::Value>,
    /// How many ids the prompt has; the ids themselves are in the training trace.
    pub prompt_tokens: usize,
    /// The call's name in findings and in the training trace.
    pub node_id: String,
    /// `agent`, `auxiliary`, `discarded` or `failed`.
    pub role: String,
    /// The request in short: model, messages and sampling.
    pub request: serde_json::Value,
    /// The answer in short: finish reason, usage and message.
    pub response: serde_json::Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AgentInfo {
    /// As `--agent` names it.
    pub name: String,
    /// Its exact version.
    pub version: String,
    /// Every package it is made of, with its exact version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EndpointInfo {
    /// The endpoint's name, such as `vllm`; `custom` for a URL.
    pub kind: String,
    /// Without credentials.
    pub base_url: String,
    /// The model that was asked for.
    pub model: String,
    /// What the endpoint says that it serves.
    #[serde(default)]
    pub served_model: Option<String>,
    /// How much the model takes at once, where it is known.
    #[serde(default)]
    pub context_tokens: Option<u64>,
    /// `live`, or `replayed` where the endpoint's own streams lose token ids.
    #[serde(default)]
    pub streams: String,
    /// What its logprobs are of, as measured: `raw`, `temperature`, `processed` or `unknown`.
    #[serde(default)]
    pub logprobs: LogprobsMode,
    /// How many alternatives per token it gives at most, where it refused as many as were wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs_max: Option<u32>,
}

/// Seconds spent in each phase; a phase that was not reached is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Timings {
    /// Until the sandbox was there.
    pub sandbox_s: f64,
    /// The task's files and setup commands.
    pub setup_s: f64,
    /// The agent.
    pub agent_s: f64,
    /// From the agent's start to its first model call.
    pub first_call_s: Option<f64>,
    /// The verify commands.
    pub verify_s: f64,
    /// Collecting files and logs.
    pub collect_s: f64,
    /// How much of `agent_s` calls spent waiting for an endpoint that was out of order. It counts neither for
    /// `agent_timeout_s` nor for `idle_s`.
    #[serde(default)]
    pub outage_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Usage {
    /// Model calls, failed ones too.
    pub calls: u64,
    /// Over all calls.
    pub prompt_tokens: u64,
    /// Over all calls.
    pub completion_tokens: u64,
    /// Those of the prompt tokens that the endpoint had in a cache.
    pub cached_tokens: u64,
    /// Model calls that are trained on.
    #[serde(default)]
    pub trainable_turns: u64,
    /// Tokens with a loss mask of 1.
    pub trainable_tokens: u64,
    /// The most memory that the sandbox held; null where it cannot be told.
    pub memory_peak_bytes: Option<u64>,
    /// Processor seconds of the sandbox.
    pub cpu_s: Option<f64>,
    /// Processes that were killed for want of memory.
    pub oom_kills: Option<u64>,
    /// The same of `setup`, `agent` and `verify`, as far as they were reached.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phases: BTreeMap<String, PhaseUsage>,
}

/// What one phase used; null where it cannot be told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PhaseUsage {
    /// Processor seconds.
    pub cpu_s: Option<f64>,
    /// The most memory that the sandbox held during the phase, files of earlier phases included.
    pub memory_peak_bytes: Option<u64>,
    /// What the sandbox's files took up at the end of the phase; they live in memory, and shared memory counts as files.
    pub disk_used_bytes: Option<u64>,
    /// Processes that were killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Received through the network filter; model calls do not count.
    pub network_bytes_in: u64,
    /// Sent through it.
    pub network_bytes_out: u64,
}

/// What bounded the rollout and what of it was used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BudgetReport {
    /// The agent's time.
    pub agent_timeout_s: f64,
    /// Which limit ended the rollout, if one did.
    pub stopped_by: Option<String>,
    /// What was used of it.
    #[serde(default)]
    pub spent: Spent,
    /// Model calls that a limit answered instead of the model.
    #[serde(default)]
    pub stops: u64,
}

/// A file that was kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Artifact {
    /// Below the work directory, and below `artifacts/` in the record.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// How strong the sandbox's walls were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SandboxInfo {
    /// `local`.
    pub kind: String,
    /// How it was made: `root`, or `user` for user namespaces.
    pub tier: String,
    /// What holds the limit on memory.
    pub memory: String,
    /// What holds the limit on processes.
    pub pids: String,
    /// What holds the limit on processors.
    pub cpu: String,
    /// The agent's server stood ready in it before the rollout came.
    #[serde(default)]
    pub warm: bool,
}

/// What is kept of a rollout beside its exchanges. Field names of OpenEnv's original come first. Tokens are not here: they
/// are read from the record when they are asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "StoredResult")]
pub struct RolloutResult {
    /// The task's name.
    pub task_id: String,
    /// The sandbox's name; empty when none was started.
    pub sandbox_id: String,
    /// What the verify commands gave; null when there is none. Count it only where `reward_valid` is true.
    pub reward: Option<f64>,
    /// The agent's exit code; null when it never exited by itself.
    pub agent_exit_code: Option<i32>,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// `transparent_proxy`, or `black_box` for a rollout whose calls are not part of its result.
    pub mode: String,
    /// Every setup command that ran.
    pub setup_results: Vec<CommandResult>,
    /// Every verify command that ran.
    pub verify_results: Vec<CommandResult>,
    /// Text files of the work directory at the end, by path, cut to 8000 characters.
    pub files: BTreeMap<String, String>,
    /// Paths of files that are there and were not kept.
    pub files_extra: Vec<String>,
    /// What was kept of the task's `artifacts`; the files are below `artifacts/` in the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// The size of the record's `workdir.patch`, for a task with `patch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_bytes: Option<u64>,
    /// The end of what the agent told.
    pub agent_log_tail: String,
    /// The end of the proxy's log of model calls.
    pub proxy_log_tail: String,
    /// What went wrong, in a sentence; null for a rollout that came to its end.
    pub error: Option<String>,

    /// As `agent_exit_code`, under the earlier variant's name; where that is null 0 for a served agent that came to its end,
    /// otherwise -1.
    pub exit_code: Option<i32>,
    /// As `files`, under the earlier variant's name.
    pub workdir_files: BTreeMap<String, String>,
    /// The end of what the verify commands printed, all together.
    pub verifier_stdout: String,
    /// The same of standard error.
    pub verifier_stderr: String,
    /// The first exit code of a verify command that is not 0, or 0; null when none ran.
    pub test_exit_code: Option<i32>,
    /// Of the original's; always empty, since agents are installed before.
    pub install_log_tail: String,

    /// 2. Results of version 1 held their tokens.
    pub schema_version: u32,
    /// Names the rollout. Ids sort by time.
    pub rollout_id: RolloutId,
    /// The same for all rollouts that were asked for together: what GRPO compares with each other.
    #[serde(default)]
    pub group: String,
    /// What whoever asked for the rollout wants to find it by; nothing here depends on them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How the rollout ended.
    pub ended: Ended,
    /// Why, exactly; `docs/endings.md` has what follows from each. Null in results of older versions.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// Whether the same rollout may end better when it is tried again.
    pub retryable: bool,
    /// The verify commands ran to a reward.
    pub graded: bool,
    /// Whether the reward says something about agent and model: false where something else broke, or nothing was
    /// graded.
    pub reward_valid: bool,
    /// What it may be used for.
    pub rollout_type: RolloutType,
    /// How much of the model calls could be captured.
    pub capture_level: CaptureLevel,
    /// What a reader must know.
    pub findings: Vec<Finding>,
    /// Seconds by phase.
    pub timings: Timings,
    /// What was used.
    pub usage: Usage,
    /// Attempts to reach something outside, by phase; each of them is in the record's `network.jsonl`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub network: BTreeMap<String, AttemptTotals>,
    /// What bounded it.
    pub budget: BudgetReport,
    /// How the agent was run: `cli`, or `serve` for one that ran as a server.
    #[serde(default)]
    pub driver: AgentDriver,
    /// A served agent's own name for its conversation; null when there was none.
    #[serde(default)]
    pub serve_session_id: Option<String>,
    /// Which agent it was.
    pub agent: AgentInfo,
    /// The agent's own account: its last words, what it counted, what went wrong.
    #[serde(default)]
    pub agent_report: Report,
    /// Which model it was, and where.
    pub endpoint: EndpointInfo,
    /// How strong the sandbox's walls were.
    pub sandbox: SandboxInfo,
    /// When it started, in Unix seconds.
    pub started_at: f64,
    /// Where everything kept of this rollout lies.
    pub record: String,
}

/// Written as `schema_version`. Results of version 1 held their tokens; they are read without them, since the record has
/// them, too.
pub const SCHEMA_VERSION: u32 = 2;
