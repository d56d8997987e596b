//! Answers that are the proxy's own, in the shape of the OpenAI API.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

/// The body of every answer.
pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(super) const JSON: &str = "application/json";

pub(super) fn whole(
    status: StatusCode,
    content_type: &str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let body = Full::new(body.into())
        .map_err(|never| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Ok(value) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

pub(super) fn error(status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}});
    whole(status, JSON, body.to_string())
}

pub(super) fn models(model: &str) -> Response<Body> {
    let entry = json!({"id": model, "object": "model", "created": 0, "owned_by": "rollcage"});
    whole(
        StatusCode::OK,
        JSON,
        json!({"object": "list", "data": [entry]}).to_string(),
    )
}
