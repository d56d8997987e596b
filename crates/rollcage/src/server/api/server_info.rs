//! What a page shows of the server before anything runs: what it is, whether sandboxes start, agents, endpoints, presets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use rollcage_endpoints::choice::EndpointChoice;
use rollcage_model::export::Format;
use rollcage_model::task::Task;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::client_for;
use rollcage_proxy::{read_request_body, served_models};

use super::error::ApiError;
use super::presets::presets;
use super::rollout::arguments_of;
use super::types::{
    Agents, CommandLine, EndpointCheck, EndpointQuestion, Endpoints, ExportFormat, Presets,
    SandboxState, ServerInfo,
};
use super::{BackendState, OwnerName};
use crate::server::ready::Readiness;
use crate::server::rollouts::request::{COUNT_MAX, explain};
use crate::server::rollouts::view::id_of;
use crate::server::rollouts::{Backend, catalogue, command_line, request};

/// For an endpoint to list its models.
const CHECK_LIMIT: Duration = Duration::from_secs(10);
const CHECK_BYTES_MAX: usize = 64 << 10;

/// What the API says of the server, beside its backend.
pub(crate) struct About {
    pub(crate) name: String,
    /// Whether live agents may be started.
    pub(crate) live: bool,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) backend: Arc<Backend>,
}

/// The routes that need more than the backend.
pub(crate) fn about_routes(about: Arc<About>) -> Router {
    Router::new()
        .route("/v1/server", get(server))
        .with_state(about)
}

pub(super) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/presets", get(list_presets))
        .route("/v1/agents", get(agents))
        .route("/v1/endpoints", get(endpoints))
        .route("/v1/endpoints/{kind}/check", post(check_endpoint))
        .route("/v1/rollouts/command-line", post(as_command_line))
        .route("/v1/rollouts/{id}/task", get(task))
}

async fn server(State(about): State<Arc<About>>) -> Json<ServerInfo> {
    let problem = about.readiness.problem();
    let formats = Format::ALL.iter().map(|format| ExportFormat {
        name: format.as_str().to_owned(),
        about: format.about().to_owned(),
    });
    Json(ServerInfo {
        name: about.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sandbox: SandboxState {
            ready: problem.is_none(),
            reason: problem,
        },
        live: about.live,
        count_max: usize::try_from(COUNT_MAX).unwrap_or(usize::MAX),
        formats: formats.collect(),
        tasks: about.backend.context.tasks.count(),
    })
}

async fn list_presets() -> Result<Json<Presets>, ApiError> {
    let presets = presets().map_err(|error| ApiError::internal(&error))?;
    Ok(Json(Presets { presets }))
}

async fn agents(State(backend): BackendState) -> Result<Json<Agents>, ApiError> {
    // Installed agents are read from disk.
    let read = tokio::task::spawn_blocking(move || catalogue::agents(&backend));
    let agents = read.await.map_err(|error| ApiError::internal(&error))?;
    Ok(Json(Agents { agents }))
}

async fn endpoints(State(backend): BackendState) -> Json<Endpoints> {
    Json(Endpoints {
        endpoints: catalogue::endpoints(&backend.context),
    })
}

/// Asks an endpoint for its models. The address and the key are chosen as for a rollout with the same arguments, so a
/// client reaches nothing here that its rollouts do not.
async fn check_endpoint(
    State(backend): BackendState,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Json<EndpointCheck>, ApiError> {
    let limit = backend.context.body_limit;
    let body = read_request_body(request.into_body(), CHECK_BYTES_MAX, limit).await;
    let body =
        body.map_err(|error| ApiError::new(error.status(), error.code(), error.to_string()))?;
    let given: EndpointQuestion = match body.is_empty() {
        true => EndpointQuestion::default(),
        // The parser's own text could repeat the key.
        false => serde_json::from_slice(&body).map_err(|_| {
            ApiError::bad(
                "the body must be a JSON object with `base_url`, `api_key` and `model`, all optional",
            )
        })?,
    };
    let started = Instant::now();
    let listed = match tokio::time::timeout(CHECK_LIMIT, models(&backend, &kind, given)).await {
        Ok(listed) => listed?,
        Err(_) => Err(format!("no answer in {} s", CHECK_LIMIT.as_secs())),
    };
    let (models, error) = match listed {
        Ok(models) => (models, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    Ok(Json(EndpointCheck {
        kind,
        reachable: error.is_none(),
        error,
        models,
        seconds: started.elapsed().as_secs_f64(),
    }))
}

/// The models of an endpoint, or why they cannot be had; an [`ApiError`] if the question is wrong.
async fn models(
    backend: &Backend,
    kind: &str,
    given: EndpointQuestion,
) -> Result<Result<Vec<String>, String>, ApiError> {
    let arguments = json!({
        "instruction": "check", "agent": "opencode", "solution": ["true"], "endpoint": kind,
        "base_url": given.base_url, "api_key": given.api_key,
        // Which one does not matter here, but hosted services have no default.
        "model": given.model.filter(|model| !model.is_empty()).unwrap_or_else(|| "any".to_owned()),
    });
    let Value::Object(arguments) = arguments else {
        return Err(ApiError::bad("no arguments"));
    };
    let tool = "POST /v1/endpoints/KIND/check";
    let read = request::read(tool, arguments, &backend.context).map_err(ApiError::bad)?;
    let resolved = match backend.engine.resolve(read.request).await {
        Ok(resolved) => resolved,
        Err(error) => return Ok(Err(explain(error))),
    };
    let endpoint: Endpoint = match resolved.endpoint {
        EndpointChoice::Scripted => return Ok(Ok(vec![rollcage_scripted::MODEL.to_owned()])),
        EndpointChoice::Url(endpoint) => endpoint,
        // It is not started for this.
        EndpointChoice::Managed(managed) => Endpoint {
            base_url: managed.url(),
            ..managed.endpoint
        },
    };
    let client = match client_for(&endpoint.base_url, endpoint.guard.as_ref()) {
        Ok(client) => client,
        Err(error) => return Ok(Err(rollcage_model::text::chain(&error))),
    };
    let listed = served_models(&client, &endpoint).await;
    Ok(listed.map_err(|error| error.to_string()))
}

/// The command that does what the same body does at `POST /v1/rollouts`. Nothing is started.
async fn as_command_line(
    State(backend): BackendState,
    request: Request,
) -> Result<Response, ApiError> {
    let arguments = match arguments_of(&backend, request).await {
        Ok(arguments) => arguments,
        Err(refused) => return Ok(refused),
    };
    let read = move || request::read("POST /v1/rollouts", arguments, &backend.context);
    // Blocking, since the server's own tasks are read from disk.
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|error| ApiError::internal(&error))?;
    let command = command_line::of(&read.map_err(ApiError::bad)?);
    Ok(Json(CommandLine {
        command: command.text,
        notes: command.notes,
    })
    .into_response())
}

/// The task of a rollout as it was run.
async fn task(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Json<Task>, ApiError> {
    let found = backend.engine.find(&owner, &id).await?;
    let store = backend.engine.store().clone();
    let id = id_of(&found);
    let read = tokio::task::spawn_blocking(move || store.task(id)).await;
    let read = read.map_err(|error| ApiError::internal(&error))?;
    let missing = || {
        ApiError::conflict(
            "not_started",
            "this rollout waits for its turn: its task is stored when it starts",
        )
    };
    read.map_err(rollcage_engine::EngineError::from)?
        .map(Json)
        .ok_or_else(missing)
}
