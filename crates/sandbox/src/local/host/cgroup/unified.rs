//! Finds a parent for our groups in the version 2 hierarchy. Its rules: a controller can be enabled for the children of
//! a group only if that group has it itself, has no processes of its own (except the root), and is writable for us. So
//! we try the group we are in, then its ancestors; if we are alone in ours, as in a service or a scope of our own, we
//! make room by moving into a leaf.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::super::instance::{self, Claim};
use super::mount::{Mounts, Unified};
use super::write;
use crate::local::shared::mount_fd;

pub(crate) const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// The engine's own leaf, beside its sandboxes' groups, whose names are numbers.
const LEAF: &str = "engine";
const SUBTREE: &str = "cgroup.subtree_control";
const MEMBERS: &str = "cgroup.procs";

/// The engine's group, and the controllers enabled for its sandboxes' groups.
#[derive(Debug)]
pub(crate) struct EngineGroup {
    pub(crate) claim: Claim,
    pub(crate) enabled: Vec<&'static str>,
    pub(crate) leaf_move: Option<LeafMove>,
    pub(crate) mount: Option<OwnedFd>,
}

/// `None` if no controller is available.
pub(crate) fn find(mounts: &Mounts, name: &str) -> Option<EngineGroup> {
    let unified = mounts.unified.as_ref()?;
    let mut best: Option<EngineGroup> = None;
    for parent in mounts.unified_candidates() {
        let group = match create_engine_group(&parent, name) {
            Ok(group) => group,
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                return find_by_own_mount(unified, name);
            }
            Err(_) => continue,
        };
        let is_better = |best: &EngineGroup| best.enabled.len() < group.enabled.len();
        if best.as_ref().is_none_or(is_better) {
            if let Some(worse) = best.replace(group) {
                worse.remove();
            }
        } else {
            group.remove();
        }
        if best
            .as_ref()
            .is_some_and(|best| best.enabled.contains(&"memory"))
        {
            break;
        }
    }
    best
}

/// Containers mount the hierarchy read-only. With the permission to mount, we get a writable mount of our own; it is
/// never attached anywhere, and ends with us.
fn find_by_own_mount(unified: &Unified, name: &str) -> Option<EngineGroup> {
    let mount = mount_fd::new_mount(c"cgroup2", &[], 0).ok()?;
    // By pid instead of `self`, because zygote and engine both use this path.
    let root = PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        mount.as_raw_fd()
    ));
    let own = match unified.own.strip_prefix(&unified.mount) {
        Ok(below) => root.join(below),
        Err(_) => root,
    };
    let group = create_engine_group(&own, name).ok()?;
    Some(EngineGroup {
        mount: Some(mount),
        ..group
    })
}

/// Creates the engine's group in `parent`; an error if no controller is available in it.
fn create_engine_group(parent: &Path, name: &str) -> io::Result<EngineGroup> {
    let claim = instance::claim(parent, name)?;
    let mut group = EngineGroup {
        enabled: Vec::new(),
        claim,
        leaf_move: None,
        mount: None,
    };
    // Check this first: if the group has processes, the kernel enables only controllers of threads, and then accepts no
    // more processes below it.
    let is_free = match members(parent) {
        GroupMembers::None => true,
        GroupMembers::OnlyUs => {
            group.leaf_move = LeafMove::into_leaf(parent, &group.claim.path).ok();
            group.leaf_move.is_some()
        }
        GroupMembers::Others => false,
    };
    if is_free {
        group.enabled = enable_for_children(parent, &group.claim.path);
    }
    if group.enabled.is_empty() {
        group.remove();
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(group)
}

impl EngineGroup {
    /// Removes the group again.
    fn remove(self) {
        if let Some(leaf_move) = self.leaf_move {
            leaf_move.undo();
        }
        if let Err(error) = fs::remove_dir(&self.claim.path) {
            tracing::warn!(path = %self.claim.path.display(), %error, "cannot remove a cgroup");
        }
    }
}

fn enable_for_children(parent: &Path, child: &Path) -> Vec<&'static str> {
    CONTROLLERS
        .into_iter()
        .filter(|controller| enable(parent, controller) && enable(child, controller))
        .collect()
}

/// Enables a controller for the children of a group.
pub(crate) fn enable(directory: &Path, controller: &str) -> bool {
    lists(directory, "cgroup.controllers", controller)
        && (lists(directory, SUBTREE, controller)
            || write(directory, SUBTREE, &format!("+{controller}")).is_ok())
}

fn lists(directory: &Path, file: &str, controller: &str) -> bool {
    let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
    text.split_whitespace().any(|word| word == controller)
}

/// The processes directly in a group. The root of the hierarchy, which alone has no type, may have both processes and
/// child groups.
enum GroupMembers {
    None,
    OnlyUs,
    Others,
}

fn members(directory: &Path) -> GroupMembers {
    let us = std::process::id().to_string();
    if !directory.join("cgroup.type").exists() {
        return GroupMembers::None;
    }
    // Processes that are invisible to us are listed as 0.
    match fs::read_to_string(directory.join(MEMBERS)) {
        Ok(members) if members.is_empty() => GroupMembers::None,
        Ok(members) if members.lines().all(|pid| pid == us) => GroupMembers::OnlyUs,
        Ok(_) | Err(_) => GroupMembers::Others,
    }
}

/// The engine's move into a leaf group, which can be undone.
#[derive(Debug)]
pub(crate) struct LeafMove {
    from: PathBuf,
    group: PathBuf,
    /// The controllers that were enabled for children before.
    before: Vec<&'static str>,
}

impl LeafMove {
    fn into_leaf(from: &Path, group: &Path) -> io::Result<LeafMove> {
        let leaf = group.join(LEAF);
        DirBuilder::new().mode(0o755).create(&leaf)?;
        let leaf_move = LeafMove {
            from: from.to_owned(),
            group: group.to_owned(),
            before: CONTROLLERS
                .into_iter()
                .filter(|controller| lists(from, SUBTREE, controller))
                .collect(),
        };
        match write(&leaf, MEMBERS, &std::process::id().to_string()) {
            Ok(()) => Ok(leaf_move),
            Err(error) => {
                let _ = fs::remove_dir(leaf);
                Err(error)
            }
        }
    }

    /// Best effort: at worst an empty group stays, which the next engine or systemd removes.
    pub(crate) fn undo(self) {
        let leaf = self.group.join(LEAF);
        for controller in CONTROLLERS {
            let _ = write(&self.group, SUBTREE, &format!("-{controller}"));
            if !self.before.contains(&controller) {
                let _ = write(&self.from, SUBTREE, &format!("-{controller}"));
            }
        }
        // Move our child processes back together with us.
        let members = fs::read_to_string(leaf.join(MEMBERS)).unwrap_or_default();
        for pid in members.lines() {
            let _ = write(&self.from, MEMBERS, pid);
        }
        let _ = fs::remove_dir(leaf);
    }
}
