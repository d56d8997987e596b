//! Where a server runs: in a sandbox, or on this machine as the same user.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollcage_sandbox::{BoxedStream, ExitStatus, Output, Sandbox};

/// A server to start. The environment is exactly `env`.
#[derive(Clone, Debug, Default)]
pub struct ServeCommand {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Empty means the place's own work directory.
    pub cwd: String,
}

/// A started server.
#[async_trait]
pub trait ServeProcess: Send {
    fn take_output(&mut self) -> (Option<Output>, Option<Output>);
    /// Waits for its exit. Cancel-safe.
    async fn wait(&mut self) -> io::Result<ExitStatus>;
    /// Asks it to end, waits for at most `grace`, then kills it with all that it started.
    async fn end(&mut self, grace: Duration) -> Option<ExitStatus>;
}

#[async_trait]
pub trait Place: Send + Sync {
    async fn spawn(&self, command: ServeCommand) -> io::Result<Box<dyn ServeProcess>>;
    async fn connect(&self, port: u16) -> io::Result<BoxedStream>;
}

/// A sandbox that somebody else owns and closes.
pub struct SandboxPlace {
    pub sandbox: Arc<Box<dyn Sandbox>>,
}

#[async_trait]
impl Place for SandboxPlace {
    async fn spawn(&self, _command: ServeCommand) -> io::Result<Box<dyn ServeProcess>> {
        let _ = &self.sandbox;
        todo!()
    }

    async fn connect(&self, _port: u16) -> io::Result<BoxedStream> {
        todo!()
    }
}

/// This machine, without any isolation.
#[derive(Debug, Default)]
pub struct HostPlace {}

#[async_trait]
impl Place for HostPlace {
    async fn spawn(&self, _command: ServeCommand) -> io::Result<Box<dyn ServeProcess>> {
        todo!()
    }

    async fn connect(&self, _port: u16) -> io::Result<BoxedStream> {
        todo!()
    }
}
