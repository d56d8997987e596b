//! Files in and out of a live agent's work directory. They are an agent's bytes, which a browser must neither show nor
//! guess at.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use rollcage_proxy::read_request_body;
use rollcage_sandbox::EntryKind;

use super::find;
use crate::server::api::artifacts::disposition;
use crate::server::api::error::ApiError;
use crate::server::api::types::live::{LiveFile, LiveFileKind, LiveFiles};
use crate::server::api::{BODY_BYTES_MAX, BackendState, OwnerName};

pub(super) async fn list(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
) -> Result<Json<LiveFiles>, ApiError> {
    let files = find(&backend, &owner, &id)?.list_files().await?;
    let files = files.into_iter().map(|entry| LiveFile {
        path: entry.path,
        kind: match entry.kind {
            EntryKind::File => LiveFileKind::File,
            EntryKind::Directory => LiveFileKind::Directory,
            EntryKind::Symlink => LiveFileKind::Symlink,
            EntryKind::Other => LiveFileKind::Other,
        },
        bytes: entry.bytes,
    });
    let files = files.collect();
    Ok(Json(LiveFiles { files }))
}

pub(super) async fn read(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, path)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let content = find(&backend, &owner, &id)?.read_file(&path).await?;
    let name = path.rsplit('/').next().unwrap_or_default();
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_DISPOSITION, disposition(name)),
    ];
    Ok((headers, content).into_response())
}

pub(super) async fn write(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, path)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let agent = find(&backend, &owner, &id)?;
    let limit = backend.context.body_limit;
    let content = read_request_body(request.into_body(), BODY_BYTES_MAX, limit).await;
    let content = content
        .map_err(|unread| ApiError::new(unread.status(), unread.code(), unread.to_string()))?;
    agent.write_file(&path, content.to_vec()).await?;
    Ok(StatusCode::NO_CONTENT)
}
