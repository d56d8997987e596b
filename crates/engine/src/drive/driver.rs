//! How an agent is driven: started, spoken to, and asked to end. When it has to end and what its end means is the same for
//! all and stands in `drive.rs`.

use async_trait::async_trait;

use rollcage_sandbox::{ExitStatus, Output, Sandbox};

use crate::judge::Ending;

/// What an agent prints, from its start on.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
}

/// One agent in one sandbox. A command that runs to its exit is one way ([`super::exec`]); an agent that is served and
/// spoken to turn by turn is another.
#[async_trait]
pub(crate) trait Driver: Send {
    /// Starts the agent.
    async fn start(&mut self, sandbox: &dyn Sandbox) -> Result<Streams, Ending>;

    /// Returns when the agent is over by itself. May be dropped and called again.
    async fn over(&mut self) -> Result<ExitStatus, Ending>;

    /// Asks the agent to end and gives it a little time for it. `None` when it did not; it is killed then.
    async fn stop(&mut self) -> Option<ExitStatus>;

    /// Whether the agent can be told something while it runs.
    fn takes_messages(&self) -> bool {
        false
    }

    /// Tells the running agent something. Called only where messages are taken.
    async fn message(&mut self, _text: String) -> Result<(), Ending> {
        Ok(())
    }
}
