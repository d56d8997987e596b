//! The stored content of a rollout: its trace in every format, its files, and its logs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use rollcage_engine::store::read_tail;
use rollcage_engine::{EngineError, RolloutLookup};
use rollcage_model::export::{Arguments, Format, Options};
use rollcage_model::sequence::Trained;
use rollcage_model::task::absolute;

use super::error::ApiError;
use super::types::{FileSize, Files};
use super::{BackendState, OwnerName, plain_text};
use crate::server::rollouts::Backend;
use crate::server::rollouts::view::id_of;

const TEXT: &str = "text/plain; charset=utf-8";
/// Only the end of a log is returned; the whole log is stored with the record.
const LOG_BYTES_MAX: u64 = 1 << 20;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TraceQuery {
    format: Option<String>,
    include_discarded: bool,
    include_auxiliary: bool,
    include_asked_again: bool,
    include_messages: bool,
    arguments: Option<String>,
}

pub(super) async fn trace(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<TraceQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let format = wanted.format.as_deref().map(str::parse).transpose();
    let format: Format = format
        .map_err(|error: rollcage_model::export::UnknownFormat| ApiError::bad(error.to_string()))?
        .unwrap_or_default();
    let options = Options {
        arguments: match wanted.arguments.as_deref() {
            None | Some("objects") => Arguments::Objects,
            Some("strings") => Arguments::Strings,
            Some(_) => return Err(ApiError::bad("`arguments` must be objects or strings")),
        },
        include_discarded: wanted.include_discarded,
        trained: Trained {
            auxiliary: wanted.include_auxiliary,
            asked_again: wanted.include_asked_again,
        },
        include_messages: wanted.include_messages,
    };
    let found = backend.engine.find(&owner, &id).await?;
    let body = backend.export(found, format, options).await?;
    let content_type = match format.extension() {
        "json" => "application/json",
        _ => "application/x-ndjson",
    };
    Ok(plain_text(content_type, body))
}

fn directory(backend: &Backend, found: &RolloutLookup) -> PathBuf {
    backend.engine.store().directory(id_of(found))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FileQuery {
    path: Option<String>,
}

pub(super) async fn files(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<FileQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let found = backend.engine.find(&owner, &id).await?;
    let result = backend.result_of(&found).await?;
    let result = result.ok_or_else(|| ApiError::from(EngineError::Running(id_of(&found))))?;
    match wanted.path {
        None => {
            let files = result
                .files
                .iter()
                .map(|(path, text)| FileSize {
                    path: path.clone(),
                    chars: text.chars().count(),
                })
                .collect();
            let answer = Files {
                files,
                files_extra: result.files_extra.clone(),
            };
            Ok(Json(answer).into_response())
        }
        // Older records have paths relative to the work directory.
        Some(path) => match file_at(&result.files, &absolute(&path)) {
            Some(text) => Ok(plain_text(TEXT, text.clone())),
            None => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "not_found",
                "no such file was kept: without `path` this route lists what was",
            )),
        },
    }
}

fn file_at<'a>(files: &'a BTreeMap<String, String>, path: &str) -> Option<&'a String> {
    let mut known = files.iter();
    known
        .find(|(known, _)| absolute(known) == path)
        .map(|(_, text)| text)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogQuery {
    name: Option<String>,
}

pub(super) async fn logs(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let found = backend.engine.find(&owner, &id).await?;
    let name = match wanted.name.as_deref() {
        None | Some("agent") => "agent.stdout.log",
        Some("agent_stderr") => "agent.stderr.log",
        Some("proxy") => {
            let result = backend.result_of(&found).await?;
            let result =
                result.ok_or_else(|| ApiError::from(EngineError::Running(id_of(&found))))?;
            return Ok(plain_text(TEXT, result.proxy_log_tail.clone()));
        }
        Some(_) => return Err(ApiError::bad("`name` must be agent, agent_stderr or proxy")),
    };
    let path = directory(&backend, &found).join(name);
    let read = tokio::task::spawn_blocking(move || read_tail(&path, LOG_BYTES_MAX)).await;
    let text = read.map_err(|error| ApiError::internal(&error))?;
    match text {
        Ok(text) => Ok(plain_text(TEXT, text)),
        // The agent has not started yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(plain_text(TEXT, String::new()))
        }
        Err(error) => Err(ApiError::internal(&error)),
    }
}
