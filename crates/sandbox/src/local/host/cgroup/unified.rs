//! A place for our groups in the version 2 hierarchy. Its rules: a controller can be handed to the children
//! of a group only where that group has it itself, has no processes of its own (the root may), and lets us
//! write to it. So we try the group we are in, then its ancestors; where we are alone in ours, as in a service
//! or a scope of our own, we make room by moving into a leaf.

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

/// The engine's directory, and which controllers its sandboxes' groups have.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) claim: Claim,
    pub(crate) enabled: Vec<&'static str>,
    pub(crate) retreat: Option<Retreat>,
    pub(crate) mount: Option<OwnedFd>,
}

/// `None` where no controller is to be had.
pub(crate) fn find(mounts: &Mounts, name: &str) -> Option<Home> {
    let unified = mounts.unified.as_ref()?;
    let mut best: Option<Home> = None;
    for parent in mounts.unified_candidates() {
        let home = match settle(&parent, name) {
            Ok(home) => home,
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                return find_by_own_mount(unified, name);
            }
            Err(_) => continue,
        };
        let is_better = |best: &Home| best.enabled.len() < home.enabled.len();
        if best.as_ref().is_none_or(is_better) {
            if let Some(worse) = best.replace(home) {
                worse.leave();
            }
        } else {
            home.leave();
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

/// Containers show the hierarchy read-only. Whoever may mount gets a view of his own that he can write to; it
/// is never attached anywhere, and goes with us.
fn find_by_own_mount(unified: &Unified, name: &str) -> Option<Home> {
    let mount = mount_fd::new_mount(c"cgroup2", &[], 0).ok()?;
    // By our number, since zygote and engine both go by this path.
    let root = PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        mount.as_raw_fd()
    ));
    let own = match unified.own.strip_prefix(&unified.mount) {
        Ok(below) => root.join(below),
        Err(_) => root,
    };
    let home = settle(&own, name).ok()?;
    Some(Home {
        mount: Some(mount),
        ..home
    })
}

/// Makes the engine's directory in `parent`; an error where no controller is to be had in it.
fn settle(parent: &Path, name: &str) -> io::Result<Home> {
    let claim = instance::claim(parent, name)?;
    let mut home = Home {
        enabled: Vec::new(),
        claim,
        retreat: None,
        mount: None,
    };
    // Before anything is tried: with processes in it the kernel lets a group hand on controllers of threads alone,
    // and then takes no more processes below it.
    let is_free = match members(parent) {
        Members::None => true,
        Members::OnlyUs => {
            home.retreat = Retreat::into_leaf(parent, &home.claim.path).ok();
            home.retreat.is_some()
        }
        Members::Others => false,
    };
    if is_free {
        home.enabled = enable_for_children(parent, &home.claim.path);
    }
    if home.enabled.is_empty() {
        home.leave();
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(home)
}

impl Home {
    /// Undoes what was made and tried.
    fn leave(self) {
        if let Some(retreat) = self.retreat {
            retreat.undo();
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

/// Hands a controller to the children of a group.
pub(crate) fn enable(directory: &Path, controller: &str) -> bool {
    lists(directory, "cgroup.controllers", controller)
        && (lists(directory, SUBTREE, controller)
            || write(directory, SUBTREE, &format!("+{controller}")).is_ok())
}

fn lists(directory: &Path, file: &str, controller: &str) -> bool {
    let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
    text.split_whitespace().any(|word| word == controller)
}

/// Who is in a group itself. The root of the hierarchy, which alone has no type, may have both members and groups.
enum Members {
    None,
    OnlyUs,
    Others,
}

fn members(directory: &Path) -> Members {
    let us = std::process::id().to_string();
    if !directory.join("cgroup.type").exists() {
        return Members::None;
    }
    // Whom we cannot see shows as 0.
    match fs::read_to_string(directory.join(MEMBERS)) {
        Ok(members) if members.is_empty() => Members::None,
        Ok(members) if members.lines().all(|pid| pid == us) => Members::OnlyUs,
        Ok(_) | Err(_) => Members::Others,
    }
}

/// The way back from our leaf.
#[derive(Debug)]
pub(crate) struct Retreat {
    from: PathBuf,
    home: PathBuf,
    /// What the group handed to its children before we came.
    before: Vec<&'static str>,
}

impl Retreat {
    fn into_leaf(from: &Path, home: &Path) -> io::Result<Retreat> {
        let leaf = home.join(LEAF);
        DirBuilder::new().mode(0o755).create(&leaf)?;
        let retreat = Retreat {
            from: from.to_owned(),
            home: home.to_owned(),
            before: CONTROLLERS
                .into_iter()
                .filter(|controller| lists(from, SUBTREE, controller))
                .collect(),
        };
        match write(&leaf, MEMBERS, &std::process::id().to_string()) {
            Ok(()) => Ok(retreat),
            Err(error) => {
                let _ = fs::remove_dir(leaf);
                Err(error)
            }
        }
    }

    /// Best effort: what stays is an empty group, which the next engine sweeps or systemd removes with the unit.
    pub(crate) fn undo(self) {
        let leaf = self.home.join(LEAF);
        for controller in CONTROLLERS {
            let _ = write(&self.home, SUBTREE, &format!("-{controller}"));
            if !self.before.contains(&controller) {
                let _ = write(&self.from, SUBTREE, &format!("-{controller}"));
            }
        }
        // With us whatever we started and still own.
        let members = fs::read_to_string(leaf.join(MEMBERS)).unwrap_or_default();
        for pid in members.lines() {
            let _ = write(&self.from, MEMBERS, pid);
        }
        let _ = fs::remove_dir(leaf);
    }
}
