//! The engine's handle of a sandbox.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::KIND;
use super::cgroup::MemoryPeak;
use super::control::{self, Control, ProcessSetup, StartedProcess};
use super::failure::{self, FileOperation, start_error};
use super::reaper::CleanupGuard;
use super::spare::{AssignedSandbox, Spares};
use super::start::SnapshotArchive;
use crate::guest::{KEPT_HOME, VERIFY_HOME};
use crate::local::shared::ENTRANCE_PORT;
use crate::local::shared::cgroup::Group;
use crate::local::shared::mode::Mode;
use crate::local::shared::wire::{self, InitRequest, StartReply, Work};
use crate::{
    BoxedStream, Command, DirectoryEntry, Entrance, Error, FileStatus, FileStream, Gates, Input,
    Isolation, Output, Process, Sandbox, Snapshot, Spec, Stdin, Usage, User,
};

const START_LIMIT: Duration = Duration::from_secs(30);
const SPAWN_LIMIT: Duration = Duration::from_secs(30);
/// The overhead of an archive of all files.
const HEADER_BYTES_MAX: u64 = 256 << 20;
/// More than the status of a file takes.
const STATUS_BYTES_MAX: u64 = 4096;
/// Enough for a listing of a hundred thousand long paths.
const LISTING_BYTES_MAX: u64 = 64 << 20;

pub(crate) struct LocalSandbox {
    control: Control,
    mode: Mode,
    isolation: Isolation,
    entrance: Option<TcpListener>,
    gates: Option<Gates>,
    disk_bytes: u64,
    memory_peak: MemoryPeak,
    cleanup: CleanupGuard,
}

/// Starts a sandbox and waits until it is ready. Dropping this future at any point kills it.
pub(crate) async fn start(
    spares: &Spares,
    mode: Mode,
    isolation: Isolation,
    spec: Spec,
) -> Result<LocalSandbox, Error> {
    let engine = |source| Error::Engine {
        operation: "use a sandbox's control socket",
        source,
    };
    let id = spec.id.clone();
    let AssignedSandbox {
        channel,
        cleanup,
        enforced,
    } = assign(spares, &spec).await?;
    let ready = timeout(START_LIMIT, channel.receive())
        .await
        .map_err(|_| Error::Deadline {
            operation: "start the sandbox",
            limit: START_LIMIT,
        })?
        .map_err(engine)?;
    spares.refill();
    let mut sockets = match ready {
        Some((StartReply::Ready, descriptors)) => descriptors.into_iter(),
        Some((StartReply::Failed(failure), _)) => return Err(start_error(&failure)),
        None => return Err(Error::Gone { id }),
    };
    let entrance = match spec.has_entrance {
        true => sockets.next(),
        false => None,
    };
    let gates = match (sockets.next(), sockets.next()) {
        (Some(proxy), Some(dns)) => Some(Gates {
            proxy: proxy.into(),
            dns: dns.into(),
            intercepted: sockets.map(TcpListener::from).collect(),
        }),
        _ => None,
    };
    Ok(LocalSandbox {
        control: Control::new(id, channel),
        mode,
        isolation: enforced.correct(isolation),
        entrance: entrance.map(TcpListener::from),
        gates,
        disk_bytes: spec.limits.disk_bytes,
        memory_peak: MemoryPeak::default(),
        cleanup,
    })
}

/// Takes a spare or newly cloned sandbox and sends it its specification.
async fn assign(spares: &Spares, spec: &Spec) -> Result<AssignedSandbox, Error> {
    while let Some(spare) = spares.take() {
        match spare.assign(spec).await {
            // This spare failed or died while it waited, which says nothing about the next one.
            Err(error) => tracing::warn!(%error, "a spare sandbox could not be used"),
            assigned => return assigned,
        }
    }
    spares.request_clone()?.assign(spec).await
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn id(&self) -> &str {
        self.control.id()
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn take_entrance(&mut self) -> Option<Entrance> {
        let listener = self.entrance.take()?.into();
        let base_url = format!("http://{}:{ENTRANCE_PORT}", Ipv4Addr::LOCALHOST);
        Some(Entrance::Listener { listener, base_url })
    }

    fn take_gates(&mut self) -> Option<Gates> {
        self.gates.take()
    }

    async fn connect(&self, port: u16) -> Result<BoxedStream, Error> {
        Ok(Box::new(self.control.connect(port).await?))
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
        let (stdin, sender) = input(stdin).map_err(engine)?;
        let program = argv.first().cloned().unwrap_or_default();
        let setup = ProcessSetup {
            cwd,
            user,
            stdin,
            has_stderr: true,
        };
        let started = self
            .control
            .start_process(Work::Exec { argv, env }, setup)
            .await?;
        let StartedProcess {
            process,
            mut exit,
            mut status,
            stdout,
            stderr,
        } = started;

        let signal = self.control.signaller(process);
        let status = timeout(SPAWN_LIMIT, control::read_all(&mut status))
            .await
            .map_err(|_| {
                signal(libc::SIGKILL);
                Error::Deadline {
                    operation: "start a process in the sandbox",
                    limit: SPAWN_LIMIT,
                }
            })?;
        if let Some(failure) = failure::parse_failure(&status.map_err(engine)?) {
            return Err(failure::spawn_error(failure, program));
        }
        let id = self.id().to_owned();
        let mut running = Process::new(
            async move { control::read_exit(&mut exit, &id).await },
            signal,
        );
        running.stdin = sender;
        running.stdout = Some(Box::new(stdout));
        running.stderr = stderr.map(|stderr| Box::new(stderr) as Output);
        Ok(running)
    }

    async fn write_file(&self, path: &str, mode: u32, content: Vec<u8>) -> Result<(), Error> {
        let content = wire::sealed_memfd(&content);
        let content = content.map_err(|source| Error::Engine {
            operation: "hold a file's content",
            source,
        })?;
        let task = FileOperation {
            operation: "write",
            path,
            bytes_max: 0,
        };
        let work = Work::Write {
            path: control::absolute(path),
            mode,
        };
        self.control.file(task, work, Some(content)).await.map(drop)
    }

    async fn unpack(&self, archive: Vec<u8>, target: &str) -> Result<(), Error> {
        let archive = wire::sealed_memfd(&archive).map_err(|source| Error::Engine {
            operation: "hold an archive",
            source,
        })?;
        let task = FileOperation {
            operation: "write",
            path: target,
            bytes_max: 0,
        };
        let work = Work::Unpack {
            target: target.to_owned(),
        };
        self.control.file(task, work, Some(archive)).await.map(drop)
    }

    async fn read_files(&self, directory: &str, paths: Vec<String>) -> Result<FileStream, Error> {
        let directory = control::absolute(directory);
        self.control.read_files(directory, paths).await
    }

    async fn read_file(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let task = FileOperation {
            operation: "read",
            path,
            bytes_max,
        };
        let work = Work::Read {
            path: control::absolute(path),
            bytes_max,
        };
        let content = self.control.file(task, work, None).await?;
        // The process inside has checked that too, but it cannot be trusted: it runs beside the agent's.
        if content.len() as u64 > bytes_max {
            return Err(Error::TooLarge {
                path: path.to_owned(),
                bytes_max,
            });
        }
        Ok(content)
    }

    async fn stat(&self, path: &str) -> Result<Option<FileStatus>, Error> {
        let work = Work::Stat {
            path: control::absolute(path),
        };
        self.read_json("look at", path, STATUS_BYTES_MAX, work)
            .await
    }

    async fn remove(&self, path: &str) -> Result<(), Error> {
        let work = Work::Remove {
            path: control::absolute(path),
        };
        self.operate("remove", path, work).await
    }

    async fn list(
        &self,
        path: &str,
        depth: u32,
        entries_max: usize,
    ) -> Result<Vec<DirectoryEntry>, Error> {
        let work = Work::List {
            path: control::absolute(path),
            depth,
            entries_max,
        };
        self.read_json("list", path, LISTING_BYTES_MAX, work).await
    }

    async fn kill_all(&self) -> Result<u64, Error> {
        self.control
            .request(&InitRequest::KillAll, "kill the sandbox's processes")
            .await
    }

    async fn unseal(&self, agent: BTreeMap<String, String>) -> Result<(), Error> {
        let unseal = InitRequest::Unseal { agent };
        self.control
            .request(&unseal, "unseal the verifier's directories")
            .await
    }

    async fn renew(&self) -> Result<(), Error> {
        self.control
            .request(&InitRequest::Renew, "renew the verifier's directories")
            .await
    }

    async fn keep_home(&self) -> Result<(), Error> {
        self.operate("copy", KEPT_HOME, Work::KeepHome).await
    }

    async fn lay_home(&self, named: Vec<PathBuf>) -> Result<(), Error> {
        self.operate("fill", VERIFY_HOME, Work::LayHome { named })
            .await
    }

    async fn seal_setup(&self) -> Result<(), Error> {
        self.control
            .request(
                &InitRequest::SealSetup,
                "make what setup installed read-only",
            )
            .await
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        let user = match self.mode {
            Mode::Root => User::Root,
            Mode::Rootless => User::User,
        };
        let bytes_max = self.disk_bytes.saturating_add(HEADER_BYTES_MAX);
        let (archive, bytes) = self.control.snapshot(user, bytes_max).await?;
        Ok(Snapshot::new(KIND, bytes, SnapshotArchive(archive)))
    }

    async fn usage(&self) -> Usage {
        let mut usage = self.cleanup.group().map(Group::usage).unwrap_or_default();
        usage.memory_peak_bytes = self.memory_peak.read().or(usage.memory_peak_bytes);
        usage
    }

    async fn reset_memory_peak(&self) -> bool {
        let group = self.cleanup.group();
        group.is_some_and(|group| self.memory_peak.reset(group))
    }

    async fn close(mut self: Box<Self>) -> Result<(), Error> {
        self.control.hang_up();
        self.cleanup.remove().await
    }
}

impl LocalSandbox {
    /// Runs a file operation that answers nothing.
    async fn operate(&self, operation: &'static str, path: &str, work: Work) -> Result<(), Error> {
        let task = FileOperation {
            operation,
            path,
            bytes_max: 0,
        };
        self.control.file(task, work, None).await.map(drop)
    }

    /// Runs a file operation that answers in JSON.
    async fn read_json<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        path: &str,
        bytes_max: u64,
        work: Work,
    ) -> Result<T, Error> {
        let task = FileOperation {
            operation,
            path,
            bytes_max,
        };
        let json = self.control.file(task, work, None).await?;
        serde_json::from_slice(&json).map_err(|error| Error::File {
            operation,
            path: path.to_owned(),
            source: error.into(),
        })
    }
}

impl Drop for LocalSandbox {
    fn drop(&mut self) {
        // Process handles may still hold the channel. Dropping the guard then kills the sandbox if init does not react.
        self.control.hang_up();
    }
}

fn input(stdin: Stdin) -> io::Result<(Option<OwnedFd>, Option<Input>)> {
    Ok(match stdin {
        Stdin::Null => (None, None),
        Stdin::Bytes(bytes) => (Some(wire::sealed_memfd(&bytes)?), None),
        Stdin::Piped => {
            let (reader, writer) = io::pipe()?;
            (
                Some(reader.into()),
                Some(Box::new(pipe::Sender::from_owned_fd(writer.into())?)),
            )
        }
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
