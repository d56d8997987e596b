//! Reads and renders stored rollouts.
//!
//! A record can be large, so all of this runs on blocking threads: the few async threads answer requests and serve
//! model calls.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use rollcage_engine::RolloutLookup;
use rollcage_model::browse::Reading;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::finding::Finding;
use rollcage_model::id::RolloutId;
use rollcage_model::record::{AgentInfo, RolloutResult};
use rollcage_model::trace::Facts;

use super::backend::Backend;
use super::conversation::conversation;
use super::error::ViewError;
use super::readings::{EXCHANGES_BYTES_MAX, Wanted};
use super::tokens::{self, PagedTrace, ResultForm};

/// The messages between agent and model, and the findings about their record.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) findings: Vec<Finding>,
}

pub(crate) fn id_of(found: &RolloutLookup) -> RolloutId {
    match found {
        RolloutLookup::InMemory(entry) => entry.id,
        RolloutLookup::Stored(summary) => summary.row.rollout_id,
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
            RolloutLookup::Stored(summary) if !summary.is_ended() => Ok(None),
            RolloutLookup::Stored(summary) => {
                Ok(Some(self.engine.stored(summary.row.rollout_id).await?))
            }
        }
    }

    /// A result as JSON, within `bytes_max` if its form can be shortened.
    pub(crate) async fn result_text(
        &self,
        result: &Arc<RolloutResult>,
        form: ResultForm,
        bytes_max: usize,
    ) -> Result<String, ViewError> {
        let (store, result) = (self.engine.store().clone(), Arc::clone(result));
        blocking(move || tokens::text(&store, &result, form, bytes_max)).await
    }

    /// One page of a result's trace.
    pub(crate) async fn page(
        &self,
        result: &Arc<RolloutResult>,
        pages: PagedTrace,
        offset: usize,
        limit: usize,
    ) -> Result<String, ViewError> {
        let (store, result) = (self.engine.store().clone(), Arc::clone(result));
        blocking(move || tokens::page(&store, &result, pages, offset, limit)).await
    }

    /// A rollout in one of the export formats, also while it runs.
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

    /// The record of a rollout as it is now, and the result of one that has ended.
    pub(crate) async fn reading(
        &self,
        found: &RolloutLookup,
    ) -> Result<(Arc<Reading>, Option<Arc<RolloutResult>>), ViewError> {
        let result = self.result_of(found).await?;
        let wanted = Wanted {
            store: self.engine.store().clone(),
            id: id_of(found),
            result: result.clone(),
        };
        Ok((self.readings.get(wanted).await?, result))
    }

    /// Held by whoever works through a whole record.
    pub(crate) async fn reading_permit(&self) -> Result<OwnedSemaphorePermit, ViewError> {
        self.readings.permit().await
    }

    /// The conversation so far.
    pub(crate) async fn conversation(&self, id: RolloutId) -> Result<Conversation, ViewError> {
        let store = self.engine.store().clone();
        blocking(move || {
            let size = std::fs::metadata(store.exchanges(id)).map(|metadata| metadata.len());
            if size.is_ok_and(|bytes| bytes > EXCHANGES_BYTES_MAX) {
                return Err(ViewError::TooLarge);
            }
            // A black box hides calls, but not the agent's conversation.
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

/// The metadata of a rollout that has no result yet.
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
            rollout_id: summary.row.rollout_id.to_string(),
            task_id: summary.row.task_id.clone(),
            group: summary.row.group.clone(),
            started_at: summary.row.started_at,
            ..Meta::default()
        },
    }
}
