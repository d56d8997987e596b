//! The directories below the bundle root: locks, staging directories and their cleanup. Ownership is a `flock`, which
//! the kernel releases when a process dies.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A failed file operation below the bundle root.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("no space left in {}{}", path.display(), needing(*needed))]
    Full {
        path: PathBuf,
        /// Bytes that the whole installation takes, where known.
        needed: Option<u64>,
        source: io::Error,
    },
    #[error("{} cannot be written to", path.display())]
    NotWritable { path: PathBuf, source: io::Error },
    #[error("{operation} {}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn needing(bytes: Option<u64>) -> String {
    let text = |bytes: u64| format!(" (at least {:.1} MB needed)", bytes as f64 / 1e6);
    bytes.map(text).unwrap_or_default()
}

impl StorageError {
    /// Classifies an error by what the user has to do about it.
    pub(super) fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let path = path.to_owned();
        match source.kind() {
            StorageFull | QuotaExceeded => Self::Full {
                path,
                needed: None,
                source,
            },
            ReadOnlyFilesystem | PermissionDenied => Self::NotWritable { path, source },
            _ => Self::Io {
                operation,
                path,
                source,
            },
        }
    }

    /// Adds the (additional) space needed and the directory to an error about a full disk.
    pub(super) fn needing(self, bytes: u64, root: &Path) -> Self {
        match self {
            Self::Full { needed, source, .. } => Self::Full {
                path: root.to_owned(),
                needed: Some(needed.unwrap_or(0) + bytes),
                source,
            },
            Self::NotWritable { .. } | Self::Io { .. } => self,
        }
    }
}

/// Creates the root (private to the user) and its working directories.
pub(super) fn prepare(root: &Path) -> Result<(), StorageError> {
    for directory in [root.to_owned(), temporary(root), locks(root)] {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&directory);
        made.map_err(|error| StorageError::new("create", &directory, error))?;
    }
    Ok(())
}

fn temporary(root: &Path) -> PathBuf {
    root.join(".tmp")
}

fn locks(root: &Path) -> PathBuf {
    root.join(".lock")
}

/// Syncs everything below a directory, so that the rename that follows cannot reach the disk before the contents. One
/// call for the whole file system: agents have thousands of files, and syncing each takes minutes.
pub(super) fn sync(directory: &Path) -> Result<(), StorageError> {
    let synced = File::open(directory)
        .and_then(|directory| nix::unistd::syncfs(directory).map_err(io::Error::from));
    synced.map_err(|error| StorageError::new("sync", directory, error))
}

/// The exclusive right to install or remove one version; released on drop.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock called `name`; `None` while another process holds it.
    ///
    /// Lock files are never removed: otherwise two processes could hold locks on two files of the same name.
    pub(super) fn try_take(root: &Path, name: &str) -> Result<Option<Self>, StorageError> {
        let path = locks(root).join(name);
        let file = File::options().append(true).create(true).open(&path);
        let file = file.map_err(|error| StorageError::new("open", &path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(StorageError::new("lock", &path, error)),
        }
    }
}

/// A private directory for one installation, removed when dropped.
#[derive(Debug)]
pub(super) struct Staging {
    directory: tempfile::TempDir,
    /// Prevents other processes from removing the directory.
    _lock: File,
}

impl Staging {
    pub(super) fn new(root: &Path) -> Result<Self, StorageError> {
        let parent = temporary(root);
        loop {
            let directory = tempfile::Builder::new()
                .prefix("install-")
                .tempdir_in(&parent);
            let directory =
                directory.map_err(|error| StorageError::new("create in", &parent, error))?;
            // Another process's sweep may come between creating and locking; then start again.
            if let Some(lock) = lock_directory(directory.path())
                .map_err(|error| StorageError::new("lock", directory.path(), error))?
            {
                return Ok(Self {
                    directory,
                    _lock: lock,
                });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Locks a staging directory; `None` if it is locked or gone.
///
/// The lock is on a file in it, because NFS can lock only files that are open for writing.
fn lock_directory(directory: &Path) -> io::Result<Option<File>> {
    let path = directory.join("owner");
    let file = match File::options().append(true).create(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let held = file.metadata()?;
    let is_same = |now: std::fs::Metadata| now.ino() == held.ino() && now.dev() == held.dev();
    let still_there = path.symlink_metadata().is_ok_and(is_same);
    Ok(still_there.then_some(file))
}

/// Removes staging directories of dead processes.
pub(super) fn sweep(root: &Path) {
    let Ok(entries) = std::fs::read_dir(temporary(root)) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let removed = if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // The lock is held until the removal is done, see `Staging::new`.
            let Ok(Some(_lock)) = lock_directory(&path) else {
                continue;
            };
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        match removed {
            Ok(()) => tracing::debug!(path = %path.display(), "stale installation swept"),
            Err(error) => tracing::warn!(path = %path.display(), %error, "stale installation kept"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lock, Staging, prepare, sweep, temporary};

    #[test]
    fn a_sweep_removes_only_what_dead_processes_left() {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path()).unwrap();
        let mine = Staging::new(root.path()).unwrap();
        std::fs::write(mine.path().join("package.tgz"), "half").unwrap();
        let stale = temporary(root.path()).join("install-dead");
        std::fs::create_dir_all(stale.join("tree/bin")).unwrap();
        std::fs::write(stale.join("tree/bin/program"), "half").unwrap();
        std::fs::write(temporary(root.path()).join("loose"), "half").unwrap();

        sweep(root.path());

        let left = std::fs::read_dir(temporary(root.path())).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [mine.path()]);
        drop(mine);
        assert_eq!(
            std::fs::read_dir(temporary(root.path())).unwrap().count(),
            0
        );
    }

    #[test]
    fn a_lock_is_held_by_one_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path()).unwrap();
        let first = Lock::try_take(root.path(), "a").unwrap();
        assert!(first.is_some());
        assert!(Lock::try_take(root.path(), "a").unwrap().is_none());
        assert!(Lock::try_take(root.path(), "b").unwrap().is_some());
        drop(first);
        assert!(Lock::try_take(root.path(), "a").unwrap().is_some());
    }
}
