//! What the OpenEnv wire and the tools behind it know of each other.
//!
//! The wire (`openenv/`) carries calls over HTTP, WebSocket and MCP and knows nothing of rollouts; the tools (`tools/`)
//! run rollouts and know nothing of sockets.

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// A tool as clients see it listed.
#[derive(Clone, Debug)]
pub(crate) struct ToolInfo {
    pub(crate) name: &'static str,
    /// Never empty: a client that meets `null` here lists no tools at all.
    pub(crate) description: String,
    /// A JSON Schema with `type: object` and `additionalProperties: false`.
    pub(crate) input_schema: Value,
}

/// Who calls, and who wants to hear how far it is.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The same for all calls with the same credentials, never the credentials themselves.
    pub(crate) owner: String,
    /// What it is used to.
    pub(crate) client: Client,
    /// Where a long call says how far it is. A full or closed channel is no reason to stop: use `try_send`.
    pub(crate) progress: Option<mpsc::Sender<Progress>>,
}

/// Whose clients read the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    OpenEnv,
    /// One that speaks the Model Context Protocol itself: a model reads what comes back.
    Mcp,
}

/// One step of a long call.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// Grows with every message.
    pub(crate) done: f64,
    pub(crate) message: String,
}

/// A call that went well.
#[derive(Clone, Debug)]
pub(crate) struct ToolOutput {
    /// What the tool returns: a string (often JSON in a string, as the original does) or any other value.
    pub(crate) value: Value,
    /// Set when the call finished a rollout: the wire's session state remembers the last one.
    pub(crate) finished: Option<FinishedRollout>,
}

/// What an OpenEnv session's state keeps of its last rollout.
#[derive(Clone, Debug)]
pub(crate) struct FinishedRollout {
    pub(crate) task_id: String,
    pub(crate) sandbox_id: String,
    pub(crate) reward: Option<f64>,
    /// A rollout that was refused before it started does not count.
    pub(crate) is_counted: bool,
}

/// Why a call did not work. The kinds are OpenEnv's `error_type`s.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ToolError {
    #[error("Unknown tool: '{0}'")]
    NotFound(String),
    #[error("{0}")]
    InvalidArguments(String),
    #[error("{0}")]
    Failed(String),
}

/// Every tool of the server.
#[async_trait]
pub(crate) trait Tools: Send + Sync {
    fn list(&self) -> &[ToolInfo];

    /// Dropping the future abandons the call, not the rollout it waits for, unless the tool says otherwise.
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        caller: Caller,
    ) -> Result<ToolOutput, ToolError>;
}
