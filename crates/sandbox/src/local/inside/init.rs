//! The sandbox's PID 1: builds the sandbox around itself, then starts processes on request and reaps
//! everything that dies. When it ends, the kernel kills every process of the sandbox.
//!
//! It pauses halfway, as a spare, until a message on its control socket says what the sandbox is to be.
//!
//! In root mode it stays real root, confined to its own namespaces, because it must mount once more when
//! the verifier's directories are unsealed; processes join the user namespace between fork and exec. That is safe
//! because it takes orders from the engine's socket alone, cannot be traced or signalled from the user
//! namespace, keeps two capabilities, and after the start names no path that the sandbox could change.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::sethostname;
use serde::Serialize;

use super::layout::{Owners, Site};
use super::net;
use super::payload::{self, Rules};
use super::rootfs::{self, Built, Stage};
use super::understudy::Understudy;
use crate::local::shared::ENTRANCE_PORT;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd;
use crate::local::shared::syscall::{self, Death, Patience};
use crate::local::shared::userns;
use crate::local::shared::wire::{
    self, Failure, FailureKind, InStep, Order, Place, ProcessLimits, Ready, Request, Setup, Spawn,
    Start, Work,
};

const KILL: u64 = 1 << 5;
const SETPCAP: u64 = 1 << 8;
const SYS_ADMIN: u64 = 1 << 21;
/// Ended processes whose group can still be signalled: a command's children may outlive it.
const GROUPS_MAX: usize = 256;
/// Before the next process is prepared, so that the one just asked for has the processor to itself.
const NEXT_PAUSE_MS: u8 = 1;

/// What the zygote hands its child.
pub(crate) struct Birth {
    pub(crate) setup: Setup,
    pub(crate) place: Place,
    pub(crate) rules: Rules,
    pub(crate) control: OwnedFd,
    /// The engine's user, for the rootless map.
    pub(crate) outer: (u32, u32),
}

/// The life of a sandbox's first process. Returning ends the sandbox.
pub(crate) fn main(birth: Birth) {
    match grow_up(&birth) {
        Err(failure) => {
            let _ = wire::send(birth.control.as_fd(), &Ready::Failed(failure), &[]);
        }
        // Nobody needs us.
        Ok(None) => {}
        Ok(Some(Grown {
            start,
            sockets,
            built,
            signals,
            understudy,
        })) => {
            let handles: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
            if wire::send(birth.control.as_fd(), &Ready::Ready, &handles).is_ok() {
                drop(sockets);
                Init::new(birth, &start, built, (signals, understudy)).serve();
            }
        }
    }
}

/// What is there when all is built.
struct Grown {
    start: Start,
    /// As [`Ready::Ready`] carries them.
    sockets: Vec<OwnedFd>,
    built: Built,
    signals: SignalFd,
    understudy: Option<Understudy>,
}

/// Builds the sandbox, with a pause until somebody needs one and says what it is to be.
fn grow_up(birth: &Birth) -> Result<Option<Grown>, Failure> {
    let stage = prepare(birth)?;
    let understudy = Understudy::fork(&birth.rules, &birth.rules.doors).step("fork")?;
    match wire::receive(birth.control.as_fd()).step("learn what the sandbox is to be")? {
        None => Ok(None),
        Some((start, archives)) => complete(birth, &stage, (start, archives), understudy).map(Some),
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
    // Each process takes a cgroup namespace of its own when it has joined the sandbox's group.
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(namespaces)
        .map_err(|errno| Failure::new(FailureKind::Namespaces, "make namespaces", &errno.into()))?;
    net::loopback_up().step("bring up the loopback interface")?;
    if setup.mode == Mode::Rootless {
        userns::forbid_nesting();
    }
    Stage::prepare(Site {
        setup,
        owners: Owners::new(setup, place.slot),
        userns: birth.rules.userns.as_ref().map(AsFd::as_fd),
    })
}

fn complete(
    birth: &Birth,
    stage: &Stage<'_>,
    (start, archives): (Start, Vec<OwnedFd>),
    understudy: Understudy,
) -> Result<Grown, Failure> {
    let built = stage.finish(&start, archives)?;
    sethostname(&start.id).step("set the host name")?;
    let mut sockets = Vec::new();
    if start.has_entrance {
        let entrance = net::listen(Ipv4Addr::LOCALHOST, ENTRANCE_PORT);
        sockets.push(entrance.step("listen for those who want the model")?);
    }
    if let Some(ports) = &start.intercepted_ports {
        sockets.extend(net::gates(ports)?);
    }

    let _ = prctl::set_name(c"sandbox-init");
    prctl::set_dumpable(false).step("forbid tracing")?;
    let kept = match birth.setup.mode {
        Mode::Root => SYS_ADMIN | KILL,
        // Without a second namespace to enter, processes need SETPCAP from here to drop the rest; one that takes a
        // snapshot has to read everything.
        Mode::Rootless => SYS_ADMIN | KILL | SETPCAP | payload::DAC_READ_SEARCH,
    };
    syscall::set_capabilities(kept).step("reduce capabilities")?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block().step("block SIGCHLD")?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
    Ok(Grown {
        start,
        sockets,
        built,
        signals: signals.step("wait for signals")?,
        understudy: Some(understudy),
    })
}

struct Init {
    control: OwnedFd,
    signals: SignalFd,
    rules: Rules,
    process_limits: ProcessLimits,
    /// Who becomes the next process.
    understudy: Option<Understudy>,
    owners: Owners,
    built: Built,
    disk_bytes: u64,
    running: HashMap<i32, File>,
    groups: HashMap<u64, i32>,
    /// Keys of `groups`, oldest first.
    order: VecDeque<u64>,
    /// Processes that SIGKILL has ended.
    killed: u64,
}

impl Init {
    fn new(
        birth: Birth,
        start: &Start,
        built: Built,
        (signals, understudy): (SignalFd, Option<Understudy>),
    ) -> Init {
        let Birth {
            setup,
            place,
            rules,
            control,
            ..
        } = birth;
        Init {
            control,
            signals,
            owners: Owners::new(&setup, place.slot),
            rules,
            process_limits: start.process_limits,
            understudy,
            built,
            disk_bytes: start.disk_bytes,
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
            let patience = match self.understudy {
                Some(_) => PollTimeout::NONE,
                None => PollTimeout::from(NEXT_PAUSE_MS),
            };
            match poll(&mut events, patience) {
                Err(Errno::EINTR) => continue,
                Err(_) => return,
                Ok(0) => {
                    self.prepare_next();
                    continue;
                }
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
                let Some(exit) = descriptors.next() else {
                    return false;
                };
                self.spawn(spawn, exit, descriptors.collect());
            }
            Request::Signal { process, signal } => self.signal(process, signal),
            Request::KillAll => {
                reply(descriptors.next(), &Ok(self.kill_all()));
                self.prepare_next();
            }
            Request::Unseal => reply(descriptors.next(), &self.unseal()),
            Request::SealSetup => reply(descriptors.next(), &self.seal_setup()),
            Request::Connect { port } => hand_connection(descriptors.next(), port),
        }
        true
    }

    fn spawn(&mut self, mut spawn: Spawn, exit: OwnedFd, mut descriptors: Vec<OwnedFd>) {
        let process = spawn.process;
        if let Work::Snapshot = spawn.work
            && let Ok(areas) = self.built.areas.hand()
        {
            spawn.has_stdin = true;
            descriptors.push(areas);
        }
        let order = Order {
            spawn,
            process_limits: self.process_limits,
        };
        match self.hand_over(&order, &descriptors) {
            Ok(pid) => {
                self.running.insert(pid, File::from(exit));
                self.groups.insert(process, pid);
                self.order.push_back(process);
                if self.order.len() > GROUPS_MAX {
                    self.forget_oldest_ended();
                }
            }
            Err(error) => {
                let failure = Failure::new(FailureKind::Setup, "fork", &error);
                if let Some(Ok(status)) = descriptors.first().map(OwnedFd::try_clone) {
                    payload::report(status, &failure);
                }
            }
        }
    }

    /// Has the understudy become a process, or a new one if it is dead. File operations are ours and not the agent's:
    /// they need little memory, and must work when the agent has used up all of its own, so they join no cgroup.
    fn hand_over(&mut self, order: &Order, descriptors: &[OwnedFd]) -> io::Result<i32> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let is_limited = matches!(order.spawn.work, Work::Exec { .. });
        if is_limited
            && let Some(understudy) = self.understudy.take()
            && understudy.tell(order, &descriptors).is_ok()
        {
            return Ok(understudy.pid);
        }
        let doors = if is_limited {
            &self.rules.doors[..]
        } else {
            &[]
        };
        let understudy = Understudy::fork(&self.rules, doors)?;
        understudy.tell(order, &descriptors)?;
        Ok(understudy.pid)
    }

    /// Failing means that the next process will be forked when it is asked for, or be told why not.
    fn prepare_next(&mut self) {
        if self.understudy.is_none() {
            self.understudy = Understudy::fork(&self.rules, &self.rules.doors).ok();
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
                    let is_understudy = |understudy: &mut Understudy| understudy.pid == pid;
                    if self.understudy.take_if(is_understudy).is_some() {
                        continue;
                    }
                    self.killed += u64::from(signal == libc::SIGKILL);
                    if let Some(mut exit) = self.running.remove(&pid) {
                        let _ = exit.write_all(&wire::encode_exit(code, signal));
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
        self.lay_over(&self.built.logs, rootfs::LOGS_SIZE)?;
        // Tests may be as large as anything else that a task brings along.
        self.lay_over(&self.built.tests, &self.disk_bytes.to_string())
    }

    fn seal_setup(&self) -> Result<(), Failure> {
        let read_only = mount_fd::ATTR_RDONLY;
        mount_fd::restrict_tree(self.built.setup.as_fd(), read_only).step("make a mount read-only")
    }

    fn lay_over(&self, sealed: &OwnedFd, size: &str) -> Result<(), Failure> {
        let text = |value: String| CString::new(value).unwrap_or_default();
        let (size, owner) = (text(size.to_owned()), text(self.owners.user.to_string()));
        let options = [
            (c"size", &*size),
            (c"mode", c"0755"),
            (c"uid", &*owner),
            (c"gid", &*owner),
        ];
        let fresh = mount_fd::new_mount(
            c"tmpfs",
            &options,
            mount_fd::ATTR_NOSUID | mount_fd::ATTR_NODEV,
        )
        .step("make a tmpfs")?;
        mount_fd::attach_at(fresh.as_fd(), sealed.as_fd())
            .step("mount it on a directory of the verifier's")
    }
}

fn hand_connection(socket: Option<OwnedFd>, port: u16) {
    let Some(socket) = socket else { return };
    let connected = net::connect(port).step("connect");
    let told = connected.as_ref().map(drop);
    let connection: Vec<BorrowedFd<'_>> = connected.iter().map(AsFd::as_fd).collect();
    let _ = wire::send(socket.as_fd(), &told, &connection);
}

fn reply<T: Serialize>(pipe: Option<OwnedFd>, result: &Result<T, Failure>) {
    if let (Some(pipe), Ok(json)) = (pipe, serde_json::to_vec(result)) {
        let _ = File::from(pipe).write_all(&json);
    }
}
