//! The driver of an agent that is a plain command: it gets its instruction at the start and runs to its exit.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use rollcage_agents::Launch;
use rollcage_sandbox::{Command, Process, Sandbox, Stdin};

use super::driver::{Driver, Streams};
use crate::environment;
use crate::judge::{Ending, StopReason};

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
const SIGTERM: i32 = 15;

/// A command, before and after its start.
pub(crate) struct Exec {
    launch: Launch,
    env: BTreeMap<String, String>,
    process: Option<Process>,
}

impl Exec {
    /// `variables` are the task's; the agent's own override them.
    pub(crate) fn new(mut launch: Launch, variables: &BTreeMap<String, String>) -> Self {
        let mut env = environment::of_agent(variables);
        env.append(&mut launch.env);
        Exec {
            launch,
            env,
            process: None,
        }
    }
}

#[async_trait]
impl Driver for Exec {
    async fn start(&mut self, sandbox: &dyn Sandbox) -> Result<Streams, Ending> {
        let launch = std::mem::take(&mut self.launch);
        for (path, text) in launch.files {
            let written = sandbox.write_file(&path, 0o600, text.into_bytes()).await;
            written.map_err(Ending::from_setup)?;
        }
        let command = Command {
            argv: launch.argv,
            env: std::mem::take(&mut self.env),
            stdin: Stdin::Bytes(launch.stdin.into_bytes()),
            ..Command::default()
        };
        let process = self.process.insert(sandbox.spawn(command).await?);
        Ok(Streams {
            stdout: process.stdout.take(),
            stderr: process.stderr.take(),
        })
    }

    async fn over(&mut self) -> Result<StopReason, Ending> {
        match &mut self.process {
            Some(process) => Ok(StopReason::Exited(process.wait().await?)),
            None => std::future::pending().await,
        }
    }

    async fn stop(&mut self) {
        if let Some(process) = &mut self.process {
            process.signal(SIGTERM);
            // Whatever comes of it, the sandbox's processes are killed afterwards.
            let _ = tokio::time::timeout(GRACE, process.wait()).await;
        }
    }
}
