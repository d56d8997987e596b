//! What was kept of rollouts, read and rendered.
//!
//! A record is as large as its rollout was long, so everything here happens on threads that may block: those that answer
//! requests are few, and those of the proxy serve model calls.

use std::sync::Arc;

use serde_json::Value;

use rollcage_engine::RolloutLookup;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::finding::Finding;
use rollcage_model::id::RolloutId;
use rollcage_model::record::{AgentInfo, RolloutResult};
use rollcage_model::trace::Facts;

use super::backend::Backend;
use super::conversation::conversation;
use super::error::ViewError;
use super::tokens::{self, Form, Pages};

/// Exchanges of the longest rollouts; more would not fit an answer.
const EXCHANGES_BYTES_MAX: u64 = 512 << 20;

/// What agent and model said to each other, and what is wrong with the record of it.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) findings: Vec<Finding>,
}

pub(crate) fn id_of(found: &RolloutLookup) -> RolloutId {
    match found {
        RolloutLookup::InMemory(entry) => entry.id,
        RolloutLookup::Stored(summary) => summary.rollout_id,
    }
}

impl Backend {
    /// The result of an ended rollout; `None` while it runs.
    pub(crate) async fn result_of(
        &self,
        found: &RolloutLookup,
    ) -> Result<Option<Arc<RolloutResult>>, ViewError> {
        match found {
            RolloutLookup::InMemory(entry) if !entry.is_ended() => Ok(None),
            RolloutLookup::InMemory(entry) => Ok(Some(self.engine.wait(entry).await?)),
            RolloutLookup::Stored(summary) if summary.ended.is_none() => Ok(None),
            RolloutLookup::Stored(summary) => {
                Ok(Some(self.engine.stored(summary.rollout_id).await?))
            }
        }
    }

    /// A result as JSON, in at most so many bytes where its form can be made shorter.
    pub(crate) async fn result_text(
        &self,
        result: &Arc<RolloutResult>,
        form: Form,
        bytes_max: usize,
    ) -> Result<String, ViewError> {
        let (store, result) = (self.engine.store().clone(), Arc::clone(result));
        blocking(move || tokens::text(&store, &result, form, bytes_max)).await
    }

    /// Some of a result's tokens.
    pub(crate) async fn page(
        &self,
        result: &Arc<RolloutResult>,
        pages: Pages,
        offset: usize,
        limit: usize,
    ) -> Result<String, ViewError> {
        let (store, result) = (self.engine.store().clone(), Arc::clone(result));
        blocking(move || tokens::page(&store, &result, pages, offset, limit)).await
    }

    /// A rollout in one of the formats that trainers read, also while it runs.
    pub(crate) async fn export(
        &self,
        found: RolloutLookup,
        format: Format,
        options: Options,
    ) -> Result<Vec<u8>, ViewError> {
        let result = self.result_of(&found).await?;
        let store = self.engine.store().clone();
        blocking(move || {
            let (meta, seen) = match &result {
                Some(result) => (Meta::from(&**result), store.interpret_result(result)?),
                None => (running_meta(&found), store.interpret(id_of(&found))?),
            };
            let mut out = Vec::new();
            write(format, &seen, &meta, options, &mut out)?;
            Ok(out)
        })
        .await
    }

    /// What was said so far.
    pub(crate) async fn conversation(&self, id: RolloutId) -> Result<Conversation, ViewError> {
        let store = self.engine.store().clone();
        blocking(move || {
            let size = std::fs::metadata(store.exchanges(id)).map(|metadata| metadata.len());
            if size.is_ok_and(|bytes| bytes > EXCHANGES_BYTES_MAX) {
                return Err(ViewError::TooLarge);
            }
            // The agent's conversation is shown of a black box too: it lists no calls.
            let facts = Facts {
                is_black_box: false,
                ..store.facts(id)?
            };
            let seen = store.interpret_with(id, &facts)?;
            Ok(Conversation {
                messages: conversation(&seen, &id.to_string()),
                findings: seen.findings,
            })
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ViewError> + Send + 'static,
) -> Result<T, ViewError> {
    tokio::task::spawn_blocking(work).await?
}

/// What is known of a rollout that has no result yet.
fn running_meta(found: &RolloutLookup) -> Meta {
    match found {
        RolloutLookup::InMemory(entry) => Meta {
            rollout_id: entry.id.to_string(),
            task_id: entry.task_id.clone(),
            group: entry.group.clone(),
            agent: AgentInfo {
                name: entry.agent.clone(),
                ..AgentInfo::default()
            },
            model: entry.endpoint.model.clone(),
            started_at: entry.queued_at,
            ..Meta::default()
        },
        RolloutLookup::Stored(summary) => Meta {
            rollout_id: summary.rollout_id.to_string(),
            task_id: summary.task_id.clone(),
            group: summary.group.clone(),
            started_at: summary.started_at,
            ..Meta::default()
        },
    }
}
