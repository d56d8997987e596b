//! Snapshots on disk: the archive itself, in a file of its own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::KIND;
use super::start::{SnapshotArchive, open_snapshot};
use crate::{Error, Snapshot};

/// Writes it beside its place first, so that nobody sees a part of it.
pub(crate) async fn save(snapshot: &Snapshot, path: &Path) -> Result<(), Error> {
    let archive = File::from(open_snapshot(snapshot)?);
    let path = path.to_owned();
    blocking("save a snapshot", move || write(archive, &path)).await
}

pub(crate) async fn load(path: &Path) -> Result<Snapshot, Error> {
    let path = path.to_owned();
    blocking("load a snapshot", move || {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok(Snapshot::new(
                KIND,
                metadata.len(),
                SnapshotArchive(file.into()),
            )),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    })
    .await
}

fn write(mut archive: File, path: &Path) -> io::Result<()> {
    let partial: PathBuf = path.with_extension("partial");
    // What a killed process left may be somebody's link.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut write = || -> io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)?;
        io::copy(&mut archive, &mut file)?;
        file.sync_data()?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|source| Error::Engine { operation, source })
}
