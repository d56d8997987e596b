//! The interface to one kind of agent: how it is started, messaged, and asked to stop. When it has to stop and what its
//! end means is the same for all agents and is decided in `drive.rs`.

use async_trait::async_trait;

use rollcage_sandbox::{ExitStatus, Output, Sandbox};

use crate::judge::Ending;

/// The output streams of a started agent.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
}

/// One agent in one sandbox. [`super::exec`] runs a command to its exit; a driver for an agent that runs as a server
/// and is messaged turn by turn would be another implementation.
#[async_trait]
pub(crate) trait Driver: Send {
    /// Starts the agent.
    async fn start(&mut self, sandbox: &dyn Sandbox) -> Result<Streams, Ending>;

    /// Waits for the agent to exit by itself. Cancel-safe: may be dropped and called again.
    async fn exited(&mut self) -> Result<ExitStatus, Ending>;

    /// Asks the agent to exit and waits for a short grace period. `None` when it did not exit; the caller then kills
    /// it.
    async fn stop(&mut self) -> Option<ExitStatus>;

    /// Whether the agent accepts messages while it runs.
    fn takes_messages(&self) -> bool {
        false
    }

    /// Sends a message to the running agent. Called only if [`Driver::takes_messages`].
    async fn message(&mut self, _text: String) -> Result<(), Ending> {
        Ok(())
    }
}
