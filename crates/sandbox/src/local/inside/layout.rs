//! What a sandbox's root is put together from, on its stage: see [`super::rootfs`].

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use crate::guest::USER_ID;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd;
use crate::local::shared::userns;
use crate::local::shared::wire::{Failure, InStep, Setup, Start};

pub(crate) const WALLED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
/// An empty file on the stage.
pub(crate) const EMPTY: &str = "empty";
const NO: Option<&str> = None;

/// The sandbox's root and user, as whoever builds the sandbox has to name them.
#[derive(Clone, Copy)]
pub(crate) struct Owners {
    pub(crate) root: u32,
    pub(crate) user: u32,
}

impl Owners {
    pub(crate) fn new(setup: &Setup, slot: u32) -> Owners {
        match setup.mode {
            Mode::Root => {
                let root = userns::range_start(setup.engine_pid, slot);
                Owners {
                    root,
                    user: root + USER_ID,
                }
            }
            // There is but one uid inside.
            Mode::Rootless => Owners {
                root: USER_ID,
                user: USER_ID,
            },
        }
    }
}

/// Who builds a root, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) owners: Owners,
    /// Root mode: in which the owners of what comes from the host are to be seen.
    pub(crate) userns: Option<BorrowedFd<'a>>,
}

impl Site<'_> {
    /// A detached copy of something of the host's.
    pub(crate) fn tree(&self, path: &Path) -> Result<OwnedFd, Failure> {
        let tree = mount_fd::clone_tree(path).step(format!("open {}", path.display()))?;
        if let Some(userns) = self.userns {
            match mount_fd::idmap(tree.as_fd(), userns) {
                // Some file systems cannot; then host root's files are nobody's inside, still readable.
                Err(error)
                    if [Some(libc::EINVAL), Some(libc::EOPNOTSUPP)]
                        .contains(&error.raw_os_error()) => {}
                result => result.step(format!("map the owners of {}", path.display()))?,
            }
        }
        Ok(tree)
    }
}

pub(crate) fn attach_lower(name: &str, tree: &OwnedFd) -> Result<(), Failure> {
    let path = Path::new("l").join(name);
    directory(&path, 0o755, None).step("lay out the stage")?;
    mount_fd::attach(tree.as_fd(), &path).step(format!("attach {name} to the stage"))
}

pub(crate) fn layer_pair(name: &str, owners: Owners) -> Result<(), Failure> {
    directory(&Path::new("u").join(name), 0o755, Some(owners.root))
        .step("make an upper directory")?;
    directory(&Path::new("w").join(name), 0o755, None).step("make a work directory")
}

/// The layers that have a directory of this name, uppermost first.
pub(crate) fn layers_with(start: &Start, name: &str) -> Vec<PathBuf> {
    (0..start.layers.len())
        .map(|index| Path::new("l").join(index.to_string()).join(name))
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()))
        .collect()
}

pub(crate) fn overlay(
    mode: Mode,
    name: &str,
    target: &str,
    lowers: &[PathBuf],
) -> Result<(), Failure> {
    let lowers: Vec<String> = lowers
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let mut options = format!(
        "lowerdir={},upperdir=u/{name},workdir=w/{name}",
        lowers.join(":")
    );
    options.push_str(match mode {
        // A directory that was moved would else be a mark in the upper tree, and its content not be in a snapshot.
        Mode::Root => ",redirect_dir=off",
        // Only root may set the attributes that overlayfs uses otherwise. With these it has no such marks.
        Mode::Rootless => ",userxattr",
    });
    let step = format!(
        "mount overlay on /{}",
        target.trim_start_matches('/').trim_start_matches("root")
    );
    mount(
        Some("overlay"),
        target,
        Some("overlay"),
        WALLED,
        Some(options.as_str()),
    )
    .step(step)
}

pub(crate) fn bind(source: &Path, target: &Path) -> nix::Result<()> {
    mount(Some(source), target, NO, MsFlags::MS_BIND, NO)
}

/// Makes a directory with exactly this mode; the caller's umask is 0.
pub(crate) fn directory(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    owner.map_or(Ok(()), |owner| chown(path, Some(owner), Some(owner)))
}
