//! The parts that a sandbox's root is built from in its staging directory: see [`super::rootfs`].

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
use crate::local::shared::wire::{Failure, Setup, StartMessage, WithStep};

pub(crate) const NOSUID_NODEV: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
/// An empty file in the staging directory.
pub(crate) const EMPTY: &str = "empty";
const NO: Option<&str> = None;

/// The uids of the sandbox's root and user, as seen by the process that builds it.
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
            // There is only one uid inside.
            Mode::Rootless => Owners {
                root: USER_ID,
                user: USER_ID,
            },
        }
    }
}

/// The parameters for building a root.
#[derive(Clone, Copy)]
pub(crate) struct BuildContext<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) owners: Owners,
    /// Root mode: the namespace that the owners of the host's files are mapped into.
    pub(crate) userns: Option<BorrowedFd<'a>>,
}

impl BuildContext<'_> {
    /// A detached copy of a directory or file of the host, with its owners mapped.
    pub(crate) fn tree(&self, path: &Path) -> Result<OwnedFd, Failure> {
        let tree = mount_fd::clone_tree(path).step(format!("open {}", path.display()))?;
        if let Some(userns) = self.userns {
            match mount_fd::idmap(tree.as_fd(), userns) {
                // Some file systems do not support it; then files of the host's root belong to nobody inside, but are
                // still readable.
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
pub(crate) fn layers_with(start: &StartMessage, name: &str) -> Vec<PathBuf> {
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
        // Otherwise a moved directory would be a redirect in the upper tree, and its content would be missing from a
        // snapshot.
        Mode::Root => ",redirect_dir=off",
        // Only root may set the attributes that overlayfs uses otherwise. With this option it creates no redirects.
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
        NOSUID_NODEV,
        Some(options.as_str()),
    )
    .step(step)
}

pub(crate) fn bind(source: &Path, target: &Path) -> nix::Result<()> {
    mount(Some(source), target, NO, MsFlags::MS_BIND, NO)
}

/// Creates a directory with exactly this mode; the caller's umask is 0.
pub(crate) fn directory(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    owner.map_or(Ok(()), |owner| chown(path, Some(owner), Some(owner)))
}
