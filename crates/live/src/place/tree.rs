//! The processes of a server on this machine: found in `/proc` by their parents and by the server's mark, and killed.
//!
//! A process group is not enough: an agent's shell has a session of its own. Nor are parents: whoever loses its parent
//! becomes a child of the machine's first process.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::MARK;

/// Between two looks at processes that were killed.
const PAUSE: Duration = Duration::from_millis(2);

/// Names a process beyond its end, when its number may belong to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: i32,
    /// Clock ticks since the machine's start.
    pub start_ticks: u64,
    /// Stands in the process's environment, so that a process after the machine's restart is not taken for it.
    pub mark: String,
}

impl ProcessIdentity {
    pub(super) fn of_child(pid: i32, mark: String) -> Option<Self> {
        let start_ticks = Seen::read(pid)?.start_ticks;
        Some(ProcessIdentity {
            pid,
            start_ticks,
            mark,
        })
    }

    pub fn is_alive(&self) -> bool {
        let seen = Seen::read(self.pid);
        seen.is_some_and(|seen| {
            seen.start_ticks == self.start_ticks && !seen.is_dead && has_mark(self.pid, &self.mark)
        })
    }
}

/// A process at one moment.
#[derive(Clone, Copy)]
struct Seen {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    start_ticks: u64,
    is_dead: bool,
}

impl Seen {
    fn read(pid: i32) -> Option<Seen> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name before it may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(Seen {
            pid,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            start_ticks: fields.get(19)?.parse().ok()?,
            is_dead: matches!(*fields.first()?, "Z" | "X"),
        })
    }

    fn all() -> Vec<Seen> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(Seen::read).collect()
    }
}

fn has_mark(pid: i32, mark: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let expect = format!("{MARK}={mark}");
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == expect.as_bytes())
}

/// A server and all that it started.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) root: ProcessIdentity,
    /// By number and start; a process stays a member when its parent is gone.
    members: BTreeSet<(i32, u64)>,
}

impl Tree {
    pub(super) fn new(root: ProcessIdentity) -> Self {
        let members = [(root.pid, root.start_ticks)].into();
        Tree { root, members }
    }

    /// The members that are alive. Looking before the server's end remembers those that could not be found afterwards.
    pub(super) fn look(&mut self) -> Vec<i32> {
        let seen: Vec<Seen> = Seen::all()
            .into_iter()
            .filter(|one| one.start_ticks >= self.root.start_ticks)
            .collect();
        let of = |pid: i32| seen.iter().find(|one| one.pid == pid);
        let us = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        loop {
            let before = self.members.len();
            for one in &seen {
                let is_member = |pid: i32| {
                    of(pid).is_some_and(|it| self.members.contains(&(it.pid, it.start_ticks)))
                };
                let related = [one.parent, one.group, one.session];
                if one.pid != us
                    && !one.is_dead
                    && !is_member(one.pid)
                    && (related.into_iter().any(is_member) || has_mark(one.pid, &self.root.mark))
                {
                    self.members.insert((one.pid, one.start_ticks));
                }
            }
            if self.members.len() == before {
                break;
            }
        }
        let alive = seen
            .iter()
            .filter(|one| !one.is_dead && self.members.contains(&(one.pid, one.start_ticks)));
        alive.map(|one| one.pid).collect()
    }

    /// Asks the server's own process group to end. A stopped process ends too.
    pub(super) fn terminate(&self) {
        for signal in [Signal::SIGTERM, Signal::SIGCONT] {
            let _ = nix::sys::signal::killpg(Pid::from_raw(self.root.pid), signal);
        }
    }

    /// Kills until nothing is left; what is started in the meantime is found by the next look.
    pub(super) fn kill(&mut self, limit: Duration) {
        let begun = Instant::now();
        while self.kill_once() {
            if begun.elapsed() >= limit {
                tracing::error!(
                    pid = self.root.pid,
                    "processes of an agent's server cannot be killed"
                );
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether there was something to kill.
    fn kill_once(&mut self) -> bool {
        let alive = self.look();
        let mut any = false;
        for pid in alive {
            any |= kill(Pid::from_raw(pid), Signal::SIGKILL) != Err(Errno::ESRCH);
        }
        any
    }
}
