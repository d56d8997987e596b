//! `/usr` and similar directories: the host's programs in a sandbox, below a writable layer of the sandbox if that
//! works, else as a read-only view. For an ordinary user it is the view unless something has to be laid over it: the
//! mounts below such a tree are locked to it, and overlayfs cannot clone that.
//!
//! One rule for mounts of the host below them, in both modes: what is on a disk is visible (a driver's libraries, say),
//! everything else is hidden by an empty mount, because secrets are kept on tmpfs, FUSE and network mounts.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::layout::{
    BuildContext, EMPTY, NOSUID_NODEV, attach_lower, bind, layer_pair, layers_with, overlay,
};
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};
use crate::local::shared::wire::{Failure, StartMessage, WithStep};

/// File systems that count as disks. 9p holds WSL's drivers.
const DISKS: [&str; 16] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "nilfs2", "squashfs",
    "erofs", "iso9660", "overlay", "9p", "virtiofs",
];
const VIEW: u64 = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV;

/// One of the host's directories, in the staging directory as `l/NAME`.
pub(crate) struct ProgramTree {
    name: &'static str,
    nested: Vec<NestedMount>,
}

/// A mount of the host below it.
struct NestedMount {
    path: PathBuf,
    /// To be attached; `None` if the visible tree already has it.
    tree: Option<OwnedFd>,
    is_covered: bool,
}

impl ProgramTree {
    /// `None` if the host has no such directory, or a link of that name.
    pub(crate) fn open(
        context: &BuildContext<'_>,
        name: &'static str,
        mounts: &[HostMount],
    ) -> Result<Option<(ProgramTree, OwnedFd)>, Failure> {
        let path = Path::new("/").join(name);
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            return Ok(None);
        };
        if !metadata.is_dir() {
            return Ok(None);
        }
        let tree = context.tree(&path)?;
        let mut nested: Vec<NestedMount> = Vec::new();
        for mount in mounts
            .iter()
            .filter(|mount| mount.path != path && mount.path.starts_with(&path))
        {
            let inside =
                |other: &NestedMount| other.is_covered && mount.path.starts_with(&other.path);
            if nested.iter().any(inside) {
                continue;
            }
            let is_covered =
                !DISKS.contains(&mount.kind.as_str()) && mount.device != device(metadata.dev());
            let tree = match context.setup.mode {
                Mode::Root if !is_covered => match context.tree(&mount.path) {
                    Ok(tree) => Some(tree),
                    // Hidden by another mount, or gone.
                    Err(_) => continue,
                },
                // For an ordinary user it is locked to the tree, and was cloned with it.
                Mode::Root | Mode::Rootless => None,
            };
            nested.push(NestedMount {
                path: mount.path.clone(),
                tree,
                is_covered,
            });
        }
        Ok(Some((ProgramTree { name, nested }, tree)))
    }

    pub(crate) fn stage(&self, context: &BuildContext<'_>, tree: &OwnedFd) -> Result<(), Failure> {
        attach_lower(self.name, tree)?;
        layer_pair(self.name, context.owners)
    }

    /// Mounts it in the new root, which is already `/`, while the staging directory is still the current directory.
    /// Returns the overlay alone, if it is one.
    pub(crate) fn place(
        &self,
        mode: Mode,
        start: &StartMessage,
    ) -> Result<Option<OwnedFd>, Failure> {
        let target = format!("/{}", self.name);
        let adding = layers_with(start, self.name);
        let own = Path::new("u").join(self.name);
        let is_restored = fs::read_dir(own).is_ok_and(|mut entries| entries.next().is_some());
        let is_needed = is_restored || !adding.is_empty();
        // Sandboxes of an ordinary user have it read-only in any case.
        let overlaid = if mode == Mode::Root || is_needed {
            let lowers: Vec<PathBuf> = adding
                .iter()
                .cloned()
                .chain([Path::new("l").join(self.name)])
                .collect();
            overlay(mode, self.name, &target, &lowers).map(|()| true)
        } else {
            Ok(false)
        };
        let mut merged = None;
        match overlaid {
            Ok(true) => {
                let tree = mount_fd::clone_tree(Path::new(&target));
                merged = Some(tree.step(format!("open {target}"))?);
            }
            Err(failure) if is_needed => {
                return Err(Failure {
                    step: format!("lay what adds to {target} over it ({})", failure.step),
                    ..failure
                });
            }
            // Something is mounted below it, or file systems are stacked too deeply.
            Ok(false) | Err(_) => self.view(&target).step(format!("show {target}"))?,
        }
        for nested in &self.nested {
            nested
                .place()
                .step(format!("show {}", nested.path.display()))?;
        }
        Ok(merged)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    fn view(&self, target: &str) -> io::Result<()> {
        let tree = mount_fd::clone_whole_tree(&Path::new("l").join(self.name))?;
        mount_fd::restrict_tree(tree.as_fd(), VIEW)?;
        mount_fd::attach(tree.as_fd(), Path::new(target))
    }

    pub(crate) fn path(&self) -> String {
        format!("/{}", self.name)
    }
}

impl NestedMount {
    fn place(&self) -> io::Result<()> {
        if let Some(tree) = &self.tree {
            mount_fd::restrict_tree(tree.as_fd(), VIEW)?;
            return mount_fd::attach(tree.as_fd(), &self.path);
        }
        if !self.is_covered {
            return Ok(());
        }
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => {
                let flags = NOSUID_NODEV | MsFlags::MS_RDONLY;
                let options = Some("size=4k,mode=0755");
                Ok(mount(
                    Some("tmpfs"),
                    &self.path,
                    Some("tmpfs"),
                    flags,
                    options,
                )?)
            }
            Ok(_) => Ok(bind(Path::new(EMPTY), &self.path)?),
            // Hidden by another mount, so nothing needs to be covered.
            Err(_) => Ok(()),
        }
    }
}

/// A mount of the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostMount {
    path: PathBuf,
    kind: String,
    /// Major and minor number, as in mountinfo.
    device: String,
}

/// All visible mounts, outer before inner; of several on one path only the uppermost.
pub(crate) fn host_mounts() -> Result<Vec<HostMount>, Failure> {
    let text = fs::read("/proc/self/mountinfo").step("read the host's mounts")?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn parse(mountinfo: &str) -> Vec<HostMount> {
    let mut mounts: Vec<HostMount> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let left: Vec<&str> = left.split(' ').collect();
        let ([_, _, device, _, path, ..], Some(kind)) = (&left[..], right.split(' ').next()) else {
            continue;
        };
        let path = PathBuf::from(unescape(path));
        mounts.retain(|mount| mount.path != path);
        mounts.push(HostMount {
            path,
            kind: kind.to_owned(),
            device: (*device).to_owned(),
        });
    }
    mounts.sort_by(|one, other| one.path.cmp(&other.path));
    mounts
}

/// The kernel escapes blanks, tabs, newlines and backslashes as `\` and three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

fn device(number: u64) -> String {
    format!("{}:{}", libc::major(number), libc::minor(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uppermost_mount_of_a_place_counts_and_outer_ones_come_first() {
        let mounts = parse(
            "30 29 8:1 / / rw - ext4 /dev/sda1 rw\n\
             33 30 0:50 / /usr/lib/a\\040b/inner rw - tmpfs tmpfs rw\n\
             31 30 7:0 / /usr/lib/a\\040b ro,relatime shared:4 - squashfs /dev/loop0 ro\n\
             34 30 0:51 / /usr/lib/a\\040b/inner rw - fuse.sshfs x rw\n",
        );
        let found: Vec<(&str, &str)> = mounts
            .iter()
            .map(|mount| (mount.path.to_str().unwrap(), mount.kind.as_str()))
            .collect();
        let expected = [
            ("/", "ext4"),
            ("/usr/lib/a b", "squashfs"),
            ("/usr/lib/a b/inner", "fuse.sshfs"),
        ];
        assert_eq!(found, expected);
    }
}
