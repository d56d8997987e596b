//! What a live agent answers in a turn: replies, one after the other, the last of which is [`ReplyKind::Final`] or
//! [`ReplyKind::Error`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Reply {
    /// The caller's name for what the turn belongs to.
    pub trace_id: String,
    /// From 1 on, without gaps.
    pub seq: u64,
    pub turn_id: String,
    /// The agent's own name for the conversation; null until there is one.
    pub session_id: Option<String>,
    #[serde(flatten)]
    pub kind: ReplyKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReplyKind {
    /// More of the answer's text.
    Delta { text: String },
    /// More of the model's reasoning.
    Reasoning { text: String },
    /// A tool call, each time its status changes.
    Tool {
        call_id: String,
        name: String,
        status: ToolStatus,
        input: Value,
        /// What the tool answered, or why it failed.
        output: Option<String>,
    },
    /// The agent asks whether it may do something.
    Permission {
        id: String,
        /// What it asks for, such as `bash` or `edit`.
        permission: String,
        patterns: Vec<String>,
        /// Unix seconds; without an answer by then it is refused.
        deadline: f64,
    },
    /// The agent asks something.
    Question {
        id: String,
        /// As the agent words them, each with its options.
        questions: Value,
        /// Unix seconds; without an answer by then it is rejected.
        deadline: f64,
    },
    /// The turn is over.
    Final {
        /// The text of the last message.
        text: String,
        usage: TurnUsage,
        /// Why the model stopped, as the agent reports it.
        finish: Option<String>,
    },
    /// The turn is over, and failed.
    Error {
        code: ErrorCode,
        /// Safe to show: without secrets and addresses.
        message: String,
        /// Whether the same turn may succeed when it is tried again.
        retryable: bool,
    },
}

impl ReplyKind {
    /// Whether nothing follows.
    pub fn is_terminal(&self) -> bool {
        matches!(self, ReplyKind::Final { .. } | ReplyKind::Error { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    Pending,
    Running,
    Completed,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Somebody ended the turn.
    Aborted,
    /// The turn took too long, or the agent did not answer.
    Timeout,
    /// The agent's budget is used up.
    Budget,
    /// The model failed.
    Upstream,
    /// The agent's server ended.
    Crashed,
    /// Rollcage ended while the turn was in progress.
    Interrupted,
}

impl ErrorCode {
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::Aborted => "aborted",
            ErrorCode::Timeout => "timeout",
            ErrorCode::Budget => "budget",
            ErrorCode::Upstream => "upstream",
            ErrorCode::Crashed => "crashed",
            ErrorCode::Interrupted => "interrupted",
        }
    }
}

/// Tokens and cost of a turn, as the agent counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct TurnUsage {
    pub input: u64,
    pub output: u64,
    pub reasoning: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    /// US dollars.
    pub cost: f64,
}

/// The answer to a permission request or a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// Allow it this time.
    Once,
    /// Allow it and everything like it.
    Always,
    Reject {
        /// What the agent is told.
        #[serde(default)]
        message: Option<String>,
    },
    /// The chosen labels or own words, one list per question.
    Choose { answers: Vec<Vec<String>> },
}

/// What is done about permission requests and questions.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PermissionPolicy {
    /// Allow everything; questions are rejected, since nobody is there.
    #[default]
    Allow,
    /// Refuse everything.
    Reject,
    /// Ask the caller, and refuse what nobody answers in time.
    Ask,
}
