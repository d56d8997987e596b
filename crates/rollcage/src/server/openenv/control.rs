//! `/reset`, `/step` and `/state` over HTTP. Each request gets its own environment, as in the original.

use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};

use super::OpenEnvServer;
use super::action::{Action, Observation};
use super::problem::{Fields, invalid_json, no_object, problem};
use super::session::Session;
use crate::server::access::{Owner, is_json};
use crate::server::reply;

/// The original's limit.
const NAME_CHARS_MAX: usize = 255;
/// Longer limits are reduced to this.
const STEP_LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn state(owner: Owner) -> Response {
    reply::json(StatusCode::OK, &Session::temporary(owner.0).state())
}

pub(crate) async fn reset(server: &OpenEnvServer, owner: Owner, request: Request) -> Response {
    let session = Session::temporary(owner.0);
    match reset_session(server, &session, request).await {
        Ok(observation) => reply::json(StatusCode::OK, &observation.for_http()),
        Err(refused) => refused,
    }
}

pub(crate) async fn step(server: &OpenEnvServer, owner: Owner, request: Request) -> Response {
    let session = Session::temporary(owner.0);
    match step_session(server, &session, request, |action| action).await {
        Ok(observation) => reply::json(StatusCode::OK, &observation.for_http()),
        Err(refused) => refused,
    }
}

pub(super) async fn reset_session(
    server: &OpenEnvServer,
    session: &Session,
    request: Request,
) -> Result<Observation, Response> {
    let members = object(server, request).await?.unwrap_or_default();
    let location = ["body".into()];
    let mut fields = Fields::new(&members, &location);
    fields.optional_natural("seed");
    let episode_id = fields.optional_string("episode_id", NAME_CHARS_MAX);
    if let Err(problems) = fields.finish() {
        return Err(reply::unprocessable(&problems));
    }
    Ok(server.reset(session, episode_id.map(str::to_owned)))
}

/// Takes a step with the action that `prepare` makes of the given one.
pub(super) async fn step_session(
    server: &OpenEnvServer,
    session: &Session,
    request: Request,
    prepare: fn(Map<String, Value>) -> Map<String, Value>,
) -> Result<Observation, Response> {
    let members = object(server, request).await?;
    let members = members.ok_or_else(|| reply::unprocessable(&[no_body()]))?;
    let location = ["body".into()];
    let mut fields = Fields::new(&members, &location);
    let action = fields.object("action");
    let limit = fields.optional_positive("timeout_s");
    fields.optional_string("request_id", NAME_CHARS_MAX);
    if let Err(problems) = fields.finish() {
        return Err(reply::unprocessable(&problems));
    }
    let action = prepare(action.cloned().unwrap_or_default());
    let action = Action::read(&action).map_err(|problems| reply::unprocessable(&problems))?;
    let limit = limit.map(|seconds| {
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(STEP_LIMIT_MAX)
            .min(STEP_LIMIT_MAX)
    });
    Ok(server.step(session, action, limit).await)
}

/// The JSON object in a body, `None` for an empty body, or the error response.
pub(crate) async fn object(
    server: &OpenEnvServer,
    request: Request,
) -> Result<Option<Map<String, Value>>, Response> {
    let (head, body) = request.into_parts();
    let limits = &server.limits;
    let body = reply::read_body(body, limits.body_bytes_max, limits.body_read).await?;
    if body.is_empty() {
        return Ok(None);
    }
    let value = match is_json(&head.headers) {
        true => serde_json::from_slice(&body)
            .map_err(|error| reply::unprocessable(&[invalid_json(&error, &body)]))?,
        // Without the right content type the original treats the body as a string.
        false => Value::String(String::from_utf8_lossy(&body).into_owned()),
    };
    match value {
        Value::Object(members) => Ok(Some(members)),
        Value::Null => Ok(None),
        other => Err(reply::unprocessable(&[no_object(&["body".into()], &other)])),
    }
}

pub(crate) fn no_body() -> Value {
    problem("missing", &["body".into()], "Field required", &Value::Null)
}
