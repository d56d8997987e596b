//! A rollout's conversation, messages to its agent, and its end on request.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use rollcage_engine::{RolloutCommand, RolloutEntry, RolloutLookup};

use super::error::ApiError;
use super::types::{Finalized, MessageQueued, NewMessage};
use super::{BackendState, OwnerName};
use crate::server::rollouts::messages::{RolloutMessages, messages};

pub(super) async fn list(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Json<RolloutMessages>, ApiError> {
    let found = backend.engine.find(&owner, &id).await?;
    Ok(Json(messages(&backend, &found).await?))
}

/// Queues a message to a served agent.
pub(super) async fn send(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    message: Result<Json<NewMessage>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(NewMessage { text }) = message.map_err(|rejection| {
        let status = rejection.status();
        ApiError::new(status, "bad_request", "the body must be {\"text\": \"…\"}")
    })?;
    if text.trim().is_empty() {
        return Err(ApiError::bad("`text` must not be empty"));
    }
    let entry = here(backend.engine.find(&owner, &id).await?)?;
    let sent = backend
        .engine
        .command(&entry, RolloutCommand::Message(text));
    sent.map_err(|error| ApiError::conflict("refused", error.to_string()))?;
    let answer = MessageQueued {
        rollout_id: entry.id,
        queued: true,
    };
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// Has the rollout graded as soon as its agent has nothing to do.
pub(super) async fn finalize(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let found = backend.engine.find(&owner, &id).await?;
    let (rollout_id, finalized) = match &found {
        RolloutLookup::Stored(summary) if summary.is_ended() => (summary.row.rollout_id, false),
        _ => {
            let entry = here(found)?;
            let told = backend.engine.command(&entry, RolloutCommand::Finalize);
            (entry.id, told.is_ok())
        }
    };
    let answer = Finalized {
        rollout_id,
        finalized,
    };
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

fn here(found: RolloutLookup) -> Result<Arc<RolloutEntry>, ApiError> {
    match found {
        RolloutLookup::InMemory(entry) => Ok(entry),
        RolloutLookup::Stored(summary) => Err(match summary.is_ended() {
            true => ApiError::conflict("ended", "the rollout has ended"),
            false => ApiError::conflict("not_here", "another process runs this rollout"),
        }),
    }
}
