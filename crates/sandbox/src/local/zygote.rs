//! The zygote: a small, single-threaded process that the engine starts once and that clones the sandboxes. Cloning the
//! engine itself would copy the page tables of gigabytes. The clones are the engine's children, not the zygote's.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{chdir, dup, dup2_stdin, getegid, geteuid, setsid};

use super::inside::init::{self, InitArguments};
use super::inside::payload::ProcessRules;
use super::inside::seccomp::Filter;
use super::shared::mode::Mode;
use super::shared::syscall::{self, Cloned};
use super::shared::userns;
use super::shared::wire::{
    self, CloneParameters, Failure, FailureKind, Setup, WithStep, ZygoteReply, ZygoteRequest,
};

mod cgroup;
mod probe;

/// The main function of a zygote. Call it first in `main`, before any thread is started.
pub fn main() -> ! {
    let code = match serve() {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%error, "zygote");
            1
        }
    };
    std::process::exit(code)
}

fn serve() -> io::Result<()> {
    // Descriptors left open by the engine's parent must not get into sandboxes.
    syscall::close_from(3)?;
    // Ctrl-C in a terminal is for the engine to handle.
    let _ = setsid();
    chdir("/")?;
    let _ = prctl::set_name(c"sandbox-zygote");
    // One descriptor for each concurrently used slot.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    // The engine passed the socket as stdin, which works without forking.
    let socket = dup(io::stdin())?;
    syscall::close_on_exec_from(3)?;
    dup2_stdin(File::open("/dev/null")?)?;
    let filter = Filter::compile()?;
    let mut zygote = Zygote {
        socket,
        setup: None,
        namespaces: HashMap::new(),
        filter: Rc::new(filter),
    };
    while let Some((request, descriptors)) = wire::receive(zygote.socket.as_fd())? {
        let mut descriptors = descriptors.into_iter();
        match request {
            ZygoteRequest::Configure(setup) => zygote.setup = Some(setup),
            ZygoteRequest::Clone(parameters) => {
                let Some(control) = descriptors.next() else {
                    continue;
                };
                zygote.answer(parameters, control)?;
            }
            ZygoteRequest::Doctor => {
                let checks = probe::all();
                wire::send(zygote.socket.as_fd(), &ZygoteReply::Checks(checks), &[])?;
            }
        }
    }
    Ok(())
}

struct Zygote {
    socket: OwnedFd,
    setup: Option<Setup>,
    /// Root mode: user namespaces by slot, kept for the next sandbox in it.
    namespaces: HashMap<u32, OwnedFd>,
    filter: Rc<Filter>,
}

impl Zygote {
    fn answer(&mut self, parameters: CloneParameters, control: OwnedFd) -> io::Result<()> {
        // Sent with a failure too: the engine has to reap the child that was cloned before it.
        let mut child = None;
        let reply = match self.clone_init(parameters, control, &mut child) {
            Ok(()) => ZygoteReply::Cloned,
            Err(failure) => ZygoteReply::Failed(failure),
        };
        let child: Vec<BorrowedFd<'_>> = child.iter().map(AsFd::as_fd).collect();
        wire::send(self.socket.as_fd(), &reply, &child)
    }

    fn clone_init(
        &mut self,
        parameters: CloneParameters,
        control: OwnedFd,
        child: &mut Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let unconfigured = || io::Error::from_raw_os_error(libc::EINVAL);
        let setup = self
            .setup
            .clone()
            .ok_or_else(unconfigured)
            .step("configure the zygote")?;
        let userns = match setup.mode {
            Mode::Root => Some(self.namespace(&setup, parameters.slot)?),
            Mode::Rootless => None,
        };
        let group = setup.cgroups.group(&parameters.group);
        group.create().step("make a cgroup")?;
        let cgroup_procs = group.open_cgroup_procs().step("open the cgroup")?;
        let namespaces = match setup.mode {
            Mode::Root => libc::CLONE_NEWPID,
            Mode::Rootless => libc::CLONE_NEWPID | libc::CLONE_NEWUSER,
        };
        let outer = (geteuid().as_raw(), getegid().as_raw());
        let step = "clone a process into new namespaces";
        match syscall::clone_process(namespaces)
            .map_err(|error| Failure::new(FailureKind::Namespaces, step, &error))?
        {
            Cloned::Parent { pidfd } => {
                *child = Some(pidfd);
                Ok(())
            }
            Cloned::Child => {
                // Otherwise the engine would not notice the zygote's death as long as a sandbox lives.
                if let Ok(null) = File::open("/dev/null") {
                    self.socket = null.into();
                }
                self.namespaces.clear();
                let filter = Rc::clone(&self.filter);
                let arguments = InitArguments {
                    setup,
                    parameters,
                    rules: ProcessRules {
                        userns,
                        filter,
                        cgroup_procs,
                    },
                    control,
                    outer,
                };
                syscall::exit_now(i32::from(
                    catch_unwind(AssertUnwindSafe(|| init::main(arguments))).is_err(),
                ))
            }
        }
    }

    fn namespace(&mut self, setup: &Setup, slot: u32) -> Result<OwnedFd, Failure> {
        let userns =
            match self.namespaces.remove(&slot) {
                Some(userns) => userns,
                None => userns::create(userns::range_start(setup.engine_pid, slot)).map_err(
                    |error| Failure::new(FailureKind::Namespaces, "make a user namespace", &error),
                )?,
            };
        let copy = userns.try_clone().step("copy a descriptor")?;
        self.namespaces.insert(slot, userns);
        Ok(copy)
    }
}
