//! The artifacts of a rollout, as attachments: they are an agent's bytes, which a browser must neither show nor guess at.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path as RoutePath, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::io::AsyncReadExt;

use rollcage_engine::EngineError;
use rollcage_engine::store::{ARTIFACTS_DIRECTORY, PATCH_FILE};
use rollcage_model::record::RolloutResult;

use super::error::ApiError;
use super::types::Artifacts;
use super::{BackendState, OwnerName};
use crate::server::rollouts::Backend;
use crate::server::rollouts::view::id_of;

const CHUNK_BYTES: usize = 128 * 1024;

pub(super) async fn list(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    RoutePath(id): RoutePath<String>,
) -> Result<Json<Artifacts>, ApiError> {
    let result = ended(&backend, &owner, &id).await?;
    Ok(Json(Artifacts {
        artifacts: result.artifacts.clone(),
    }))
}

pub(super) async fn attachment(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    RoutePath((id, path)): RoutePath<(String, String)>,
) -> Result<Response, ApiError> {
    let result = ended(&backend, &owner, &id).await?;
    // Only what the result lists: no path of a client's is ever opened.
    let mut artifacts = result.artifacts.iter();
    let Some(artifact) = artifacts.find(|artifact| artifact.path == path) else {
        return Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "no such artifact was kept: GET /v1/rollouts/ID/artifacts lists what was",
        ));
    };
    let file = Path::new(ARTIFACTS_DIRECTORY).join(&artifact.path);
    attached(&backend, &result, file).await
}

pub(super) async fn patch(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    RoutePath(id): RoutePath<String>,
) -> Result<Response, ApiError> {
    let result = ended(&backend, &owner, &id).await?;
    if result.patch_bytes.is_none() {
        return Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "this rollout has no patch: its task did not ask for one, or a finding says why",
        ));
    }
    attached(&backend, &result, PathBuf::from(PATCH_FILE)).await
}

/// A file of the record, by a path that is ours.
async fn attached(
    backend: &Backend,
    result: &RolloutResult,
    path: PathBuf,
) -> Result<Response, ApiError> {
    let directory = backend.engine.store().directory(result.rollout_id);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let disposition = disposition(&name);
    let file = directory.join(&path);
    let opened = tokio::task::spawn_blocking(move || {
        let file = File::open(file)?;
        let bytes = file.metadata()?.len();
        Ok::<_, std::io::Error>((file, bytes))
    });
    let opened = opened.await.map_err(|error| ApiError::internal(&error))?;
    let (file, bytes) = opened.map_err(|error| ApiError::internal(&error))?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_DISPOSITION, disposition),
        (header::CONTENT_LENGTH, bytes.to_string()),
    ];
    Ok((headers, body(file)).into_response())
}

/// The result of a rollout of this owner's that has ended.
async fn ended(backend: &Backend, owner: &str, id: &str) -> Result<Arc<RolloutResult>, ApiError> {
    let found = backend.engine.find(owner, id).await?;
    let result = backend.result_of(&found).await?;
    result.ok_or_else(|| ApiError::from(EngineError::Running(id_of(&found))))
}

/// Read while it is sent, since a file may be larger than our memory.
fn body(file: File) -> Body {
    let file = tokio::fs::File::from_std(file);
    Body::from_stream(stream::try_unfold(file, |mut file| async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = file.read(&mut chunk).await?;
        chunk.truncate(count);
        let next = (count > 0).then(|| (Bytes::from(chunk), file));
        Ok::<_, std::io::Error>(next)
    }))
}

/// In the form that may hold any character.
pub(super) fn disposition(name: &str) -> String {
    let mut text = String::from("attachment; filename*=UTF-8''");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                text.push(char::from(byte));
            }
            // Cannot fail: it is a String.
            byte => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_add_to_its_header() {
        let shown = disposition("a\"b\r\nx: y; é.bin");
        let name = "a%22b%0D%0Ax%3A%20y%3B%20%C3%A9.bin";
        assert_eq!(shown, format!("attachment; filename*=UTF-8''{name}"));
    }
}
