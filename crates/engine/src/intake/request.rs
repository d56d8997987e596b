//! A request for a rollout: plain data that can be serialised, without any secret in it. It belongs to the engine and
//! not to `rollcage_model`, because its handles to keys hold the proxy's type for secrets.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use rollcage_dialect::EndpointDialect;
use rollcage_model::task::mcp::McpServers;
use rollcage_model::task::{MAX_TOKENS_CAP, TOP_LOGPROBS, Task};
use rollcage_proxy::secret::Secret;

use super::sealed::Sealed;
use crate::mount::HostMount;
use crate::upload::Upload;

/// The default agent.
const AGENT: &str = "opencode";

/// A request for rollouts. [`super::resolve()`] fills in what is not given.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// The header values of its MCP servers are masked; the originals are in `mcp`.
    pub task: Task,
    /// The content of `task.upload`, and files of clients that are no text, by path in the sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uploads: BTreeMap<String, Upload>,
    /// What the sandbox shows of this machine; only for [`RequestOrigin::Operator`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<HostMount>,
    /// `NAME` or `NAME@VERSION`.
    pub agent: String,
    #[serde(default)]
    pub endpoint: EndpointOptions,
    #[serde(default)]
    pub options: ModelOptions,
    #[serde(default)]
    pub origin: RequestOrigin,
    /// The task's MCP servers with their header values.
    #[serde(default = "nothing_sealed")]
    pub mcp: Sealed<McpServers>,
    /// The owner; `None` for a rollout made on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Shared by rollouts that belong together. Each submission gets a new one if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Stored with the result, to find it by later.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Who made a request, which decides what it may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOrigin {
    /// The operator of this process.
    #[default]
    Operator,
    /// A client of the server. Our own keys are not sent to URLs that it names, and those URLs may be guarded.
    Client {
        /// The names of the MCP servers that it added to the task.
        mcp: BTreeSet<String>,
        /// Whether the task is one of the operator's, which the client changed nothing of. Then its network is the operator's,
        /// too, as long as a model of the operator's drives it.
        is_unchanged: bool,
    },
}

/// The parts of the endpoint that the request specifies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointOptions {
    /// The endpoint's name, as shown by `rollcage endpoint list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_thinking_disabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<EndpointDialect>,
}

/// Where an API key comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// An environment variable of this process.
    Variable(String),
    /// A value in memory.
    Sealed(Sealed<Secret>),
}

impl KeySource {
    pub fn new(secret: Secret) -> Self {
        KeySource::Sealed(Sealed::new(secret))
    }
}

/// Options of model calls that are not part of the task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// The most output tokens that an agent may request in one call; zero and below mean no cap.
    pub max_tokens_cap: i64,
    /// Alternatives per token.
    pub top_logprobs: u32,
    /// Makes it a training session, which samples with exactly this temperature.
    pub temperature: Option<f64>,
    /// `auto` or `agent`.
    pub sampling: Option<String>,
    /// `refuse`, `remove` or `keep`.
    pub constrained: Option<String>,
    /// How long calls wait for an endpoint that is down; by default as the process is configured.
    pub upstream_patience_s: Option<f64>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            max_tokens_cap: MAX_TOKENS_CAP,
            top_logprobs: TOP_LOGPROBS,
            temperature: None,
            sampling: None,
            constrained: None,
            upstream_patience_s: None,
        }
    }
}

impl RolloutRequest {
    /// The task with defaults for everything else. Values that may be secret are moved out of the task.
    pub fn new(mut task: Task) -> Self {
        let mcp = Sealed::new(task.mcp.clone());
        for server in task.mcp.values_mut() {
            server.mask();
        }
        RolloutRequest {
            task,
            uploads: BTreeMap::new(),
            mounts: Vec::new(),
            agent: AGENT.to_owned(),
            endpoint: EndpointOptions::default(),
            options: ModelOptions::default(),
            origin: RequestOrigin::Operator,
            mcp,
            owner: None,
            group: None,
            labels: BTreeMap::new(),
        }
    }

    /// The task's MCP servers with their headers. In a deserialised request only headers that refer to variables are
    /// left.
    pub(super) fn mcp_servers(&self) -> McpServers {
        let given = self.mcp.get();
        given.unwrap_or(&self.task.mcp).clone()
    }

    /// Whether header values were lost when the request was serialised.
    pub(super) fn has_lost_headers(&self) -> bool {
        let mut servers = self.task.mcp.values();
        let masked = |server: &rollcage_model::task::mcp::McpServer| {
            let mut values = server.headers.values();
            values.any(|value| !value.contains("${"))
        };
        self.mcp.get().is_none() && servers.any(masked)
    }
}

fn nothing_sealed() -> Sealed<McpServers> {
    Sealed::new(McpServers::default())
}
