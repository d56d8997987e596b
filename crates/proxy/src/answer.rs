//! Responses that the proxy itself writes, in the format of the OpenAI API.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

/// The body of every response to an agent.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) const JSON: &str = "application/json";
pub(crate) const EVENTS: &str = "text/event-stream";

pub(crate) fn whole(
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

pub(crate) fn error_body(status: StatusCode, kind: &str, message: &str) -> Vec<u8> {
    let error = json!({"message": message, "type": kind, "param": null, "code": status.as_u16()});
    json!({"error": error}).to_string().into_bytes()
}

pub(crate) fn error(status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    whole(status, JSON, error_body(status, kind, message))
}

/// A JSON response, for routes that other crates serve next to the proxy's.
pub fn json(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    whole(status, JSON, value.to_string())
}
