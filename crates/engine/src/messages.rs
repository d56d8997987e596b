//! A served agent's own transcript: asked of its server while that lives, read from the record afterwards.

use serde::Deserialize;
use serde_json::Value;

use rollcage_model::task::AgentDriver;
use rollcage_model::text::chain;

use crate::engine::{Engine, RolloutLookup};
use crate::store::MESSAGES_FILE;

/// A served agent's own transcript.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServedMessages {
    /// The agent's own name for the conversation; `None` until there is one.
    pub session: Option<String>,
    /// `[{info, parts}…]`, as the agent's server gives them.
    pub messages: Vec<Value>,
    /// Why there are no messages, in the words of OpenEnv's original.
    pub error: Option<String>,
}

#[derive(Deserialize)]
struct StoredMessages {
    serve_session_id: String,
    messages: Vec<Value>,
}

impl Engine {
    /// `None` for a rollout whose agent ran as a command, or runs in another process.
    pub async fn served_messages(&self, found: &RolloutLookup) -> Option<ServedMessages> {
        let (id, session) = match found {
            RolloutLookup::InMemory(entry) if entry.driver == AgentDriver::Cli => return None,
            RolloutLookup::InMemory(entry) => {
                if let Some(conversation) = entry.controls.conversation() {
                    let messages = conversation.client.messages(&conversation.session).await;
                    // Between the question and the answer the server may have ended in good order.
                    if messages.is_ok() || entry.controls.conversation().is_some() {
                        let error = messages.as_ref().err();
                        let error =
                            error.map(|why| format!("list_messages failed: {}", chain(why)));
                        return Some(ServedMessages {
                            session: Some(conversation.session),
                            messages: messages.unwrap_or_default(),
                            error,
                        });
                    }
                }
                (entry.id, entry.feed.status().serve_session_id)
            }
            RolloutLookup::Stored(summary) => {
                let result = self.stored(summary.row.rollout_id).await.ok();
                let result = result.filter(|result| result.driver == AgentDriver::Serve)?;
                (result.rollout_id, result.serve_session_id.clone())
            }
        };
        let path = self.store().directory(id).join(MESSAGES_FILE);
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let stored = read.unwrap_or_else(|error| Err(error.to_string()));
        Some(match (stored, session) {
            (Ok(Some(stored)), _) => ServedMessages {
                session: Some(stored.serve_session_id),
                messages: stored.messages,
                error: None,
            },
            (Ok(None), None) => ServedMessages::default(),
            (Ok(None), Some(session)) => ServedMessages {
                session: Some(session),
                error: Some("list_messages failed: the agent's server ended".to_owned()),
                ..ServedMessages::default()
            },
            (Err(why), session) => ServedMessages {
                session,
                error: Some(format!("list_messages failed: {why}")),
                ..ServedMessages::default()
            },
        })
    }
}

/// `None` if nothing was kept.
fn read(path: &std::path::Path) -> Result<Option<StoredMessages>, String> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| error.to_string())
}
