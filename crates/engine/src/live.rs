//! Live agents: servers of agents that are kept running and driven turn by turn.
//!
//! [`LiveAgents`] has all of an engine, [`LiveAgent`] is one of them, [`LiveTurn`] one of its turns. Reading order: `agents`
//! (starting, finding, stopping), `agent` (one agent's state, and how its sandbox is opened and closed), `work` (the task
//! that drives its turns one after the other), `turn`, `sandboxed` and `machine` (where the server runs, with and without
//! a sandbox), `launch` (what the server is started with), `disk` (`live/ID`).
//!
//! An agent outlives its sandbox: after a while without turns its files are saved, the sandbox is closed, and the next turn
//! starts one from what was saved. Its session on the proxy, and the record of it, live on meanwhile.

use std::path::PathBuf;

use rollcage_model::live::{PermissionPolicy, Reply};
use serde::{Deserialize, Serialize};

use crate::intake::{RequestError, RolloutRequest};
use crate::judge::Ending;
use crate::store::StoreError;

mod agent;
mod agents;
mod disk;
mod launch;
mod machine;
mod place;
mod sandboxed;
mod stored;
mod turn;
mod work;

pub use agent::LiveAgent;
pub use agents::LiveAgents;
pub use stored::stored;
pub use turn::LiveTurn;

/// Where a live agent runs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LiveSandbox {
    #[default]
    Local,
    /// On this machine as this user, with the endpoint's own address and key; never for clients of a server.
    None,
}

/// A live agent to start. Of the rollout request it uses agent, endpoint, model options, owner and labels, and of its task
/// files, setup, services, network, limits, budget and the agent's options; the instruction may be empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveRequest {
    /// As an id of earlier, to start a stopped agent again with its saved home; a new one when not given.
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub name: String,
    pub rollout: RolloutRequest,
    #[serde(default)]
    pub sandbox: LiveSandbox,
    /// The work directory of an agent without a sandbox; an empty one of its own when not given.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// How long the server may take to become healthy.
    pub deadline_s: f64,
    pub poll_s: f64,
    /// After so long without a turn the sandbox is saved and closed, until the next turn.
    pub idle_s: f64,
    /// The limit of a turn that names none.
    pub turn_timeout_s: f64,
    #[serde(default)]
    pub permissions: PermissionPolicy,
    /// More model names for the agent's configuration, besides the endpoint's.
    #[serde(default)]
    pub models: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LiveState {
    Starting,
    /// Healthy, no turn in progress.
    Idle,
    Busy,
    /// Saved and closed for lack of turns; the next turn starts it again.
    Sleeping,
    Unhealthy,
    Stopped,
    Failed,
}

impl LiveState {
    pub fn as_str(self) -> &'static str {
        match self {
            LiveState::Starting => "starting",
            LiveState::Idle => "idle",
            LiveState::Busy => "busy",
            LiveState::Sleeping => "sleeping",
            LiveState::Unhealthy => "unhealthy",
            LiveState::Stopped => "stopped",
            LiveState::Failed => "failed",
        }
    }
}

/// A live agent, as others see it. No secret is in it.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LiveView {
    /// Names it.
    pub id: String,
    /// Its owner's name for it; may be empty.
    pub name: String,
    /// Which agent it is.
    pub agent: String,
    /// The agent's version.
    pub version: String,
    /// The model that is asked.
    pub model: String,
    /// Where it runs.
    pub sandbox: LiveSandbox,
    /// What it does.
    pub state: LiveState,
    /// Our own address of its server; left out while it does not run, and where others may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Unix seconds.
    pub created_at: f64,
    /// Unix seconds; null before the first turn.
    pub last_turn_at: Option<f64>,
    /// All turns so far.
    pub turns: u64,
    /// Turns that wait or run.
    pub open_turns: usize,
    /// How often the server was started anew.
    pub restarts: u64,
    /// Model calls so far.
    pub calls: u64,
    /// Tokens of prompts so far.
    pub prompt_tokens: u64,
    /// Sampled tokens so far.
    pub completion_tokens: u64,
    /// US dollars; null where the price is not known.
    pub cost_usd: Option<f64>,
    /// What its sandbox holds now; null while it does not run.
    pub memory_bytes: Option<u64>,
    /// The latest session, which a turn without one goes on with.
    pub session_id: Option<String>,
    /// The rollout ids of its records: `rollcage show` and `export` read them.
    pub records: Vec<String>,
    /// Why it failed, or could not be started again.
    pub error: Option<String>,
    /// Whose it is; null for whoever runs the program.
    pub owner: Option<String>,
}

/// A turn to drive.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TurnInput {
    /// What to say to the agent.
    pub text: String,
    /// A session of this agent; its latest when not given.
    pub session_id: Option<String>,
    /// Start a new session.
    pub is_new_session: bool,
    /// The turn's own id when not given.
    pub trace_id: Option<String>,
    /// The turn's limit in seconds; the agent's own when not given.
    pub timeout_s: Option<f64>,
    /// What is done when the agent asks for permission; the agent's own when not given.
    pub permissions: Option<PermissionPolicy>,
    /// One of the agent's models; its first when not given.
    pub model: Option<String>,
}

/// A turn in a list.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TurnSummary {
    /// Names it.
    pub turn_id: String,
    /// The caller's name for what it belongs to.
    pub trace_id: String,
    /// The conversation; null until there is one.
    pub session_id: Option<String>,
    /// What was said to the agent.
    pub text: String,
    /// Unix seconds.
    pub started_at: f64,
    /// Unix seconds; null while it is open.
    pub finished_at: Option<f64>,
    /// The terminal reply; null while the turn is open.
    pub end: Option<Reply>,
}

#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("no live agent `{0}`")]
    Unknown(String),
    #[error("no turn `{0}`")]
    UnknownTurn(String),
    #[error("{0}")]
    Request(String),
    #[error(transparent)]
    Resolve(#[from] RequestError),
    #[error("{agent} cannot be kept running as a server; these can: {able}")]
    NoServer { agent: String, able: String },
    /// Setup, sandbox, endpoint or server failed.
    #[error("{0}")]
    Start(String),
    #[error("the agent's server was not healthy within {0} s")]
    Timeout(f64),
    #[error("{0} turns wait for this agent already")]
    Full(usize),
    #[error("{0} live agents are the most that this caller may have")]
    Quota(usize),
    #[error("the live agent is stopped: start it again")]
    Stopped,
    #[error("`--sandbox none` is only for whoever runs the program")]
    NoSandbox,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    File(String),
}

impl From<Ending> for LiveError {
    fn from(ending: Ending) -> Self {
        let unknown = || "the live agent could not be started".to_owned();
        LiveError::Start(ending.error.unwrap_or_else(unknown))
    }
}

#[cfg(test)]
mod tests;
