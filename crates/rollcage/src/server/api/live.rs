//! Live agents below `/v1/live`: start, list, show, stop, remove. `turn` has what is said to them and what they answer,
//! `files` what goes in and out of their work directories.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Map, Value};

use rollcage_engine::live::{LiveAgent, LiveView};
use rollcage_live::Health;
use rollcage_proxy::read_request_body;

use super::error::ApiError;
use super::types::live::{LiveAgents, LiveHealth, LiveMessages, ServerHealth};
use super::{BODY_BYTES_MAX, BackendState, OwnerName, plain_text};
use crate::server::access::is_json;
use crate::server::live::{LiveAgentView, owner_view, public_view};
use crate::server::rollouts::Backend;

mod files;
mod turn;

pub(super) use turn::{TURNS, TURNS_MAX};

const TEXT: &str = "text/plain; charset=utf-8";
/// Only the end of a log is returned.
const LOG_BYTES_MAX: usize = 1 << 20;

/// The routes of a server: those of one agent, and starting and removing them.
pub(super) fn server_routes() -> Router<Arc<Backend>> {
    let collection = Router::new()
        .route("/v1/live", post(start))
        .route("/v1/live/{id}", axum::routing::delete(remove))
        .route("/v1/live/{id}/start", post(start_again));
    one_agent().merge(collection)
}

/// The routes of a supervisor, whose one agent is there already.
pub(crate) fn agent_routes(backend: Arc<Backend>) -> Router {
    one_agent()
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(backend)
}

fn one_agent() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/live", get(list))
        .route("/v1/live/{id}", get(show))
        .route("/v1/live/{id}/stop", post(stop))
        .route("/v1/live/{id}/health", get(health))
        .route("/v1/live/{id}/logs", get(logs))
        .route("/v1/live/{id}/messages", get(messages))
        .route("/v1/live/{id}/turns", post(turn::create).get(turn::list))
        .route("/v1/live/{id}/turns/{turn}", get(turn::show))
        .route("/v1/live/{id}/turns/{turn}/events", get(turn::events))
        .route("/v1/live/{id}/turns/{turn}/abort", post(turn::abort))
        .route("/v1/live/{id}/turns/{turn}/answer", post(turn::answer))
        .route("/v1/live/{id}/files", get(files::list))
        .route(
            "/v1/live/{id}/files/{*path}",
            get(files::read).put(files::write),
        )
}

/// Answers once the agent is healthy.
async fn start(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    request: Request,
) -> Result<Response, ApiError> {
    let arguments = json_body(&backend, request).await?;
    let agent = backend
        .start_live("POST /v1/live", &owner, arguments)
        .await?;
    let location = [(header::LOCATION, format!("/v1/live/{}", agent.id()))];
    Ok((StatusCode::CREATED, location, Json(owner_view(&agent))).into_response())
}

async fn start_again(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Json<LiveAgentView>, ApiError> {
    let agent = backend.engine.live().start_again(&owner, &id).await?;
    Ok(Json(owner_view(&agent)))
}

async fn list(State(backend): BackendState, OwnerName(owner): OwnerName) -> Json<LiveAgents> {
    let views = backend.engine.live().list(&owner);
    let agents = views.into_iter().map(public_view).collect();
    Json(LiveAgents { agents })
}

async fn show(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Json<LiveAgentView>, ApiError> {
    Ok(Json(owner_view(&*find(&backend, &owner, &id)?)))
}

async fn stop(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Json<LiveAgentView>, ApiError> {
    let view: LiveView = backend.engine.live().stop(&owner, &id).await?;
    Ok(Json(public_view(view)))
}

async fn remove(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    backend.engine.live().remove(&owner, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// 200 for a healthy server, 503 for any other.
async fn health(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let agent = find(&backend, &owner, &id)?;
    let (healthy, version, server) = match agent.health().await {
        Health::Healthy { version } => (true, version, ServerHealth::Healthy),
        Health::Foreign => (false, None, ServerHealth::Foreign),
        Health::Refused => (false, None, ServerHealth::NotRunning),
        Health::Silent => (false, None, ServerHealth::Silent),
    };
    let status = match healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let answer = LiveHealth {
        healthy,
        server,
        version,
        state: agent.view().state,
    };
    Ok((status, Json(answer)).into_response())
}

async fn logs(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let agent = find(&backend, &owner, &id)?;
    Ok(plain_text(TEXT, agent.log(LOG_BYTES_MAX).await?))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MessagesQuery {
    session_id: Option<String>,
}

async fn messages(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<MessagesQuery>, QueryRejection>,
) -> Result<Json<LiveMessages>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let agent = find(&backend, &owner, &id)?;
    let session_id = wanted.session_id.or_else(|| agent.view().session_id);
    let messages = match &session_id {
        Some(session) => agent.messages(session).await?,
        None => Vec::new(),
    };
    Ok(Json(LiveMessages {
        session_id,
        messages,
    }))
}

fn find(backend: &Backend, owner: &str, id: &str) -> Result<Arc<LiveAgent>, ApiError> {
    Ok(backend.engine.live().find(owner, id)?)
}

/// The object that a request brings.
async fn json_body(backend: &Backend, request: Request) -> Result<Map<String, Value>, ApiError> {
    if !is_json(request.headers()) {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send `content-type: application/json`",
        ));
    }
    let limit = backend.context.body_limit;
    let body = read_request_body(request.into_body(), BODY_BYTES_MAX, limit).await;
    let body =
        body.map_err(|unread| ApiError::new(unread.status(), unread.code(), unread.to_string()))?;
    super::rollout::json_arguments(&body)
}
