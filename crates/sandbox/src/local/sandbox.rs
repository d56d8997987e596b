//! A sandbox as the engine sees it: requests to its init, and pipes that carry the answers.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::cgroup::Group;
use super::channel::Channel;
use super::init;
use super::launcher::{self, Launcher};
use super::mode::Mode;
use super::reaper::Remains;
use super::wire::{self, Failure, FailureKind, Ready, Request, Spawn, Start, Work};
use crate::{Command, Entry, Error, ExitStatus, Isolation, Process, Sandbox, Stdin, Usage, User};

const START_LIMIT: Duration = Duration::from_secs(30);
const SPAWN_LIMIT: Duration = Duration::from_secs(30);
const FILE_LIMIT: Duration = Duration::from_secs(30);
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// A listing of a hundred thousand long paths.
const LISTING_BYTES_MAX: u64 = 64 << 20;

pub(crate) struct LocalSandbox {
    id: String,
    mode: Mode,
    isolation: Isolation,
    listeners: Vec<TcpListener>,
    channel: Arc<Channel>,
    processes: AtomicU64,
    /// Last, so that on drop the sandbox is hung up on before it is killed.
    remains: Remains,
}

/// Starts a sandbox and waits until it is ready.
pub(crate) async fn start(
    launcher: &Launcher,
    mode: Mode,
    isolation: Isolation,
    start: Start,
    remains: Remains,
) -> Result<LocalSandbox, Error> {
    let engine = |source| Error::Engine {
        operation: "open a sandbox's control socket",
        source,
    };
    let (ours, theirs) = wire::pair().map_err(engine)?;
    let channel = Channel::new(ours).map_err(engine)?;
    let id = start.id.clone();
    let remains = launcher.start(start, theirs, remains).await?;
    let ready = timeout(START_LIMIT, channel.receive())
        .await
        .map_err(|_| Error::Deadline {
            operation: "start the sandbox",
            limit: START_LIMIT,
        })?
        .map_err(engine)?;
    let listeners = match ready {
        Some((Ready::Ready, listeners)) => listeners,
        Some((Ready::Failed(failure), _)) => return Err(launcher::failed(&failure)),
        None => return Err(Error::Gone { id }),
    };
    Ok(LocalSandbox {
        id,
        mode,
        isolation,
        listeners: listeners.into_iter().map(TcpListener::from).collect(),
        channel: Arc::new(channel),
        processes: AtomicU64::new(0),
        remains,
    })
}

/// A process that was asked for, with the engine's ends of its pipes.
struct Begun {
    process: u64,
    exit: pipe::Receiver,
    status: pipe::Receiver,
    stdout: pipe::Receiver,
    stderr: Option<pipe::Receiver>,
}

/// What a new process gets beside its work.
struct Setting {
    cwd: String,
    user: User,
    stdin: Option<OwnedFd>,
    has_stderr: bool,
}

impl LocalSandbox {
    fn gone(&self) -> Error {
        Error::Gone {
            id: self.id.clone(),
        }
    }

    async fn begin(&self, work: Work, setting: Setting) -> Result<Begun, Error> {
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
        self.send(&request, &ends, SPAWN_LIMIT).await?;
        Ok(Begun {
            process,
            exit,
            status,
            stdout,
            stderr,
        })
    }

    async fn send(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(), Error> {
        let sent = timeout(limit, self.channel.send(request, descriptors)).await;
        let sent = sent.map_err(|_| Error::Deadline {
            operation: "reach the sandbox",
            limit,
        })?;
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.gone(),
            _ => Error::Engine {
                operation: "send a request to the sandbox",
                source: error,
            },
        })
    }

    /// A request whose only answer is done or failed.
    async fn ask(&self, request: &Request, operation: &'static str) -> Result<(), Error> {
        let (mut reply, end) = incoming().map_err(|source| Error::Engine { operation, source })?;
        let answer = async {
            self.send(request, &[end.as_fd()], REQUEST_LIMIT).await?;
            drop(end);
            read_all(&mut reply)
                .await
                .map_err(|source| Error::Engine { operation, source })
        };
        let deadline = |_| Error::Deadline {
            operation,
            limit: REQUEST_LIMIT,
        };
        let answer = timeout(REQUEST_LIMIT, answer).await.map_err(deadline)??;
        match serde_json::from_slice::<Option<Failure>>(&answer) {
            Ok(None) => Ok(()),
            Ok(Some(failure)) => Err(Error::Engine {
                operation,
                source: failure.source(),
            }),
            Err(_) => Err(self.gone()),
        }
    }

    /// Has a file operation done inside, and returns what it printed.
    async fn file(
        &self,
        operation: &'static str,
        path: &str,
        work: Work,
        stdin: Option<OwnedFd>,
        bytes_max: u64,
    ) -> Result<Vec<u8>, Error> {
        let setting = Setting {
            cwd: String::new(),
            user: User::User,
            stdin,
            has_stderr: false,
        };
        let Begun {
            process,
            mut exit,
            mut status,
            stdout,
            ..
        } = self.begin(work, setting).await?;
        let io_error = |source| Error::Engine { operation, source };
        let finish = async {
            let mut output = Vec::new();
            let mut stdout = stdout.take(bytes_max.saturating_add(1));
            let (status, read) =
                tokio::join!(read_all(&mut status), stdout.read_to_end(&mut output));
            read.map_err(io_error)?;
            if let Some(failure) = parse_failure(&status.map_err(io_error)?) {
                return Err(file_error(&failure, operation, path, bytes_max));
            }
            let status = self.exit_status(&mut exit).await?;
            if status.success() {
                return Ok(output);
            }
            let source = io::Error::other(format!("ended early: {status:?}"));
            Err(Error::File {
                operation,
                path: path.to_owned(),
                source,
            })
        };
        timeout(FILE_LIMIT, finish).await.unwrap_or_else(|_| {
            let _ = self.channel.send_now(&Request::Signal {
                process,
                signal: libc::SIGKILL,
            });
            Err(Error::Deadline {
                operation,
                limit: FILE_LIMIT,
            })
        })
    }

    async fn exit_status(&self, exit: &mut pipe::Receiver) -> Result<ExitStatus, Error> {
        read_exit(exit, &self.id).await
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn id(&self) -> &str {
        &self.id
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn take_listeners(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.listeners)
    }

    async fn spawn(&self, command: Command) -> Result<Process, Error> {
        validate(&command, self.mode)?;
        let Command {
            argv,
            env,
            cwd,
            user,
            stdin,
        } = command;
        let engine = |source| Error::Engine {
            operation: "make pipes for a process",
            source,
        };
        let (stdin, sender) = match stdin {
            Stdin::Null => (None, None),
            Stdin::Bytes(bytes) => (Some(wire::sealed_memfd(&bytes).map_err(engine)?), None),
            Stdin::Piped => {
                let (reader, writer) = io::pipe().map_err(engine)?;
                let sender = pipe::Sender::from_owned_fd(writer.into()).map_err(engine)?;
                (Some(reader.into()), Some(sender))
            }
        };
        let program = argv.first().cloned().unwrap_or_default();
        let setting = Setting {
            cwd: cwd.clone(),
            user,
            stdin,
            has_stderr: true,
        };
        let Begun {
            process,
            mut exit,
            mut status,
            stdout,
            stderr,
        } = self.begin(Work::Exec { argv, env }, setting).await?;

        let status = timeout(SPAWN_LIMIT, read_all(&mut status))
            .await
            .map_err(|_| {
                let _ = self.channel.send_now(&Request::Signal {
                    process,
                    signal: libc::SIGKILL,
                });
                Error::Deadline {
                    operation: "start a process in the sandbox",
                    limit: SPAWN_LIMIT,
                }
            })?;
        if let Some(failure) = parse_failure(&status.map_err(engine)?) {
            return Err(spawn_error(failure, program));
        }
        let (id, channel) = (self.id.clone(), Arc::clone(&self.channel));
        let mut running = Process::new(
            async move { read_exit(&mut exit, &id).await },
            move |signal| {
                let _ = channel.send_now(&Request::Signal { process, signal });
            },
        );
        running.stdin = sender;
        running.stdout = Some(stdout);
        running.stderr = stderr;
        Ok(running)
    }

    async fn write_file(&self, path: &str, mode: u32, content: Vec<u8>) -> Result<(), Error> {
        let content = wire::sealed_memfd(&content);
        let content = content.map_err(|source| Error::Engine {
            operation: "hold a file's content",
            source,
        })?;
        let work = Work::Write {
            path: path.to_owned(),
            mode,
        };
        self.file("write", path, work, Some(content), 0)
            .await
            .map(drop)
    }

    async fn read_file(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let work = Work::Read {
            path: path.to_owned(),
            bytes_max,
        };
        let content = self.file("read", path, work, None, bytes_max).await?;
        // The process inside has checked that too, but it runs among the agent's.
        if content.len() as u64 > bytes_max {
            return Err(Error::TooLarge {
                path: path.to_owned(),
                bytes_max,
            });
        }
        Ok(content)
    }

    async fn list(&self, path: &str, depth: u32, entries_max: usize) -> Result<Vec<Entry>, Error> {
        let work = Work::List {
            path: path.to_owned(),
            depth,
            entries_max,
        };
        let json = self
            .file("list", path, work, None, LISTING_BYTES_MAX)
            .await?;
        let parsed = serde_json::from_slice(&json);
        parsed.map_err(|error| Error::File {
            operation: "list",
            path: path.to_owned(),
            source: error.into(),
        })
    }

    async fn kill_all(&self) -> Result<(), Error> {
        self.ask(&Request::KillAll, "kill the sandbox's processes")
            .await
    }

    async fn unseal_verifier_logs(&self) -> Result<(), Error> {
        self.ask(&Request::UnsealVerifierLogs, "unseal the verifier's logs")
            .await
    }

    async fn usage(&self) -> Usage {
        self.remains.group().map(Group::usage).unwrap_or_default()
    }

    async fn close(self: Box<Self>) -> Result<(), Error> {
        self.channel.hang_up();
        let LocalSandbox { remains, .. } = *self;
        remains.bury().await
    }
}

/// A pipe: the end to read here, and the end to send away.
fn incoming() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(reader.into())?, writer.into()))
}

async fn read_all(pipe: &mut pipe::Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

async fn read_exit(exit: &mut pipe::Receiver, id: &str) -> Result<ExitStatus, Error> {
    let mut bytes = [0; 8];
    exit.read_exact(&mut bytes)
        .await
        .map_err(|_| Error::Gone { id: id.to_owned() })?;
    Ok(match init::decode_exit(bytes) {
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

fn validate(command: &Command, mode: Mode) -> Result<(), Error> {
    let invalid = |what: &str| {
        Err(Error::Invalid {
            what: what.to_owned(),
        })
    };
    if command.user == User::Root && mode == Mode::Rootless {
        return Err(Error::RootUser);
    }
    if command.argv.first().is_none_or(String::is_empty) {
        return invalid("a command needs a program");
    }
    if command
        .env
        .keys()
        .any(|key| key.is_empty() || key.contains('='))
    {
        return invalid("an environment variable needs a name without =");
    }
    let env = command.env.iter().flat_map(|(key, value)| [key, value]);
    if command
        .argv
        .iter()
        .chain(env)
        .chain([&command.cwd])
        .any(|text| text.contains('\0'))
    {
        return invalid("arguments, environment and directory cannot contain NUL");
    }
    Ok(())
}

fn parse_failure(status: &[u8]) -> Option<Failure> {
    serde_json::from_slice(status).ok()
}

fn spawn_error(failure: Failure, program: String) -> Error {
    let source = failure.source();
    match failure.kind {
        FailureKind::Exec => Error::Exec { program, source },
        FailureKind::Directory => Error::Directory {
            path: failure.step,
            source,
        },
        FailureKind::Setup
        | FailureKind::File
        | FailureKind::NotRegular
        | FailureKind::TooLarge => Error::Spawn {
            step: failure.step,
            source,
        },
    }
}

fn file_error(failure: &Failure, operation: &'static str, path: &str, bytes_max: u64) -> Error {
    let (path, source) = (path.to_owned(), failure.source());
    match failure.kind {
        FailureKind::NotRegular => Error::NotRegular { path },
        FailureKind::TooLarge => Error::TooLarge { path, bytes_max },
        FailureKind::File => Error::File {
            operation,
            path,
            source,
        },
        FailureKind::Setup | FailureKind::Exec | FailureKind::Directory => Error::Spawn {
            step: failure.step.clone(),
            source,
        },
    }
}
