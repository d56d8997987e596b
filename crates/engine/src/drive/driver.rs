//! The interface to one kind of agent: how it is started, and asked to stop. When it has to stop and what its end means
//! is the same for all agents and is decided in `drive.rs`.

use async_trait::async_trait;

use rollcage_model::transcript::AgentEnd;
use rollcage_sandbox::{Output, Sandbox};

use crate::judge::{Ending, StopReason};

/// The output streams of a started agent.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
}

/// What an agent without an event stream of its own told.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// One event per line, in the format of the agent's command.
    pub(crate) events: String,
    pub(crate) end: AgentEnd,
    /// The agent's own name for the conversation.
    pub(crate) session: Option<String>,
}

/// One agent in one sandbox. [`super::exec`] runs a command to its exit; [`super::serve`] messages a server turn by
/// turn.
#[async_trait]
pub(crate) trait Driver: Send {
    /// Prepares the agent, and starts it if that takes no time.
    async fn start(&mut self, sandbox: &dyn Sandbox) -> Result<Streams, Ending>;

    /// Waits for the agent to be over by itself. Cancel-safe: may be dropped and called again.
    async fn over(&mut self) -> Result<StopReason, Ending>;

    /// What a limit means that was reached now.
    fn at_limit(&self, limit: StopReason) -> StopReason {
        limit
    }

    /// Asks the agent to exit and waits for a short grace period; the caller then kills what is left.
    async fn stop(&mut self);

    /// What it told, once it is dead; `None` if that is what it printed.
    fn account(&mut self) -> Option<Account> {
        None
    }
}
