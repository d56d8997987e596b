//! Writes a sandbox's own files to an archive. This runs in a process with the rights of the sandbox's root, or of its
//! user where there is no other. It is passed descriptors of each overlay's upper tree, which has the sandbox's own
//! changes, and of the merged overlay without anything mounted on it, which has their current content. Names come from
//! the upper tree and content from the overlay, so the attributes that overlayfs keeps in the upper tree do not matter.
//!
//! A removed file is stored as a whiteout, a device with number 0 as in overlayfs. An opaque directory, which shows
//! nothing of the lower trees, has the type `D`: all of its content is in the archive.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode as FileMode;
use serde::{Deserialize, Serialize};
use tar::{Builder, EntryType, Header};

use super::builtin::standard;
use crate::guest::{TASK_DIR, WORKDIR};
use crate::local::shared::wire::{self, Failure, FailureKind, WithStep};

pub(crate) const OPAQUE_DIRECTORY: u8 = b'D';
pub(crate) const ROOT: &str = "root";
/// Generated for every sandbox.
const EXCLUDED: [&str; 2] = ["root/etc/hosts", "root/etc/hostname"];
/// Each level takes two descriptors while it is visited.
const DEPTH_MAX: usize = 512;

/// A part of the file system. Sent with a descriptor of the upper tree, and one of the merged tree if it is an overlay.
#[derive(Serialize, Deserialize)]
pub(crate) struct SnapshotArea {
    pub(crate) name: String,
    pub(crate) is_overlaid: bool,
}

/// All areas, held by init for processes that take snapshots.
#[derive(Default)]
pub(crate) struct SnapshotAreas(Vec<(SnapshotArea, Vec<OwnedFd>)>);

impl SnapshotAreas {
    /// `upper` is a path in the staging directory.
    pub(crate) fn add(
        &mut self,
        name: &str,
        upper: &str,
        merged: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let upper = open(upper, flags, FileMode::empty()).step("open a part of the stage")?;
        let area = SnapshotArea {
            name: name.to_owned(),
            is_overlaid: merged.is_some(),
        };
        let handles = [upper].into_iter().chain(merged).collect();
        self.0.push((area, handles));
        Ok(())
    }

    /// Sends them over a new socket and returns its other end: a process gets only one extra descriptor at its start.
    pub(crate) fn send(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = wire::pair()?;
        let areas: Vec<&SnapshotArea> = self.0.iter().map(|(area, _)| area).collect();
        let handles: Vec<_> = self.0.iter().flat_map(|(_, handles)| handles).collect();
        let handles: Vec<_> = handles.into_iter().map(AsFd::as_fd).collect();
        wire::send(ours.as_fd(), &areas, &handles)?;
        Ok(theirs)
    }
}

/// Reads a list of [`SnapshotArea`]s from standard input, and writes the archive to standard output.
pub(crate) fn take() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(FailureKind::File, "take a snapshot", &error);
    let message = wire::receive::<Vec<SnapshotArea>>(io::stdin().as_fd()).map_err(failed)?;
    let (areas, handles) = message.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
    let output = BufWriter::with_capacity(256 * 1024, standard(1).try_clone().map_err(failed)?);
    write(areas, handles, output).map_err(failed)
}

fn write(areas: Vec<SnapshotArea>, handles: Vec<OwnedFd>, output: impl Write) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let mut handles = handles.into_iter();
    let mut writer = Writer {
        tar: Builder::new(output),
        links: HashMap::new(),
    };
    for area in areas {
        let upper = handles.next().ok_or_else(missing)?;
        let merged = match area.is_overlaid {
            true => handles.next().ok_or_else(missing)?,
            false => upper.try_clone()?,
        };
        let directory = OverlayDirectory {
            upper: open_directory(&within(&upper, ""))?,
            merged: open_directory(&within(&merged, ""))?,
        };
        let is_opaque = !directory.shows_lower(0)?;
        writer.directory(&directory, Path::new(&area.name), is_opaque)?;
        if area.name == ROOT && !is_opaque {
            writer.add_removed_base(&directory)?;
        }
    }
    writer.tar.into_inner()?.flush()
}

/// The same directory in the upper and in the merged tree.
struct OverlayDirectory {
    upper: File,
    merged: File,
}

impl OverlayDirectory {
    fn child(&self, name: &OsString) -> io::Result<OverlayDirectory> {
        Ok(OverlayDirectory {
            upper: open_directory(&within(&self.upper, name))?,
            merged: open_directory(&within(&self.merged, name))?,
        })
    }

    /// Whether anything of the lower trees is visible here, or below in a directory of the upper tree.
    fn shows_lower(&self, depth: usize) -> io::Result<bool> {
        if depth > DEPTH_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let upper = names(&self.upper)?;
        if names(&self.merged)?
            .iter()
            .any(|name| !upper.contains(name))
        {
            return Ok(true);
        }
        for name in &upper {
            let metadata = fs::symlink_metadata(within(&self.upper, name));
            if metadata.is_ok_and(|metadata| metadata.is_dir())
                && let Ok(child) = self.child(name)
                && child.shows_lower(depth + 1)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

struct Writer<W: Write> {
    tar: Builder<W>,
    /// The first path of each file with several hard links.
    links: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Writer<W> {
    /// `is_opaque`: nothing of the lower trees is visible in it.
    fn directory(
        &mut self,
        directory: &OverlayDirectory,
        path: &Path,
        is_opaque: bool,
    ) -> io::Result<()> {
        let kind = match is_opaque {
            true => EntryType::new(OPAQUE_DIRECTORY),
            false => EntryType::Directory,
        };
        self.plain(kind, path, &directory.merged.metadata()?)?;
        self.content(directory, path, is_opaque, 0)
    }

    fn content(
        &mut self,
        directory: &OverlayDirectory,
        path: &Path,
        is_opaque: bool,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for name in names(&directory.upper)? {
            let path = path.join(&name);
            if EXCLUDED.iter().any(|excluded| path == Path::new(excluded)) {
                continue;
            }
            let upper = fs::symlink_metadata(within(&directory.upper, &name))?;
            if upper.file_type().is_char_device() && upper.rdev() == 0 {
                if !is_opaque {
                    self.plain(EntryType::Char, &path, &upper)?;
                }
            } else if upper.is_dir() {
                let child = directory.child(&name)?;
                let metadata = child.merged.metadata()?;
                let is_child_opaque = is_opaque || !child.shows_lower(depth)?;
                // Below an opaque directory there is nothing to hide.
                let kind = match is_child_opaque && !is_opaque {
                    true => EntryType::new(OPAQUE_DIRECTORY),
                    false => EntryType::Directory,
                };
                self.plain(kind, &path, &metadata)?;
                self.content(&child, &path, is_child_opaque, depth + 1)?;
            } else {
                self.file(&upper, &within(&directory.merged, &name), &path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, upper: &Metadata, merged: &Path, path: &Path) -> io::Result<()> {
        if upper.is_symlink() {
            let metadata = fs::symlink_metadata(merged)?;
            let mut header = header(EntryType::Symlink, &metadata);
            return self
                .tar
                .append_link(&mut header, path, fs::read_link(merged)?);
        }
        if !upper.is_file() {
            // A pipe or a socket, which is useless without its processes.
            return Ok(());
        }
        if upper.nlink() > 1 {
            let identity = (upper.dev(), upper.ino());
            if let Some(first) = self.links.get(&identity) {
                let mut header = header(EntryType::Link, upper);
                return self.tar.append_link(&mut header, path, first);
            }
            self.links.insert(identity, path.to_owned());
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(merged)?;
        let metadata = file.metadata()?;
        let mut header = header(EntryType::Regular, &metadata);
        header.set_size(metadata.len());
        // If the file shrinks or grows meanwhile, the entry still has the size in its header.
        let content = file.chain(io::repeat(0)).take(metadata.len());
        self.tar.append_data(&mut header, path, content)
    }

    fn plain(&mut self, kind: EntryType, path: &Path, metadata: &Metadata) -> io::Result<()> {
        let mut header = header(kind, metadata);
        if kind == EntryType::Char {
            header.set_device_major(0)?;
            header.set_device_minor(0)?;
        }
        self.tar.append_data(&mut header, path, io::empty())
    }

    /// Adds whiteouts for removed directories that every new sandbox has in its upper layer, for which overlayfs makes
    /// none.
    fn add_removed_base(&mut self, root: &OverlayDirectory) -> io::Result<()> {
        for base in [WORKDIR, TASK_DIR] {
            let inner = base.trim_start_matches('/');
            let merged = fs::symlink_metadata(within(&root.merged, inner));
            let parent = Path::new(inner).parent().unwrap_or(Path::new(""));
            let is_in_an_opaque_one = || -> io::Result<bool> {
                let parent = parent.as_os_str().to_owned();
                Ok(!root.child(&parent)?.shows_lower(0)?)
            };
            if merged.is_err() && !is_in_an_opaque_one()? {
                let metadata = root.merged.metadata()?;
                self.plain(EntryType::Char, &Path::new(ROOT).join(inner), &metadata)?;
            }
        }
        Ok(())
    }
}

fn header(kind: EntryType, metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(metadata.mode() & 0o7777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_size(0);
    header
}

/// A path through the descriptor, so that no name on the way matters. An empty name is the directory itself.
fn within(directory: &impl AsRawFd, name: impl AsRef<Path>) -> PathBuf {
    let handle = format!("/proc/self/fd/{}", directory.as_raw_fd());
    Path::new(&handle).join(name)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn names(directory: &File) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(within(directory, ""))?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}
