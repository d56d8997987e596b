//! The next process of a sandbox, before it is known what it will be: forked from init, and already in the
//! sandbox's cgroups. Joining them takes up to ten milliseconds after a quiet period, which nobody waits for
//! in this way. It is a child of init like any other process.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;

use super::payload::{self, Descriptors, Rules};
use crate::local::shared::syscall;
use crate::local::shared::wire::{self, Failure, InStep, Order};

/// The kernel shall rather kill an agent's process than init when memory runs out.
const OOM_SCORE: &str = "500";

pub(crate) struct Understudy {
    pub(crate) pid: i32,
    socket: OwnedFd,
}

impl Understudy {
    /// Joins the cgroups that `doors` lead to.
    pub(crate) fn fork(rules: &Rules, doors: &[File]) -> io::Result<Understudy> {
        let (ours, theirs) = wire::pair()?;
        match syscall::fork()? {
            Some(pid) => Ok(Understudy {
                pid: pid.as_raw(),
                socket: ours,
            }),
            None => {
                drop(ours);
                // A panic must not unwind into init's loop, which this process is a copy of.
                let _ = catch_unwind(AssertUnwindSafe(|| wait(theirs, rules, doors)));
                syscall::exit_now(126)
            }
        }
    }

    /// Tells it what to become. Fails if it is dead.
    pub(crate) fn tell(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(self.socket.as_fd(), order, descriptors)
    }
}

/// The child's side.
fn wait(socket: OwnedFd, rules: &Rules, doors: &[File]) {
    let entered = enter(doors);
    let Ok(Some((order, descriptors))) = wire::receive::<Order>(socket.as_fd()) else {
        return;
    };
    drop(socket);
    let Some(descriptors) = Descriptors::take(&order.spawn, descriptors) else {
        return;
    };
    match entered {
        Ok(()) => payload::run(&order, descriptors, rules),
        Err(failure) => payload::report(descriptors.status, &failure),
    }
}

fn enter(doors: &[File]) -> Result<(), Failure> {
    let _ = prctl::set_name(c"sandbox-next");
    // Before it is the agent's, and while /proc still lets us.
    prctl::set_dumpable(true).step("prepare a process")?;
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    prctl::set_dumpable(false).step("forbid tracing")?;
    for mut door in doors {
        door.write_all(b"0").step("join the cgroup")?;
    }
    // After joining, so that these groups are the root of what the process sees.
    unshare(CloneFlags::CLONE_NEWCGROUP).step("make a cgroup namespace")
}
