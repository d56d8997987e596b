//! Limits on memory, processes and processor time, by the control groups that this machine offers: per controller
//! version 2 if we may use it, else a version 1 hierarchy, else nothing.
//!
//! A sandbox's init stays outside the limited group: the sandbox's files are memory that killing processes does not
//! free, so init would be killed as the last one, and the sandbox could not be graded. Each process that init starts
//! joins the group, except for file operations, which are the engine's. The engine writes the limits, because with the
//! mount option `nsdelegate` the kernel refuses that from inside a cgroup namespace whose root is the group.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::instance::{self, Claim};
use crate::local::shared::cgroup::{Cgroups, Controller, Group};
use crate::local::shared::wire::ProcessLimits;
use crate::{Isolation, Limits, Usage};

pub(super) mod mount;
mod peak;
mod unified;

use mount::Mounts;
pub(crate) use peak::MemoryPeak;
use unified::LeafMove;

const PERIOD_US: u32 = 100_000;
/// Version 1 limits TCP socket buffers separately. More than any agent has in flight.
const TCP_BYTES_MAX: u64 = 64 << 20;
/// The kernel frees a dead process's group a moment after the process was reaped.
const REMOVE_TRIES: u32 = 400;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// The cgroups created for the engine, to be removed at its end.
#[derive(Debug, Default)]
pub(crate) struct OwnedGroups {
    pub(crate) claims: Vec<Claim>,
    leaf_move: Option<LeafMove>,
    /// A private writable mount of the version 2 hierarchy, if the existing one is read-only.
    _mount: Option<OwnedFd>,
}

impl OwnedGroups {
    /// Removes the engine's groups, with everything left in them.
    pub(crate) fn remove_all(&mut self) -> io::Result<()> {
        if let Some(leaf_move) = self.leaf_move.take() {
            leaf_move.undo();
        }
        let mut result = Ok(());
        for claim in self.claims.drain(..) {
            result = result.and(remove_engine(&claim.path));
        }
        result
    }
}

impl Cgroups {
    /// Creates and locks the engine's groups called `name`, wherever that is allowed.
    pub(crate) fn create(mounts: &Mounts, name: &str) -> (Cgroups, OwnedGroups) {
        let mut owned = OwnedGroups::default();
        let mut unified = None;
        let mut enabled = Vec::new();
        if let Some(group) = unified::find(mounts, name) {
            unified = Some(group.claim.path.clone());
            enabled = group.enabled;
            owned = OwnedGroups {
                claims: vec![group.claim],
                leaf_move: group.leaf_move,
                _mount: group.mount,
            };
        }
        let claims = &mut owned.claims;
        let mut controller = |controller: &str, counterpart: &str| {
            if enabled.contains(&counterpart) {
                return Controller::V2;
            }
            let Some(mount) = mounts.v1.get(controller) else {
                return Controller::None;
            };
            let path = mount.join(name);
            // Several controllers may share a hierarchy, and so the directory.
            if !claims.iter().any(|claim: &Claim| claim.path == path) {
                match instance::claim(mount, name) {
                    Ok(claim) => claims.push(claim),
                    Err(_) => return Controller::None,
                }
            }
            Controller::V1(path)
        };
        let memory = controller("memory", "memory");
        let pids = controller("pids", "pids");
        let cpu = controller("cpu", "cpu");
        let accounting = match controller("cpuacct", "cpu") {
            // Version 2 accounts for processor time in every group, roughly even without its controller.
            Controller::None if unified.is_some() => Controller::V2,
            accounting => accounting,
        };
        (
            Cgroups {
                unified,
                memory,
                pids,
                cpu,
                accounting,
            },
            owned,
        )
    }

    /// The isolation of a sandbox with all these limits in force.
    pub(crate) fn isolation(&self, tier: &str) -> Isolation {
        Isolation {
            tier: tier.to_owned(),
            memory: self.memory.describe("rlimits"),
            pids: self.pids.describe("rlimits"),
            cpu: self.cpu.describe("none"),
        }
    }

    /// Enables controllers again that were disabled by somebody else, as systemd does when it is reloaded.
    fn enable_controllers(&self) {
        let parent = self.unified.as_deref().and_then(Path::parent);
        for directory in parent.into_iter().chain(self.unified.as_deref()) {
            for controller in unified::CONTROLLERS {
                unified::enable(directory, controller);
            }
        }
    }
}

/// The limits that a group really enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnforcedLimits {
    pub(crate) memory: bool,
    pub(crate) pids: bool,
    pub(crate) cpu: bool,
}

impl EnforcedLimits {
    /// The limits that must be enforced per process instead.
    pub(crate) fn process_limits(self, limits: &Limits) -> ProcessLimits {
        ProcessLimits {
            file_bytes: limits.file_bytes,
            data_bytes: (!self.memory).then_some(limits.memory_bytes),
            processes: (!self.pids).then_some(limits.pids),
        }
    }

    /// Corrects the description of a sandbox's isolation.
    pub(crate) fn correct(self, mut isolation: Isolation) -> Isolation {
        if !self.memory {
            isolation.memory = String::from("rlimits");
        }
        if !self.pids {
            isolation.pids = String::from("rlimits");
        }
        if !self.cpu {
            isolation.cpu = String::from("none");
        }
        isolation
    }
}

impl Group {
    /// Sets the limits as far as possible, and returns which are in force. A controller that existed when the engine
    /// started may be gone.
    pub(crate) fn limit(&self, limits: &Limits) -> EnforcedLimits {
        let first = self.try_limit(limits);
        let Cgroups {
            memory, pids, cpu, ..
        } = &self.cgroups;
        let wanted = EnforcedLimits {
            memory: *memory != Controller::None,
            pids: *pids != Controller::None,
            cpu: *cpu != Controller::None,
        };
        if first == wanted {
            return first;
        }
        self.cgroups.enable_controllers();
        let second = self.try_limit(limits);
        if second != wanted {
            tracing::warn!(
                group = self.name,
                ?second,
                "a sandbox's cgroup lost a controller"
            );
        }
        second
    }

    fn try_limit(&self, limits: &Limits) -> EnforcedLimits {
        EnforcedLimits {
            memory: self.limit_memory(limits).is_ok_and(|done| done),
            pids: self.limit_pids(limits).is_ok_and(|done| done),
            cpu: self.limit_cpu(limits).is_ok_and(|done| done),
        }
    }

    fn limit_pids(&self, limits: &Limits) -> io::Result<bool> {
        let Some(directory) = self.directory(&self.cgroups.pids) else {
            return Ok(false);
        };
        write(&directory, "pids.max", &limits.pids.to_string())?;
        Ok(true)
    }

    fn limit_memory(&self, limits: &Limits) -> io::Result<bool> {
        let Some(directory) = self.directory(&self.cgroups.memory) else {
            return Ok(false);
        };
        let bytes = limits.memory_bytes.to_string();
        // Swap is limited if the kernel accounts for it; without the files there is nothing to limit.
        if self.cgroups.memory == Controller::V2 {
            write(&directory, "memory.max", &bytes)?;
            let _ = write(&directory, "memory.swap.max", "0");
        } else {
            write(&directory, "memory.limit_in_bytes", &bytes)?;
            let _ = write(&directory, "memory.memsw.limit_in_bytes", &bytes);
            // Otherwise a sandbox can use up the host's memory for TCP and stall all connections.
            let tcp_bytes = TCP_BYTES_MAX.min(limits.memory_bytes);
            let _ = write(
                &directory,
                "memory.kmem.tcp.limit_in_bytes",
                &tcp_bytes.to_string(),
            );
        }
        Ok(true)
    }

    /// Whether processor time can be limited here; without a quota it is shared.
    fn limit_cpu(&self, limits: &Limits) -> io::Result<bool> {
        let Some(directory) = self.directory(&self.cgroups.cpu) else {
            return Ok(false);
        };
        let is_v2 = self.cgroups.cpu == Controller::V2;
        let Some(cpus) = limits.cpus else {
            let file = if is_v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
            return Ok(directory.join(file).exists());
        };
        // The kernel's minimum quota is one millisecond.
        let quota_us = (cpus * f64::from(PERIOD_US)).round().max(1000.0);
        if is_v2 {
            write(&directory, "cpu.max", &format!("{quota_us} {PERIOD_US}"))?;
        } else {
            write(&directory, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
            write(&directory, "cpu.cfs_quota_us", &quota_us.to_string())?;
        }
        Ok(true)
    }

    pub(crate) fn usage(&self) -> Usage {
        let read = |controller: &Controller, file: &str| {
            self.directory(controller)
                .and_then(|directory| fs::read_to_string(directory.join(file)).ok())
        };
        let Cgroups {
            memory, accounting, ..
        } = &self.cgroups;
        let v2_memory = *memory == Controller::V2;
        let peak = if v2_memory {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        let events = if v2_memory {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let cpu_s = if *accounting == Controller::V2 {
            read(accounting, "cpu.stat")
                .and_then(|text| field(&text, "usage_usec"))
                .map(|us| seconds(us, 1_000_000))
        } else {
            read(accounting, "cpuacct.usage")
                .and_then(|text| number(&text))
                .map(|ns| seconds(ns, 1_000_000_000))
        };
        let stat = read(memory, "memory.stat");
        let part = |name: &str| stat.as_deref().and_then(|text| field(text, name));
        let own = if v2_memory { "anon" } else { "rss" };
        Usage {
            memory_peak_bytes: read(memory, peak).and_then(|text| number(&text)),
            memory_bytes: part(own).map(|bytes| bytes + part("shmem").unwrap_or_default()),
            cpu_s,
            disk_used_bytes: part("shmem"),
            oom_kills: read(memory, events).and_then(|text| field(&text, "oom_kill")),
        }
    }

    /// Kills the processes left in the group and removes it. Blocks for as long as the kernel takes.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for directory in self.directories() {
            result = result.and(remove_group(&directory));
        }
        result
    }
}

/// Never creates a file: a missing one means that the kernel does not support it.
fn write(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    let mut file = File::options().write(true).open(directory.join(file))?;
    io::Write::write_all(&mut file, value.as_bytes())
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .and_then(number)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "f64 holds centuries of microseconds exactly"
)]
fn seconds(amount: u64, per_second: u32) -> f64 {
    amount as f64 / f64::from(per_second)
}

/// Removes an engine's group with all groups below; for an engine that is dead or shutting down.
pub(crate) fn remove_engine(directory: &Path) -> io::Result<()> {
    let children = fs::read_dir(directory)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for child in children {
        remove_engine(&child.path())?;
    }
    remove_group(directory)
}

fn remove_group(directory: &Path) -> io::Result<()> {
    let mut last = None;
    for attempt in 0..REMOVE_TRIES {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // It still has processes or groups; other errors are permanent.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = Some(error),
            Err(error) => return Err(error),
        }
        kill_members(directory);
        // The first or second attempt usually succeeds, so poll quickly at first.
        std::thread::sleep(if attempt < 10 {
            REMOVE_PAUSE / 20
        } else {
            REMOVE_PAUSE
        });
    }
    last.map_or(Ok(()), Err)
}

/// Kills all members: our groups only ever hold processes of their sandbox.
fn kill_members(directory: &Path) {
    if fs::metadata(directory.join("cgroup.kill")).is_ok()
        && fs::write(directory.join("cgroup.kill"), "1").is_ok()
    {
        return;
    }
    let members = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for pid in members
        .lines()
        .filter_map(|line| line.parse::<i32>().ok())
        .filter(|&pid| pid > 1)
    {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

#[cfg(test)]
#[path = "cgroup/tests.rs"]
mod tests;
