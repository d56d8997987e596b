//! Live agents: servers of agents that are kept running and driven turn by turn.

use std::sync::Arc;

use rollcage_model::live::{Answer, PermissionPolicy, Reply};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::intake::{RequestError, RolloutRequest};
use crate::store::StoreError;

/// Where a live agent runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A live agent, as others see it. No secret is in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveView {
    pub id: String,
    pub name: String,
    pub agent: String,
    pub version: String,
    pub model: String,
    pub sandbox: LiveSandbox,
    pub state: LiveState,
    /// Our own address of its server; null while it does not run.
    pub base_url: Option<String>,
    pub created_at: f64,
    pub last_turn_at: Option<f64>,
    pub turns: u64,
    /// Turns that wait or run.
    pub open_turns: usize,
    /// How often the server was started anew.
    pub restarts: u64,
    pub calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cost_usd: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// The latest session, which a turn without one goes on with.
    pub session_id: Option<String>,
    /// The rollout ids of its records: `rollcage show` and `export` read them.
    pub records: Vec<String>,
    pub error: Option<String>,
    pub owner: Option<String>,
}

/// A turn to drive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TurnInput {
    pub text: String,
    /// A session of this agent; its latest when not given.
    pub session_id: Option<String>,
    /// Start a new session.
    pub is_new_session: bool,
    /// The turn's own id when not given.
    pub trace_id: Option<String>,
    pub timeout_s: Option<f64>,
    pub permissions: Option<PermissionPolicy>,
    pub model: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnSummary {
    pub turn_id: String,
    pub trace_id: String,
    pub session_id: Option<String>,
    pub text: String,
    pub started_at: f64,
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

/// All live agents of an engine. `owner` is as for rollouts.
#[derive(Default)]
pub struct LiveAgents {}

impl LiveAgents {
    /// Starts an agent and waits until it is healthy. A failure leaves no process.
    pub async fn start(&self, _request: LiveRequest) -> Result<Arc<LiveAgent>, LiveError> {
        todo!()
    }

    /// Starts a stopped agent with the request that is stored of it; nothing is done if it runs.
    pub async fn start_again(&self, _owner: &str, _id: &str) -> Result<Arc<LiveAgent>, LiveError> {
        todo!()
    }

    pub fn list(&self, _owner: &str) -> Vec<LiveView> {
        todo!()
    }

    /// Also agents that are stopped, whose turns can be read.
    pub fn find(&self, _owner: &str, _id: &str) -> Result<Arc<LiveAgent>, LiveError> {
        todo!()
    }

    /// Aborts its turns, saves its files, ends its processes.
    pub async fn stop(&self, _owner: &str, _id: &str) -> Result<LiveView, LiveError> {
        todo!()
    }

    /// Removes a stopped agent with its files and turns; its records stay.
    pub async fn remove(&self, _owner: &str, _id: &str) -> Result<(), LiveError> {
        todo!()
    }

    /// Stops all of them.
    pub async fn shut_down(&self) {
        todo!()
    }
}

/// Every agent of a home, read from disk without an engine. Where no process holds it, its state is stopped and its open
/// turns have ended as interrupted.
pub fn stored(_home: &std::path::Path) -> Vec<LiveView> {
    todo!()
}

/// One live agent.
pub struct LiveAgent {}

impl LiveAgent {
    pub fn id(&self) -> &str {
        todo!()
    }

    pub fn view(&self) -> LiveView {
        todo!()
    }

    /// User and password for [`LiveView::base_url`]; only for its owner.
    pub fn credentials(&self) -> rollcage_live::Credentials {
        todo!()
    }

    pub async fn ensure_running(&self) -> Result<(), LiveError> {
        todo!()
    }

    pub async fn health(&self) -> rollcage_live::Health {
        todo!()
    }

    /// Queues a turn; it runs after those before it.
    pub fn turn(&self, _input: TurnInput) -> Result<Arc<LiveTurn>, LiveError> {
        todo!()
    }

    /// An open turn, or one of the latest.
    pub fn find_turn(&self, _turn_id: &str) -> Option<Arc<LiveTurn>> {
        todo!()
    }

    /// The newest first, from disk.
    pub async fn turns(
        &self,
        _offset: usize,
        _limit: usize,
    ) -> Result<Vec<TurnSummary>, LiveError> {
        todo!()
    }

    /// All replies of a turn that ended, from disk.
    pub async fn stored_replies(&self, _turn_id: &str) -> Result<Vec<Reply>, LiveError> {
        todo!()
    }

    /// OpenCode's own transcript of a session.
    pub async fn messages(&self, _session_id: &str) -> Result<Vec<Value>, LiveError> {
        todo!()
    }

    /// The end of its log, at most so many bytes.
    pub async fn log(&self, _bytes_max: usize) -> Result<String, LiveError> {
        todo!()
    }

    pub async fn list_files(&self) -> Result<Vec<rollcage_sandbox::DirectoryEntry>, LiveError> {
        todo!()
    }

    pub async fn read_file(&self, _path: &str) -> Result<Vec<u8>, LiveError> {
        todo!()
    }

    pub async fn write_file(&self, _path: &str, _content: Vec<u8>) -> Result<(), LiveError> {
        todo!()
    }
}

/// A turn that waits, runs, or has just ended.
pub struct LiveTurn {}

impl LiveTurn {
    pub fn id(&self) -> &str {
        todo!()
    }

    /// The replies above this number.
    pub fn after(&self, _seq: u64) -> Vec<Reply> {
        todo!()
    }

    /// Returns as soon as there is a reply above this number, or the turn has ended.
    pub async fn wait_after(&self, _seq: u64) {
        todo!()
    }

    pub fn is_ended(&self) -> bool {
        todo!()
    }

    pub fn abort(&self) {
        todo!()
    }

    /// Answers a permission request or a question; false if nobody asks by that id.
    pub fn answer(&self, _id: &str, _answer: Answer) -> bool {
        todo!()
    }
}
