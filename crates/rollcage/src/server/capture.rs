//! The capture proxy alone: OpenEnv's session routes beside the proxy's own.
//!
//! A session's id is the API key that its agent uses. The session routes are the trainer's and ask for the admin key
//! where there is one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use rollcage_dialect::EndpointDialect;
use rollcage_endpoints::choice::EndpointRequest;
use rollcage_model::budget::Limits;
use rollcage_model::exchange;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::trace::{self, Interpretation, RolloutType};
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::{Guard, client_for};
use rollcage_proxy::probe::{Profile, probe};
use rollcage_proxy::remote::Remotes;
use rollcage_proxy::secret::{Secret, is_same_key};
use rollcage_proxy::{Body, ModelSettings, OnOverflow, SamplingPolicy};
use rollcage_proxy::{Session, SessionOptions, Sessions};

use super::access::{check_from_here, is_json};
use super::backend::BODY_LIMIT;

mod named;
mod wanted;

pub(crate) use named::{Unresolved, resolve};

use wanted::{Wanted, check_metadata, sampling_of};

/// Where a session goes that names its provider and a key, but no URL.
const ANTHROPIC: &str = "https://api.anthropic.com";
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The server's own state.
pub(crate) struct Capture {
    pub(crate) sessions: Sessions,
    pub(crate) default_endpoint: Endpoint,
    default_profile: Mutex<Profile>,
    pub(crate) admin_key: Option<Secret>,
    /// What sessions may name as `llm_url`; `None` where they are the operator's own.
    pub(crate) guard: Option<Arc<Guard>>,
    /// Where sessions' exchanges are kept.
    pub(crate) directory: PathBuf,
    body_limit: Duration,
    /// For an endpoint that is out of order.
    pub(crate) upstream_patience: Duration,
    about: Mutex<HashMap<String, About>>,
}

/// What is known of a session besides its exchanges.
#[derive(Clone)]
struct About {
    metadata: Map<String, Value>,
    record: PathBuf,
    profile: Profile,
    is_eval: bool,
}

/// A request that is answered with an error.
struct Refused(StatusCode, String);

impl Refused {
    fn bad(message: impl Into<String>) -> Self {
        Refused(StatusCode::BAD_REQUEST, message.into())
    }
}

impl Capture {
    pub(crate) fn new(
        default_endpoint: Endpoint,
        default_profile: Profile,
        admin_key: Option<Secret>,
        guard: Option<Arc<Guard>>,
        directory: PathBuf,
    ) -> Self {
        Capture {
            sessions: Sessions::default(),
            default_endpoint,
            default_profile: Mutex::new(default_profile),
            admin_key,
            guard,
            directory,
            body_limit: BODY_LIMIT,
            upstream_patience: ModelSettings::default().upstream_patience,
            about: Mutex::default(),
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
            Err(refused) => Err(refused),
        };
        answered.unwrap_or_else(|Refused(status, message)| {
            let error = json!({"message": message, "type": "invalid_request_error"});
            let mut response = rollcage_proxy::json(status, &json!({"error": error}));
            // What is left of the body is on the connection still.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
            response
        })
    }

    /// Keeps web pages out, which can make a browser on this machine call us. With an admin key they would have to know
    /// it, or a session's.
    fn check_caller(&self, request: &Request<Incoming>) -> Result<(), Refused> {
        let headers = request.headers();
        if self.admin_key.is_none() {
            let checked = check_from_here(headers);
            checked.map_err(|refused| Refused(refused.status(), refused.to_string()))?;
        }
        // A POST that says nothing needs no type: `curl -X POST localhost:8100/sessions`.
        let is_empty = request.body().is_end_stream() && !headers.contains_key(CONTENT_TYPE);
        if request.method() == Method::POST && !is_empty && !is_json(headers) {
            let text = "send `content-type: application/json`";
            return Err(Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, text.to_owned()));
        }
        Ok(())
    }

    fn check_admin(&self, request: &Request<Incoming>) -> Result<(), Refused> {
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
        if is_same_key(offered.as_bytes(), expected.expose().as_bytes()) {
            return Ok(());
        }
        let message = "this route requires the capture admin key";
        Err(Refused(StatusCode::UNAUTHORIZED, message.to_owned()))
    }

    async fn manage(
        &self,
        path: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refused> {
        let mut parts = path.split('/').skip(2);
        let (id, what) = (parts.next(), parts.next());
        let query = request.uri().query().unwrap_or_default().to_owned();
        let answer = match (request.method(), id, what) {
            (&Method::POST, None, None) => self.create(request).await?,
            (&Method::GET, None, None) => self.list(),
            (&Method::GET, Some(id), None) => self.status(id)?,
            (&Method::GET, Some(id), Some("rollout")) => self.rollout(id, &query)?,
            (&Method::GET, Some(id), Some("trace_entries")) => return self.trace_entries(id),
            (&Method::DELETE, Some(id), None) => {
                self.about().remove(id);
                json!({"deleted": self.sessions.remove(id).is_some()})
            }
            _ => return Err(Refused(StatusCode::NOT_FOUND, "no such route".to_owned())),
        };
        Ok(rollcage_proxy::json(StatusCode::OK, &answer))
    }

    async fn create(&self, request: Request<Incoming>) -> Result<Value, Refused> {
        let body = request.into_body();
        let body =
            rollcage_proxy::read_request_body(body, PAYLOAD_BYTES_MAX, self.body_limit).await;
        let body = body.map_err(|unread| Refused(unread.status(), unread.to_string()))?;
        let body = if body.is_empty() {
            b"{}".as_slice().into()
        } else {
            body
        };
        let wanted: Wanted =
            serde_json::from_slice(&body).map_err(|error| Refused::bad(error.to_string()))?;
        let metadata = wanted.metadata.clone().unwrap_or_default();
        check_metadata(&metadata)?;
        let sampling = sampling_of(wanted.sampling.as_ref())?;
        let (endpoint, profile) = self.engine_for(&wanted).await?;
        let is_eval = wanted.is_eval(profile.level)?;
        let calls = wanted.max_model_calls.filter(|calls| *calls > 0);
        let settings = ModelSettings {
            sampling: match (sampling, is_eval) {
                (Some(sampling), _) => SamplingPolicy::Pinned(sampling),
                (None, true) => SamplingPolicy::Agent,
                (None, false) => SamplingPolicy::Auto,
            },
            constrained: wanted.constrained()?,
            budget: Limits {
                calls,
                ..Limits::default()
            },
            upstream_patience: self.upstream_patience,
            ..ModelSettings::default()
        };
        let key = match wanted.session_id {
            Some(id) if id.is_empty() || id.len() > 200 || !id.is_ascii() => {
                return Err(Refused::bad("session_id must be 1 to 200 ASCII characters"));
            }
            Some(id) => id,
            None => rollcage_proxy::random_key("").map_err(|error| internal(&error))?,
        };
        let answer = json!({
            "session_id": key,
            "capture_level": profile.level,
            "rollout_type": if is_eval { RolloutType::Eval } else { RolloutType::Train },
            "max_model_calls": calls.unwrap_or(0),
            "llm_url": endpoint.base_url,
            "model": endpoint.model,
        });
        self.open(
            key,
            endpoint,
            settings,
            About {
                metadata,
                record: PathBuf::new(),
                profile,
                is_eval,
            },
        )?;
        Ok(answer)
    }

    fn open(
        &self,
        key: String,
        endpoint: Endpoint,
        settings: ModelSettings,
        about: About,
    ) -> Result<(), Refused> {
        let taken = || {
            Refused(
                StatusCode::CONFLICT,
                format!("there is a session `{key}` already"),
            )
        };
        if self.sessions.find(&key).is_some() {
            return Err(taken());
        }
        let id = rollcage_model::id::RolloutId::generate();
        let record = self.directory.join(format!("{id}.rec"));
        let client = client_for(&endpoint.base_url, endpoint.guard.as_ref())
            .map_err(|error| internal(&error))?;
        let options = SessionOptions {
            client,
            endpoint,
            settings,
            profile: about.profile.clone(),
            on_overflow: OnOverflow::PassOn,
            record: record.clone(),
            agent_time: None,
            observe: Box::new(|_| {}),
            mcp: Remotes::default(),
            clients: Arc::default(),
        };
        let session = Session::create(key.clone(), options).map_err(|error| internal(&error))?;
        if !self.sessions.add(session) {
            return Err(taken());
        }
        self.about().insert(key, About { record, ..about });
        Ok(())
    }

    /// The engine that a session names, measured now, or the server's own.
    async fn engine_for(&self, wanted: &Wanted) -> Result<(Endpoint, Profile), Refused> {
        let key = wanted.api_key.clone().filter(|key| !key.is_empty());
        let key = key.map(Secret::new);
        let url = wanted.llm_url.clone().filter(|url| !url.is_empty());
        let url = match (url, wanted.dialect()) {
            (Some(url), _) => url,
            (None, EndpointDialect::Anthropic) if key.is_some() => ANTHROPIC.to_owned(),
            (None, _) => {
                return Ok((self.default_endpoint.clone(), self.default_profile().await));
            }
        };
        let request = EndpointRequest {
            base_url: Some(url),
            key,
            model: wanted.model.clone(),
            dialect: Some(wanted.dialect()),
            guard: self.guard.clone(),
            ..EndpointRequest::default()
        };
        let resolved = resolve(request).await;
        resolved.map_err(|problem| match problem {
            Unresolved::Forbidden(error) => Refused::bad(error.to_string()),
            Unresolved::Unusable(error) => Refused(StatusCode::BAD_GATEWAY, error.to_string()),
        })
    }

    /// What the server's own engine gives. One that was away is measured again: it may be another, or run otherwise.
    async fn default_profile(&self) -> Profile {
        let sessions = self.sessions.all();
        let own = &self.default_endpoint;
        let own_sessions = sessions
            .iter()
            .filter(|session| session.endpoint().base_url == own.base_url);
        // Each is asked, since each forgets.
        let outages = own_sessions.filter(|session| session.take_outage()).count();
        if outages > 0
            && let Ok(client) = client_for(&own.base_url, own.guard.as_ref())
            && let Ok(profile) = probe(&client, own).await
        {
            *self.known_profile() = profile;
        }
        self.known_profile().clone()
    }

    fn known_profile(&self) -> std::sync::MutexGuard<'_, Profile> {
        let known = self.default_profile.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> Value {
        let mut sessions = self.sessions.all();
        sessions.sort_by(|left, right| left.key().cmp(right.key()));
        let rows: Vec<Value> = sessions
            .iter()
            .filter_map(|session| self.row(session).ok())
            .collect();
        json!({"sessions": rows})
    }

    fn row(&self, session: &Session) -> Result<Value, Refused> {
        let (about, interpretation) = self.read(session.key())?;
        let mut row = json!({
            "session_id": session.key(),
            "turns": interpretation.graph.nodes.len(),
            "roots": interpretation.graph.nodes.iter().filter(|node| node.parent.is_none()).count(),
            "idle_s": (session.idle().as_secs_f64() * 10.0).round() / 10.0,
            "upstream_errors": upstream_errors(&interpretation),
        });
        if let Some(members) = row.as_object_mut() {
            members.extend(about.metadata);
        }
        Ok(row)
    }

    fn status(&self, id: &str) -> Result<Value, Refused> {
        let session = self.sessions.find(id).ok_or_else(unknown)?;
        let (about, interpretation) = self.read(id)?;
        let mut answer = json!({
            "session_id": id,
            "idle_s": (session.idle().as_secs_f64() * 10.0).round() / 10.0,
            "upstream_errors": upstream_errors(&interpretation),
            "budget_stop_count": session.budget_stops(),
        });
        let document = document(id, &about, &interpretation, &session, Options::default())?;
        if let (Some(members), Some(Value::Object(stats))) =
            (answer.as_object_mut(), document.get("stats").cloned())
        {
            members.extend(stats);
        }
        Ok(answer)
    }

    fn rollout(&self, id: &str, query: &str) -> Result<Value, Refused> {
        let session = self.sessions.find(id).ok_or_else(unknown)?;
        let (about, interpretation) = self.read(id)?;
        document(id, &about, &interpretation, &session, options_of(query))
    }

    fn trace_entries(&self, id: &str) -> Result<Response<Body>, Refused> {
        let session = self.sessions.find(id).ok_or_else(unknown)?;
        let (about, interpretation) = self.read(id)?;
        let entries = if about.is_eval {
            Err(Refused(
                StatusCode::CONFLICT,
                "this session is for evaluation".to_owned(),
            ))
        } else {
            export(
                Format::TraceEntries,
                &interpretation,
                &meta(id, &session),
                Options::default(),
            )
        };
        Ok(match entries {
            Ok(entries) => rollcage_proxy::json(StatusCode::OK, &entries),
            Err(Refused(status, error)) => {
                rollcage_proxy::json(status, &json!({"error": error, "session_id": id}))
            }
        })
    }

    /// What a session's file says now.
    fn read(&self, id: &str) -> Result<(About, Interpretation), Refused> {
        let about = self.about().get(id).cloned().ok_or_else(unknown)?;
        let bytes = std::fs::read(&about.record).map_err(|error| internal(&error))?;
        let mut interpretation = trace::read(exchange::Reader::new(&bytes));
        if about.is_eval {
            interpretation.rollout_type = RolloutType::Eval;
        }
        Ok((about, interpretation))
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

    fn about(&self) -> std::sync::MutexGuard<'_, HashMap<String, About>> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of a capture document is wanted.
fn options_of(query: &str) -> Options {
    let is_set = |name: &str| {
        query
            .split('&')
            .any(|pair| matches!(pair.split_once('='), Some((key, "true" | "1")) if key == name))
    };
    Options {
        include_discarded: is_set("include_discarded"),
        include_messages: is_set("include_messages"),
        ..Options::default()
    }
}

fn document(
    id: &str,
    about: &About,
    interpretation: &Interpretation,
    session: &Session,
    options: Options,
) -> Result<Value, Refused> {
    let mut document = export(Format::Capture, interpretation, &meta(id, session), options)?;
    if let Some(members) = document.as_object_mut() {
        members.insert("metadata".to_owned(), about.metadata.clone().into());
    }
    Ok(document)
}

fn meta(id: &str, session: &Session) -> Meta {
    Meta {
        rollout_id: id.to_owned(),
        model: session.endpoint().model.clone(),
        budget_stop_count: session.budget_stops(),
        ..Meta::default()
    }
}

fn export(
    format: Format,
    interpretation: &Interpretation,
    meta: &Meta,
    options: Options,
) -> Result<Value, Refused> {
    let mut out = Vec::new();
    write(format, interpretation, meta, options, &mut out)
        .map_err(|error| Refused(StatusCode::CONFLICT, error.to_string()))?;
    serde_json::from_slice(&out).map_err(|error| internal(&error))
}

fn upstream_errors(interpretation: &Interpretation) -> usize {
    interpretation
        .turns
        .iter()
        .filter(|turn| turn.is_failed())
        .count()
}

fn unknown() -> Refused {
    Refused(StatusCode::NOT_FOUND, "unknown session".to_owned())
}

fn internal(error: &dyn std::error::Error) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
