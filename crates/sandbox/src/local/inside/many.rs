//! Many files at once, in and out, with the rights of the sandbox's user: an archive from standard input, or the stream of
//! [`crate::FileStream`] to standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use super::builtin::standard;
use super::layout::Owners;
use super::unpack;
use crate::guest::USER_ID;
use crate::local::shared::wire::{Failure, FailureKind};
use crate::{StreamedHead, StreamedKind};

/// Unpacks standard input below `target`.
pub(crate) fn unpack_input(target: &str) -> Result<(), Failure> {
    let archive = standard(0).try_clone();
    let archive = archive.map_err(|error| unpack::failure("read an archive", &error))?;
    // The user that this process is: nobody else's files can be made.
    let owners = Owners {
        root: USER_ID,
        user: USER_ID,
    };
    let target = Path::new(target);
    let step = |name: &Path| target.join(name).display().to_string();
    unpack::unpack_named(archive, target, owners, step)
}

/// Writes files below `directory` to standard output. No link is followed on the way to any of them.
pub(crate) fn read_files(directory: &str, paths: &[String]) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(FailureKind::File, directory, &error);
    let output = standard(1).try_clone().map_err(failed)?;
    let mut output = BufWriter::with_capacity(256 * 1024, output);
    let root = open_directory(Path::new(directory)).map_err(failed)?;
    for path in paths {
        // What cannot be opened is nothing; what can be is as long as its head says.
        match open(&root, Path::new(path)) {
            Ok(Some((head, content))) => {
                output.write_all(&head.encode()).map_err(failed)?;
                // If the file shrinks or grows meanwhile, its length in the stream stays.
                let mut content = content.chain(io::repeat(0)).take(head.bytes);
                io::copy(&mut content, &mut output).map_err(failed)?;
            }
            Ok(None) | Err(_) => {
                let head = StreamedHead::NOTHING.encode();
                output.write_all(&head).map_err(failed)?;
            }
        }
    }
    output.flush().map_err(failed)
}

fn open(root: &File, path: &Path) -> io::Result<Option<(StreamedHead, Box<dyn Read>)>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            _ => return Ok(None),
        }
    }
    let Some((name, parents)) = parts.split_last() else {
        return Ok(None);
    };
    let mut directory = root.try_clone()?;
    for parent in parents {
        directory = open_directory(&within(&directory, Path::new(parent)))?;
    }
    let path = within(&directory, Path::new(name));
    let metadata = fs::symlink_metadata(&path)?;
    if metadata.is_symlink() {
        let target = fs::read_link(&path)?.as_os_str().as_bytes().to_vec();
        let head = StreamedHead {
            kind: StreamedKind::Link,
            bytes: target.len() as u64,
        };
        return Ok(Some((head, Box::new(io::Cursor::new(target)))));
    }
    if !metadata.is_file() {
        return Ok(None);
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(&path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let head = StreamedHead {
        kind: match metadata.mode() & 0o100 {
            0 => StreamedKind::File,
            _ => StreamedKind::Program,
        },
        bytes: metadata.len(),
    };
    Ok(Some((head, Box::new(file))))
}

/// Through the descriptor, so that replacing a directory by a link meanwhile has no effect.
fn within(directory: &File, name: &Path) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}
