//! Limits on memory, processes and processor time, by whatever control groups this machine offers:
//! per controller version 2 where it is delegated to us, else a version 1 hierarchy, else nothing.
//! A version 2 directory is used even without controllers, for its kill switch.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cgroup_mount::Mounts;
use super::instance::{self, Claim};
use crate::{Limits, Usage};

const PERIOD_US: u32 = 100_000;
/// The kernel frees a dead process's group a moment after the process was reaped.
const REMOVE_TRIES: u32 = 400;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// Who limits one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Controller {
    V2,
    /// Our directory in the controller's hierarchy.
    V1(PathBuf),
    None,
}

/// The engine's own directories, parents of all its sandboxes' groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroups {
    unified: Option<PathBuf>,
    pub(crate) memory: Controller,
    pub(crate) pids: Controller,
    pub(crate) cpu: Controller,
    accounting: Controller,
}

impl Controller {
    pub(crate) fn describe(&self, otherwise: &str) -> String {
        match self {
            Controller::V2 => String::from("cgroup-v2"),
            Controller::V1(_) => String::from("cgroup-v1"),
            Controller::None => String::from(otherwise),
        }
    }
}

impl Cgroups {
    /// Makes and locks the engine's directories called `name`, wherever that is allowed.
    pub(crate) fn create(mounts: &Mounts, name: &str) -> (Cgroups, Vec<Claim>) {
        let mut claims = Vec::new();
        let (unified, enabled) = create_unified(mounts, name, &mut claims);
        let mut controller = |controller: &str, counterpart: &str| {
            if enabled.iter().any(|enabled| enabled == counterpart) {
                return Controller::V2;
            }
            let Some(mount) = mounts.v1.get(controller) else {
                return Controller::None;
            };
            let path = mount.join(name);
            // Several controllers may share a hierarchy, and then the directory.
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
        // Version 2 accounts for processor time with its cpu controller, and roughly without it.
        let accounting = controller("cpuacct", "cpu");
        (
            Cgroups {
                unified,
                memory,
                pids,
                cpu,
                accounting,
            },
            claims,
        )
    }

    /// The group called `name`, whether or not it exists.
    pub(crate) fn group(&self, name: &str) -> Group {
        Group {
            cgroups: self.clone(),
            name: name.to_owned(),
        }
    }
}

/// Tries the cgroup we are in and its ancestors: a controller can only be enabled for the children of a
/// group without processes (or the root), and only where somebody gave us the right to.
fn create_unified(
    mounts: &Mounts,
    name: &str,
    claims: &mut Vec<Claim>,
) -> (Option<PathBuf>, Vec<String>) {
    let mut fallback = None;
    for parent in mounts.unified_candidates() {
        let Ok(claim) = instance::claim(&parent, name) else {
            continue;
        };
        let enabled: Vec<String> = ["memory", "pids", "cpu"]
            .into_iter()
            .filter(|controller| enable(&parent, controller) && enable(&claim.path, controller))
            .map(str::to_owned)
            .collect();
        if enabled.iter().any(|controller| controller == "memory") {
            if let Some((other, _)) = fallback.replace((claim, enabled)) {
                remove_directory(&other.path);
            }
            break;
        }
        if fallback.is_none() {
            fallback = Some((claim, enabled));
        } else {
            remove_directory(&claim.path);
        }
    }
    let Some((claim, enabled)) = fallback else {
        return (None, Vec::new());
    };
    let path = claim.path.clone();
    claims.push(claim);
    (Some(path), enabled)
}

fn enable(directory: &Path, controller: &str) -> bool {
    let lists = |file: &str| {
        let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
        text.split_whitespace().any(|word| word == controller)
    };
    lists("cgroup.controllers")
        && (lists("cgroup.subtree_control")
            || fs::write(
                directory.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )
            .is_ok())
}

/// One sandbox's groups.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    cgroups: Cgroups,
    name: String,
}

impl Group {
    fn directory(&self, controller: &Controller) -> Option<PathBuf> {
        match controller {
            Controller::V2 => self.unified(),
            Controller::V1(parent) => Some(parent.join(&self.name)),
            Controller::None => None,
        }
    }

    fn unified(&self) -> Option<PathBuf> {
        self.cgroups
            .unified
            .as_ref()
            .map(|parent| parent.join(&self.name))
    }

    fn v1_directories(&self) -> Vec<PathBuf> {
        let Cgroups {
            memory,
            pids,
            cpu,
            accounting,
            ..
        } = &self.cgroups;
        let mut directories: Vec<PathBuf> = [memory, pids, cpu, accounting]
            .into_iter()
            .filter(|controller| matches!(controller, Controller::V1(_)))
            .filter_map(|controller| self.directory(controller))
            .collect();
        directories.sort();
        directories.dedup();
        directories
    }

    /// Makes the group, without limits.
    pub(crate) fn create(&self) -> io::Result<()> {
        for directory in self.v1_directories().into_iter().chain(self.unified()) {
            fs::create_dir(directory)?;
        }
        Ok(())
    }

    pub(crate) fn limit(&self, limits: &Limits) -> io::Result<()> {
        self.limit_memory(limits)?;
        if let Some(directory) = self.directory(&self.cgroups.pids) {
            fs::write(directory.join("pids.max"), limits.pids.to_string())?;
        }
        self.limit_cpu(limits)
    }

    fn limit_memory(&self, limits: &Limits) -> io::Result<()> {
        let Some(directory) = self.directory(&self.cgroups.memory) else {
            return Ok(());
        };
        let bytes = limits.memory_bytes.to_string();
        // Swap is limited where the kernel accounts for it; without the files there is nothing to limit.
        if self.cgroups.memory == Controller::V2 {
            fs::write(directory.join("memory.max"), bytes)?;
            let _ = fs::write(directory.join("memory.swap.max"), "0");
        } else {
            fs::write(directory.join("memory.limit_in_bytes"), &bytes)?;
            let _ = fs::write(directory.join("memory.memsw.limit_in_bytes"), &bytes);
        }
        Ok(())
    }

    fn limit_cpu(&self, limits: &Limits) -> io::Result<()> {
        let (Some(cpus), Some(directory)) = (limits.cpus, self.directory(&self.cgroups.cpu)) else {
            return Ok(());
        };
        // The kernel's least quota is one millisecond.
        let quota_us = (cpus * f64::from(PERIOD_US)).round().max(1000.0);
        if self.cgroups.cpu == Controller::V2 {
            return fs::write(directory.join("cpu.max"), format!("{quota_us} {PERIOD_US}"));
        }
        fs::write(directory.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
        fs::write(directory.join("cpu.cfs_quota_us"), quota_us.to_string())
    }

    /// The version 2 directory, for cloning a process straight into it.
    pub(crate) fn open_unified(&self) -> io::Result<Option<OwnedFd>> {
        self.unified()
            .map(|directory| File::open(directory).map(OwnedFd::from))
            .transpose()
    }

    /// Whether version 2 limits anything here.
    pub(crate) fn needs_unified(&self) -> bool {
        let Cgroups {
            memory, pids, cpu, ..
        } = &self.cgroups;
        [memory, pids, cpu].contains(&&Controller::V2)
    }

    /// Moves a process into the version 1 groups; it is in the version 2 one by birth.
    pub(crate) fn join(&self, pid: i32) -> io::Result<()> {
        for directory in self.v1_directories() {
            fs::write(directory.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
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
        Usage {
            memory_peak_bytes: read(memory, peak).and_then(|text| number(&text)),
            cpu_s,
            oom_kills: read(memory, events).and_then(|text| field(&text, "oom_kill")),
        }
    }

    /// Kills whatever is left in the group and removes it. Blocks for as long as the kernel takes.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for directory in self.unified().into_iter().chain(self.v1_directories()) {
            result = result.and(remove_group(&directory));
        }
        result
    }
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

/// Removes an engine's directory with all groups below; for one whose engine is dead.
pub(crate) fn remove_engine(directory: &Path) -> io::Result<()> {
    let children = fs::read_dir(directory)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for child in children {
        remove_group(&child.path())?;
    }
    remove_group(directory)
}

fn remove_group(directory: &Path) -> io::Result<()> {
    let mut last = None;
    for attempt in 0..REMOVE_TRIES {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Processes or groups inside; anything else will not change by waiting.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = Some(error),
            Err(error) => return Err(error),
        }
        kill_members(directory);
        // Mostly the first or second try succeeds; do not make everybody wait for the slow case.
        std::thread::sleep(if attempt < 10 {
            REMOVE_PAUSE / 20
        } else {
            REMOVE_PAUSE
        });
    }
    last.map_or(Ok(()), Err)
}

fn remove_directory(directory: &Path) {
    if let Err(error) = fs::remove_dir(directory) {
        tracing::warn!(path = %directory.display(), %error, "cannot remove a cgroup");
    }
}

/// A group of ours only ever holds processes of its sandbox.
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
