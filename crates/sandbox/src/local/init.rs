//! The sandbox's PID 1: builds the sandbox around itself, then starts processes on request and reaps
//! everything that dies. When it ends, the kernel kills every process of the sandbox.
//!
//! It pauses halfway, as a spare, until a message on its control socket says what the sandbox is to be.
//!
//! In root mode it stays real root, confined to its own namespaces, because it must mount once more when
//! the verifier's logs are unsealed; processes join the user namespace between fork and exec. That is safe
//! because it takes orders from the engine's socket alone, cannot be traced or signalled from the user
//! namespace, keeps two capabilities, and after the start names no path that the sandbox could change.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::sethostname;
use serde::Serialize;

use super::mode::Mode;
use super::mount_fd;
use super::net;
use super::payload::{self, Descriptors, Rules};
use super::rootfs::{self, Owners, Site, Stage};
use super::seccomp::Filter;
use super::syscall::{self, Death, Patience};
use super::userns;
use super::wire::{self, Failure, FailureKind, InStep, Place, Ready, Request, Setup, Spawn, Start};

const KILL: u64 = 1 << 5;
const SETPCAP: u64 = 1 << 8;
const SYS_ADMIN: u64 = 1 << 21;
/// Ended processes whose group can still be signalled: a command's children may outlive it.
const GROUPS_MAX: usize = 256;

/// What the zygote hands its child.
pub(crate) struct Birth {
    pub(crate) setup: Setup,
    pub(crate) place: Place,
    pub(crate) userns: Option<OwnedFd>,
    pub(crate) filter: Rc<Filter>,
    pub(crate) control: OwnedFd,
    /// Closed by the zygote when we are in our cgroups.
    pub(crate) release: File,
    /// The engine's user, for the rootless map.
    pub(crate) outer: (u32, u32),
}

/// The life of a sandbox's first process. Returning ends the sandbox.
pub(crate) fn main(mut birth: Birth) {
    let mut go = [0];
    if birth.release.read_exact(&mut go).is_err() {
        return;
    }
    match grow_up(&birth) {
        Err(failure) => {
            let _ = wire::send(birth.control.as_fd(), &Ready::Failed(failure), &[]);
        }
        // Nobody needs us.
        Ok(None) => {}
        Ok(Some(Grown {
            start,
            listeners,
            verifier,
            signals,
        })) => {
            let handles: Vec<BorrowedFd<'_>> = listeners.iter().map(AsFd::as_fd).collect();
            if wire::send(birth.control.as_fd(), &Ready::Ready, &handles).is_ok() {
                drop(listeners);
                Init::new(birth, &start, verifier, signals).serve();
            }
        }
    }
}

/// What is there when all is built.
struct Grown {
    start: Start,
    listeners: Vec<OwnedFd>,
    verifier: OwnedFd,
    signals: SignalFd,
}

/// Builds the sandbox, with a pause until somebody needs one and says what it is to be.
fn grow_up(birth: &Birth) -> Result<Option<Grown>, Failure> {
    let stage = prepare(birth)?;
    match wire::receive(birth.control.as_fd()).step("learn what the sandbox is to be")? {
        None => Ok(None),
        Some((start, _)) => complete(birth, &stage, start).map(Some),
    }
}

/// All that is the same for every sandbox.
fn prepare(birth: &Birth) -> Result<Stage<'_>, Failure> {
    let Birth { setup, place, .. } = birth;
    let _ = prctl::set_name(c"sandbox-spare");
    // Whatever the engine's parent ignored, programs in the sandbox do not expect it. We ourselves rather get
    // an error from a pipe that nobody reads; processes undo that.
    syscall::reset_signals().step("reset signals")?;
    syscall::ignore_signals(&[libc::SIGPIPE]);
    umask(FileMode::empty());
    if setup.mode == Mode::Rootless {
        userns::map_self(birth.outer.0, birth.outer.1).step("map the user")?;
    }
    // Here and not in the zygote's clone: this takes most of the time, and sandboxes start side by side.
    // After joining the cgroups, so that these are the root of the cgroup namespace.
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(namespaces)
        .map_err(|errno| Failure::new(FailureKind::Namespaces, "make namespaces", &errno.into()))?;
    net::loopback_up().step("bring up the loopback interface")?;
    if setup.mode == Mode::Rootless {
        userns::forbid_nesting();
    }
    Stage::prepare(Site {
        setup,
        owners: Owners::new(setup, place.slot),
        userns: birth.userns.as_ref().map(AsFd::as_fd),
    })
}

fn complete(birth: &Birth, stage: &Stage<'_>, start: Start) -> Result<Grown, Failure> {
    let Birth { setup, place, .. } = birth;
    let group = setup.cgroups.group(&place.group);
    group.limit(&start.limits).step("limit the cgroup")?;
    let verifier = stage.finish(&start)?;
    sethostname(&start.id).step("set the host name")?;
    let listeners = start
        .ports
        .iter()
        .map(|&port| {
            net::listen(port)
                .map(OwnedFd::from)
                .step(format!("listen on port {port}"))
        })
        .collect::<Result<_, _>>()?;

    let _ = prctl::set_name(c"sandbox-init");
    prctl::set_dumpable(false).step("forbid tracing")?;
    let kept = match setup.mode {
        Mode::Root => SYS_ADMIN | KILL,
        // Without a second namespace to enter, processes need SETPCAP from here to drop the rest.
        Mode::Rootless => SYS_ADMIN | KILL | SETPCAP,
    };
    syscall::set_capabilities(kept).step("reduce capabilities")?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block().step("block SIGCHLD")?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    Ok(Grown {
        start,
        listeners,
        verifier,
        signals: signals.step("wait for signals")?,
    })
}

struct Init {
    control: OwnedFd,
    signals: SignalFd,
    rules: Rules,
    owners: Owners,
    /// The sealed directory; a new mount goes on top of it.
    verifier: OwnedFd,
    running: HashMap<i32, File>,
    groups: HashMap<u64, i32>,
    /// Keys of `groups`, oldest first.
    order: VecDeque<u64>,
    /// Processes that SIGKILL has ended.
    killed: u64,
}

impl Init {
    fn new(birth: Birth, start: &Start, verifier: OwnedFd, signals: SignalFd) -> Init {
        let Birth {
            setup,
            place,
            userns,
            filter,
            control,
            ..
        } = birth;
        Init {
            control,
            signals,
            owners: Owners::new(&setup, place.slot),
            rules: Rules {
                userns,
                filter,
                limits: payload::limits(&start.limits, &setup.cgroups),
            },
            verifier,
            running: HashMap::new(),
            groups: HashMap::new(),
            order: VecDeque::new(),
            killed: 0,
        }
    }

    /// Until the engine hangs up.
    fn serve(&mut self) {
        loop {
            let mut events = [
                PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut events, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let [control, signals] = events.map(|event| event.any().unwrap_or(true));
            if signals {
                while matches!(self.signals.read_signal(), Ok(Some(_))) {}
                self.reap(Patience::NoWait);
            }
            if control && !self.take_request() {
                return;
            }
        }
    }

    fn take_request(&mut self) -> bool {
        let Ok(Some((request, descriptors))) = wire::receive(self.control.as_fd()) else {
            return false;
        };
        let mut descriptors = descriptors.into_iter();
        match request {
            Request::Spawn(spawn) => {
                let (Some(exit), Some(status), Some(stdout)) =
                    (descriptors.next(), descriptors.next(), descriptors.next())
                else {
                    return false;
                };
                let stderr = if spawn.has_stderr {
                    descriptors.next()
                } else {
                    None
                };
                let stdin = if spawn.has_stdin {
                    descriptors.next()
                } else {
                    None
                };
                self.spawn(
                    &spawn,
                    exit,
                    Descriptors {
                        status,
                        stdout,
                        stderr,
                        stdin,
                    },
                );
            }
            Request::Signal { process, signal } => self.signal(process, signal),
            Request::KillAll => {
                reply(descriptors.next(), &Ok(self.kill_all()));
            }
            Request::UnsealVerifierLogs => reply(descriptors.next(), &self.unseal()),
        }
        true
    }

    fn spawn(&mut self, spawn: &Spawn, exit: OwnedFd, descriptors: Descriptors) {
        match syscall::fork() {
            Ok(None) => payload::run(spawn, descriptors, &self.rules),
            Ok(Some(pid)) => {
                let pid = pid.as_raw();
                self.running.insert(pid, File::from(exit));
                self.groups.insert(spawn.process, pid);
                self.order.push_back(spawn.process);
                if self.order.len() > GROUPS_MAX {
                    self.forget_oldest_ended();
                }
            }
            Err(error) => payload::report(
                descriptors.status,
                &Failure::new(FailureKind::Setup, "fork", &error),
            ),
        }
    }

    fn forget_oldest_ended(&mut self) {
        let ended = |process: &u64| {
            self.groups
                .get(process)
                .is_none_or(|pid| !self.running.contains_key(pid))
        };
        if let Some(index) = self.order.iter().position(ended)
            && let Some(process) = self.order.remove(index)
        {
            self.groups.remove(&process);
        }
    }

    fn signal(&self, process: u64, signal: i32) {
        // The kernel does not reuse a number while a group has it, so this can only meet that group
        // or, after all of it is dead, nothing.
        let Some(&pid) = self.groups.get(&process) else {
            return;
        };
        syscall::kill(-pid, signal);
        // A process that was only just forked has not made its group yet.
        if self.running.contains_key(&pid) {
            syscall::kill(pid, signal);
        }
    }

    /// Collects the dead and tells the engine about those it started. False when there is nobody left.
    fn reap(&mut self, patience: Patience) -> bool {
        loop {
            match syscall::reap_any(patience) {
                Ok(Some(Death { pid, code, signal })) => {
                    self.killed += u64::from(signal == libc::SIGKILL);
                    if let Some(mut exit) = self.running.remove(&pid) {
                        let _ = exit.write_all(&encode_exit(code, signal));
                    }
                }
                Ok(None) => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Everything but init itself. The kernel signals them all before any of them can fork again. Returns how many there
    /// were, without those that had ended before.
    fn kill_all(&mut self) -> u64 {
        self.reap(Patience::NoWait);
        let before = self.killed;
        loop {
            syscall::kill(-1, libc::SIGKILL);
            if !self.reap(Patience::Wait) {
                return self.killed - before;
            }
        }
    }

    fn unseal(&self) -> Result<(), Failure> {
        let number = |value: u32| CString::new(value.to_string()).unwrap_or_default();
        let size = CString::new(rootfs::LOGS_SIZE).unwrap_or_default();
        let owner = number(self.owners.user);
        let options = [
            (c"size", &*size),
            (c"mode", c"0755"),
            (c"uid", &*owner),
            (c"gid", &*owner),
        ];
        let fresh = mount_fd::new_tmpfs(&options, mount_fd::ATTR_NOSUID | mount_fd::ATTR_NODEV)
            .step("make a tmpfs")?;
        mount_fd::attach_at(fresh.as_fd(), self.verifier.as_fd())
            .step("mount it on the verifier's logs")
    }
}

fn reply<T: Serialize>(pipe: Option<OwnedFd>, result: &Result<T, Failure>) {
    if let (Some(pipe), Ok(json)) = (pipe, serde_json::to_vec(result)) {
        let _ = File::from(pipe).write_all(&json);
    }
}

fn encode_exit(code: i32, signal: i32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&code.to_le_bytes());
    bytes[4..].copy_from_slice(&signal.to_le_bytes());
    bytes
}

/// The other side of [`encode_exit`].
pub(crate) fn decode_exit(bytes: [u8; 8]) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = bytes;
    (
        i32::from_le_bytes([a, b, c, d]),
        i32::from_le_bytes([e, f, g, h]),
    )
}
