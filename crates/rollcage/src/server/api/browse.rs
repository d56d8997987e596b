//! One rollout, call by call and token by token, whether it has ended or not.

use std::num::IntErrorKind;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};

use rollcage_engine::EngineError;
use rollcage_model::browse::Reading;
use rollcage_model::browse::tokens::Part;
use rollcage_model::browse::turn::MessageRange;
use rollcage_model::record::RolloutResult;

use super::artifacts::disposition;
use super::changes::whole_answers;
use super::error::ApiError;
use super::{BackendState, OwnerName, plain_text};
use crate::saved::{self, SaveError, Saving, Viewer};
use crate::server::rollouts::view::id_of;
use crate::server::rollouts::{Backend, ViewError};
use crate::server::web;

/// How many of something are on a page, and at most.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) default: usize,
    pub(super) max: usize,
}

pub(super) const TURNS: Limits = Limits {
    default: 100,
    max: 500,
};
pub(super) const TOKENS: Limits = Limits {
    default: 1000,
    max: 5000,
};
pub(super) const NODES: Limits = Limits {
    default: 1000,
    max: 5000,
};
pub(super) const ENTRIES: Limits = Limits {
    default: 100,
    max: 1000,
};

pub(super) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route("/v1/rollouts/{id}/turns", get(turns))
        .route("/v1/rollouts/{id}/turns/{turn}", get(turn))
        .route("/v1/rollouts/{id}/turns/{turn}/tokens", get(tokens))
        .route("/v1/rollouts/{id}/turns/{turn}/raw", get(raw))
        .route("/v1/rollouts/{id}/graph", get(graph))
        .route("/v1/rollouts/{id}/figures", get(figures))
        .route("/v1/rollouts/{id}/transcript", get(transcript))
        .route("/v1/rollouts/{id}/page", get(page))
}

type Wanted<T> = Result<Query<T>, QueryRejection>;

fn wanted<T>(query: Wanted<T>) -> Result<T, ApiError> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(ApiError::bad(rejection.body_text())),
    }
}

impl Limits {
    fn of(self, limit: Option<usize>) -> Result<usize, ApiError> {
        let limit = limit.unwrap_or(self.default);
        if (1..=self.max).contains(&limit) {
            return Ok(limit);
        }
        let text = format!("`limit` must be between 1 and {}", self.max);
        Err(ApiError::bad(text))
    }
}

fn turn_number(text: &str) -> Result<usize, ApiError> {
    match text.parse() {
        Ok(turn) => Ok(turn),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err(no_such_turn()),
        Err(_) => Err(ApiError::bad("a turn is a number, from 0 on")),
    }
}

fn not_found(message: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

fn no_such_turn() -> ApiError {
    not_found("there is no such turn: GET /v1/rollouts/ID/turns lists them")
}

/// What a record says, asked and written on a thread that may block: both take time where the record is long. `None` is
/// a turn that is not there.
async fn answer<T: Serialize>(
    backend: &Backend,
    owner: &str,
    id: &str,
    ask: impl FnOnce(&Reading, Option<&RolloutResult>) -> Option<T> + Send + 'static,
) -> Result<Response, ApiError> {
    let found = backend.engine.find(owner, id).await?;
    let (reading, result) = backend.reading(&found).await?;
    let work = move || {
        let answer = ask(&reading, result.as_deref());
        let text = answer.map(|answer| serde_json::to_vec(&answer));
        text.transpose()
    };
    let text = tokio::task::spawn_blocking(work).await;
    let text = text.map_err(|error| ApiError::internal(&error))?;
    match text.map_err(|error| ApiError::internal(&error))? {
        Some(text) => Ok(plain_text("application/json", text)),
        None => Err(no_such_turn()),
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PageQuery {
    start: usize,
    limit: Option<usize>,
}

async fn turns(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    query: Wanted<PageQuery>,
) -> Result<Response, ApiError> {
    let PageQuery { start, limit } = wanted(query)?;
    let limit = TURNS.of(limit)?;
    answer(&backend, &owner, &id, move |reading, _| {
        Some(reading.turns(start, limit))
    })
    .await
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TurnQuery {
    messages: MessageRange,
}

async fn turn(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
    query: Wanted<TurnQuery>,
) -> Result<Response, ApiError> {
    let TurnQuery { messages } = wanted(query)?;
    let turn = turn_number(&turn)?;
    answer(&backend, &owner, &id, move |reading, _| {
        reading.detail(turn, messages)
    })
    .await
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TokenQuery {
    part: Part,
    start: usize,
    limit: Option<usize>,
}

async fn tokens(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
    query: Wanted<TokenQuery>,
) -> Result<Response, ApiError> {
    let TokenQuery { part, start, limit } = wanted(query)?;
    let turn = turn_number(&turn)?;
    let limit = TOKENS.of(limit)?;
    answer(&backend, &owner, &id, move |reading, _| {
        reading.tokens(turn, part, start, limit)
    })
    .await
}

async fn graph(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    query: Wanted<PageQuery>,
) -> Result<Response, ApiError> {
    let PageQuery { start, limit } = wanted(query)?;
    let limit = NODES.of(limit)?;
    answer(&backend, &owner, &id, move |reading, _| {
        Some(reading.graph(start, limit))
    })
    .await
}

async fn figures(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    answer(&backend, &owner, &id, |reading, result| {
        Some(reading.figures(result))
    })
    .await
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TranscriptQuery {
    conversation: Option<usize>,
    start: usize,
    limit: Option<usize>,
}

async fn transcript(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    query: Wanted<TranscriptQuery>,
) -> Result<Response, ApiError> {
    let TranscriptQuery {
        conversation,
        start,
        limit,
    } = wanted(query)?;
    let limit = ENTRIES.of(limit)?;
    answer(&backend, &owner, &id, move |reading, _| {
        reading.transcript(conversation, start, limit)
    })
    .await
}

/// Which bytes of a call.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawPart {
    /// As the agent sent it.
    #[default]
    Request,
    /// As the endpoint was asked, where that is a translation.
    Sent,
    /// As the endpoint answered.
    Response,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawQuery {
    what: RawPart,
    download: bool,
}

/// The stored bytes. They are an agent's and a model's, so they are never anything but plain text to a browser.
async fn raw(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
    query: Wanted<RawQuery>,
) -> Result<Response, ApiError> {
    let RawQuery { what, download } = wanted(query)?;
    let turn = turn_number(&turn)?;
    let found = backend.engine.find(&owner, &id).await?;
    let (reading, _) = backend.reading(&found).await?;
    let exchange = tokio::task::spawn_blocking(move || reading.exchange(turn)).await;
    let exchange = exchange.map_err(|error| ApiError::internal(&error))?;
    let exchange = exchange.ok_or_else(no_such_turn)?;
    let (name, body, missing) = match what {
        RawPart::Request => ("request", Some(exchange.request.body), ""),
        RawPart::Sent => (
            "sent",
            exchange.sent,
            "this request was not translated: `what=request` has the bytes that were sent, but for what \
             `sampling_params` of the turn tells",
        ),
        RawPart::Response => (
            "response",
            exchange.response.map(|response| response.body),
            "no answer is stored",
        ),
    };
    let body = body.ok_or_else(|| not_found(missing))?;
    let mut response = plain_text("text/plain; charset=utf-8", body);
    if download {
        let name = disposition(&format!("turn-{turn}-{name}.txt"));
        let name = name
            .parse()
            .map_err(|error: header::InvalidHeaderValue| ApiError::internal(&error))?;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response.into_response())
}

/// The rollout as one HTML file. An attachment, since it holds what an agent wrote: this server's pages never show it.
async fn page(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let found = backend.engine.find(&owner, &id).await?;
    let (reading, result) = backend.reading(&found).await?;
    let result = result.ok_or_else(|| EngineError::Running(id_of(&found)))?;
    let store = backend.engine.store().clone();
    let name = disposition(&format!("rollout-{}.html", result.rollout_id));
    let permit = backend.reading_permit().await?;
    let work = move || {
        // Also of a client that has hung up.
        let _permit = permit;
        let viewer = Viewer::new(web::file)?;
        let saving = Saving {
            store: &store,
            result: &result,
            reading: &reading,
            others: &whole_answers(&store, &result)?,
        };
        let mut page = Vec::new();
        saved::write(&saving, &viewer, &mut page)?;
        Ok(page)
    };
    let page = tokio::task::spawn_blocking(work).await;
    let page = page.map_err(|error| ApiError::internal(&error))?;
    let page = page.map_err(|error| match error {
        SaveError::NoViewer => not_found(&error.to_string()),
        SaveError::TooLarge => ViewError::TooLarge.into(),
        error => ApiError::internal(&error),
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_DISPOSITION, &name),
    ];
    Ok((headers, page).into_response())
}
