//! A process running in a sandbox, as seen from the host.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::Error;

/// How a process ended. Exactly one of the fields is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl ExitStatus {
    pub fn success(self) -> bool {
        self.code == Some(0)
    }
}

/// The writing end of a process's standard input.
pub type Input = Box<dyn AsyncWrite + Send + Unpin>;
/// The reading end of a process's output stream.
pub type Output = Box<dyn AsyncRead + Send + Unpin>;

type Exit = Pin<Box<dyn Future<Output = Result<ExitStatus, Error>> + Send + Sync>>;
type Signal = Box<dyn Fn(i32) + Send + Sync>;

/// A running process. Dropping it leaves the process running; the sandbox owns it.
pub struct Process {
    /// Only for [`crate::Stdin::Piped`].
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    exit: State,
    signal: Signal,
}

enum State {
    Running(Exit),
    Ended(ExitStatus),
    /// Its exit status is unknown: the sandbox died first.
    Lost {
        id: String,
    },
}

impl Process {
    /// For backends: `exit` resolves when the process ends, `signal` signals its process group.
    pub fn new(
        exit: impl Future<Output = Result<ExitStatus, Error>> + Send + Sync + 'static,
        signal: impl Fn(i32) + Send + Sync + 'static,
    ) -> Process {
        Process {
            stdin: None,
            stdout: None,
            stderr: None,
            exit: State::Running(Box::pin(exit)),
            signal: Box::new(signal),
        }
    }

    /// Waits for the process to end. Cancel-safe: may be dropped and called again, also after the end.
    pub async fn wait(&mut self) -> Result<ExitStatus, Error> {
        let end = match &mut self.exit {
            State::Ended(status) => return Ok(*status),
            State::Lost { id } => return Err(Error::Gone { id: id.clone() }),
            State::Running(exit) => exit.as_mut().await,
        };
        self.exit = match &end {
            Ok(status) => State::Ended(*status),
            Err(Error::Gone { id }) => State::Lost { id: id.clone() },
            Err(_) => State::Lost {
                id: String::from("of this process"),
            },
        };
        end
    }

    /// Sends a signal to the process and its process group, best effort.
    pub fn signal(&self, signal: i32) {
        (self.signal)(signal);
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Process").finish_non_exhaustive()
    }
}
