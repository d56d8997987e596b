//! A rollout's way to its model: a session on the proxy, served at the sandbox's entrance.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use tracing::Instrument;

use rollcage_agents::ModelAccess;
use rollcage_model::ending::Cause;
use rollcage_proxy::outbound::{ClientError, Clients};
use rollcage_proxy::probe::Profile;
use rollcage_proxy::{OnOverflow, ServerHandle, Session, SessionOptions, Sessions};
use rollcage_sandbox::Sandbox;

use crate::feed::Feed;
use crate::judge::Ending;
use crate::plan::Plan;
use crate::store::Record;

pub(crate) fn client_ending(error: ClientError) -> Ending {
    match &error {
        ClientError::Http(_) => {
            Ending::new(Cause::EngineFailed, rollcage_model::text::chain(&error))
        }
        ClientError::Forbidden(_) => Ending::new(Cause::EndpointUnreachable, error.to_string()),
    }
}

/// What a session is made of.
pub(crate) struct SessionParts<'a> {
    clients: &'a Arc<Clients>,
    client: reqwest::Client,
    profile: &'a Profile,
    plan: &'a Plan,
    record: &'a Record,
    feed: &'a Arc<Feed>,
}

impl<'a> SessionParts<'a> {
    pub(crate) fn new(
        clients: &'a Arc<Clients>,
        (client, profile): (reqwest::Client, &'a Profile),
        plan: &'a Plan,
        record: &'a Record,
        feed: &'a Arc<Feed>,
    ) -> Self {
        SessionParts {
            clients,
            client,
            profile,
            plan,
            record,
            feed,
        }
    }

    /// The session of a rollout, with the key that its agent was given already, if it was.
    pub(crate) fn open(self, key: Option<String>) -> Result<Arc<Session>, Ending> {
        let agent_time = Duration::from_secs_f64(self.plan.task.agent_timeout_s());
        let options = SessionOptions {
            agent_time: Some(agent_time),
            on_overflow: OnOverflow::Stop,
            ..self.live_options()
        };
        create_session(key, options)
    }

    /// As [`SessionParts::open`], for an agent without an end of its own: a conversation that is too long is the agent's to
    /// shorten.
    pub(crate) fn open_live(self) -> Result<Arc<Session>, Ending> {
        create_session(None, self.live_options())
    }

    fn live_options(self) -> SessionOptions {
        let (plan, feed) = (self.plan, Arc::clone(self.feed));
        SessionOptions {
            client: self.client,
            endpoint: plan.endpoint.clone(),
            settings: plan.settings.clone(),
            profile: self.profile.clone(),
            on_overflow: OnOverflow::PassOn,
            record: self.record.exchanges(),
            agent_time: None,
            observe: Box::new(move |what| feed.publish(what)),
            mcp: plan.mcp.clone(),
            clients: Arc::clone(self.clients),
        }
    }
}

fn create_session(key: Option<String>, options: SessionOptions) -> Result<Arc<Session>, Ending> {
    let key = match key {
        Some(key) => Ok(key),
        None => rollcage_proxy::random_key("sk-rollcage-"),
    };
    let session = key.and_then(|key| Session::create(key, options));
    session.map_err(|error| {
        let text = format!("open the rollout's exchanges: {error}");
        Ending::new(Cause::EngineFailed, text)
    })
}

/// What an agent is answered before there is a session, in the chat dialect: a stream with one word.
const NO_SESSION_YET: &str = "data: {\"id\":\"ready\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"none\",\
    \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"ready\"},\"finish_reason\":null}]}\n\n\
    data: {\"id\":\"ready\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"none\",\
    \"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// A sandbox's entrance, served from before there is a session.
pub(crate) struct OpenEntrance {
    pub(crate) serving: ServerHandle,
    /// As seen from inside.
    pub(crate) base_url: String,
    attached: Arc<OnceLock<Attached>>,
}

/// The session of an entrance, and the span that its calls are logged in.
struct Attached {
    sessions: Arc<Sessions>,
    span: tracing::Span,
}

impl OpenEntrance {
    pub(crate) fn open(sandbox: &mut dyn Sandbox) -> Result<Self, Ending> {
        let attached: Arc<OnceLock<Attached>> = Arc::default();
        let target = Arc::clone(&attached);
        let handler: rollcage_proxy::Handler = Arc::new(move |request| {
            let target = Arc::clone(&target);
            Box::pin(async move { answer(target.get(), request).await })
        });
        let unserved =
            |error| Ending::new(Cause::EngineFailed, format!("serve the proxy: {error}"));
        let entrance = sandbox.take_entrance();
        let entrance = entrance.ok_or_else(|| unserved(std::io::ErrorKind::NotFound.into()))?;
        let (listener, base_url) = entrance.open().map_err(unserved)?;
        let serving = rollcage_proxy::serve(listener, handler).map_err(unserved)?;
        Ok(OpenEntrance {
            serving,
            base_url,
            attached,
        })
    }

    /// From now on calls belong to this session. Only the first one counts.
    pub(crate) fn attach(&self, session: &Arc<Session>) {
        let _ = self.attached.set(Attached {
            sessions: Sessions::of(Arc::clone(session)),
            span: tracing::Span::current(),
        });
    }
}

async fn answer(
    attached: Option<&Attached>,
    request: Request<hyper::body::Incoming>,
) -> Response<rollcage_proxy::Body> {
    if let Some(Attached { sessions, span }) = attached {
        let answer = rollcage_proxy::answer(sessions, request);
        return answer.instrument(span.clone()).await;
    }
    let body = Full::new(Bytes::from_static(NO_SESSION_YET.as_bytes()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    let stream = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, stream);
    response
}

/// Serves the session at the sandbox's entrance. Returns its base URL as seen from inside, too.
pub(crate) fn serve(
    session: &Arc<Session>,
    sandbox: &mut dyn Sandbox,
) -> Result<(ServerHandle, String), Ending> {
    let entrance = OpenEntrance::open(sandbox)?;
    entrance.attach(session);
    Ok((entrance.serving, entrance.base_url))
}

/// The context of a model whose endpoint does not tell.
const CONTEXT_TOKENS: u64 = 131_072;
/// What an agent is told without a cap: what OpenCode and Claude Code ask for by themselves.
const OUTPUT_TOKENS: u64 = 32_000;

/// How many tokens a prompt and an answer may have, as agents are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToldLimits {
    pub(crate) context_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl ToldLimits {
    pub(crate) fn new(context_tokens: Option<u64>, tokens_max: Option<u64>) -> Self {
        let context_tokens = context_tokens.unwrap_or(CONTEXT_TOKENS);
        let output_tokens = tokens_max.unwrap_or(OUTPUT_TOKENS);
        ToldLimits {
            context_tokens,
            // It has to leave room for a prompt.
            output_tokens: output_tokens.min(context_tokens / 2).max(1),
        }
    }
}

/// What the agent is told of its model. `base_url` is the proxy's, as seen from inside.
pub(crate) fn access(
    plan: &Plan,
    key: &str,
    base_url: &str,
    context_tokens: Option<u64>,
) -> ModelAccess {
    let told = ToldLimits::new(context_tokens, plan.settings.tokens_max);
    ModelAccess {
        base_url: format!("{base_url}/v1"),
        key: key.to_owned(),
        model: plan.endpoint.model.clone(),
        context_tokens: told.context_tokens,
        output_tokens: told.output_tokens,
        patience_ms: 600_000,
    }
}
