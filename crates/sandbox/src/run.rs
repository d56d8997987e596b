//! Runs a command to completion, within a time limit and with bounded output.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Command, Error, ExitStatus, Output, Process, Sandbox};

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// How long to read output still in the pipes after the end; background children may hold them open forever.
const LAST_OUTPUT: Duration = Duration::from_millis(200);
/// SIGKILL works immediately unless the kernel is stuck.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How much is kept of the end of each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    pub bytes_max: usize,
}

impl Default for OutputLimit {
    fn default() -> Self {
        OutputLimit { bytes_max: 1 << 20 }
    }
}

/// The outcome of a command that ended or was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutcome {
    pub exit: ExitStatus,
    pub timed_out: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// All bytes written, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration: Duration,
}

pub async fn run(
    sandbox: &dyn Sandbox,
    command: Command,
    limit: Duration,
    output: OutputLimit,
) -> Result<CommandOutcome, Error> {
    let begun = Instant::now();
    let mut process = sandbox.spawn(command).await?;
    let mut stdout = OutputTail::new(process.stdout.take(), output);
    let mut stderr = OutputTail::new(process.stderr.take(), output);

    let in_time = drive(&mut process, &mut stdout, &mut stderr, begun + limit).await;
    let timed_out = in_time.is_none();
    let exit = match in_time {
        Some(exit) => exit?,
        None => end(&mut process, &mut stdout, &mut stderr).await?,
    };
    let _ = timeout(LAST_OUTPUT, async {
        tokio::join!(stdout.drain(), stderr.drain())
    })
    .await;
    Ok(CommandOutcome {
        exit,
        timed_out,
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
        stdout: stdout.kept.into(),
        stderr: stderr.kept.into(),
        duration: begun.elapsed(),
    })
}

/// Drains output until the process ends; `None` when the deadline comes first.
async fn drive(
    process: &mut Process,
    stdout: &mut OutputTail,
    stderr: &mut OutputTail,
    deadline: Instant,
) -> Option<Result<ExitStatus, Error>> {
    let mut wait = std::pin::pin!(process.wait());
    let ended = async {
        // When output ends before the process, keep waiting for the process.
        let mut drained = std::pin::pin!(async { tokio::join!(stdout.drain(), stderr.drain()) });
        tokio::select! {
            exit = &mut wait => exit,
            _ = &mut drained => wait.await,
        }
    };
    timeout_at(deadline, ended).await.ok()
}

/// Terminates the whole process group, then kills it.
async fn end(
    process: &mut Process,
    stdout: &mut OutputTail,
    stderr: &mut OutputTail,
) -> Result<ExitStatus, Error> {
    process.signal(libc::SIGTERM);
    let exit = drive(process, stdout, stderr, Instant::now() + GRACE).await;
    // Even if the process itself ended: others in its group may not have.
    process.signal(libc::SIGKILL);
    match exit {
        Some(exit) => exit,
        None => {
            let killed = drive(process, stdout, stderr, Instant::now() + KILL_LIMIT).await;
            killed.unwrap_or(Err(Error::Deadline {
                operation: "kill a command",
                limit: KILL_LIMIT,
            }))
        }
    }
}

/// One output stream, of which the end is kept.
struct OutputTail {
    stream: Option<Output>,
    kept: VecDeque<u8>,
    bytes_max: usize,
    total: u64,
}

impl OutputTail {
    fn new(stream: Option<Output>, limit: OutputLimit) -> OutputTail {
        OutputTail {
            stream,
            kept: VecDeque::new(),
            bytes_max: limit.bytes_max,
            total: 0,
        }
    }

    /// Reads to the end of the stream. Cancel-safe: may be dropped and called again without loss.
    async fn drain(&mut self) {
        let mut buffer = vec![0; 16 * 1024];
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => self.stream = None,
                Ok(count) => self.keep(&buffer[..count]),
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        self.kept
            .extend(&bytes[bytes.len().saturating_sub(self.bytes_max)..]);
        let excess = self.kept.len().saturating_sub(self.bytes_max);
        self.kept.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_keeps_the_end_and_counts_all() {
        let mut tail = OutputTail::new(None, OutputLimit { bytes_max: 4 });
        for part in ["a", "bc", "", "defghi", "j"] {
            tail.keep(part.as_bytes());
        }
        assert_eq!((Vec::from(tail.kept), tail.total), (b"ghij".to_vec(), 10));
    }
}
