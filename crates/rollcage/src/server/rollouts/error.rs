//! Why a stored rollout cannot be shown.

use rollcage_engine::EngineError;
use rollcage_engine::store::StoreError;
use rollcage_model::export::ExportError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error("write the answer")]
    Json(#[from] serde_json::Error),
    /// See [`EXCHANGES_BYTES_MAX`](super::readings::EXCHANGES_BYTES_MAX).
    #[error(
        "the rollout's model calls are too many to be shown: more than 512 MiB are stored of them; \
         `rollcage export` on the server's machine reads them all"
    )]
    TooLarge,
    #[error("other records are being read; try again in a minute")]
    Busy,
    #[error("the thread that reads records ended")]
    Thread(#[from] tokio::task::JoinError),
}
