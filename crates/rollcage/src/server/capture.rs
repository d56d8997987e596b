//! The stand-alone capture proxy: OpenEnv's session routes next to the proxy's own routes.
//!
//! A session's id is the API key that its agent uses. The session routes are for the trainer and require the admin key,
//! if there is one. `opening` creates sessions, `document` shows them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use rollcage_model::network::address::Block;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::Guard;
use rollcage_proxy::probe::Profile;
use rollcage_proxy::secret::{Secret, is_same_key};
use rollcage_proxy::{Body, ModelSettings, PeerAddress, Session, Sessions};

use super::access::{AccessDenied, Tries, WebOrigin, check_local_caller, is_json};
use super::listen::BODY_LIMIT;

mod document;
mod endpoint;
mod opening;
mod request;

pub(crate) use endpoint::{ResolveError, resolve};

use document::LastRead;

/// The server's own state.
pub(crate) struct CaptureServer {
    sessions: Sessions,
    default_endpoint: Endpoint,
    default_profile: Mutex<Profile>,
    admin_key: Option<Secret>,
    /// Wrong admin keys by address.
    tries: Tries,
    /// Whose pages may use a proxy without an admin key.
    origins: Vec<WebOrigin>,
    /// Which addresses sessions may use as `llm_url`; `None` where all sessions are the operator's own.
    guard: Option<Arc<Guard>>,
    /// Where sessions' exchanges are stored.
    directory: PathBuf,
    body_limit: Duration,
    /// How long failing calls are retried.
    pub(crate) upstream_patience: Duration,
    details: Mutex<HashMap<String, SessionDetails>>,
}

/// The data of a session other than its exchanges.
#[derive(Clone)]
struct SessionDetails {
    metadata: Map<String, Value>,
    record: PathBuf,
    profile: Profile,
    is_eval: bool,
    last_read: Arc<Mutex<Option<LastRead>>>,
}

/// An error response: its status and message.
struct HttpError(StatusCode, String);

impl HttpError {
    fn bad_request(message: impl Into<String>) -> Self {
        HttpError(StatusCode::BAD_REQUEST, message.into())
    }

    fn internal(error: &dyn std::error::Error) -> Self {
        HttpError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }

    fn unknown_session() -> Self {
        HttpError(StatusCode::NOT_FOUND, "unknown session".to_owned())
    }
}

impl CaptureServer {
    pub(crate) fn new(
        default_endpoint: Endpoint,
        default_profile: Profile,
        admin_key: Option<Secret>,
        guard: Option<Arc<Guard>>,
        directory: PathBuf,
    ) -> Self {
        CaptureServer {
            sessions: Sessions::default(),
            default_endpoint,
            default_profile: Mutex::new(default_profile),
            admin_key,
            tries: Tries::default(),
            origins: Vec::new(),
            guard,
            directory,
            body_limit: BODY_LIMIT,
            upstream_patience: ModelSettings::default().upstream_patience,
            details: Mutex::default(),
        }
    }

    /// The same with what the operator knows of the web around it, as for `rollcage serve`.
    pub(crate) fn with_web(self, origins: Vec<WebOrigin>, proxies: Vec<Block>) -> Self {
        CaptureServer {
            origins,
            tries: Tries::behind(proxies),
            ..self
        }
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().trim_end_matches('/').to_owned();
        if path == "/health" {
            return rollcage_proxy::json(StatusCode::OK, &self.health());
        }
        let is_managing = path == "/sessions" || path.starts_with("/sessions/");
        let admitted = self
            .check_caller(&request)
            .and_then(|()| match is_managing {
                true => self.check_admin(&request),
                false => Ok(()),
            });
        let answered = match admitted {
            Ok(()) if is_managing => self.manage(&path, request).await,
            Ok(()) => Ok(rollcage_proxy::answer(&self.sessions, request).await),
            Err(error) => Err(error),
        };
        answered.unwrap_or_else(|HttpError(status, message)| {
            let error = json!({"message": message, "type": "invalid_request_error"});
            let mut response = rollcage_proxy::json(status, &json!({"error": error}));
            // The unread rest of the body is still on the connection.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
            response
        })
    }

    /// Waits until all records are on disk. To be called last when the server ends.
    pub(crate) async fn close(&self) {
        for session in self.sessions.all() {
            commit(session).await;
        }
    }

    /// Refuses web pages, which can make a browser on this machine call us. With an admin key this is not needed: a
    /// page would have to know that key, or a session's.
    fn check_caller(&self, request: &Request<Incoming>) -> Result<(), HttpError> {
        let headers = request.headers();
        if self.admin_key.is_none() {
            let checked = check_local_caller(request, &self.origins);
            checked.map_err(|refused| HttpError(refused.status(), refused.to_string()))?;
        }
        // A POST without a body needs no type: `curl -X POST localhost:8100/sessions`.
        let is_empty = request.body().is_end_stream() && !headers.contains_key(CONTENT_TYPE);
        if request.method() == Method::POST && !is_empty && !is_json(headers) {
            let text = "send `content-type: application/json`";
            return Err(HttpError(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                text.to_owned(),
            ));
        }
        Ok(())
    }

    fn check_admin(&self, request: &Request<Incoming>) -> Result<(), HttpError> {
        let Some(expected) = &self.admin_key else {
            return Ok(());
        };
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let offered = bearer.or_else(|| header("x-api-key")).unwrap_or_default();
        let is_right = is_same_key(offered.as_bytes(), expected.expose().as_bytes());
        let peer = request.extensions().get::<PeerAddress>();
        let client = self
            .tries
            .client(peer.map(|peer| peer.0), request.headers());
        if !offered.is_empty()
            && let Err(left) = self
                .tries
                .judge(client, is_right.then_some("admin"), Instant::now())
        {
            let denied = AccessDenied::Wait(left);
            return Err(HttpError(denied.status(), denied.to_string()));
        }
        if is_right {
            return Ok(());
        }
        let message = "this route requires the capture admin key";
        Err(HttpError(StatusCode::UNAUTHORIZED, message.to_owned()))
    }

    async fn manage(
        &self,
        path: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, HttpError> {
        let mut parts = path.split('/').skip(2);
        let (id, what) = (parts.next(), parts.next());
        let query = request.uri().query().unwrap_or_default().to_owned();
        let answer = match (request.method(), id, what) {
            (&Method::POST, None, None) => self.create(request).await?,
            (&Method::GET, None, None) => self.list(),
            (&Method::GET, Some(id), None) => return self.status(id).await,
            (&Method::GET, Some(id), Some("rollout")) => return self.rollout(id, &query).await,
            (&Method::GET, Some(id), Some("trace_entries")) => {
                return self.trace_entries(id).await;
            }
            (&Method::DELETE, Some(id), None) => json!({"deleted": self.delete(id).await}),
            _ => return Err(HttpError(StatusCode::NOT_FOUND, "no such route".to_owned())),
        };
        Ok(rollcage_proxy::json(StatusCode::OK, &answer))
    }

    /// Removes a session; its record stays. False if there is no such session.
    async fn delete(&self, id: &str) -> bool {
        self.details().remove(id);
        let removed = self.sessions.remove(id);
        let is_removed = removed.is_some();
        if let Some(session) = removed {
            commit(session).await;
        }
        is_removed
    }

    fn health(&self) -> Value {
        json!({
            "status": "ok",
            "upstream": self.default_endpoint.base_url,
            "model": self.default_endpoint.model,
            "sessions": self.sessions.all().len(),
            "require_registered": true,
            "capture_level": self.known_profile().level,
            "upstream_auth": self.default_endpoint.key.is_some(),
        })
    }

    fn known_profile(&self) -> std::sync::MutexGuard<'_, Profile> {
        let known = self.default_profile.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    fn details(&self) -> std::sync::MutexGuard<'_, HashMap<String, SessionDetails>> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a session's record is on disk. A failure is only logged, since nobody could retry.
async fn commit(session: Arc<Session>) {
    let synced = tokio::task::spawn_blocking(move || session.sync_record()).await;
    let synced = synced.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    if let Err(error) = synced {
        tracing::warn!("a session's record may not survive a power cut: sync it: {error}");
    }
}
