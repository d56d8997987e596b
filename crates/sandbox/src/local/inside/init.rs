//! The sandbox's PID 1: builds the sandbox around itself, then starts processes on request and reaps everything that
//! dies. When it ends, the kernel kills every process of the sandbox.
//!
//! It pauses halfway, as a spare, until a message on its control socket specifies the sandbox.
//!
//! In root mode it stays real root, confined to its own namespaces, because it must mount once more when the verifier's
//! directories are unsealed; processes join the user namespace between fork and exec. That is safe because it accepts
//! requests only from the engine's socket, cannot be traced or signalled from the user namespace, keeps three
//! capabilities, and after the start uses no path that the sandbox could change.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::sethostname;
use serde::Serialize;

use super::agent_view::{AgentViews, ViewContext};
use super::layout::{BuildContext, Owners};
use super::net;
use super::payload::{self, ProcessRules};
use super::rootfs::{self, RootHandles, StagedRoot};
use super::standby::Standby;
use crate::local::shared::ENTRANCE_PORT;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd;
use crate::local::shared::syscall::{self, ChildExit, WaitMode};
use crate::local::shared::userns;
use crate::local::shared::wire::{
    self, CloneParameters, Failure, FailureKind, InitRequest, ProcessLimits, Setup, Spawn,
    SpawnMessage, StartMessage, StartReply, WithStep, Work,
};

const KILL: u64 = 1 << 5;
const SETPCAP: u64 = 1 << 8;
const SYS_ADMIN: u64 = 1 << 21;
/// Ended processes whose group can still be signalled: a command's children may outlive it.
const GROUPS_MAX: usize = 256;
/// The delay before the next standby is forked, so that the process just started has the processor to itself.
const NEXT_PAUSE_MS: u8 = 1;

/// What the zygote passes to its child.
pub(crate) struct InitArguments {
    pub(crate) setup: Setup,
    pub(crate) parameters: CloneParameters,
    pub(crate) rules: ProcessRules,
    pub(crate) control: OwnedFd,
    /// The engine's uid and gid, for the rootless map.
    pub(crate) outer: (u32, u32),
}

/// The main function of a sandbox's first process. Returning ends the sandbox.
pub(crate) fn main(arguments: InitArguments) {
    match build(&arguments) {
        Err(failure) => {
            let _ = wire::send(arguments.control.as_fd(), &StartReply::Failed(failure), &[]);
        }
        // The engine closed the socket: the spare is not needed.
        Ok(None) => {}
        Ok(Some(BuiltSandbox {
            start,
            sockets,
            root,
            signals,
            standby,
        })) => {
            let handles: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
            if wire::send(arguments.control.as_fd(), &StartReply::Ready, &handles).is_ok() {
                drop(sockets);
                Init::new(arguments, &start, root, (signals, standby)).serve();
            }
        }
    }
}

/// What is there when all is root.
struct BuiltSandbox {
    start: StartMessage,
    /// As [`StartReply::Ready`] carries them.
    sockets: Vec<OwnedFd>,
    root: RootHandles,
    signals: SignalFd,
    standby: Option<Standby>,
}

/// Builds the sandbox, pausing as a spare until its specification arrives.
fn build(arguments: &InitArguments) -> Result<Option<BuiltSandbox>, Failure> {
    let stage = prepare(arguments)?;
    let standby = Standby::fork(&arguments.rules, &arguments.rules.cgroup_procs).step("fork")?;
    match wire::receive(arguments.control.as_fd()).step("learn what the sandbox is to be")? {
        None => Ok(None),
        Some((start, archives)) => {
            complete(arguments, &stage, (start, archives), standby).map(Some)
        }
    }
}

/// Builds everything that is the same for every sandbox.
fn prepare(arguments: &InitArguments) -> Result<StagedRoot<'_>, Failure> {
    let InitArguments {
        setup, parameters, ..
    } = arguments;
    let _ = prctl::set_name(c"sandbox-spare");
    // Signals ignored by the engine's parent must not be ignored in the sandbox. Init itself ignores SIGPIPE, to get an
    // error from a pipe without a reader; processes undo that.
    syscall::reset_signals().step("reset signals")?;
    syscall::ignore_signals(&[libc::SIGPIPE]);
    umask(FileMode::empty());
    if setup.mode == Mode::Rootless {
        userns::map_self(arguments.outer.0, arguments.outer.1).step("map the user")?;
    }
    // Here and not in the zygote's clone: this takes most of the time, and sandboxes start concurrently. Each process
    // creates its own cgroup namespace after it has joined the sandbox's group.
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
    StagedRoot::prepare(BuildContext {
        setup,
        owners: Owners::new(setup, parameters.slot),
        userns: arguments.rules.userns.as_ref().map(AsFd::as_fd),
    })
}

fn complete(
    arguments: &InitArguments,
    stage: &StagedRoot<'_>,
    (start, archives): (StartMessage, Vec<OwnedFd>),
    standby: Standby,
) -> Result<BuiltSandbox, Failure> {
    let root = stage.finish(&start, archives)?;
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
    let kept = match arguments.setup.mode {
        // To cover the verifier's directories also where the agent has locked the way to them.
        Mode::Root => SYS_ADMIN | KILL | payload::DAC_READ_SEARCH,
        // Without a second namespace to enter, processes need SETPCAP to drop the rest; one that takes a snapshot has
        // to read everything, too.
        Mode::Rootless => SYS_ADMIN | KILL | SETPCAP | payload::DAC_READ_SEARCH,
    };
    syscall::set_capabilities(kept).step("reduce capabilities")?;
    let signals = syscall::child_signals();
    Ok(BuiltSandbox {
        start,
        sockets,
        root,
        signals: signals.step("wait for signals")?,
        standby: Some(standby),
    })
}

struct Init {
    control: OwnedFd,
    signals: SignalFd,
    rules: ProcessRules,
    process_limits: ProcessLimits,
    /// The process that becomes the next command.
    standby: Option<Standby>,
    owners: Owners,
    root: RootHandles,
    disk_bytes: u64,
    /// The mounts of the latest renewal.
    renewed: Vec<OwnedFd>,
    /// What `as-agent` runs, from the unsealing on.
    views: Option<AgentViews>,
    running: HashMap<i32, File>,
    groups: HashMap<u64, i32>,
    /// Keys of `groups`, oldest first.
    order: VecDeque<u64>,
    /// The number of processes ended by SIGKILL.
    killed: u64,
}

impl Init {
    fn new(
        arguments: InitArguments,
        start: &StartMessage,
        root: RootHandles,
        (signals, standby): (SignalFd, Option<Standby>),
    ) -> Init {
        let InitArguments {
            setup,
            parameters,
            rules,
            control,
            ..
        } = arguments;
        Init {
            control,
            signals,
            owners: Owners::new(&setup, parameters.slot),
            rules,
            process_limits: start.process_limits,
            standby,
            root,
            disk_bytes: start.disk_bytes,
            renewed: Vec::new(),
            views: None,
            running: HashMap::new(),
            groups: HashMap::new(),
            order: VecDeque::new(),
            killed: 0,
        }
    }

    /// Serves requests until the engine closes the socket.
    fn serve(&mut self) {
        loop {
            let mut events = vec![
                PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            let calls = self.views.as_ref().and_then(AgentViews::waits_on);
            events.extend(calls.map(|calls| PollFd::new(calls, PollFlags::POLLIN)));
            let timeout = match self.standby {
                Some(_) => PollTimeout::NONE,
                None => PollTimeout::from(NEXT_PAUSE_MS),
            };
            match poll(&mut events, timeout) {
                Err(Errno::EINTR) => continue,
                Err(_) => return,
                Ok(0) => {
                    self.prepare_next();
                    continue;
                }
                Ok(_) => {}
            }
            let mut events = events.iter().map(|event| event.any().unwrap_or(true));
            let mut next = || events.next().unwrap_or(false);
            let (control, signals, calls) = (next(), next(), next());
            if signals {
                while matches!(self.signals.read_signal(), Ok(Some(_))) {}
                self.reap(WaitMode::NoWait);
            }
            if calls {
                self.take_call();
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
            InitRequest::Spawn(spawn) => {
                let Some(exit) = descriptors.next() else {
                    return false;
                };
                self.spawn(spawn, exit, descriptors.collect());
            }
            InitRequest::Signal { process, signal } => self.signal(process, signal),
            InitRequest::KillAll => {
                reply(descriptors.next(), &Ok(self.kill_all()));
                self.prepare_next();
            }
            InitRequest::Unseal { agent } => reply(descriptors.next(), &self.unseal(agent)),
            InitRequest::Renew => reply(descriptors.next(), &self.renew()),
            InitRequest::SealSetup => reply(descriptors.next(), &self.seal_setup()),
            InitRequest::Connect { port } => hand_connection(descriptors.next(), port),
        }
        true
    }

    /// Takes up a call of `as-agent`.
    fn take_call(&mut self) {
        let cx = ViewContext {
            rules: &self.rules,
            process_limits: self.process_limits,
            owners: self.owners,
            disk_bytes: self.disk_bytes,
        };
        if let Some(views) = &mut self.views {
            views.take(&cx);
        }
    }

    fn spawn(&mut self, mut spawn: Spawn, exit: OwnedFd, mut descriptors: Vec<OwnedFd>) {
        let process = spawn.process;
        if let Work::Snapshot = spawn.work
            && let Ok(areas) = self.root.areas.send()
        {
            spawn.has_stdin = true;
            descriptors.push(areas);
        }
        let message = SpawnMessage {
            spawn,
            process_limits: self.process_limits,
        };
        match self.hand_over(&message, &descriptors) {
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

    /// Lets the standby become the process, or a new one if it is dead. File operations are ours and not the agent's:
    /// they need little memory, and must work when the agent has used up all of its own, so they join no cgroup.
    fn hand_over(&mut self, message: &SpawnMessage, descriptors: &[OwnedFd]) -> io::Result<i32> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let is_limited = matches!(message.spawn.work, Work::Exec { .. });
        if is_limited
            && let Some(standby) = self.standby.take()
            && standby.send(message, &descriptors).is_ok()
        {
            return Ok(standby.pid);
        }
        let cgroup_procs = if is_limited {
            &self.rules.cgroup_procs[..]
        } else {
            &[]
        };
        let standby = Standby::fork(&self.rules, cgroup_procs)?;
        standby.send(message, &descriptors)?;
        Ok(standby.pid)
    }

    /// If this fails, the next process is forked on request, which reports the error.
    fn prepare_next(&mut self) {
        if self.standby.is_none() {
            self.standby = Standby::fork(&self.rules, &self.rules.cgroup_procs).ok();
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
        // The kernel does not reuse a pid while a process group has it, so this can only reach that group or, after all
        // of it is dead, nothing.
        let Some(&pid) = self.groups.get(&process) else {
            return;
        };
        syscall::kill(-pid, signal);
        // A process that was just forked has not created its group yet.
        if self.running.contains_key(&pid) {
            syscall::kill(pid, signal);
        }
    }

    /// Reaps dead processes and reports those that the engine started. False when no child is left.
    fn reap(&mut self, wait_mode: WaitMode) -> bool {
        loop {
            match syscall::reap_any(wait_mode) {
                Ok(Some(ChildExit { pid, code, signal })) => {
                    let is_standby = |standby: &mut Standby| standby.pid == pid;
                    if self.standby.take_if(is_standby).is_some() {
                        continue;
                    }
                    if let Some(views) = &mut self.views {
                        views.forget(pid);
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

    /// Kills everything but init itself. The kernel signals all processes before any of them can fork again. Returns
    /// how many there were, without those that had ended before.
    fn kill_all(&mut self) -> u64 {
        self.reap(WaitMode::NoWait);
        let before = self.killed;
        loop {
            syscall::kill(-1, libc::SIGKILL);
            if !self.reap(WaitMode::Wait) {
                return self.killed - before;
            }
        }
    }

    fn unseal(&mut self, agent: BTreeMap<String, String>) -> Result<(), Failure> {
        self.mount_over(&self.root.logs, rootfs::LOGS_SIZE)?;
        if let Some(program) = self.root.program.take() {
            self.views = Some(AgentViews::open(self.root.verify_run.as_fd(), agent)?);
            mount_fd::attach_at(program.as_fd(), self.root.as_agent.as_fd())
                .step("show as-agent")?;
        }
        self.renew()
    }

    /// Gives the next verify command directories that no other has written to.
    fn renew(&mut self) -> Result<(), Failure> {
        for old in self.renewed.drain(..) {
            // By its descriptor: the agent may have locked the way to it.
            let path = format!("/proc/self/fd/{}", old.as_raw_fd());
            umount2(path.as_str(), MntFlags::MNT_DETACH).step("take a directory away")?;
        }
        // Tests may be as large as any other file of a task.
        let size = self.disk_bytes.to_string();
        for place in [&self.root.tests, &self.root.verify_home] {
            let mounted = self.mount_over(place, &size)?;
            self.renewed.push(mounted);
        }
        Ok(())
    }

    fn seal_setup(&self) -> Result<(), Failure> {
        let read_only = mount_fd::ATTR_RDONLY;
        mount_fd::restrict_tree(self.root.setup.as_fd(), read_only).step("make a mount read-only")
    }

    fn mount_over(&self, sealed: &OwnedFd, size: &str) -> Result<OwnedFd, Failure> {
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
            .step("mount it on a directory of the verifier's")?;
        Ok(fresh)
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
