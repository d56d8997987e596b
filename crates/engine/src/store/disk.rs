//! File operations for records: private files, atomic replacement, and syncing where that is required.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::StoreError;

/// The extension of files and directories that are still being written.
pub(super) const PARTIAL: &str = "partial";

/// More than fits into what a full disk has left over.
const TRIED_BYTES: usize = 64 * 1024;

/// Blocks of zeros of this length take no room in files that are kept with a record.
pub const HOLE_BYTES: usize = 64 * 1024;

/// Whether a block can be skipped instead of written.
pub fn is_hole(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Writes a small file below this directory and removes it, to find out whether anything can be written there.
pub(super) fn try_write(directory: &Path) -> io::Result<()> {
    // Named after the process: several may look at the same directory at once.
    let path = directory.join(format!(".writable-{}", std::process::id()));
    let written = fs::write(&path, [1; TRIED_BYTES]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Syncs a directory: files created, renamed or removed in it.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs the content of a file. A missing file is fine.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => file.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The last `bytes_max` bytes of a file of any size, as text.
pub fn read_tail(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(bytes_max)))?;
    let mut end = Vec::new();
    file.take(bytes_max).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// Creates and locks the marker of a running rollout.
pub(super) fn create_marker(path: &Path) -> io::Result<File> {
    loop {
        let marker = private_file(path)?;
        marker.lock()?;
        // Before it was locked, another process may have taken it for the marker of a dead process and removed it.
        if is_same_file(&marker, path) {
            return Ok(marker);
        }
    }
}

/// Whether a path still refers to this open file.
pub(super) fn is_same_file(file: &File, path: &Path) -> bool {
    let (open, there) = (file.metadata(), fs::metadata(path));
    matches!((open, there), (Ok(open), Ok(there)) if open.ino() == there.ino() && open.dev() == there.dev())
}

/// Removes files and directories that were never finished.
pub(super) fn remove_partial_files(record: &Path) {
    for entry in fs::read_dir(record).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|it| it == PARTIAL) {
            let path = entry.path();
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
}

/// Creates a file that only its owner can read.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Replaces a file atomically and syncs it: readers see the old file or the new one, never a part.
pub(super) fn write_atomic(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    replace(path, content, File::sync_data)
}

/// As [`write_atomic`], for content that may be lost in a power loss.
pub(crate) fn write_unsynced(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    replace(path, content, |_| Ok(()))
}

fn replace(
    path: &Path,
    content: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), StoreError> {
    let write = || -> io::Result<()> {
        let partial = path.with_extension(PARTIAL);
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(content)?;
        sync(&file)?;
        fs::rename(&partial, path)
    };
    write().map_err(|source| StoreError::Write {
        path: path.to_owned(),
        source,
    })
}
