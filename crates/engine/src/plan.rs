//! The plan of one rollout: everything known before its sandbox starts.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcage_agents::{Agent, ReadyAgent};
use rollcage_model::task::Task;
use rollcage_model::transcript::McpNames;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::remote::RemoteMcpServers;

use crate::mount::HostMount;
use crate::network::PhaseRules;
use crate::upload::Upload;

/// A rollout whose agent is installed and whose endpoint is known.
pub(crate) struct Plan {
    pub(crate) task: Task,
    /// The content of `task.upload`, by path in the sandbox.
    pub(crate) uploads: Arc<BTreeMap<String, Upload>>,
    /// What the sandbox shows of this machine.
    pub(crate) mounts: Vec<HostMount>,
    pub(crate) agent: Arc<dyn Agent>,
    pub(crate) ready: ReadyAgent,
    pub(crate) endpoint: Endpoint,
    pub(crate) settings: ModelSettings,
    /// The task's MCP servers outside the sandbox.
    pub(crate) mcp: RemoteMcpServers,
    /// What the task's phases may reach.
    pub(crate) network: PhaseRules,
    /// Whose rollout it is; `None` for one made on this machine.
    pub(crate) owner: Option<String>,
}

impl Plan {
    /// Whether files, setup commands or services may have written to the work directory before the agent.
    pub(crate) fn changes_workdir(&self) -> bool {
        let task = &self.task;
        let has_files = !task.files.is_empty() || !self.uploads.is_empty();
        has_files || !task.setup.is_empty() || !task.services.is_empty()
    }

    /// How the agent names the tools of the task's MCP servers.
    pub(crate) fn mcp_names(&self) -> Option<McpNames> {
        let pattern = self
            .agent
            .mcp_tool()
            .filter(|_| !self.task.mcp.is_empty())?;
        Some(McpNames::new(pattern, self.task.mcp.keys()))
    }
}
