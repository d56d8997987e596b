//! One rollout: start, show, cancel, delete.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value};

use rollcage_engine::{RolloutEntry, RolloutLookup};
use rollcage_model::browse::rollout::Status;
use rollcage_model::event::Phase;
use rollcage_model::view;
use rollcage_proxy::read_request_body;

use super::error::ApiError;
use super::form;
use super::types::{Cancelled, Created, RolloutProgress};
use super::{BODY_BYTES_MAX, BackendState, OwnerName, plain_text};
use crate::server::access::is_json;
use crate::server::reply;
use crate::server::rollouts::Backend;
use crate::server::rollouts::tokens::ResultForm;

pub(super) async fn create(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    request: Request,
) -> Result<Response, ApiError> {
    let arguments = match arguments_of(&backend, request).await {
        Ok(arguments) => arguments,
        Err(error) => return Ok(error),
    };
    let entries = backend
        .submit("POST /v1/rollouts", &owner, arguments)
        .await?;
    let Some(first) = entries.first() else {
        return Err(ApiError::bad("`n` must be at least 1"));
    };
    let location = [(header::LOCATION, format!("/v1/rollouts/{}", first.id))];
    let answer = Created {
        rollout_id: first.id,
        rollout_ids: entries.iter().map(|entry| entry.id).collect(),
        group: first.group.clone(),
        status: Status::Queued,
    };
    Ok((StatusCode::ACCEPTED, location, Json(answer)).into_response())
}

/// The arguments in a request's body, which is JSON or a form.
pub(super) async fn arguments_of(
    backend: &Backend,
    request: Request,
) -> Result<Map<String, Value>, Response> {
    let boundary = form::boundary(request.headers());
    if boundary.is_some() && form::is_from_a_browser(request.headers()) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "a web page may not send forms to this server; send `content-type: application/json`",
        )
        .into_response());
    }
    if boundary.is_none() && !is_json(request.headers()) {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send `content-type: application/json`, or multipart/form-data with a boundary",
        )
        .into_response());
    }
    let limit = backend.context.body_limit;
    let body = match read_request_body(request.into_body(), BODY_BYTES_MAX, limit).await {
        Ok(body) => body,
        Err(unread) => {
            let error = ApiError::new(unread.status(), unread.code(), unread.to_string());
            return Err(reply::last(error.into_response()));
        }
    };
    let arguments = match boundary {
        Some(boundary) => form::arguments(&boundary, &body).map_err(ApiError::bad),
        None => json_arguments(&body),
    };
    arguments.map_err(IntoResponse::into_response)
}

pub(super) fn json_arguments(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(ApiError::bad("the body must be a JSON object")),
        // Gives the position but not the text, which may contain a key.
        Err(error) => {
            let text = format!(
                "the body is not JSON (line {}, column {})",
                error.line(),
                error.column()
            );
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", text))
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ShowQuery {
    trace: Option<String>,
}

/// The whole result of an ended rollout with `"status": "ended"`, or the progress of a running one.
pub(super) async fn show(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<ShowQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let trace = wanted.trace.as_deref().map(str::parse::<view::TraceDetail>);
    let trace = trace.transpose();
    let trace = trace.map_err(|error| ApiError::bad(error.to_string()))?;
    let found = backend.engine.find(&owner, &id).await?;
    let result = match &found {
        RolloutLookup::InMemory(entry) if !entry.is_ended() => {
            return Ok(Json(progress(entry)).into_response());
        }
        RolloutLookup::InMemory(entry) => backend.engine.wait(entry).await?,
        RolloutLookup::Stored(summary) if !summary.is_ended() => {
            let progress = RolloutProgress {
                queued_at: summary.row.rollout_id.unix_seconds(),
                row: summary.row.clone(),
                doing: "another process runs it".to_owned(),
                serve_session_id: None,
            };
            return Ok(Json(progress).into_response());
        }
        RolloutLookup::Stored(summary) => backend.engine.stored(summary.row.rollout_id).await?,
    };
    let form = ResultForm::View(trace.unwrap_or_default());
    let text = backend.result_text(&result, form, usize::MAX).await?;
    Ok(ended(&text))
}

fn ended(result: &str) -> Response {
    let members = result.strip_prefix('{').unwrap_or(result);
    plain_text(
        "application/json",
        format!(r#"{{"status":"ended",{members}"#),
    )
}

/// Where a rollout of this process stands.
fn progress(entry: &RolloutEntry) -> RolloutProgress {
    let status = entry.feed.status();
    let doing = match (status.command, status.phase) {
        (Some(command), _) => command,
        (None, Some(phase)) => doing(phase).to_owned(),
        (None, None) => "waiting for a free slot".to_owned(),
    };
    RolloutProgress {
        row: entry.row(),
        doing,
        serve_session_id: status.serve_session_id,
        queued_at: entry.queued_at,
    }
}

fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Prepare => "preparing agent and endpoint…",
        Phase::Sandbox => "starting the sandbox…",
        Phase::Setup => "setup…",
        Phase::Agent => "the agent works…",
        Phase::Kept => "aborted; the sandbox is kept for grading",
        Phase::Verify => "verifying…",
        Phase::Collect => "collecting…",
    }
}

pub(super) async fn cancel(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let (rollout_id, cancelled) = match backend.engine.find(&owner, &id).await? {
        RolloutLookup::InMemory(entry) => (entry.id, backend.engine.cancel(&entry)),
        RolloutLookup::Stored(summary) if !summary.is_ended() => {
            return Err(ApiError::conflict(
                "not_here",
                "another process runs this rollout",
            ));
        }
        RolloutLookup::Stored(summary) => (summary.row.rollout_id, false),
    };
    let answer = Cancelled {
        rollout_id,
        cancelled,
    };
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

pub(super) async fn delete(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    backend.engine.delete(&owner, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
