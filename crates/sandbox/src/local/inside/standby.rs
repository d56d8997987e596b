//! A standby: the next process of a sandbox, forked from init in advance and already in the sandbox's cgroups. Joining
//! them takes up to ten milliseconds after a quiet period, which is thus saved when a process is started. It is a child
//! of init like any other process.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;

use super::payload::{self, Descriptors, ProcessRules};
use crate::local::shared::syscall;
use crate::local::shared::wire::{self, Failure, SpawnMessage, WithStep};

/// Makes the kernel kill an agent's process rather than init when memory runs out.
const OOM_SCORE: &str = "500";

pub(crate) struct Standby {
    pub(crate) pid: i32,
    socket: OwnedFd,
}

impl Standby {
    /// Forks a process that joins the cgroups of these `cgroup.procs` files.
    pub(crate) fn fork(rules: &ProcessRules, cgroup_procs: &[File]) -> io::Result<Standby> {
        let (ours, theirs) = wire::pair()?;
        match syscall::fork()? {
            Some(pid) => Ok(Standby {
                pid: pid.as_raw(),
                socket: ours,
            }),
            None => {
                drop(ours);
                // A panic must not unwind into init's loop, which this process is a copy of.
                let _ = catch_unwind(AssertUnwindSafe(|| wait(theirs, rules, cgroup_procs)));
                syscall::exit_now(126)
            }
        }
    }

    /// Sends it its work. Fails if it is dead.
    pub(crate) fn send(
        &self,
        message: &SpawnMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        wire::send(self.socket.as_fd(), message, descriptors)
    }
}

/// The child's side.
fn wait(socket: OwnedFd, rules: &ProcessRules, cgroup_procs: &[File]) {
    let entered = enter(cgroup_procs);
    let Ok(Some((message, descriptors))) = wire::receive::<SpawnMessage>(socket.as_fd()) else {
        return;
    };
    drop(socket);
    let Some(descriptors) = Descriptors::take(&message.spawn, descriptors) else {
        return;
    };
    match entered {
        Ok(()) => payload::run(&message, descriptors, rules),
        Err(failure) => payload::report(descriptors.status, &failure),
    }
}

/// Joins the cgroups. The next program that is started is the one to be killed when memory runs out.
pub(crate) fn enter(cgroup_procs: &[File]) -> Result<(), Failure> {
    let _ = prctl::set_name(c"sandbox-next");
    // While it is still ours and /proc permits it.
    prctl::set_dumpable(true).step("prepare a process")?;
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    prctl::set_dumpable(false).step("forbid tracing")?;
    for mut procs in cgroup_procs {
        procs.write_all(b"0").step("join the cgroup")?;
    }
    // After joining, so that these groups are the root of the new namespace.
    unshare(CloneFlags::CLONE_NEWCGROUP).step("make a cgroup namespace")
}
