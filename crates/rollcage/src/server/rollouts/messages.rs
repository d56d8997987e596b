//! The conversation of a rollout: OpenCode's own transcript where it runs as a server, and for every other agent what
//! the proxy recorded, in the same format.

use serde_json::{Value, json};

use rollcage_engine::{RolloutEntry, RolloutLookup};
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
        RolloutLookup::Stored(summary) if summary.row.ended.is_none() => {
            (summary.row.rollout_id, "running")
        }
        RolloutLookup::Stored(summary) => (summary.row.rollout_id, "done"),
    }
}

/// The original's answer, with our findings about the record.
pub(crate) async fn messages(backend: &Backend, found: &RolloutLookup) -> Result<Value, ViewError> {
    let served = backend.engine.served_messages(found).await;
    let (id, status) = id_and_status(found);
    let Some(served) = served else {
        let Conversation { messages, findings } = backend.conversation(id).await?;
        return Ok(json!({
            "rollout_id": id, "messages": messages, "status": status, "serve_session_id": null,
            "findings": findings,
        }));
    };
    let mut answer = json!({
        "rollout_id": id, "messages": served.messages, "status": status,
        "serve_session_id": served.session,
    });
    match (served.error, served.session) {
        (Some(error), _) => answer["error"] = json!(error),
        (None, None) if status == "running" => answer["note"] = json!("session not created yet"),
        (None, None) => answer["error"] = json!("session never created"),
        (None, Some(_)) => {}
    }
    Ok(answer)
}
