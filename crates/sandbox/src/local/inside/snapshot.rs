//! Writes a sandbox's own files to an archive. It runs in a process with the rights of the sandbox's root, or of its
//! user where there is no other, and is handed what it has to look at: of each overlay the upper tree, which tells what
//! is the sandbox's own, and the overlay itself without anything mounted on it, which tells what that is now.
//!
//! What was removed is a device of number 0, as overlayfs has it. A directory that shows nothing of the trees below it
//! is of the type `D`: all that is in it is in the archive.

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
use crate::local::shared::wire::{self, Failure, FailureKind, InStep};

pub(crate) const WHOLE_DIRECTORY: u8 = b'D';
pub(crate) const ROOT: &str = "root";
/// Made anew for every sandbox.
const NOT_KEPT: [&str; 2] = ["root/etc/hosts", "root/etc/hostname"];
/// Each takes two descriptors while it is being looked at.
const DEPTH_MAX: usize = 512;

/// A part of the file system. Comes with a descriptor of what is the sandbox's own, and one of what is seen if that is
/// something else.
#[derive(Serialize, Deserialize)]
pub(crate) struct Area {
    pub(crate) name: String,
    pub(crate) is_overlaid: bool,
}

/// All areas, held by init for those who take snapshots.
#[derive(Default)]
pub(crate) struct Areas(Vec<(Area, Vec<OwnedFd>)>);

impl Areas {
    /// `own` is a path on the stage.
    pub(crate) fn add(
        &mut self,
        name: &str,
        own: &str,
        seen: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let own = open(own, flags, FileMode::empty()).step("open a part of the stage")?;
        let area = Area {
            name: name.to_owned(),
            is_overlaid: seen.is_some(),
        };
        let handles = [own].into_iter().chain(seen).collect();
        self.0.push((area, handles));
        Ok(())
    }

    /// As a socket from which they can be received: a process has but one descriptor to start with.
    pub(crate) fn hand(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = wire::pair()?;
        let areas: Vec<&Area> = self.0.iter().map(|(area, _)| area).collect();
        let handles: Vec<_> = self.0.iter().flat_map(|(_, handles)| handles).collect();
        let handles: Vec<_> = handles.into_iter().map(AsFd::as_fd).collect();
        wire::send(ours.as_fd(), &areas, &handles)?;
        Ok(theirs)
    }
}

/// Reads a list of [`Area`]s from standard input, and writes the archive to standard output.
pub(crate) fn take() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(FailureKind::File, "take a snapshot", &error);
    let message = wire::receive::<Vec<Area>>(io::stdin().as_fd()).map_err(failed)?;
    let (areas, handles) = message.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
    let output = BufWriter::with_capacity(256 * 1024, standard(1).try_clone().map_err(failed)?);
    write(areas, handles, output).map_err(failed)
}

fn write(areas: Vec<Area>, handles: Vec<OwnedFd>, output: impl Write) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let mut handles = handles.into_iter();
    let mut writer = Writer {
        tar: Builder::new(output),
        links: HashMap::new(),
    };
    for area in areas {
        let own = handles.next().ok_or_else(missing)?;
        let seen = match area.is_overlaid {
            true => handles.next().ok_or_else(missing)?,
            false => own.try_clone()?,
        };
        let pair = Pair {
            own: open_directory(&within(&own, ""))?,
            seen: open_directory(&within(&seen, ""))?,
        };
        let is_whole = !pair.shows_lower(0)?;
        writer.directory(&pair, Path::new(&area.name), is_whole)?;
        if area.name == ROOT && !is_whole {
            writer.note_removed_base(&pair)?;
        }
    }
    writer.tar.into_inner()?.flush()
}

/// The same directory as the sandbox's own and as it is seen.
struct Pair {
    own: File,
    seen: File,
}

impl Pair {
    fn child(&self, name: &OsString) -> io::Result<Pair> {
        Ok(Pair {
            own: open_directory(&within(&self.own, name))?,
            seen: open_directory(&within(&self.seen, name))?,
        })
    }

    /// Whether anything is seen here, or below in a directory of the sandbox's own, that is not its own.
    fn shows_lower(&self, depth: usize) -> io::Result<bool> {
        if depth > DEPTH_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let own = names(&self.own)?;
        if names(&self.seen)?.iter().any(|name| !own.contains(name)) {
            return Ok(true);
        }
        for name in &own {
            let metadata = fs::symlink_metadata(within(&self.own, name));
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
    /// The first name of each file that has several.
    links: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Writer<W> {
    /// `is_whole`: nothing of lower trees is seen in it.
    fn directory(&mut self, pair: &Pair, path: &Path, is_whole: bool) -> io::Result<()> {
        let kind = match is_whole {
            true => EntryType::new(WHOLE_DIRECTORY),
            false => EntryType::Directory,
        };
        self.plain(kind, path, &pair.seen.metadata()?)?;
        self.content(pair, path, is_whole, 0)
    }

    fn content(
        &mut self,
        pair: &Pair,
        path: &Path,
        is_whole: bool,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for name in names(&pair.own)? {
            let path = path.join(&name);
            if NOT_KEPT.iter().any(|not_kept| path == Path::new(not_kept)) {
                continue;
            }
            let own = fs::symlink_metadata(within(&pair.own, &name))?;
            if own.file_type().is_char_device() && own.rdev() == 0 {
                if !is_whole {
                    self.plain(EntryType::Char, &path, &own)?;
                }
            } else if own.is_dir() {
                let child = pair.child(&name)?;
                let metadata = child.seen.metadata()?;
                let is_child_whole = is_whole || !child.shows_lower(depth)?;
                // Below a whole one there is nothing to hide.
                let kind = match is_child_whole && !is_whole {
                    true => EntryType::new(WHOLE_DIRECTORY),
                    false => EntryType::Directory,
                };
                self.plain(kind, &path, &metadata)?;
                self.content(&child, &path, is_child_whole, depth + 1)?;
            } else {
                self.file(&own, &within(&pair.seen, &name), &path)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, own: &Metadata, seen: &Path, path: &Path) -> io::Result<()> {
        if own.is_symlink() {
            let metadata = fs::symlink_metadata(seen)?;
            let mut header = header(EntryType::Symlink, &metadata);
            return self
                .tar
                .append_link(&mut header, path, fs::read_link(seen)?);
        }
        if !own.is_file() {
            // A pipe or a socket, which is nothing without its processes.
            return Ok(());
        }
        if own.nlink() > 1 {
            let identity = (own.dev(), own.ino());
            if let Some(first) = self.links.get(&identity) {
                let mut header = header(EntryType::Link, own);
                return self.tar.append_link(&mut header, path, first);
            }
            self.links.insert(identity, path.to_owned());
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(seen)?;
        let metadata = file.metadata()?;
        let mut header = header(EntryType::Regular, &metadata);
        header.set_size(metadata.len());
        // Should somebody write to it meanwhile, it has as much as was said.
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

    /// Directories that every sandbox has from the start, with nothing below that would have to be hidden.
    fn note_removed_base(&mut self, root: &Pair) -> io::Result<()> {
        for base in [WORKDIR, TASK_DIR] {
            let inner = base.trim_start_matches('/');
            let seen = fs::symlink_metadata(within(&root.seen, inner));
            let parent = Path::new(inner).parent().unwrap_or(Path::new(""));
            let is_in_a_whole_one = || -> io::Result<bool> {
                let parent = parent.as_os_str().to_owned();
                Ok(!root.child(&parent)?.shows_lower(0)?)
            };
            if seen.is_err() && !is_in_a_whole_one()? {
                let metadata = root.seen.metadata()?;
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

/// By way of the descriptor, so that no name on the way there matters. An empty name is the directory itself.
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
