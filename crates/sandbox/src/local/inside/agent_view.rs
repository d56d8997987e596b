//! What `as-agent` runs: a command in a view of the sandbox that lacks all that belongs to the verifier.
//!
//! A verify command asks for it on a socket that init listens on. Init clones a *keeper* for each call, the first process
//! of namespaces of its own: it covers the verifier's directories, gives the command a `/tmp` and a `/proc` of its own,
//! starts it with the same restrictions as every other process, and hands the ends of three pipes back. It ends when the
//! command ends or when the caller is gone, and the kernel then kills whatever the command left.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::pipe2;

use super::layout::Owners;
use super::payload::{self, Descriptors, ProcessRules};
use super::pseudo;
use super::standby;
use crate::User;
use crate::guest::{AS_AGENT_SOCKET, LOGS, TESTS, VERIFY, WORKDIR};
use crate::local::shared::mount_fd::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};
use crate::local::shared::syscall::{self, WaitMode};
use crate::local::shared::wire::{
    self, Failure, ProcessLimits, Spawn, SpawnMessage, ViewReply, ViewRequest, WithStep, Work,
};

/// Calls that may run at the same time. Others wait in the socket's queue.
const CALLS_MAX: usize = 64;
const QUEUE_MAX: i32 = 64;
/// The time for a caller to say what it wants.
const REQUEST_S_MAX: i64 = 10;
/// What the command does not see, and finds empty.
const HIDDEN: [&str; 3] = [TESTS, LOGS, VERIFY];
/// What the command has of its own.
const OWN: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The calls of one sandbox.
pub(crate) struct AgentViews {
    socket: OwnedFd,
    /// The environment of every command.
    env: BTreeMap<String, String>,
    keepers: HashSet<i32>,
}

/// What a keeper takes over from init.
pub(crate) struct ViewContext<'a> {
    pub(crate) rules: &'a ProcessRules,
    pub(crate) process_limits: ProcessLimits,
    pub(crate) owners: Owners,
    pub(crate) disk_bytes: u64,
}

impl AgentViews {
    /// Listens in a new directory, which is then attached at `place`.
    pub(crate) fn open(
        place: BorrowedFd<'_>,
        env: BTreeMap<String, String>,
    ) -> Result<AgentViews, Failure> {
        let attributes = ATTR_NOSUID | ATTR_NODEV;
        let options = [(c"size", c"4k"), (c"mode", c"0755")];
        let directory = mount_fd::new_mount(c"tmpfs", &options, attributes).step("make a tmpfs")?;
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )
        .step("make a socket")?;
        let path = format!("/proc/self/fd/{}/{AS_AGENT_SOCKET}", directory.as_raw_fd());
        let address = UnixAddr::new(path.as_str()).step("name a socket")?;
        bind(socket.as_raw_fd(), &address).step("name a socket")?;
        Backlog::new(QUEUE_MAX)
            .and_then(|queue| listen(&socket, queue))
            .step("listen for as-agent")?;
        // Nobody inside puts another socket in its place, also where there is only one user.
        mount_fd::restrict_tree(directory.as_fd(), ATTR_RDONLY).step("make a mount read-only")?;
        mount_fd::attach_at(directory.as_fd(), place).step("mount the directory of a socket")?;
        Ok(AgentViews {
            socket,
            env,
            keepers: HashSet::new(),
        })
    }

    /// The socket, while there is room for another call.
    pub(crate) fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        (self.keepers.len() < CALLS_MAX).then(|| self.socket.as_fd())
    }

    /// Takes up one call. A caller that cannot be served finds its connection closed.
    pub(crate) fn take(&mut self, cx: &ViewContext<'_>) {
        let Ok(connection) = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) else {
            return;
        };
        let connection = syscall::adopt(connection);
        let namespaces =
            CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
        match syscall::fork_into(namespaces.bits()) {
            Ok(Some(keeper)) => drop(self.keepers.insert(keeper)),
            Ok(None) => {
                // A panic must not unwind into init's loop, which this process is a copy of.
                let _ = catch_unwind(AssertUnwindSafe(|| keep(&connection, &self.env, cx)));
                syscall::exit_now(126)
            }
            Err(error) => {
                let failure: Result<(), Failure> = Err(error).step("fork");
                tell(&connection, failure.err());
            }
        }
    }

    pub(crate) fn forget(&mut self, pid: i32) {
        self.keepers.remove(&pid);
    }
}

fn tell(connection: &OwnedFd, failure: Option<Failure>) {
    if let Some(failure) = failure {
        let _ = wire::send(connection.as_fd(), &ViewReply::Failed(failure), &[]);
    }
}

/// The keeper's life.
fn keep(connection: &OwnedFd, env: &BTreeMap<String, String>, cx: &ViewContext<'_>) {
    tell(connection, run(connection, env, cx).err());
}

fn run(
    connection: &OwnedFd,
    env: &BTreeMap<String, String>,
    cx: &ViewContext<'_>,
) -> Result<(), Failure> {
    standby::enter(&cx.rules.cgroup_procs)?;
    let patience = TimeVal::seconds(REQUEST_S_MAX);
    setsockopt(connection, ReceiveTimeout, &patience).step("set a time limit")?;
    let request = wire::receive::<ViewRequest>(connection.as_fd()).step("read a request")?;
    let Some((request, _)) = request else {
        return Ok(());
    };
    cover(cx)?;
    let pipe = || pipe2(OFlag::O_CLOEXEC).step("make a pipe");
    let ((our_status, status), (stdin, our_stdin)) = (pipe()?, pipe()?);
    let ((our_stdout, stdout), (our_stderr, stderr)) = (pipe()?, pipe()?);
    let message = message(request, env, cx.process_limits);
    let descriptors = Descriptors {
        status,
        stdin: Some(stdin),
        stdout,
        stderr: Some(stderr),
    };
    let command = match syscall::fork().step("fork")? {
        Some(pid) => pid.as_raw(),
        None => payload::run(&message, descriptors, cx.rules),
    };
    drop(descriptors);
    // All that needed rights is done.
    syscall::set_capabilities(0).step("drop capabilities")?;
    let ends = [&our_stdin, &our_stdout, &our_stderr].map(AsFd::as_fd);
    wire::send(connection.as_fd(), &ViewReply::Started, &ends).step("answer a request")?;
    drop((our_stdin, our_stdout, our_stderr));
    if let Some((code, signal)) = until_end(connection, command)? {
        let reply = match failure_of(our_status) {
            Some(failure) => ViewReply::Failed(failure),
            None => ViewReply::Ended { code, signal },
        };
        let _ = wire::send(connection.as_fd(), &reply, &[]);
    }
    Ok(())
}

fn message(
    request: ViewRequest,
    env: &BTreeMap<String, String>,
    process_limits: ProcessLimits,
) -> SpawnMessage {
    let ViewRequest { argv, cwd } = request;
    let is_covered = HIDDEN.iter().chain(&OWN).any(|hidden| {
        let below = cwd.strip_prefix(hidden);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    SpawnMessage {
        spawn: Spawn {
            process: 0,
            work: Work::Exec {
                argv,
                env: env.clone(),
            },
            cwd: if is_covered { WORKDIR.to_owned() } else { cwd },
            user: User::User,
            has_stderr: true,
            has_stdin: true,
        },
        process_limits,
    }
}

/// Waits until the command has ended and everything it started is dead. `None` when the caller is gone.
fn until_end(connection: &OwnedFd, command: i32) -> Result<Option<(i32, i32)>, Failure> {
    let signals = syscall::child_signals().step("wait for signals")?;
    loop {
        while let Ok(Some(exit)) = syscall::reap_any(WaitMode::NoWait) {
            if exit.pid == command {
                syscall::kill(-1, libc::SIGKILL);
                while syscall::reap_any(WaitMode::Wait).is_ok() {}
                return Ok(Some((exit.code, exit.signal)));
            }
        }
        let mut events = [
            PollFd::new(connection.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut events, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            polled => polled.step("wait")?,
        };
        // A caller has nothing more to say: this is its end.
        if events[0].any().unwrap_or(true) {
            return Ok(None);
        }
        while matches!(signals.read_signal(), Ok(Some(_))) {}
    }
}

/// Why the command could not be started, if so. The writing end is closed when it runs.
fn failure_of(status: OwnedFd) -> Option<Failure> {
    let mut json = Vec::new();
    File::from(status).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

fn cover(cx: &ViewContext<'_>) -> Result<(), Failure> {
    let root = cx.owners.root.to_string();
    for path in HIDDEN {
        cover_one(path, "4k", "0755", &root, ATTR_RDONLY)?;
    }
    for path in OWN {
        cover_one(path, &cx.disk_bytes.to_string(), "1777", &root, 0)?;
    }
    pseudo::proc_anew()
}

/// Mounts an empty directory on top of whatever is there.
fn cover_one(
    path: &str,
    size: &str,
    mode: &str,
    owner: &str,
    attributes: u64,
) -> Result<(), Failure> {
    let step = || format!("cover {path}");
    let text = |value: &str| std::ffi::CString::new(value).map_err(io::Error::from);
    let (size, mode) = (text(size).step(step())?, text(mode).step(step())?);
    let owner = text(owner).step(step())?;
    let options = [
        (c"size", &*size),
        (c"mode", &*mode),
        (c"uid", &*owner),
        (c"gid", &*owner),
    ];
    let attributes = attributes | ATTR_NOSUID | ATTR_NODEV;
    let fresh = mount_fd::new_mount(c"tmpfs", &options, attributes).step(step())?;
    // All of these are mount points, so no link can stand in their place.
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let place = openat2(AT_FDCWD, path, how).step(step())?;
    mount_fd::attach_at(fresh.as_fd(), place.as_fd()).step(step())
}
