//! The behaviour of commands in a fake sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rollcage_sandbox::{Command, Error, Stdin};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::Machine;

type Future = Pin<Box<dyn std::future::Future<Output = i32> + Send>>;

/// The behaviour of one command.
pub enum CommandBehaviour {
    /// It cannot be started.
    Refused(io::ErrorKind),
    Runs {
        program: Box<dyn FnOnce(Guest) -> Future + Send>,
        /// Only SIGKILL ends it.
        is_stubborn: bool,
    },
}

impl CommandBehaviour {
    /// Runs a future, whose output is the exit code. It is dropped if the process is killed.
    pub fn program<F>(program: impl FnOnce(Guest) -> F + Send + 'static) -> CommandBehaviour
    where
        F: std::future::Future<Output = i32> + Send + 'static,
    {
        CommandBehaviour::Runs {
            program: Box::new(|guest| Box::pin(program(guest))),
            is_stubborn: false,
        }
    }

    pub fn exits(code: i32) -> CommandBehaviour {
        CommandBehaviour::program(move |_| async move { code })
    }

    /// Prints a text and exits with 0.
    pub fn prints(text: &str) -> CommandBehaviour {
        let text = text.to_owned();
        CommandBehaviour::program(|mut guest| async move {
            guest.print(&text).await;
            0
        })
    }

    /// Never ends by itself.
    pub fn endless() -> CommandBehaviour {
        CommandBehaviour::program(|_| std::future::pending())
    }

    /// The same after a delay.
    #[must_use]
    pub fn after(self, delay: Duration) -> CommandBehaviour {
        self.changed(move |program| {
            Box::new(move |guest| {
                Box::pin(async move {
                    tokio::time::sleep(delay).await;
                    program(guest).await
                })
            })
        })
    }

    /// The same, ignoring SIGTERM.
    #[must_use]
    pub fn stubborn(self) -> CommandBehaviour {
        match self {
            CommandBehaviour::Refused(kind) => CommandBehaviour::Refused(kind),
            CommandBehaviour::Runs { program, .. } => CommandBehaviour::Runs {
                program,
                is_stubborn: true,
            },
        }
    }

    fn changed(
        self,
        change: impl FnOnce(
            Box<dyn FnOnce(Guest) -> Future + Send>,
        ) -> Box<dyn FnOnce(Guest) -> Future + Send>,
    ) -> CommandBehaviour {
        match self {
            CommandBehaviour::Refused(kind) => CommandBehaviour::Refused(kind),
            CommandBehaviour::Runs {
                program,
                is_stubborn,
            } => CommandBehaviour::Runs {
                program: change(program),
                is_stubborn,
            },
        }
    }
}

/// The script of a command of the form `sh -c SCRIPT`.
pub fn shell_text(command: &Command) -> Option<&str> {
    let at = command.argv.iter().position(|word| word == "-c")?;
    command.argv.get(at + 1).map(String::as_str)
}

/// A running program's view of its sandbox.
pub struct Guest {
    pub command: Command,
    pub(super) stdin: Option<DuplexStream>,
    pub(super) stdout: DuplexStream,
    pub(super) stderr: DuplexStream,
    pub(super) machine: Arc<Machine>,
}

impl Guest {
    /// Writes to standard output; waits while nobody reads, as with a pipe.
    pub async fn print(&mut self, text: &str) {
        let _ = self.stdout.write_all(text.as_bytes()).await;
    }

    /// Writes to standard error.
    pub async fn complain(&mut self, text: &str) {
        let _ = self.stderr.write_all(text.as_bytes()).await;
    }

    /// All of its standard input.
    pub async fn input(&mut self) -> Vec<u8> {
        let mut input = Vec::new();
        match (&self.command.stdin, &mut self.stdin) {
            (Stdin::Bytes(bytes), _) => input.extend(bytes),
            (Stdin::Piped, Some(stdin)) => {
                let _ = stdin.read_to_end(&mut input).await;
            }
            (Stdin::Null | Stdin::Piped, _) => {}
        }
        input
    }

    pub fn write(&self, path: &str, content: &str) -> Result<(), Error> {
        self.machine.files().write(path, 0o644, content.into())
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.machine.files().read(path, u64::MAX)
    }

    pub fn remove(&self, path: &str) {
        self.machine.files().remove(path);
    }

    /// Starts another process, which keeps running.
    pub fn spawn(&self, behaviour: CommandBehaviour) -> Result<(), Error> {
        self.machine.spawn(Command::default(), behaviour).map(drop)
    }

    /// Connects to the model's server.
    pub async fn connect_model(&self) -> io::Result<DuplexStream> {
        self.machine.connect_model().await
    }

    /// Posts JSON to the model's server and returns the whole response, with status line and headers.
    pub async fn post(&self, path: &str, key: &str, body: &str) -> io::Result<String> {
        let mut stream = self.connect_model().await?;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: model\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Receives the connections of [`rollcage_sandbox::Sandbox::connect`], until the receiver is dropped.
    pub fn listen(&self, port: u16) -> mpsc::Receiver<DuplexStream> {
        self.machine.listen(port)
    }
}
