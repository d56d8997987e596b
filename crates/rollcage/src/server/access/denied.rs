//! Why requests are refused, and how they are answered then.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::Response;
use serde_json::json;

use crate::server::reply;

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessDenied {
    #[error("this server needs a token: send `Authorization: Bearer TOKEN` or `x-api-key: TOKEN`")]
    NoToken,
    #[error("the Host header names another machine; call this server as localhost or 127.0.0.1")]
    ForeignHost,
    #[error(
        "the Host header has a name that this server does not know, as a web page that wants to reach it could make a \
         browser send: call it by its address, or serve it with `--host-name NAME` or with a token"
    )]
    UnknownHost,
    #[error(
        "a web page of another origin may not call this server: name that origin with `--allow-origin`, or serve it with a \
         token"
    )]
    ForeignOrigin,
    #[error(
        "a web page of another origin may not change anything here: name that origin with `--allow-origin`"
    )]
    ForeignPage,
    #[error(
        "the sign-in of a browser counts for this server's own page only: send `Authorization: Bearer TOKEN` or \
         `x-api-key: TOKEN`"
    )]
    CookieAlone,
    #[error("too many wrong tokens came from this address: try again in {} s", .0.as_secs() + 1)]
    Wait(Duration),
}

impl AccessDenied {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            AccessDenied::NoToken => StatusCode::UNAUTHORIZED,
            AccessDenied::Wait(_) => StatusCode::TOO_MANY_REQUESTS,
            AccessDenied::ForeignHost
            | AccessDenied::UnknownHost
            | AccessDenied::ForeignOrigin
            | AccessDenied::ForeignPage
            | AccessDenied::CookieAlone => StatusCode::FORBIDDEN,
        }
    }

    /// In OpenEnv's format, and below `/v1` in that of the API as well.
    pub(super) fn response(&self, path: &str) -> Response {
        let text = self.to_string();
        let code = match self {
            AccessDenied::NoToken => "unauthorized",
            AccessDenied::Wait(_) => "too_many_tries",
            AccessDenied::ForeignHost
            | AccessDenied::UnknownHost
            | AccessDenied::ForeignOrigin
            | AccessDenied::ForeignPage
            | AccessDenied::CookieAlone => "forbidden",
        };
        let mut body = json!({ "detail": text });
        if path.starts_with("/v1/") {
            body["error"] = json!({"code": code, "message": text});
        }
        let mut response = reply::json(self.status(), &body);
        let more = match self {
            AccessDenied::NoToken => {
                let bearer = header::HeaderValue::from_static("Bearer");
                Some((header::WWW_AUTHENTICATE, bearer))
            }
            AccessDenied::Wait(left) => Some((header::RETRY_AFTER, (left.as_secs() + 1).into())),
            _ => None,
        };
        response.headers_mut().extend(more);
        response
    }
}
