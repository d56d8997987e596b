//! ATIF's objects, as far as they are written. Harbor refuses members that it does not know.

use serde::Serialize;
use serde_json::Value;

use crate::tokens::Tokens;
use crate::turn::Shared;

#[derive(Debug, Serialize)]
pub(super) struct Trajectory {
    pub(super) schema_version: &'static str,
    pub(super) session_id: String,
    pub(super) trajectory_id: String,
    pub(super) agent: Agent,
    pub(super) steps: Vec<Step>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) final_metrics: Option<FinalMetrics>,
    pub(super) extra: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) subagent_trajectories: Vec<Trajectory>,
}

#[derive(Debug, Serialize)]
pub(super) struct Agent {
    pub(super) name: String,
    pub(super) version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_definitions: Option<Shared>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    System,
    #[default]
    User,
    Agent,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Step {
    /// Counts from 1.
    pub(super) step_id: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timestamp: Option<String>,
    pub(super) source: Source,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model_name: Option<String>,
    /// A text, or parts of type `text`.
    pub(super) message: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) observation: Option<Observation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) is_copied_context: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) llm_call_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extra: Option<Value>,
}

#[derive(Debug, Serialize)]
pub(super) struct ToolCall {
    pub(super) tool_call_id: String,
    pub(super) function_name: String,
    /// Always an object; what is none stands in `extra`.
    pub(super) arguments: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extra: Option<Value>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Observation {
    pub(super) results: Vec<ObservationResult>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ObservationResult {
    /// One of the same step's calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) subagent_trajectory_ref: Vec<TrajectoryRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extra: Option<Value>,
}

#[derive(Debug, Serialize)]
pub(super) struct TrajectoryRef {
    pub(super) trajectory_id: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Tokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logprobs: Option<Vec<f64>>,
    pub(super) extra: Value,
}

#[derive(Debug, Serialize)]
pub(super) struct FinalMetrics {
    pub(super) total_prompt_tokens: u64,
    pub(super) total_completion_tokens: u64,
    pub(super) total_cached_tokens: u64,
    pub(super) total_steps: usize,
    pub(super) extra: Value,
}
