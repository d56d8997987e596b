//! Where a server runs: in a sandbox, or on this machine as the same user.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use rollcage_sandbox::{BoxedStream, ExitStatus, Output};

mod host;
mod sandboxed;
mod tree;

pub use host::HostPlace;
pub use sandboxed::{Company, SandboxPlace};
pub use tree::ProcessIdentity;

/// A variable with a value of its own for every server. What the server starts inherits it, and is found by it even after it
/// left the server's session and lost its parent.
pub const MARK: &str = "ROLLCAGE_LIVE_SERVER";

/// A server to start. The environment is exactly `env` and a mark.
#[derive(Clone, Debug, Default)]
pub struct ServeCommand {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Empty means the place's own work directory.
    pub cwd: String,
}

/// A started server. Dropping it kills it.
#[async_trait]
pub trait ServeProcess: Send {
    fn take_output(&mut self) -> (Option<Output>, Option<Output>);
    /// What [`HostPlace::adopt`] needs after our own restart, where that is possible.
    fn identity(&self) -> Option<ProcessIdentity>;
    /// Waits for its exit; an error means that it has ended, but nobody knows how. Cancel-safe.
    async fn wait(&mut self) -> io::Result<ExitStatus>;
    /// Asks it to end, waits for at most `grace`, then kills it with all that it started. After its exit it kills what it
    /// left.
    async fn end(&mut self, grace: Duration) -> Option<ExitStatus>;
}

#[async_trait]
pub trait Place: Send + Sync {
    /// A port that probably nobody listens on; `attempt` counts from 0, after ports that turned out to be taken.
    fn free_port(&self, attempt: u32) -> io::Result<u16>;
    async fn spawn(&self, command: ServeCommand) -> io::Result<Box<dyn ServeProcess>>;
    async fn connect(&self, port: u16) -> io::Result<BoxedStream>;
}

fn new_mark() -> io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

#[cfg(test)]
mod tests;
