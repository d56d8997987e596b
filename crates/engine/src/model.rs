//! A rollout's way to its model: a session on the proxy, served at the sandbox's entrance.

use std::sync::Arc;
use std::time::Duration;

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

pub(crate) fn open_session(
    clients: &Arc<Clients>,
    client: reqwest::Client,
    plan: &Plan,
    record: &Record,
    feed: &Arc<Feed>,
    profile: &Profile,
) -> Result<Arc<Session>, Ending> {
    let agent_time = Duration::from_secs_f64(plan.task.agent_timeout_s());
    let options = SessionOptions {
        agent_time: Some(agent_time),
        on_overflow: OnOverflow::Stop,
        ..live_options(clients, client, plan, record, feed, profile)
    };
    create_session(options)
}

/// As [`open_session`], for an agent without an end of its own: a conversation that is too long is the agent's to shorten.
pub(crate) fn open_live_session(
    clients: &Arc<Clients>,
    client: reqwest::Client,
    plan: &Plan,
    record: &Record,
    feed: &Arc<Feed>,
    profile: &Profile,
) -> Result<Arc<Session>, Ending> {
    create_session(live_options(clients, client, plan, record, feed, profile))
}

fn live_options(
    clients: &Arc<Clients>,
    client: reqwest::Client,
    plan: &Plan,
    record: &Record,
    feed: &Arc<Feed>,
    profile: &Profile,
) -> SessionOptions {
    let feed = Arc::clone(feed);
    SessionOptions {
        client,
        endpoint: plan.endpoint.clone(),
        settings: plan.settings.clone(),
        profile: profile.clone(),
        on_overflow: OnOverflow::PassOn,
        record: record.exchanges(),
        agent_time: None,
        observe: Box::new(move |what| feed.publish(what)),
        mcp: plan.mcp.clone(),
        clients: Arc::clone(clients),
    }
}

fn create_session(options: SessionOptions) -> Result<Arc<Session>, Ending> {
    let key = rollcage_proxy::random_key("sk-rollcage-");
    let session = key.and_then(|key| Session::create(key, options));
    session.map_err(|error| {
        let text = format!("open the rollout's exchanges: {error}");
        Ending::new(Cause::EngineFailed, text)
    })
}

/// Serves the session at the sandbox's entrance. Returns its base URL as seen from inside, too.
pub(crate) fn serve(
    session: &Arc<Session>,
    sandbox: &mut dyn Sandbox,
) -> Result<(ServerHandle, String), Ending> {
    let sessions = Sessions::of(Arc::clone(session));
    let span = tracing::Span::current();
    let handler: rollcage_proxy::Handler = Arc::new(move |request| {
        let sessions = Arc::clone(&sessions);
        let answering = async move { rollcage_proxy::answer(&sessions, request).await };
        Box::pin(answering.instrument(span.clone()))
    });
    let unserved = |error| Ending::new(Cause::EngineFailed, format!("serve the proxy: {error}"));
    let entrance = sandbox.take_entrance();
    let entrance = entrance.ok_or_else(|| unserved(std::io::ErrorKind::NotFound.into()))?;
    let (listener, base_url) = entrance.open().map_err(unserved)?;
    let serving = rollcage_proxy::serve(listener, handler).map_err(unserved)?;
    Ok((serving, base_url))
}

/// What the agent is told of its model. `base_url` is the proxy's, as seen from inside.
pub(crate) fn access(
    plan: &Plan,
    session: &Session,
    base_url: &str,
    context_tokens: Option<u64>,
) -> ModelAccess {
    let context_tokens = context_tokens.unwrap_or(131_072);
    let output_tokens = plan.settings.tokens_max.unwrap_or(8192);
    ModelAccess {
        base_url: format!("{base_url}/v1"),
        key: session.key().to_owned(),
        model: plan.endpoint.model.clone(),
        context_tokens,
        // The output limit has to leave room for a prompt.
        output_tokens: output_tokens.min(context_tokens / 2).max(1),
        patience_ms: 600_000,
    }
}
