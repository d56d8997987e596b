//! One tool call on behalf of a session, with the limits that can end it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::OpenEnvServer;
use super::session::Session;
use crate::server::tool::{Caller, ClientKind, ProgressUpdate, ToolError};

/// Why a call returned no value.
#[derive(Debug)]
pub(crate) enum CallError {
    Tool(ToolError),
    TimedOut(Duration),
    /// The session was closed while the call ran.
    SessionEnded,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct CallOutput {
    pub(crate) value: Value,
    /// The reward of the rollout that this call finished, if it did.
    pub(crate) reward: Option<f64>,
}

impl CallError {
    /// The error text for clients.
    pub(crate) fn describe(&self, tool: &str) -> String {
        match self {
            CallError::Tool(error @ (ToolError::NotFound(_) | ToolError::InvalidArguments(_))) => {
                error.to_string()
            }
            CallError::Tool(ToolError::Failed(reason)) => {
                format!("Error calling tool '{tool}': {reason}")
            }
            CallError::TimedOut(limit) => {
                format!(
                    "Tool '{tool}' timed out after {:?} seconds",
                    limit.as_secs_f64()
                )
            }
            CallError::SessionEnded => "Session task completed unexpectedly".to_owned(),
        }
    }
}

impl OpenEnvServer {
    /// Calls a tool. Dropping this future abandons the call.
    pub(crate) async fn call(
        &self,
        session: &Session,
        name: &str,
        arguments: Map<String, Value>,
        (client, progress): (ClientKind, Option<mpsc::Sender<ProgressUpdate>>),
        limit: Duration,
    ) -> Result<CallOutput, CallError> {
        let running = session.begin();
        let caller = Caller {
            owner: session.owner.to_string(),
            client,
            progress,
        };
        // A panic in a tool must not end the socket and its other requests.
        let calling = AssertUnwindSafe(self.tools.call(name, arguments, caller)).catch_unwind();
        let bounded = tokio::time::timeout(limit, calling);
        let answered = match session.ended.run_until_cancelled(bounded).await {
            None => return Err(CallError::SessionEnded),
            Some(Err(_)) => return Err(CallError::TimedOut(limit)),
            Some(Ok(Err(_))) => {
                tracing::error!(tool = name, "a tool panicked");
                let reason = "the tool panicked; the server's log tells more".to_owned();
                return Err(CallError::Tool(ToolError::Failed(reason)));
            }
            Some(Ok(Ok(answered))) => answered.map_err(CallError::Tool)?,
        };
        let reward = answered
            .finished
            .as_ref()
            .and_then(|rollout| rollout.reward);
        if let Some(rollout) = answered.finished {
            running.finished(rollout);
        }
        Ok(CallOutput {
            value: answered.value,
            reward,
        })
    }

    /// The session that a call names, or one for this call alone.
    pub(crate) fn session_for(
        &self,
        id: Option<&str>,
        owner: &Arc<str>,
    ) -> Result<Arc<Session>, super::session::SessionError> {
        match id {
            Some(id) => self.sessions.find(id, owner),
            None => Ok(Arc::new(Session::temporary(Arc::clone(owner)))),
        }
    }
}
