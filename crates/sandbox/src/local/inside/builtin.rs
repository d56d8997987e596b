//! File operations, done inside the sandbox by a process with the rights of its user: links and special files left by
//! an agent lead nowhere that the agent could not go itself.
#![expect(unsafe_code, reason = "stdin and stdout are used by number")]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::local::shared::wire::{Failure, FailureKind};
use crate::{DirectoryEntry, EntryKind, FileStatus};

/// The most names read from one directory; beyond, a listing is truncated as with too many entries.
const NAMES_MAX: usize = 100_000;
const DEPTH_MAX: u32 = 64;

fn failure(path: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(FailureKind::File, path, &error)
}

pub(crate) fn standard(number: i32) -> ManuallyDrop<File> {
    // SAFETY: 0 to 2 were set up for us before and stay open; ManuallyDrop keeps them so.
    ManuallyDrop::new(unsafe { File::from_raw_fd(number) })
}

/// Writes stdin to a new file at `path`. An existing file is replaced, not written to: it may be a link, or a process
/// may still hold it open.
pub(crate) fn write(path: &str, mode: u32) -> Result<(), Failure> {
    let failure = failure(path);
    let target = Path::new(path);
    if let Some(parent) = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent).map_err(&failure)?;
    }
    match fs::remove_file(target) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(failure(error)),
        // If it could not be removed, it may still be writable.
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(target)
        .map_err(&failure)?;
    if !file.metadata().map_err(&failure)?.is_file() {
        return Err(Failure {
            kind: FailureKind::NotRegular,
            step: path.to_owned(),
            errno: libc::EINVAL,
        });
    }
    io::copy(&mut *standard(0), &mut file).map_err(&failure)?;
    file.set_permissions(Permissions::from_mode(mode & 0o777))
        .map_err(&failure)
}

/// Copies a regular file to stdout.
pub(crate) fn read(path: &str, bytes_max: u64) -> Result<(), Failure> {
    let failure = failure(path);
    // Non-blocking, or opening a FIFO would wait for a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(&failure)?;
    let metadata = file.metadata().map_err(&failure)?;
    if !metadata.is_file() {
        return Err(Failure {
            kind: FailureKind::NotRegular,
            step: path.to_owned(),
            errno: libc::EINVAL,
        });
    }
    let too_large = || Failure {
        kind: FailureKind::TooLarge,
        step: path.to_owned(),
        errno: libc::EFBIG,
    };
    if metadata.len() > bytes_max {
        return Err(too_large());
    }
    // Files in /proc claim to be empty, and any file may grow meanwhile.
    let copied = io::copy(
        &mut file.take(bytes_max.saturating_add(1)),
        &mut *standard(1),
    )
    .map_err(&failure)?;
    if copied > bytes_max {
        Err(too_large())
    } else {
        Ok(())
    }
}

/// Writes what stands at a path as JSON to stdout.
pub(crate) fn stat(path: &str) -> Result<(), Failure> {
    let failure = failure(path);
    let status = match fs::symlink_metadata(path) {
        Ok(metadata) => Some(FileStatus {
            kind: kind_of(&metadata),
            mode: metadata.mode() & 0o7777,
            links: metadata.nlink(),
            bytes: metadata.len(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failure(error)),
    };
    let json = serde_json::to_vec(&status).map_err(|error| failure(error.into()))?;
    standard(1).write_all(&json).map_err(&failure)
}

fn kind_of(metadata: &fs::Metadata) -> EntryKind {
    match metadata.file_type() {
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

/// Writes a listing as JSON to stdout.
pub(crate) fn list(path: &str, depth: u32, entries_max: usize) -> Result<(), Failure> {
    let failure = failure(path);
    let mut entries = Vec::new();
    let root = open_directory(Path::new(path)).map_err(&failure)?;
    walk(
        &root,
        &PathBuf::new(),
        depth.clamp(1, DEPTH_MAX),
        entries_max,
        &mut entries,
    )
    .map_err(&failure)?;
    entries.sort_by(|left, right| left.0.cmp(&right.0));
    let entries: Vec<DirectoryEntry> = entries.into_iter().map(|(_, entry)| entry).collect();
    let json = serde_json::to_vec(&entries).map_err(|error| failure(error.into()))?;
    standard(1).write_all(&json).map_err(&failure)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Collects entries sorted by name, directories before their content.
fn walk(
    directory: &File,
    below: &Path,
    depth: u32,
    entries_max: usize,
    entries: &mut Vec<(Vec<u8>, DirectoryEntry)>,
) -> io::Result<()> {
    // Through the descriptor, so that replacing a directory by a link meanwhile has no effect.
    let handle = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let mut names: Vec<OsString> = fs::read_dir(&handle)?
        .take(NAMES_MAX)
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    for name in names {
        if entries.len() >= entries_max {
            return Ok(());
        }
        let path = below.join(&name);
        // Removed meanwhile.
        let Ok(metadata) = fs::symlink_metadata(handle.join(&name)) else {
            continue;
        };
        let kind = kind_of(&metadata);
        let entry = DirectoryEntry {
            path: path.to_string_lossy().into_owned(),
            kind,
            bytes: metadata.len(),
        };
        entries.push((path.as_os_str().as_bytes().to_vec(), entry));
        if kind == EntryKind::Directory && depth > 1 {
            // A directory we may not read is listed without its content.
            if let Ok(child) = open_directory(&handle.join(&name)) {
                walk(&child, &path, depth - 1, entries_max, entries)?;
            }
        }
    }
    Ok(())
}
