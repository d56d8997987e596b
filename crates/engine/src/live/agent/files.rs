//! Files in and out of a live agent's work directory.

use std::path::{Component, Path, PathBuf};

use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{DirectoryEntry, EntryKind};

use super::LiveAgent;
use super::life::InUse;
use crate::live::LiveError;
use crate::live::machine::workdir;

/// Entries of the work directory that are listed.
const ENTRIES_MAX: usize = 10_000;
const DEPTH_MAX: u32 = 32;
const FILE_BYTES_MAX: u64 = 64 << 20;

impl LiveAgent {
    /// The work directory, with everything below it.
    pub async fn list_files(&self) -> Result<Vec<DirectoryEntry>, LiveError> {
        let in_use = self.in_use().await?;
        match &in_use.sandbox {
            Some(sandbox) => {
                let listed = sandbox.list(WORKDIR, DEPTH_MAX, ENTRIES_MAX).await;
                listed.map_err(sandbox_error)
            }
            None => {
                let workdir = self.workdir();
                let list = move || {
                    let mut entries = Vec::new();
                    list(&workdir, Path::new(""), DEPTH_MAX, &mut entries)?;
                    entries.sort_by(|left: &DirectoryEntry, right| left.path.cmp(&right.path));
                    Ok(entries)
                };
                on_machine(list).await
            }
        }
    }

    /// Without a sandbox.
    fn workdir(&self) -> PathBuf {
        workdir(&self.request, &self.directory)
    }

    /// A file, by its path in the work directory.
    pub async fn read_file(&self, path: &str) -> Result<Vec<u8>, LiveError> {
        let path = inside(path)?;
        let in_use: InUse<'_> = self.in_use().await?;
        match &in_use.sandbox {
            Some(sandbox) => {
                let read = sandbox.read_file(&path, FILE_BYTES_MAX).await;
                read.map_err(sandbox_error)
            }
            None => {
                let path = self.workdir().join(path);
                on_machine(move || {
                    let metadata = std::fs::metadata(&path)?;
                    match metadata.is_file() && metadata.len() <= FILE_BYTES_MAX {
                        true => std::fs::read(&path),
                        false => Err(std::io::Error::other(
                            "not a regular file, or too large a one",
                        )),
                    }
                })
                .await
            }
        }
    }

    /// Writes or replaces a file, with the directories above it.
    pub async fn write_file(&self, path: &str, content: Vec<u8>) -> Result<(), LiveError> {
        let path = inside(path)?;
        if content.len() as u64 > FILE_BYTES_MAX {
            let problem = format!("a file may have {FILE_BYTES_MAX} bytes at most");
            return Err(LiveError::File(problem));
        }
        let in_use = self.in_use().await?;
        match &in_use.sandbox {
            Some(sandbox) => {
                let written = sandbox.write_file(&path, 0o644, content).await;
                written.map_err(sandbox_error)
            }
            None => {
                let path = self.workdir().join(path);
                on_machine(move || {
                    if let Some(parent) = path.parent() {
                        std::fs::create_dir_all(parent)?;
                    }
                    std::fs::write(&path, content)
                })
                .await
            }
        }
    }
}

/// A path below the work directory.
fn inside(path: &str) -> Result<String, LiveError> {
    let bare = path.strip_prefix(&format!("{WORKDIR}/")).unwrap_or(path);
    let mut parts = Path::new(bare).components();
    let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
    match is_plain && !bare.is_empty() && !bare.contains('\0') {
        true => Ok(bare.to_owned()),
        false => Err(LiveError::File(format!(
            "`{path}` is no path in the work directory: give a relative one without `..`"
        ))),
    }
}

fn sandbox_error(error: rollcage_sandbox::Error) -> LiveError {
    LiveError::File(rollcage_model::text::chain(&error))
}

async fn on_machine<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, LiveError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    done.map_err(|error| LiveError::File(error.to_string()))
}

/// Lists a tree of this machine without following links.
fn list(
    root: &Path,
    below: &Path,
    depth: u32,
    entries: &mut Vec<DirectoryEntry>,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        if entries.len() >= ENTRIES_MAX {
            return Ok(());
        }
        let (path, metadata) = (below.join(entry.file_name()), entry.metadata()?);
        let kind = match metadata.file_type() {
            kind if kind.is_file() => EntryKind::File,
            kind if kind.is_dir() => EntryKind::Directory,
            kind if kind.is_symlink() => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        entries.push(DirectoryEntry {
            path: path.display().to_string(),
            kind,
            bytes: metadata.len(),
        });
        if kind == EntryKind::Directory && depth > 1 {
            list(root, &path, depth - 1, entries)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_in_the_work_directory() {
        assert_eq!(inside("a/b").unwrap(), "a/b");
        assert_eq!(inside("/home/user/workdir/a").unwrap(), "a");
        for outside in [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a\0b",
            "/home/user/workdir/",
        ] {
            assert!(inside(outside).is_err(), "{outside}");
        }
    }
}
