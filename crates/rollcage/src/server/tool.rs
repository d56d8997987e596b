//! The interface between the OpenEnv protocol and the tools.
//!
//! The protocol layer (`openenv/`) carries calls over HTTP, WebSocket and MCP and knows nothing about rollouts; the
//! tools (`tools/`) run rollouts and know nothing about sockets.

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// A tool as clients see it listed.
#[derive(Clone, Debug)]
pub(crate) struct ToolInfo {
    pub(crate) name: &'static str,
    /// Never empty: a client that gets `null` here lists no tools at all.
    pub(crate) description: String,
    /// A JSON Schema with `type: object` and `additionalProperties: false`.
    pub(crate) input_schema: Value,
}

/// The caller of a tool.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Identifies the credentials, but is never the credentials themselves.
    pub(crate) owner: String,
    pub(crate) client: ClientKind,
    /// For progress updates of a long call. Use `try_send`: a full or closed channel must not stop the call.
    pub(crate) progress: Option<mpsc::Sender<ProgressUpdate>>,
}

/// The kind of client that reads the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    OpenEnv,
    /// A real MCP client: a model reads the answer.
    Mcp,
}

/// A progress message of a long call.
#[derive(Clone, Debug)]
pub(crate) struct ProgressUpdate {
    /// Increases with every message.
    pub(crate) done: f64,
    pub(crate) message: String,
}

/// The result of a successful call.
#[derive(Clone, Debug)]
pub(crate) struct ToolOutput {
    /// The tool's return value: a string (often JSON in a string, as in the original) or any other value.
    pub(crate) value: Value,
    /// Set if the call finished a rollout, for the state of the session.
    pub(crate) finished: Option<FinishedRollout>,
}

/// What the state of an OpenEnv session contains about its last rollout.
#[derive(Clone, Debug)]
pub(crate) struct FinishedRollout {
    pub(crate) task_id: String,
    pub(crate) sandbox_id: String,
    pub(crate) reward: Option<f64>,
    /// A rollout that was refused before it started does not count.
    pub(crate) is_counted: bool,
}

/// Why a call failed. The variants correspond to OpenEnv's `error_type`.
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

    /// Dropping the future abandons the call, but not the rollout it waits for, unless the tool documents otherwise.
    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        caller: Caller,
    ) -> Result<ToolOutput, ToolError>;
}
