//! Files of records on disk: private, whole or not there, and safe from a power cut where that is asked for.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::StoreError;

/// The extension of files that are not whole yet.
const PARTIAL: &str = "partial";

/// Waits until what a directory lists is on disk: files that were made, renamed or removed in it.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Waits until what was appended to a file is on disk. One that is not there has nothing to lose.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) => file.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The end of a file that may have grown without limit.
pub fn end_of(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(bytes_max)))?;
    let mut end = Vec::new();
    file.take(bytes_max).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// Makes a running mark and locks it.
pub(super) fn mark(path: &Path) -> io::Result<File> {
    loop {
        let marker = private_file(path)?;
        marker.lock()?;
        // Between the two, another process may have taken it for a dead one's and removed it.
        if is_at(&marker, path) {
            return Ok(marker);
        }
    }
}

/// Whether a path still leads to an open file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let (open, there) = (file.metadata(), fs::metadata(path));
    matches!((open, there), (Ok(open), Ok(there)) if open.ino() == there.ino() && open.dev() == there.dev())
}

/// What a killed process was writing.
pub(super) fn remove_partial_files(record: &Path) {
    for entry in fs::read_dir(record).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|it| it == PARTIAL) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A new file that only we can read.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Writes a file that is on disk before this returns. Readers see the old file or the new one, never a part.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    replace(path, content, File::sync_data)
}

/// The same for what a power cut may take.
pub(super) fn write_unsynced(path: &Path, content: &[u8]) -> Result<(), StoreError> {
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
