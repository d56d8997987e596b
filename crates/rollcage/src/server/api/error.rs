//! Error responses of the API: `{"error": {"code", "message"}}` and a status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use rollcage_engine::live::LiveError;
use rollcage_engine::store::StoreError;
use rollcage_engine::{EngineError, QueueError};
use rollcage_model::export::ExportError;
use rollcage_model::text::chain;

use super::types::{ErrorAnswer, ErrorBody};
use crate::server::rollouts::request::explain;
use crate::server::rollouts::{SubmitError, ViewError};

/// How long a client should wait when the queue is full, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError {
            status,
            code,
            message: message.into(),
        }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::CONFLICT, code, message)
    }

    /// Our own failure: logged here, since the client cannot fix it.
    pub(crate) fn internal(error: &dyn std::error::Error) -> Self {
        let message = chain(error);
        tracing::error!(error = message, "a request failed");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match &error {
            EngineError::Unknown(_) | EngineError::Store(StoreError::Unknown(_)) => {
                ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
            }
            EngineError::Running(_)
            | EngineError::Store(StoreError::Unfinished(_) | StoreError::Running(_)) => {
                ApiError::conflict("still_running", message)
            }
            EngineError::Store(StoreError::Format { .. }) => {
                let text = "the rollout's record cannot be read: it is damaged, or of another version of rollcage";
                ApiError::conflict("unreadable", text)
            }
            EngineError::NotYours(_) => ApiError::new(StatusCode::FORBIDDEN, "forbidden", message),
            EngineError::Store(_) | EngineError::Thread(_) => ApiError::internal(&error),
        }
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::Engine(error) => error.into(),
            ViewError::Store(error) => EngineError::from(error).into(),
            ViewError::Export(
                error @ (ExportError::NotTrainable { .. } | ExportError::Empty { .. }),
            ) => ApiError::conflict("not_trainable", chain(&error)),
            ViewError::Busy => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", error.to_string())
            }
            ViewError::TooLarge => ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "too_large",
                error.to_string(),
            ),
            ViewError::Export(_) | ViewError::Json(_) | ViewError::Thread(_) => {
                ApiError::internal(&error)
            }
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match &error {
            SubmitError::Arguments(_) => ApiError::bad(message),
            SubmitError::Busy(QueueError::Full { .. }) => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
            }
            SubmitError::Busy(QueueError::Closed) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message)
            }
            SubmitError::Failed(_) => ApiError::internal(&error),
        }
    }
}

impl From<LiveError> for ApiError {
    fn from(error: LiveError) -> Self {
        let message = chain(&error);
        let (status, code) = match error {
            LiveError::Unknown(_) | LiveError::UnknownTurn(_) => {
                (StatusCode::NOT_FOUND, "not_found")
            }
            LiveError::Resolve(error) => return ApiError::bad(explain(error)),
            LiveError::Request(_) | LiveError::NoServer { .. } => return ApiError::bad(message),
            LiveError::NoSandbox => (StatusCode::FORBIDDEN, "forbidden"),
            LiveError::Start(_) => (StatusCode::BAD_GATEWAY, "start_failed"),
            LiveError::Timeout(_) => (StatusCode::GATEWAY_TIMEOUT, "start_timeout"),
            LiveError::Full(_) => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            LiveError::Quota(_) => (StatusCode::TOO_MANY_REQUESTS, "quota"),
            LiveError::Stopped => (StatusCode::CONFLICT, "stopped"),
            LiveError::File(_) => (StatusCode::BAD_REQUEST, "file"),
            LiveError::Store(error) => return ApiError::internal(&error),
        };
        ApiError::new(status, code, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorAnswer {
            error: ErrorBody {
                code: self.code.to_owned(),
                message: self.message,
            },
        };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}
