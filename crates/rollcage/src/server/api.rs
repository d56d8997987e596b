//! The REST API below `/v1`, and `/metrics`. Handlers are thin: they parse a request, call the backend, and answer
//! JSON.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};

use rollcage_engine::LOCAL;

use super::access::Owner;
use super::metrics;
use super::rollouts::Backend;

mod artifacts;
mod browse;
mod changes;
mod content;
mod error;
mod events;
mod form;
mod listing;
mod live;
mod messages;
mod openapi;
mod parameters;
mod presets;
mod rollout;
mod schemas;
mod server_info;
mod session;
mod stream;
mod types;

use error::ApiError;
pub(crate) use live::agent_routes;
pub(crate) use openapi::document;
pub(crate) use server_info::{About, about_routes};
pub(crate) use session::session_routes;

/// For a request's body: a task with its files.
const BODY_BYTES_MAX: usize = 32 << 20;

type BackendState = State<Arc<Backend>>;

/// The routes. They have no fallback, so that they can be merged into another router.
pub(crate) fn routes(backend: Arc<Backend>) -> Router {
    Router::new()
        .route("/v1/rollouts", post(rollout::create).get(listing::list))
        .route("/v1/rollouts/facets", get(listing::facets))
        .route("/v1/figures", get(listing::figures))
        .route("/v1/events", get(stream::stream))
        .route(
            "/v1/rollouts/{id}",
            get(rollout::show).delete(rollout::delete),
        )
        .route("/v1/rollouts/{id}/cancel", post(rollout::cancel))
        .route("/v1/rollouts/{id}/finalize", post(messages::finalize))
        .route(
            "/v1/rollouts/{id}/messages",
            get(messages::list).post(messages::send),
        )
        .route("/v1/rollouts/{id}/events", get(events::stream))
        .route("/v1/rollouts/{id}/trace", get(content::trace))
        .route("/v1/rollouts/{id}/files", get(content::files))
        .route("/v1/rollouts/{id}/changes", get(changes::changes))
        .route("/v1/rollouts/{id}/network", get(changes::network))
        .route("/v1/rollouts/{id}/artifacts", get(artifacts::list))
        .route(
            "/v1/rollouts/{id}/artifacts/{*path}",
            get(artifacts::attachment),
        )
        .route("/v1/rollouts/{id}/patch", get(artifacts::patch))
        .route("/v1/rollouts/{id}/logs", get(content::logs))
        .merge(browse::routes())
        .merge(live::server_routes())
        .merge(server_info::routes())
        .route("/v1/tasks", get(listing::tasks))
        .route("/metrics", get(metrics_page))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this route does not take this method",
            )
        })
        .route(
            "/v1/{*rest}",
            any(async || ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such route")),
        )
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(backend)
}

async fn metrics_page(State(backend): BackendState) -> Response {
    (
        [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
        metrics::text(&backend),
    )
        .into_response()
}

/// The owner of a request, as set by the access middleware; without one, the local owner.
pub(crate) struct OwnerName(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for OwnerName {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let owner = parts.extensions.get::<Owner>();
        Ok(OwnerName(owner.map_or_else(
            || LOCAL.to_owned(),
            |Owner(owner)| owner.to_string(),
        )))
    }
}

/// A response with text from a sandbox, which a browser must not render as a page.
fn plain_text(content_type: &'static str, body: impl Into<Body>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body.into()).into_response()
}

#[cfg(test)]
mod tests;
