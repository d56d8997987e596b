//! Unpacks an untrusted tarball into an empty directory, refusing every entry that could reach outside. Synchronous;
//! runs on a blocking thread.

use std::fs::{File, Permissions};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use super::storage::StorageError;

/// Guards against archives made to fill a disk.
const ENTRIES_MAX: usize = 200_000;
const BYTES_MAX: u64 = 8 << 30;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("read the archive")]
    Archive { source: io::Error },
    #[error("the archive's entry {entry:?} {reason}")]
    Refused { entry: String, reason: &'static str },
    #[error("the archive is larger than any agent")]
    TooLarge,
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// State shared between the unpacking thread and the task that waits for it.
#[derive(Debug, Default)]
pub(super) struct UnpackState {
    pub(super) bytes: AtomicU64,
    /// Set when nobody waits any more.
    pub(super) is_abandoned: AtomicBool,
}

/// Unpacks the gzipped tar file `tarball` into `tree`, which must not exist yet.
/// Returns the bytes of all files.
pub(super) fn unpack(
    tarball: &Path,
    tree: &Path,
    shared: &UnpackState,
) -> Result<u64, UnpackError> {
    let file = File::open(tarball).map_err(|error| StorageError::new("open", tarball, error))?;
    let file = CancellableFile { file, shared };
    let mut archive = Archive::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 16, file)));
    let archive_error = |source| UnpackError::Archive { source };
    make_directory(tree)?;

    let mut links = Vec::new();
    let mut bytes = 0;
    for (count, entry) in archive.entries().map_err(archive_error)?.enumerate() {
        let mut entry = entry.map_err(archive_error)?;
        if count >= ENTRIES_MAX || bytes + entry.size() > BYTES_MAX {
            return Err(UnpackError::TooLarge);
        }
        let Some(path) = inner_path(&entry)? else {
            continue;
        };
        match entry.header().entry_type() {
            EntryType::Directory => make_directories(tree, &path)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                bytes += write_file(&mut entry, tree, &path, shared)?;
            }
            EntryType::Symlink | EntryType::Link => links.push(Link::read(&entry, path)?),
            EntryType::XGlobalHeader => {}
            _ => return Err(refused(&entry, "is neither file, directory nor link")),
        }
    }
    make_links(&links, tree)?;
    Ok(bytes)
}

/// Creates links after all files: directories first, then hard links, then symbolic links. In this order nothing is
/// ever created through a symbolic link.
fn make_links(links: &[Link], tree: &Path) -> Result<(), UnpackError> {
    for parent in links.iter().filter_map(|link| link.path.parent()) {
        make_directories(tree, parent)?;
    }
    let (hard, symbolic): (Vec<_>, Vec<_>) = links.iter().partition(|link| link.is_hard);
    for link in hard {
        let (from, to) = (tree.join(&link.target), tree.join(&link.path));
        std::fs::hard_link(from, &to).map_err(|error| StorageError::new("link", &to, error))?;
    }
    for link in &symbolic {
        let path = tree.join(&link.path);
        std::os::unix::fs::symlink(&link.target, &path)
            .map_err(|error| StorageError::new("link", &path, error))?;
    }
    symbolic.iter().try_for_each(|link| link.check(tree))
}

/// The unpacked size stated in a gzip file, modulo 4 GiB.
pub(super) fn unpacked_bytes(tarball: &Path) -> io::Result<u64> {
    let mut file = File::open(tarball)?;
    file.seek(SeekFrom::End(-4))?;
    let mut size = [0; 4];
    file.read_exact(&mut size)?;
    Ok(u32::from_le_bytes(size).into())
}

/// A file whose reads fail once nobody waits for the result.
struct CancellableFile<'a> {
    file: File,
    shared: &'a UnpackState,
}

impl Read for CancellableFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.shared.is_abandoned.load(Ordering::Relaxed) {
            return Err(io::Error::other("the installation was cancelled"));
        }
        self.file.read(buffer)
    }
}

/// The entry's path without npm's leading directory (usually `package/`); `None` for that directory itself and for
/// archive metadata.
fn inner_path<R: Read>(entry: &Entry<'_, R>) -> Result<Option<PathBuf>, UnpackError> {
    let path = entry.path();
    let path = path.map_err(|source| UnpackError::Archive { source })?;
    let mut inner = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => inner.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(refused(entry, "would land outside of the bundle"));
            }
        }
    }
    Ok((inner.len() > 1).then(|| inner[1..].iter().collect()))
}

fn refused<R: Read>(entry: &Entry<'_, R>, reason: &'static str) -> UnpackError {
    UnpackError::Refused {
        entry: String::from_utf8_lossy(&entry.path_bytes()).into_owned(),
        reason,
    }
}

fn write_file<R: Read>(
    entry: &mut Entry<'_, R>,
    tree: &Path,
    path: &Path,
    shared: &UnpackState,
) -> Result<u64, UnpackError> {
    if let Some(parent) = path.parent() {
        make_directories(tree, parent)?;
    }
    let mode = entry.header().mode().unwrap_or(0o644);
    let path = tree.join(path);
    let storage = |error| StorageError::new("write", &path, error);
    let mut file = File::create(&path).map_err(storage)?;
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        // Not `io::copy`, because a full disk and a broken archive are different errors.
        let got = match entry.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => got,
            Err(source) => return Err(UnpackError::Archive { source }),
        };
        file.write_all(&buffer[..got]).map_err(storage)?;
        bytes += got as u64;
        shared.bytes.fetch_add(got as u64, Ordering::Relaxed);
    }
    // Readable by any user of a sandbox, without set-user-id bits.
    let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
    let permissions = Permissions::from_mode(mode);
    file.set_permissions(permissions).map_err(storage)?;
    Ok(bytes)
}

fn make_directories(tree: &Path, path: &Path) -> Result<(), UnpackError> {
    let mut directory = tree.to_owned();
    for component in path.components() {
        directory.push(component);
        if !directory.is_dir() {
            make_directory(&directory)?;
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), UnpackError> {
    std::fs::create_dir(path)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|error| StorageError::new("create", path, error).into())
}

/// A link of the archive whose target path stays inside the tree.
struct Link {
    path: PathBuf,
    target: PathBuf,
    is_hard: bool,
}

impl Link {
    fn read<R: Read>(entry: &Entry<'_, R>, path: PathBuf) -> Result<Self, UnpackError> {
        let target = entry.link_name();
        let target = target.map_err(|source| UnpackError::Archive { source })?;
        let target = target.ok_or_else(|| refused(entry, "links to nothing"))?;
        let is_hard = entry.header().entry_type() == EntryType::Link;
        // The target of a hard link is relative to the archive's root, that of a symbolic link to its own directory.
        let (mut depth, skip) = if is_hard {
            (0, 1)
        } else {
            (path.components().count().saturating_sub(1), 0)
        };
        for component in target.components().skip(skip) {
            let next = match component {
                Component::Normal(_) => Some(depth + 1),
                Component::CurDir => Some(depth),
                Component::ParentDir => depth.checked_sub(1),
                Component::RootDir | Component::Prefix(_) => None,
            };
            depth = next.ok_or_else(|| refused(entry, "links out of the bundle"))?;
        }
        let target = target.components().skip(skip).collect();
        Ok(Self {
            path,
            target,
            is_hard,
        })
    }

    /// Checks where the link really leads: a chain of links can lead outside although each target looks harmless.
    fn check(&self, tree: &Path) -> Result<(), UnpackError> {
        let real = |path: &Path| std::fs::canonicalize(path);
        let leads_inside = match (real(&tree.join(&self.path)), real(tree)) {
            (Ok(end), Ok(tree)) => end.starts_with(tree),
            (Err(_), _) | (_, Err(_)) => false,
        };
        if leads_inside {
            return Ok(());
        }
        Err(UnpackError::Refused {
            entry: self.path.display().to_string(),
            reason: "links out of the bundle or to nothing",
        })
    }
}

#[cfg(test)]
mod tests;
