//! A sandbox as a place.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollcage_sandbox::{
    BoxedStream, Command, Error, ExitStatus, Output, OutputLimit, Process, Sandbox, run,
};

use super::{MARK, Place, ProcessIdentity, ServeCommand, ServeProcess, new_mark};

/// OpenCode's usual one: each sandbox has ports of its own.
const PORT: u16 = 4096;
/// Where services seldom listen.
const OTHER_PORTS: std::ops::Range<u16> = 20_000..30_000;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
/// SIGKILL works at once unless the kernel is stuck.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Kills all that has the mark `$1` in its environment, until there is nothing left. A zombie's environment is empty.
const KILL_MARKED: &str = r#"
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
  found=$(grep -lzxF -- "$1" /proc/[0-9]*/environ 2>/dev/null)
  test -n "$found" || exit 0
  for file in $found; do
    process=${file#/proc/}
    kill -KILL "${process%/environ}" 2>/dev/null
  done
done
exit 1
"#;

/// What else runs in a server's sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Nothing: at the server's end all processes are killed.
    Alone,
    /// Services, which stay: only what the server started is killed.
    Services,
}

/// A sandbox that somebody else owns and closes.
pub struct SandboxPlace {
    pub sandbox: Arc<Box<dyn Sandbox>>,
    pub company: Company,
}

#[async_trait]
impl Place for SandboxPlace {
    fn free_port(&self, attempt: u32) -> io::Result<u16> {
        if attempt == 0 {
            return Ok(PORT);
        }
        let mut random = [0; 2];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let length = OTHER_PORTS.end - OTHER_PORTS.start;
        Ok(OTHER_PORTS.start + u16::from_ne_bytes(random) % length)
    }

    async fn spawn(&self, command: ServeCommand) -> io::Result<Box<dyn ServeProcess>> {
        let mark = new_mark()?;
        let mut env = command.env;
        env.insert(MARK.to_owned(), mark.clone());
        let command = Command {
            argv: command.argv,
            env,
            cwd: command.cwd,
            ..Command::default()
        };
        let process = self.sandbox.spawn(command).await.map_err(to_io)?;
        Ok(Box::new(SandboxProcess {
            sandbox: Arc::clone(&self.sandbox),
            company: self.company,
            process,
            mark,
            is_over: false,
        }))
    }

    async fn connect(&self, port: u16) -> io::Result<BoxedStream> {
        self.sandbox.connect(port).await.map_err(to_io)
    }
}

/// With the kind of its cause, so that a refused connection can be told from a slow one.
fn to_io(error: Error) -> io::Error {
    let kind = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .map_or(io::ErrorKind::Other, io::Error::kind);
    io::Error::new(kind, error)
}

struct SandboxProcess {
    sandbox: Arc<Box<dyn Sandbox>>,
    company: Company,
    process: Process,
    mark: String,
    /// Nothing of it is left.
    is_over: bool,
}

#[async_trait]
impl ServeProcess for SandboxProcess {
    fn take_output(&mut self) -> (Option<Output>, Option<Output>) {
        (self.process.stdout.take(), self.process.stderr.take())
    }

    fn identity(&self) -> Option<ProcessIdentity> {
        None
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await.map_err(to_io)
    }

    async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        // A stopped process ends too.
        self.process.signal(SIGTERM);
        self.process.signal(SIGCONT);
        let _ = tokio::time::timeout(grace, self.process.wait()).await;
        self.process.signal(SIGKILL);
        let end = tokio::time::timeout(KILL_LIMIT, self.process.wait()).await;
        if let Err(error) = self.kill_left().await {
            // A sandbox that is gone has no processes.
            tracing::warn!(%error, "kill what an agent's server left in its sandbox");
        }
        self.is_over = true;
        end.ok()?.ok()
    }
}

impl SandboxProcess {
    async fn kill_left(&mut self) -> Result<(), Error> {
        let sandbox = &**self.sandbox;
        match self.company {
            Company::Alone => sandbox.kill_all().await.map(drop),
            Company::Services => {
                let mark = format!("{MARK}={}", self.mark);
                let argv = ["/bin/sh", "-c", KILL_MARKED, "sh", &mark];
                let command = Command {
                    argv: argv.map(str::to_owned).to_vec(),
                    env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
                    cwd: "/".to_owned(),
                    ..Command::default()
                };
                let outcome = run(sandbox, command, KILL_LIMIT, OutputLimit::default()).await?;
                if !outcome.exit.success() {
                    tracing::warn!("an agent's server left processes in its sandbox");
                }
                Ok(())
            }
        }
    }
}

impl Drop for SandboxProcess {
    fn drop(&mut self) {
        if !self.is_over {
            self.process.signal(SIGKILL);
        }
    }
}
