//! Runs a command to its end, within a time limit and with bounded output.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Command, Error, ExitStatus, Output, Process, Sandbox};

/// Between asking the processes to end and ending them.
const GRACE: Duration = Duration::from_secs(2);
/// For what is still in the pipes after the end; children in the background may hold them open for ever.
const LAST_OUTPUT: Duration = Duration::from_millis(200);
/// SIGKILL works at once unless the kernel is stuck.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How much of each stream is kept; always the end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    pub bytes_max: usize,
}

impl Default for OutputLimit {
    fn default() -> Self {
        OutputLimit { bytes_max: 1 << 20 }
    }
}

/// A command that ended, or was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub exit: ExitStatus,
    pub timed_out: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// All that was written, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub duration: Duration,
}

pub async fn run(
    sandbox: &dyn Sandbox,
    command: Command,
    limit: Duration,
    output: OutputLimit,
) -> Result<Finished, Error> {
    let begun = Instant::now();
    let mut process = sandbox.spawn(command).await?;
    let mut stdout = Tail::new(process.stdout.take(), output);
    let mut stderr = Tail::new(process.stderr.take(), output);

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
    Ok(Finished {
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
    stdout: &mut Tail,
    stderr: &mut Tail,
    deadline: Instant,
) -> Option<Result<ExitStatus, Error>> {
    let mut wait = std::pin::pin!(process.wait());
    let ended = async {
        // Output that ends before the process must not make this loop spin.
        let mut drained = std::pin::pin!(async { tokio::join!(stdout.drain(), stderr.drain()) });
        tokio::select! {
            exit = &mut wait => exit,
            _ = &mut drained => wait.await,
        }
    };
    timeout_at(deadline, ended).await.ok()
}

/// Asks the whole process group to end, then ends it.
async fn end(
    process: &mut Process,
    stdout: &mut Tail,
    stderr: &mut Tail,
) -> Result<ExitStatus, Error> {
    process.signal(libc::SIGTERM);
    let exit = drive(process, stdout, stderr, Instant::now() + GRACE).await;
    // Also when the process itself obeyed: others of its group may not have.
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
struct Tail {
    stream: Option<Output>,
    kept: VecDeque<u8>,
    bytes_max: usize,
    total: u64,
}

impl Tail {
    fn new(stream: Option<Output>, limit: OutputLimit) -> Tail {
        Tail {
            stream,
            kept: VecDeque::new(),
            bytes_max: limit.bytes_max,
            total: 0,
        }
    }

    /// Reads to the end of the stream. May be dropped and called again without loss.
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
        let mut tail = Tail::new(None, OutputLimit { bytes_max: 4 });
        for part in ["a", "bc", "", "defghi", "j"] {
            tail.keep(part.as_bytes());
        }
        assert_eq!((Vec::from(tail.kept), tail.total), (b"ghij".to_vec(), 10));
    }
}
