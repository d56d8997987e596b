//! Requests to a sandbox's init, and the pipes for the replies. Every process has two of its own: `status` reports why
//! it could not start and closes at exec, `exit` reports how it ended.

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
use super::failure::{FileOperation, file_error, parse_failure};
use crate::guest::WORKDIR;
use crate::local::shared::wire::{self, Failure, InitRequest, Spawn, Work};
use crate::{Error, ExitStatus, FileStream, User};

const SEND_LIMIT: Duration = Duration::from_secs(30);
const FILE_LIMIT: Duration = Duration::from_secs(30);
/// Long, because gigabytes are copied twice.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(120);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Control {
    id: String,
    channel: Arc<Channel>,
    processes: AtomicU64,
}

/// A requested process, with the engine's ends of its pipes.
pub(crate) struct StartedProcess {
    pub(crate) process: u64,
    pub(crate) exit: pipe::Receiver,
    pub(crate) status: pipe::Receiver,
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// The attributes of a new process beside its work.
pub(crate) struct ProcessSetup {
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

    /// Returns a function that signals a process and its group. It may outlive the sandbox, and then does nothing.
    pub(crate) fn signaller(&self, process: u64) -> impl Fn(i32) + Send + Sync + use<> {
        let channel = Arc::clone(&self.channel);
        move |signal| {
            let _ = channel.send_now(&InitRequest::Signal { process, signal });
        }
    }

    pub(crate) async fn start_process(
        &self,
        work: Work,
        setup: ProcessSetup,
    ) -> Result<StartedProcess, Error> {
        let engine = |source| Error::Engine {
            operation: "make pipes for a process",
            source,
        };
        let (exit, exit_end) = incoming().map_err(engine)?;
        let (status, status_end) = incoming().map_err(engine)?;
        let (stdout, stdout_end) = incoming().map_err(engine)?;
        let stderr = if setup.has_stderr {
            Some(incoming().map_err(engine)?)
        } else {
            None
        };
        let (stderr, stderr_end) = stderr.unzip();
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        let request = InitRequest::Spawn(Spawn {
            process,
            work,
            cwd: setup.cwd,
            user: setup.user,
            has_stderr: setup.has_stderr,
            has_stdin: setup.stdin.is_some(),
        });
        let ends = [&exit_end, &status_end, &stdout_end];
        let ends: Vec<BorrowedFd<'_>> = ends
            .into_iter()
            .chain(&stderr_end)
            .chain(&setup.stdin)
            .map(AsFd::as_fd)
            .collect();
        self.send(&request, &ends).await?;
        Ok(StartedProcess {
            process,
            exit,
            status,
            stdout,
            stderr,
        })
    }

    async fn send(
        &self,
        request: &InitRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
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

    /// Sends a request and waits for its result.
    pub(crate) async fn request<T: DeserializeOwned>(
        &self,
        request: &InitRequest,
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
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(failure)) => Err(engine(failure.source())),
            // Init died before it replied.
            Err(_) => Err(self.gone()),
        }
    }

    /// Connects to a service in the sandbox. Init creates the socket and passes it here, since a socket belongs to the
    /// network namespace that it was created in.
    pub(crate) async fn connect(&self, port: u16) -> Result<TcpStream, Error> {
        let failed = |source| Error::Connect { port, source };
        let connecting = async {
            let (ours, theirs) = wire::pair().map_err(failed)?;
            let ours = Channel::new(ours).map_err(failed)?;
            self.send(&InitRequest::Connect { port }, &[theirs.as_fd()])
                .await?;
            drop(theirs);
            let (reply, descriptors) = match ours.receive().await.map_err(failed)? {
                Some((reply, descriptors)) => (reply, descriptors),
                None => return Err(self.gone()),
            };
            let reply: Result<(), Failure> = reply;
            reply.map_err(|failure| failed(failure.source()))?;
            let socket = descriptors.into_iter().next().ok_or_else(|| self.gone())?;
            let stream = TcpStream::from_std(socket.into()).map_err(failed)?;
            // Init does not wait for a service that is slow to accept, so we do.
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

    /// Runs a file operation in the sandbox and returns its output.
    pub(crate) async fn file(
        &self,
        task: FileOperation<'_>,
        work: Work,
        stdin: Option<OwnedFd>,
    ) -> Result<Vec<u8>, Error> {
        let operation = task.operation;
        // Not the work directory, which the agent may have removed.
        let setup = ProcessSetup {
            cwd: String::from("/"),
            user: User::User,
            stdin,
            has_stderr: false,
        };
        let started = self.start_process(work, setup).await?;
        let signal = self.signaller(started.process);
        timeout(FILE_LIMIT, self.finish_file(task, started))
            .await
            .unwrap_or_else(|_| {
                signal(libc::SIGKILL);
                Err(Error::Deadline {
                    operation,
                    limit: FILE_LIMIT,
                })
            })
    }

    /// Starts to read many files. Dropping the stream ends the process that reads, which cannot write any more.
    pub(crate) async fn read_files(
        &self,
        directory: String,
        paths: Vec<String>,
    ) -> Result<FileStream, Error> {
        let setup = ProcessSetup {
            cwd: String::from("/"),
            user: User::User,
            stdin: None,
            has_stderr: false,
        };
        let work = Work::ReadFiles {
            directory: directory.clone(),
            paths,
        };
        let StartedProcess {
            mut exit,
            mut status,
            stdout,
            ..
        } = self.start_process(work, setup).await?;
        let id = self.id.clone();
        let end = async move {
            let task = FileOperation {
                operation: "read",
                path: &directory,
                bytes_max: 0,
            };
            let reply = read_all(&mut status)
                .await
                .map_err(|source| Error::Engine {
                    operation: task.operation,
                    source,
                })?;
            if let Some(failure) = parse_failure(&reply) {
                return Err(file_error(&failure, task));
            }
            read_exit(&mut exit, &id).await.map(drop)
        };
        Ok(FileStream::new(Box::new(stdout), end))
    }

    /// Writes all files of the sandbox's own to a memfd; also returns its size.
    pub(crate) async fn snapshot(
        &self,
        user: User,
        bytes_max: u64,
    ) -> Result<(OwnedFd, u64), Error> {
        let operation = "take a snapshot";
        let engine = |source| Error::Engine { operation, source };
        let setup = ProcessSetup {
            cwd: String::from("/"),
            user,
            stdin: None,
            has_stderr: false,
        };
        let started = self.start_process(Work::Snapshot, setup).await?;
        let signal = self.signaller(started.process);
        let StartedProcess {
            mut exit,
            mut status,
            mut stdout,
            ..
        } = started;
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
            let reply = async { read_all(&mut status).await.map_err(engine) };
            let ((), reply) = tokio::try_join!(fill, reply)?;
            if let Some(failure) = parse_failure(&reply) {
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

    async fn finish_file(
        &self,
        task: FileOperation<'_>,
        started: StartedProcess,
    ) -> Result<Vec<u8>, Error> {
        let engine = |source| Error::Engine {
            operation: task.operation,
            source,
        };
        let StartedProcess {
            mut exit,
            mut status,
            stdout,
            ..
        } = started;
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

/// Makes a path absolute, relative to the work directory.
pub(crate) fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{WORKDIR}/{path}")
    }
}

/// A pipe: the end to read here, and the end to pass on.
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
