//! The conversation of a rollout: OpenCode's own transcript where it runs as a server, and for every other agent what
//! the proxy recorded, in the same format.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use rollcage_engine::{RolloutEntry, RolloutLookup};
use rollcage_model::finding::Finding;
use rollcage_model::id::RolloutId;

use super::view::Conversation;
use super::{Backend, ViewError};

/// An aborted rollout whose sandbox is kept counts as done, since only finalize_rollout continues it; and so does one
/// whose agent waits for messages.
pub(crate) fn status(entry: &RolloutEntry) -> &'static str {
    if entry.is_ended() || entry.is_kept() || entry.is_idle() {
        "done"
    } else {
        "running"
    }
}

pub(crate) fn id_and_status(found: &RolloutLookup) -> (RolloutId, &'static str) {
    match found {
        RolloutLookup::InMemory(entry) => (entry.id, status(entry)),
        RolloutLookup::Stored(summary) if !summary.is_ended() => {
            (summary.row.rollout_id, "running")
        }
        RolloutLookup::Stored(summary) => (summary.row.rollout_id, "done"),
    }
}

/// The original's answer, with our findings about the record.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RolloutMessages {
    /// Which rollout.
    rollout_id: RolloutId,
    /// `{info, parts}`, as OpenCode has them.
    messages: Vec<Value>,
    /// `running`, or `done` when nothing follows unless somebody asks for it.
    status: &'static str,
    /// The agent's own name for the conversation, where it runs as a server.
    serve_session_id: Option<String>,
    /// What a reader must know; only where the messages were made from the model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    findings: Option<Vec<Finding>>,
    /// Why the conversation is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Why there is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

pub(crate) async fn messages(
    backend: &Backend,
    found: &RolloutLookup,
) -> Result<RolloutMessages, ViewError> {
    let served = backend.engine.served_messages(found).await;
    let (rollout_id, status) = id_and_status(found);
    let Some(served) = served else {
        let Conversation { messages, findings } = backend.conversation(rollout_id).await?;
        return Ok(RolloutMessages {
            rollout_id,
            messages,
            status,
            serve_session_id: None,
            findings: Some(findings),
            error: None,
            note: None,
        });
    };
    let (error, note) = match (served.error, &served.session) {
        (Some(error), _) => (Some(error), None),
        (None, None) if status == "running" => (None, Some("session not created yet")),
        (None, None) => (Some("session never created".to_owned()), None),
        (None, Some(_)) => (None, None),
    };
    Ok(RolloutMessages {
        rollout_id,
        messages: served.messages,
        status,
        serve_session_id: served.session,
        findings: None,
        error,
        note,
    })
}
