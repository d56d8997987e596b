//! `POST /sessions`: creates a session, chooses its inference engine, and starts its record.

use std::path::PathBuf;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use rollcage_dialect::EndpointDialect;
use rollcage_endpoints::choice::EndpointRequest;
use rollcage_engine::store::sync_directory;
use rollcage_model::budget::SpendingLimits;
use rollcage_model::finding::RolloutType;
use rollcage_model::id::RolloutId;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::client_for;
use rollcage_proxy::probe::{Profile, probe};
use rollcage_proxy::remote::RemoteMcpServers;
use rollcage_proxy::secret::Secret;
use rollcage_proxy::{ModelSettings, OnOverflow, SamplingPolicy, Session, SessionOptions};

use super::endpoint::{ResolveError, resolve};
use super::request::{SessionRequest, check_metadata, sampling_of};
use super::{CaptureServer, HttpError, SessionDetails};

/// The endpoint of a session that names this provider and a key, but no URL.
const ANTHROPIC: &str = "https://api.anthropic.com";
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

impl CaptureServer {
    pub(super) async fn create(&self, request: Request<Incoming>) -> Result<Value, HttpError> {
        let body = request.into_body();
        let body =
            rollcage_proxy::read_request_body(body, PAYLOAD_BYTES_MAX, self.body_limit).await;
        let body = body.map_err(|error| HttpError(error.status(), error.to_string()))?;
        let body = if body.is_empty() {
            b"{}".as_slice().into()
        } else {
            body
        };
        let request: SessionRequest = serde_json::from_slice(&body)
            .map_err(|error| HttpError::bad_request(error.to_string()))?;
        let metadata = request.metadata.clone().unwrap_or_default();
        check_metadata(&metadata)?;
        let sampling = sampling_of(request.sampling.as_ref())?;
        let (endpoint, profile) = self.engine_for(&request).await?;
        let is_eval = request.is_eval(profile.level)?;
        let calls = request.max_model_calls.filter(|calls| *calls > 0);
        let settings = ModelSettings {
            sampling: match (sampling, is_eval) {
                (Some(sampling), _) => SamplingPolicy::Pinned(sampling),
                (None, true) => SamplingPolicy::Agent,
                (None, false) => SamplingPolicy::Auto,
            },
            constrained: request.constrained()?,
            budget: SpendingLimits {
                calls,
                ..SpendingLimits::default()
            },
            upstream_patience: self.upstream_patience,
            ..ModelSettings::default()
        };
        let key = match request.session_id {
            Some(id) if id.is_empty() || id.len() > 200 || !id.is_ascii() => {
                return Err(HttpError::bad_request(
                    "session_id must be 1 to 200 ASCII characters",
                ));
            }
            Some(id) => id,
            None => rollcage_proxy::random_key("").map_err(|error| HttpError::internal(&error))?,
        };
        let answer = json!({
            "session_id": key,
            "capture_level": profile.level,
            "rollout_type": if is_eval { RolloutType::Eval } else { RolloutType::Train },
            "max_model_calls": calls.unwrap_or(0),
            "llm_url": endpoint.base_url,
            "model": endpoint.model,
        });
        let details = SessionDetails {
            metadata,
            record: PathBuf::new(),
            profile,
            is_eval,
            last_read: Arc::default(),
        };
        self.open(key, endpoint, settings, details).await?;
        Ok(answer)
    }

    async fn open(
        &self,
        key: String,
        endpoint: Endpoint,
        settings: ModelSettings,
        details: SessionDetails,
    ) -> Result<(), HttpError> {
        let taken = || {
            HttpError(
                StatusCode::CONFLICT,
                format!("there is a session `{key}` already"),
            )
        };
        if self.sessions.find(&key).is_some() {
            return Err(taken());
        }
        let directory = self.directory.clone();
        let record = directory.join(format!("{}.rec", RolloutId::generate()));
        let client = client_for(&endpoint.base_url, endpoint.guard.as_ref())
            .map_err(|error| HttpError::internal(&error))?;
        let options = SessionOptions {
            client,
            endpoint,
            settings,
            profile: details.profile.clone(),
            on_overflow: OnOverflow::PassOn,
            record: record.clone(),
            agent_time: None,
            observe: Box::new(|_| {}),
            mcp: RemoteMcpServers::default(),
            clients: Arc::default(),
        };
        let session_key = key.clone();
        // Disk access must not block threads that serve calls.
        let begun = tokio::task::spawn_blocking(move || {
            let session = Session::create(session_key, options)?;
            sync_directory(&directory).map(|()| session)
        });
        let begun = begun.await.map_err(|error| HttpError::internal(&error))?;
        let session = begun.map_err(|error| HttpError::internal(&error))?;
        if !self.sessions.add(session) {
            return Err(taken());
        }
        self.details()
            .insert(key, SessionDetails { record, ..details });
        Ok(())
    }

    /// The engine that a session names, which is probed now, or the server's default.
    async fn engine_for(&self, request: &SessionRequest) -> Result<(Endpoint, Profile), HttpError> {
        let key = request.api_key.clone().filter(|key| !key.is_empty());
        let key = key.map(Secret::new);
        let url = request.llm_url.clone().filter(|url| !url.is_empty());
        let url = match (url, request.dialect()) {
            (Some(url), _) => url,
            (None, EndpointDialect::Anthropic) if key.is_some() => ANTHROPIC.to_owned(),
            (None, _) => {
                return Ok((self.default_endpoint.clone(), self.default_profile().await));
            }
        };
        let request = EndpointRequest {
            base_url: Some(url),
            key,
            model: request.model.clone(),
            dialect: Some(request.dialect()),
            guard: self.guard.clone(),
            ..EndpointRequest::default()
        };
        let resolved = resolve(request).await;
        resolved.map_err(|problem| match problem {
            ResolveError::Forbidden(error) => HttpError::bad_request(error.to_string()),
            ResolveError::Unusable(error) => HttpError(StatusCode::BAD_GATEWAY, error.to_string()),
        })
    }

    /// The profile of the server's default engine. After an outage it is probed again: it may be another server, or one
    /// with other settings.
    async fn default_profile(&self) -> Profile {
        let sessions = self.sessions.all();
        let own = &self.default_endpoint;
        let own_sessions = sessions
            .iter()
            .filter(|session| session.endpoint().base_url == own.base_url);
        // Not `any`, which would stop early: every session's outage must be taken.
        let outages = own_sessions.filter(|session| session.take_outage()).count();
        if outages > 0
            && let Ok(client) = client_for(&own.base_url, own.guard.as_ref())
            && let Ok(profile) = probe(&client, own, ModelSettings::default().top_logprobs).await
        {
            *self.known_profile() = profile;
        }
        self.known_profile().clone()
    }
}
