//! Answers in the shapes that FastAPI gives: compact JSON, `detail` for what went wrong.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// An answer whose bytes are at hand.
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

pub(crate) fn html(body: impl Into<Bytes>) -> Response {
    whole(StatusCode::OK, HTML, body)
}

pub(crate) fn detail(status: StatusCode, text: &str) -> Response {
    json(status, &json!({"detail": text}))
}

/// What is wrong with a request, item by item.
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

/// The whole body of a request, or the answer that says why not.
pub(crate) async fn read_body(
    body: Body,
    bytes_max: usize,
    limit: Duration,
) -> Result<Bytes, Response> {
    let collecting = Limited::new(body, bytes_max).collect();
    let refused = match tokio::time::timeout(limit, collecting).await {
        Ok(Ok(collected)) => return Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let text = format!("the body is larger than {bytes_max} bytes");
            detail(StatusCode::PAYLOAD_TOO_LARGE, &text)
        }
        Ok(Err(error)) => detail(StatusCode::BAD_REQUEST, &format!("read the body: {error}")),
        Err(_) => {
            let text = format!("the body did not arrive within {} s", limit.as_secs());
            detail(StatusCode::REQUEST_TIMEOUT, &text)
        }
    };
    // What is left of the body is not read, so nothing else can be on this connection.
    let mut refused = refused;
    refused
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    Err(refused)
}
