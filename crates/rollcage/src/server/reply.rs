//! Responses in FastAPI's format: compact JSON, and `detail` for errors.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use rollcage_proxy::read_request_body;

pub(crate) const JSON: &str = "application/json";

/// A response with a complete body.
pub(crate) fn whole(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => whole(status, JSON, body),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            whole(
                StatusCode::INTERNAL_SERVER_ERROR,
                "text/plain; charset=utf-8",
                "Internal Server Error",
            )
        }
    }
}

pub(crate) fn detail(status: StatusCode, text: &str) -> Response {
    json(status, &json!({"detail": text}))
}

/// The list of problems of an invalid request.
pub(crate) fn unprocessable(problems: &[Value]) -> Response {
    json(
        StatusCode::UNPROCESSABLE_ENTITY,
        &json!({"detail": problems}),
    )
}

pub(crate) fn not_found() -> Response {
    detail(StatusCode::NOT_FOUND, "Not Found")
}

pub(crate) fn wrong_method(allowed: &Method) -> Response {
    let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Ok(value) = HeaderValue::from_str(allowed.as_str()) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}

/// Middleware: no browser guesses the type of an answer or keeps one that holds somebody's data.
pub(crate) async fn protect(request: Request, next: Next) -> Response {
    let is_api = request.uri().path().starts_with("/v1/");
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    if is_api {
        let no_store = HeaderValue::from_static("no-store");
        headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    }
    response
}

/// The whole body of a request, or the error response.
pub(crate) async fn read_body(
    body: Body,
    bytes_max: usize,
    limit: Duration,
) -> Result<Bytes, Response> {
    let read = read_request_body(body, bytes_max, limit).await;
    read.map_err(|error| last(detail(error.status(), &error.to_string())))
}

/// Closes the connection after this response: the error rest of a body is still on it, so it cannot be reused.
pub(crate) fn last(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
