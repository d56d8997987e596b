//! What the routes of live agents take and answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use rollcage_engine::live::{LiveState, TurnSummary};
use rollcage_model::live::{Answer, Reply};

use crate::server::live::LiveAgentView;

/// A caller's live agents.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveAgents {
    /// Without their addresses.
    pub(crate) agents: Vec<LiveAgentView>,
}

/// Whether an agent's server answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveHealth {
    /// Whether it does.
    pub(crate) healthy: bool,
    /// What is there.
    pub(crate) server: ServerHealth,
    /// As the server tells it.
    pub(crate) version: Option<String>,
    /// What the agent does.
    pub(crate) state: LiveState,
}

/// What is found where an agent's server should be.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServerHealth {
    /// It answers as it should.
    Healthy,
    /// Something else answers.
    Foreign,
    /// Nothing takes connections.
    NotRunning,
    /// It takes connections and does not answer.
    Silent,
}

/// An agent's own transcript.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveMessages {
    /// Which conversation; null when there is none.
    pub(crate) session_id: Option<String>,
    /// As the agent tells them.
    pub(crate) messages: Vec<Value>,
}

/// The files of a live agent's work directory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveFiles {
    /// In the order of their paths.
    pub(crate) files: Vec<LiveFile>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveFile {
    /// Below the work directory.
    pub(crate) path: String,
    /// What it is.
    pub(crate) kind: LiveFileKind,
    /// Its size.
    pub(crate) bytes: u64,
}

/// What stands at a path.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LiveFileKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, a pipe, a device.
    Other,
}

/// A turn that was taken on.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TurnQueued {
    /// Names it.
    pub(crate) turn_id: String,
}

/// The replies of a turn.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TurnReplies {
    /// Which turn.
    pub(crate) turn_id: String,
    /// Whether the last reply is there.
    pub(crate) ended: bool,
    /// All so far.
    pub(crate) replies: Vec<Reply>,
}

/// A page of an agent's turns.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveTurnPage {
    /// The newest first.
    pub(crate) turns: Vec<TurnSummary>,
    /// Give it as `offset` for the next page; null on the last.
    pub(crate) next_offset: Option<usize>,
}

/// What came of ending a turn early.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TurnAborted {
    /// Which turn.
    pub(crate) turn_id: String,
    /// False when it had ended already.
    pub(crate) aborted: bool,
}

/// The answer to a permission request or a question.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct TurnAnswer {
    /// That of the reply that asks.
    pub(crate) id: String,
    /// What to do.
    #[serde(flatten)]
    pub(crate) answer: Answer,
}
