//! `/v1/session`: a browser's sign-in. Needs no token.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use rollcage_proxy::read_request_body;

use super::error::ApiError;
use super::types::{AccessKind, SessionInfo, SignIn};
use crate::server::access::cookie::{self, Place};
use crate::server::access::{Access, Owner, Peer, SignInError, is_json};

/// A token, and some room.
const BODY_BYTES_MAX: usize = 16 << 10;
const BODY_LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn session_routes(access: Arc<Access>) -> Router {
    let route = get(show).post(sign_in).delete(sign_out);
    Router::new().route("/v1/session", route).with_state(access)
}

async fn show(State(access): State<Arc<Access>>, request: Request) -> Json<SessionInfo> {
    Json(info(&access, access.admit(&request).ok()))
}

async fn sign_in(
    State(access): State<Arc<Access>>,
    request: Request,
) -> Result<Response, ApiError> {
    if !is_json(request.headers()) {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send `content-type: application/json`",
        ));
    }
    let (head, body) = request.into_parts();
    let body = read_request_body(body, BODY_BYTES_MAX, BODY_LIMIT).await;
    let body =
        body.map_err(|error| ApiError::new(error.status(), error.code(), error.to_string()))?;
    // The parser's own text could repeat the token.
    let said: SignIn = serde_json::from_slice(&body)
        .map_err(|_| ApiError::bad("the body must be {\"token\": \"…\", \"framed\": false}"))?;
    let peer = head.extensions.get::<Peer>().copied();
    let owner = access
        .sign_in(&said.token, peer, &head.headers)
        .map_err(refused)?;
    let mut response = Json(info(&access, Some(owner))).into_response();
    if access.needs_token() {
        let place = match said.framed {
            true => Place::Frame,
            false => Place::Tab,
        };
        let cookie = cookie::signed_in(&head.headers, &said.token, place);
        response
            .headers_mut()
            .extend(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    }
    Ok(response)
}

async fn sign_out(State(access): State<Arc<Access>>, headers: HeaderMap) -> Response {
    let mut response = Json(info(&access, None)).into_response();
    for cookie in cookie::signed_out(&headers) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

fn info(access: &Access, owner: Option<Owner>) -> SessionInfo {
    let access = match access.needs_token() {
        true => AccessKind::Token,
        false => AccessKind::Open,
    };
    SessionInfo {
        access,
        signed_in: owner.is_some(),
        owner: owner.map(|Owner(owner)| owner.to_string()),
    }
}

fn refused(error: SignInError) -> ApiError {
    match error {
        SignInError::WrongToken => ApiError::new(
            StatusCode::UNAUTHORIZED,
            "wrong_token",
            "this is not a token of this server: its operator has it, in the variable that --token-env names",
        ),
        SignInError::Wait(left) => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_tries",
            format!(
                "too many wrong tokens: try again in {} s",
                left.as_secs() + 1
            ),
        ),
    }
}
