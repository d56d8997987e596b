//! Directories that belong to one engine process, and the removal of those whose engine is dead. Ownership is an flock
//! on the directory: the kernel releases it however the engine ends.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The common prefix of our directories everywhere.
const PREFIX: &str = "rollcage-";

/// A locked directory, owned for as long as this lives.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) path: PathBuf,
    _lock: File,
}

/// A name that no other engine uses at the same time.
pub(crate) fn new_name() -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!(
        "{PREFIX}{}-{:08x}",
        std::process::id(),
        random & 0xffff_ffff
    )
}

/// Creates the directory `name` and locks it.
pub(crate) fn claim(parent: &Path, name: &str) -> io::Result<Claim> {
    let path = parent.join(name);
    // Another engine may remove the directory before it is locked; then create it again.
    for _ in 0..100 {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            result => result?,
        };
        if lock.try_lock().is_err() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let locked = lock.metadata()?;
        if fs::metadata(&path)
            .is_ok_and(|now| now.ino() == locked.ino() && now.dev() == locked.dev())
        {
            return Ok(Claim { path, _lock: lock });
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Calls `remove` on each of our directories in `parent` whose engine is dead.
pub(crate) fn sweep(parent: &Path, remove: impl Fn(&Path) -> io::Result<()>) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX)
            || !entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            continue;
        }
        let path = entry.path();
        let Ok(lock) = File::open(&path) else {
            continue;
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
        }
        match remove(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "swept what a dead engine left"),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot sweep what a dead engine left")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeping_takes_only_what_has_no_living_owner() {
        let parent = tempfile::tempdir().unwrap();
        let living = claim(parent.path(), &new_name()).unwrap();
        let dead = claim(parent.path(), "rollcage-1-dead").unwrap().path;
        let foreign = parent.path().join("other");
        fs::create_dir(&foreign).unwrap();
        sweep(parent.path(), |path| fs::remove_dir_all(path));
        assert!(living.path.exists());
        assert!(!dead.exists());
        assert!(foreign.exists());
    }
}
