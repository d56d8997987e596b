//! Requests to a sandbox's init, and the pipes on which the answers come. Every process has two of its own:
//! `status` tells what kept it from starting and closes at exec, `exit` tells how it ended.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::channel::Channel;
use super::failure::{FileTask, file_error, parse_failure};
use crate::guest::WORKDIR;
use crate::local::shared::wire::{self, Failure, Request, Spawn, Work};
use crate::{Error, ExitStatus, User};

const SEND_LIMIT: Duration = Duration::from_secs(30);
const FILE_LIMIT: Duration = Duration::from_secs(30);
/// Gigabytes are copied twice.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(120);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Control {
    id: String,
    channel: Arc<Channel>,
    processes: AtomicU64,
}

/// A process that was asked for, with the engine's ends of its pipes.
pub(crate) struct Begun {
    pub(crate) process: u64,
    pub(crate) exit: pipe::Receiver,
    pub(crate) status: pipe::Receiver,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// What a new process gets beside its work.
pub(crate) struct Setting {
    pub(crate) cwd: String,
    pub(crate) user: User,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) has_stderr: bool,
}

impl Control {
    pub(crate) fn new(id: String, channel: Channel) -> Control {
        Control {
            id,
            channel: Arc::new(channel),
            processes: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn hang_up(&self) {
        self.channel.hang_up();
    }

    /// Sends a signal to a process and its group. Outlives the sandbox, and then does nothing.
    pub(crate) fn signaller(&self, process: u64) -> impl Fn(i32) + Send + Sync + use<> {
        let channel = Arc::clone(&self.channel);
        move |signal| {
            let _ = channel.send_now(&Request::Signal { process, signal });
        }
    }

    pub(crate) async fn begin(&self, work: Work, setting: Setting) -> Result<Begun, Error> {
        let engine = |source| Error::Engine {
            operation: "make pipes for a process",
            source,
        };
        let (exit, exit_end) = incoming().map_err(engine)?;
        let (status, status_end) = incoming().map_err(engine)?;
        let (stdout, stdout_end) = incoming().map_err(engine)?;
        let stderr = if setting.has_stderr {
            Some(incoming().map_err(engine)?)
        } else {
            None
        };
        let (stderr, stderr_end) = stderr.unzip();
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        let request = Request::Spawn(Spawn {
            process,
            work,
            cwd: setting.cwd,
            user: setting.user,
            has_stderr: setting.has_stderr,
            has_stdin: setting.stdin.is_some(),
        });
        let ends = [&exit_end, &status_end, &stdout_end];
        let ends: Vec<BorrowedFd<'_>> = ends
            .into_iter()
            .chain(&stderr_end)
            .chain(&setting.stdin)
            .map(AsFd::as_fd)
            .collect();
        self.send(&request, &ends).await?;
        Ok(Begun {
            process,
            exit,
            status,
            stdout,
            stderr,
        })
    }

    async fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let sent = timeout(SEND_LIMIT, self.channel.send(request, descriptors)).await;
        let sent = sent.map_err(|_| Error::Deadline {
            operation: "reach the sandbox",
            limit: SEND_LIMIT,
        })?;
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.gone(),
            _ => Error::Engine {
                operation: "send a request to the sandbox",
                source: error,
            },
        })
    }

    fn gone(&self) -> Error {
        Error::Gone {
            id: self.id.clone(),
        }
    }

    /// A request that is answered when it is done, or has failed.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
        operation: &'static str,
    ) -> Result<T, Error> {
        let engine = |source| Error::Engine { operation, source };
        let (mut reply, end) = incoming().map_err(engine)?;
        let answer = async {
            self.send(request, &[end.as_fd()]).await?;
            drop(end);
            read_all(&mut reply).await.map_err(engine)
        };
        let deadline = |_| Error::Deadline {
            operation,
            limit: ANSWER_LIMIT,
        };
        let answer = timeout(ANSWER_LIMIT, answer).await.map_err(deadline)??;
        match serde_json::from_slice::<Result<T, Failure>>(&answer) {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(failure)) => Err(engine(failure.source())),
            // It died before it could answer.
            Err(_) => Err(self.gone()),
        }
    }

    /// A connection that init makes and hands over, since a socket belongs to the network that it was opened in.
    pub(crate) async fn connect(&self, port: u16) -> Result<TcpStream, Error> {
        let failed = |source| Error::Connect { port, source };
        let connecting = async {
            let (ours, theirs) = wire::pair().map_err(failed)?;
            let ours = Channel::new(ours).map_err(failed)?;
            self.send(&Request::Connect { port }, &[theirs.as_fd()])
                .await?;
            drop(theirs);
            let (told, descriptors) = match ours.receive().await.map_err(failed)? {
                Some((told, descriptors)) => (told, descriptors),
                None => return Err(self.gone()),
            };
            let told: Result<(), Failure> = told;
            told.map_err(|failure| failed(failure.source()))?;
            let socket = descriptors.into_iter().next().ok_or_else(|| self.gone())?;
            let stream = TcpStream::from_std(socket.into()).map_err(failed)?;
            // Init does not wait for a service that accepts slowly. We do.
            stream.writable().await.map_err(failed)?;
            match stream.take_error().map_err(failed)? {
                Some(error) => Err(failed(error)),
                None => Ok(stream),
            }
        };
        let deadline = |_| Error::Deadline {
            operation: "connect to a service in the sandbox",
            limit: ANSWER_LIMIT,
        };
        timeout(ANSWER_LIMIT, connecting).await.map_err(deadline)?
    }

    /// Has a file operation done inside, and returns what it printed.
    pub(crate) async fn file(
        &self,
        task: FileTask<'_>,
        work: Work,
        stdin: Option<OwnedFd>,
    ) -> Result<Vec<u8>, Error> {
        let operation = task.operation;
        // Not the work directory, which the agent may have removed.
        let setting = Setting {
            cwd: String::from("/"),
            user: User::User,
            stdin,
            has_stderr: false,
        };
        let begun = self.begin(work, setting).await?;
        let signal = self.signaller(begun.process);
        timeout(FILE_LIMIT, self.finish_file(task, begun))
            .await
            .unwrap_or_else(|_| {
                signal(libc::SIGKILL);
                Err(Error::Deadline {
                    operation,
                    limit: FILE_LIMIT,
                })
            })
    }

    /// Has all files of the sandbox's own written to a file in memory; returns its size, too.
    pub(crate) async fn snapshot(
        &self,
        user: User,
        bytes_max: u64,
    ) -> Result<(OwnedFd, u64), Error> {
        let operation = "take a snapshot";
        let engine = |source| Error::Engine { operation, source };
        let setting = Setting {
            cwd: String::from("/"),
            user,
            stdin: None,
            has_stderr: false,
        };
        let begun = self.begin(Work::Snapshot, setting).await?;
        let signal = self.signaller(begun.process);
        let Begun {
            mut exit,
            mut status,
            mut stdout,
            ..
        } = begun;
        let mut archive = wire::memfd().map_err(engine)?;
        let mut bytes = 0;
        let fill = async {
            let mut buffer = vec![0; 256 * 1024];
            loop {
                let count = stdout.read(&mut buffer).await.map_err(engine)?;
                bytes += count as u64;
                if count == 0 {
                    return Ok(());
                }
                if bytes > bytes_max {
                    let path = String::from("what a snapshot holds");
                    return Err(Error::TooLarge { path, bytes_max });
                }
                archive.write_all(&buffer[..count]).map_err(engine)?;
            }
        };
        let taking = async {
            let told = async { read_all(&mut status).await.map_err(engine) };
            let ((), told) = tokio::try_join!(fill, told)?;
            if let Some(failure) = parse_failure(&told) {
                return Err(engine(failure.source()));
            }
            let status = read_exit(&mut exit, &self.id).await?;
            match status.success() {
                true => Ok(()),
                false => Err(engine(io::Error::other(format!("ended early: {status:?}")))),
            }
        };
        let limit = SNAPSHOT_LIMIT;
        let taken = timeout(limit, taking).await;
        let taken = taken.unwrap_or(Err(Error::Deadline { operation, limit }));
        taken.inspect_err(|_| signal(libc::SIGKILL))?;
        Ok((wire::seal(archive).map_err(engine)?, bytes))
    }

    async fn finish_file(&self, task: FileTask<'_>, begun: Begun) -> Result<Vec<u8>, Error> {
        let engine = |source| Error::Engine {
            operation: task.operation,
            source,
        };
        let Begun {
            mut exit,
            mut status,
            stdout,
            ..
        } = begun;
        let mut output = Vec::new();
        let mut stdout = stdout.take(task.bytes_max.saturating_add(1));
        let (status, read) = tokio::join!(read_all(&mut status), stdout.read_to_end(&mut output));
        read.map_err(engine)?;
        if let Some(failure) = parse_failure(&status.map_err(engine)?) {
            return Err(file_error(&failure, task));
        }
        let status = read_exit(&mut exit, &self.id).await?;
        if status.success() {
            return Ok(output);
        }
        let source = io::Error::other(format!("ended early: {status:?}"));
        Err(Error::File {
            operation: task.operation,
            path: task.path.to_owned(),
            source,
        })
    }
}

/// Relative paths count from the work directory.
pub(crate) fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{WORKDIR}/{path}")
    }
}

/// A pipe: the end to read here, and the end to send away.
fn incoming() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(reader.into())?, writer.into()))
}

pub(crate) async fn read_all(pipe: &mut pipe::Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

pub(crate) async fn read_exit(exit: &mut pipe::Receiver, id: &str) -> Result<ExitStatus, Error> {
    let mut bytes = [0; 8];
    exit.read_exact(&mut bytes)
        .await
        .map_err(|_| Error::Gone { id: id.to_owned() })?;
    Ok(match wire::decode_exit(bytes) {
        (code, 0) => ExitStatus {
            code: Some(code),
            signal: None,
        },
        (_, signal) => ExitStatus {
            code: None,
            signal: Some(signal),
        },
    })
}
