//! The model calls of one rollout: rows of a list, and one call in full.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::finding::Code;
use rollcage_dialect::chat::Usage;

/// One model call in a list.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnRow {
    /// Counts the rollout's calls from 0.
    pub turn: usize,
    /// The call's name in findings and rows.
    pub node_id: String,
    /// `agent`, `auxiliary`, `discarded`, `failed`, or `pending` while it has no answer.
    pub role: String,
    /// Why the role is not the agent's: `beside`, `summary`, `asked_again` or `thrown_away`.
    pub reason: Option<String>,
    /// The call that this one goes on from, by whatever link.
    pub before: Option<usize>,
    /// The first call of its conversation.
    pub root: Option<usize>,
    /// Whether its conversation is a subagent's.
    pub is_subagent: bool,
    /// Unix seconds, when the request came.
    pub at: f64,
    /// Null while there is no answer.
    pub latency_s: Option<f64>,
    /// As the endpoint calls it.
    pub model: Option<String>,
    /// Tokens of the prompt, as the endpoint counted or as there are ids.
    pub prompt_tokens: Option<u64>,
    /// Sampled tokens.
    pub completion_tokens: Option<u64>,
    /// Those of the prompt's that were cached.
    pub cached_tokens: Option<u64>,
    /// As the endpoint gave it.
    pub finish_reason: Option<String>,
    /// Whether its tokens are trained.
    pub is_trained: bool,
    /// Why its tokens are not to be trained on; null where they are exact.
    pub not_exact: Option<Code>,
    /// Of the sampled tokens; null where there are no logprobs.
    pub mean_logprob: Option<f64>,
    /// The endpoint's HTTP status.
    pub upstream_status: Option<u16>,
    /// What the endpoint answered instead of a completion, in short.
    pub error: Option<String>,
    /// The start of what the model said.
    pub preview: String,
    /// Whether it reasoned.
    pub has_reasoning: bool,
    /// The names of the tools that it called.
    pub tool_calls: Vec<String>,
    /// Messages of the request.
    pub messages: usize,
}

/// A page of a rollout's calls.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnPage {
    /// From `start` on, in the order of the requests.
    pub turns: Vec<TurnRow>,
    /// The first one's number.
    pub start: usize,
    /// How many there are.
    pub total: usize,
}

/// One model call in full, without its tokens.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnDetail {
    /// As in the list.
    #[serde(flatten)]
    pub row: TurnRow,
    /// The call that it goes on from by its messages, where its tokens do not.
    pub retokenised_from: Option<usize>,
    /// The call whose reply the agent changed before it sent it back.
    pub changed_from: Option<usize>,
    /// The call whose reply the agent left out.
    pub left_out: Option<usize>,
    /// The last call of the conversation that this one takes the place of.
    pub compacts: Option<usize>,
    /// The call that started this one's session.
    pub spawned_by: Option<usize>,
    /// How many messages of the request stand before `messages`; they repeat an earlier call's.
    pub messages_before: usize,
    /// The request's messages that are new, in the words of chat completions; all of them where that was asked for.
    pub messages: Vec<Value>,
    /// The reply.
    pub message: Option<Value>,
    /// The tools that were offered.
    pub tools: Option<Value>,
    /// As the endpoint counted.
    pub usage: Option<Usage>,
    /// What it answered instead of a completion.
    pub upstream_error: Option<Value>,
    /// As the endpoint was asked.
    pub sampling_params: Map<String, Value>,
    /// As the agent had asked.
    pub requested_sampling_params: Map<String, Value>,
    /// What of the request makes the tokens unfit for training, in words.
    pub unfit: Option<String>,
    /// What the logprobs are of, where it was measured.
    pub logprobs_of: Option<String>,
    /// What of the request had no counterpart in the endpoint's dialect.
    pub dropped: Vec<String>,
    /// Members that the endpoint does not take.
    pub refused: Vec<String>,
    /// The dialect that the agent speaks.
    pub dialect: String,
    /// What the agent says of its own session.
    pub harness_session_id: Option<String>,
    /// How many ids of the prompt are known.
    pub prompt_ids: usize,
    /// How many sampled ids are known.
    pub completion_ids: usize,
    /// Whether the endpoint told alternatives to the sampled tokens.
    pub has_alternatives: bool,
}
