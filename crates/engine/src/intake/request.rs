//! A rollout as somebody asks for it: plain data that can be written down, without a secret in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use rollcage_dialect::EndpointDialect;
use rollcage_model::task::mcp::McpServers;
use rollcage_model::task::{MAX_TOKENS_CAP, TOP_LOGPROBS, Task};
use rollcage_proxy::secret::Secret;

use super::sealed::Sealed;

/// The agent of whoever names none.
const AGENT: &str = "opencode";

/// What is asked for. [`super::resolve()`] finds out what is not said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// Its MCP servers have no header values: those are in `mcp`.
    pub task: Task,
    /// The content of `task.upload`, by path inside.
    #[serde(default, with = "contents", skip_serializing_if = "BTreeMap::is_empty")]
    pub uploads: BTreeMap<String, Vec<u8>>,
    /// `NAME` or `NAME@VERSION`.
    pub agent: String,
    #[serde(default)]
    pub endpoint: EndpointWish,
    #[serde(default)]
    pub options: ModelOptions,
    #[serde(default)]
    pub origin: Origin,
    /// The task's MCP servers as they were given.
    #[serde(default = "nothing_sealed")]
    pub mcp: Sealed<McpServers>,
    /// Whose rollout it is; nobody's own where it is made on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The same for rollouts that belong together. Those of one submission get one of their own where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kept with the result, for whoever looks for it later.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Who named what is in a request, and so what it may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Whoever runs the program.
    #[default]
    Operator,
    /// A client of a server. Our own keys do not go to URLs that it names, and what it names may be guarded.
    Client {
        /// The MCP servers that it added to the task.
        mcp: BTreeSet<String>,
        /// Whether the task's network is the operator's, as that of a task which the server lists.
        has_own_network: bool,
    },
}

/// The endpoint as far as it is said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointWish {
    /// By name, as `rollcage endpoint list` shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_thinking_disabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<EndpointDialect>,
}

/// Where an API key is to be found.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// In an environment variable of this process.
    Variable(String),
    /// In memory.
    Sealed(Sealed<Secret>),
}

impl Key {
    pub fn new(secret: Secret) -> Self {
        Key::Sealed(Sealed::new(secret))
    }
}

/// How the model is asked, where it is not the task that says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// What an agent may ask for in one call; zero and less are no cap.
    pub max_tokens_cap: i64,
    /// Alternatives per token.
    pub top_logprobs: u32,
    /// A training session: this and nothing else.
    pub temperature: Option<f64>,
    /// `auto` or `agent`.
    pub sampling: Option<String>,
    /// `refuse`, `remove` or `keep`.
    pub constrained: Option<String>,
    /// For an endpoint that is out of order; the process' own where it is not given.
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
    /// The task with everything else left to its default. What may be a secret leaves the task here.
    pub fn new(mut task: Task) -> Self {
        let mcp = Sealed::new(task.mcp.clone());
        for server in task.mcp.values_mut() {
            server.mask();
        }
        RolloutRequest {
            task,
            uploads: BTreeMap::new(),
            agent: AGENT.to_owned(),
            endpoint: EndpointWish::default(),
            options: ModelOptions::default(),
            origin: Origin::Operator,
            mcp,
            owner: None,
            group: None,
            labels: BTreeMap::new(),
        }
    }

    /// The task's MCP servers with their headers. One that was read back has only those that name variables.
    pub(super) fn mcp_servers(&self) -> McpServers {
        let given = self.mcp.get();
        given.unwrap_or(&self.task.mcp).clone()
    }

    /// Whether header values were lost when the request was written down.
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

/// Bytes as base64.
mod contents {
    use std::collections::BTreeMap;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        contents: &BTreeMap<String, Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let encoded = contents.iter();
        let encoded = encoded.map(|(path, content)| (path, BASE64_STANDARD.encode(content)));
        encoded.collect::<BTreeMap<_, _>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Vec<u8>>, D::Error> {
        let encoded = BTreeMap::<String, String>::deserialize(deserializer)?;
        let decoded = encoded.into_iter().map(|(path, text)| {
            let content = BASE64_STANDARD.decode(text).map_err(D::Error::custom)?;
            Ok((path, content))
        });
        decoded.collect()
    }
}
