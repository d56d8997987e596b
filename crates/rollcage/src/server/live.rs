//! The live agents of a server: the layer below both the API and the tools. Requests in ([`read`]), views out.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use rollcage_engine::intake::{RequestOrigin, RolloutRequest};
use rollcage_engine::live::{LiveAgent, LiveError, LiveRequest, LiveSandbox, LiveView};
use rollcage_model::live::{PermissionPolicy, Reply};

use super::rollouts::Backend;
use super::rollouts::arguments::{ArgumentError, ToolArguments};
use super::rollouts::context::RequestContext;
use super::rollouts::request::{self, NAMES};

mod follow;
mod schema;

pub(crate) use follow::ReplyFollower;
pub(crate) use schema::{start_schema, turn_schema};

/// How long the agent's server may take to become healthy.
pub(crate) const DEADLINE_S: f64 = 60.0;
/// Between two looks at a server that starts.
pub(crate) const POLL_S: f64 = 0.25;
/// Without a turn for so long, an agent is saved and put to sleep.
pub(crate) const IDLE_S: f64 = 900.0;
/// The limit of a turn that names none.
pub(crate) const TURN_TIMEOUT_S: f64 = 600.0;
/// No limit is longer than a week.
pub(crate) const SECONDS_MAX: f64 = 604_800.0;
const SECONDS_MIN: f64 = 0.01;
const NAME_CHARS_MAX: usize = 100;

/// Arguments of a rollout that mean nothing for an agent that is talked to.
const NOT_OF_LIVE: &[&str] = &[
    "instruction",
    "verify",
    "verify_services",
    "test_script",
    "artifacts",
    "patch",
    "reward",
    "reward_range",
    "tests",
    "verify_trust",
    "agent_timeout_s",
    "driver",
    "n",
    "group",
    "template",
];

/// Arguments that a live agent has beside those of a rollout.
pub(crate) const OWN_NAMES: &[&str] = &[
    "id",
    "name",
    "models",
    "permissions",
    "deadline_s",
    "poll_s",
    "idle_s",
    "turn_timeout_s",
];

/// Every argument of `POST /v1/live` and `live_start`.
pub(crate) fn names() -> Vec<&'static str> {
    let of_rollouts = NAMES.iter().filter(|name| !NOT_OF_LIVE.contains(name));
    OWN_NAMES.iter().chain(of_rollouts).copied().collect()
}

/// Parses the arguments of a client; nothing is started.
pub(crate) fn read(
    tool: &str,
    values: Map<String, Value>,
    context: &RequestContext,
) -> Result<LiveRequest, ArgumentError> {
    let mut given = ToolArguments::new(tool, values, &names())?;
    let sandbox = match given.text("sandbox")?.as_deref() {
        None | Some("local") => LiveSandbox::Local,
        Some("none") => return Err(LiveError::NoSandbox.to_string()),
        Some(other) => return Err(format!("unknown sandbox `{other}`: there is local")),
    };
    let seconds = |given: &mut ToolArguments, name: &str, default: f64| {
        let value = given.number(name)?.unwrap_or(default);
        match (SECONDS_MIN..=SECONDS_MAX).contains(&value) {
            true => Ok(value),
            false => Err(format!(
                "argument `{name}` must be a number of seconds between {SECONDS_MIN} and {SECONDS_MAX}"
            )),
        }
    };
    let name = given.text("name")?.unwrap_or_default();
    check_name(&name)?;
    Ok(LiveRequest {
        id: given.text("id")?,
        name,
        sandbox,
        directory: None,
        deadline_s: seconds(&mut given, "deadline_s", DEADLINE_S)?,
        poll_s: seconds(&mut given, "poll_s", POLL_S)?,
        idle_s: seconds(&mut given, "idle_s", IDLE_S)?,
        turn_timeout_s: seconds(&mut given, "turn_timeout_s", TURN_TIMEOUT_S)?,
        permissions: given
            .parsed::<PermissionPolicy>("permissions")?
            .unwrap_or_default(),
        models: given.texts("models")?.unwrap_or_default(),
        rollout: read_rollout(tool, &mut given, context)?,
    })
}

/// Whoever starts an agent talks to it, so that it is not the operator's task that decides what it does.
fn read_rollout(
    tool: &str,
    given: &mut ToolArguments,
    context: &RequestContext,
) -> Result<RolloutRequest, ArgumentError> {
    let mut request = request::read_given(tool, given, context)?.request;
    if let RequestOrigin::Client { is_unchanged, .. } = &mut request.origin {
        *is_unchanged &= context.catalogue.network.client_rights.may_drive;
    }
    Ok(request)
}

/// A name stands in tables and messages, and may be used in place of an id.
pub(crate) fn check_name(name: &str) -> Result<(), ArgumentError> {
    let is_plain = |letter: char| !letter.is_control();
    if name.chars().count() <= NAME_CHARS_MAX && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(format!(
        "a live agent's name has at most {NAME_CHARS_MAX} characters, none of them a control character"
    ))
}

impl Backend {
    /// Reads a client's arguments and starts an agent for it.
    pub(crate) async fn start_live(
        self: &Arc<Self>,
        tool: &'static str,
        owner: &str,
        values: Map<String, Value>,
    ) -> Result<Arc<LiveAgent>, LiveError> {
        let this = Arc::clone(self);
        // Blocking, since the server's own tasks are read from disk.
        let read = tokio::task::spawn_blocking(move || read(tool, values, &this.context)).await;
        let read = read.map_err(|error| LiveError::Request(format!("read the arguments: {error}")));
        let mut request = read?.map_err(LiveError::Request)?;
        request.rollout.owner = Some(owner.to_owned());
        let started = self.engine.live().start(request).await;
        started.map_err(|error| match error {
            LiveError::Resolve(error) => LiveError::Request(request::explain(error)),
            error => error,
        })
    }
}

/// A live agent.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LiveAgentView {
    #[serde(flatten)]
    view: LiveView,
    /// For its `base_url`, which is there only where the agent was asked for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    /// As `username`.
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
}

/// An agent as its owner sees it, with the password of its `base_url`.
pub(crate) fn owner_view(agent: &LiveAgent) -> LiveAgentView {
    let view = agent.view();
    if view.base_url.is_none() {
        return public_view(view);
    }
    let credentials = agent.credentials();
    LiveAgentView {
        view,
        username: Some(credentials.username.clone()),
        password: Some(credentials.password.clone()),
    }
}

/// An agent as lists have it: without its address.
pub(crate) fn public_view(view: LiveView) -> LiveAgentView {
    LiveAgentView {
        view: LiveView {
            base_url: None,
            ..view
        },
        username: None,
        password: None,
    }
}

/// All replies of a turn up to its end, or those that came within the limit.
pub(crate) async fn replies_within(mut follower: ReplyFollower, limit: Duration) -> Vec<Reply> {
    let mut replies = Vec::new();
    let reading = async {
        while let Some(reply) = follower.next().await {
            replies.push(reply);
        }
    };
    // What came before the limit is the answer.
    let _ = tokio::time::timeout(limit, reading).await;
    replies
}

#[cfg(test)]
mod tests;
