//! Unpacks an archive into an empty directory in the staging directory, or into a directory of a sandbox that runs. The
//! first is done by a process with full access to the host's files, so no name in an archive may lead out of that
//! directory: neither by itself nor through a link that the archive created before.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use tar::{Archive, Entry, EntryType};

use super::layout::{Owners, directory};
use crate::guest::HOME;
use crate::local::shared::wire::{Failure, FailureKind};

/// The limit of long names and other metadata that are held in memory.
const NAME_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn unpack(archive: File, into: &Path, owners: Owners) -> Result<(), Failure> {
    let step = |name: &Path| format!("unpack {} of an archive", name.display());
    unpack_named(archive, into, owners, step)
}

/// `step` says what failed for an entry of this name.
pub(crate) fn unpack_named(
    mut archive: File,
    into: &Path,
    owners: Owners,
    step: impl Fn(&Path) -> String,
) -> Result<(), Failure> {
    check_names(&mut archive).map_err(|error| failure("read an archive", &error))?;
    let mut archive = Archive::new(archive);
    let entries = archive.entries();
    for entry in entries.map_err(|error| failure("read an archive", &error))? {
        let mut entry = entry.map_err(|error| failure("read an archive", &error))?;
        let name = entry.path().map(|path| path.into_owned());
        let name = name.map_err(|error| failure("read an archive", &error))?;
        let placed = place(&mut entry, &name, into, owners);
        placed.map_err(|error| failure(&step(&name), &error))?;
    }
    Ok(())
}

/// An error of the kernel is this machine's, any other is the archive's.
pub(crate) fn failure(step: &str, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(_) => Failure::new(FailureKind::File, step, error),
        None => Failure::new(FailureKind::Archive, format!("{step}: {error}"), error),
    }
}

/// Checks the length of all names. Leaves the archive at its beginning.
pub(crate) fn check_names(archive: &mut File) -> io::Result<()> {
    for entry in Archive::new(&*archive).entries_with_seek()?.raw(true) {
        let entry = entry?;
        let is_about_the_next = matches!(
            entry.header().entry_type(),
            EntryType::GNULongName
                | EntryType::GNULongLink
                | EntryType::XHeader
                | EntryType::XGlobalHeader
        );
        if is_about_the_next && entry.size() > NAME_BYTES_MAX {
            return refuse("a name is too long");
        }
    }
    archive.rewind()
}

fn place(entry: &mut Entry<'_, File>, name: &Path, into: &Path, owners: Owners) -> io::Result<()> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let inner = inner(name)?;
    if inner.as_os_str().is_empty() {
        // The root itself, whose mode and owner the archive may not set.
        return Ok(());
    }
    let path = into.join(&inner);
    make_parents(into, &inner, owners)?;
    let owner = owner_of(&inner, owners);
    let mode = entry.header().mode()? & 0o777;
    let is_directory = kind == EntryType::Directory;
    match fs::symlink_metadata(&path) {
        Ok(existing) if existing.is_dir() && is_directory => {}
        Ok(existing) if existing.is_dir() => return refuse("a directory of this name came before"),
        Ok(_) => fs::remove_file(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    match kind {
        EntryType::Directory => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made?;
            lchown(&path, Some(owner), Some(owner))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        }
        EntryType::Regular | EntryType::Continuous => {
            write_file(entry, &path, mode, (owner, owner))
        }
        EntryType::Symlink => {
            symlink(link_name(entry)?, &path)?;
            lchown(&path, Some(owner), Some(owner))
        }
        EntryType::Link => {
            let original = self::inner(&link_name(entry)?)?;
            make_parents(into, &original, owners)?;
            let original = into.join(original);
            if !fs::symlink_metadata(&original)?.is_file() {
                return refuse("a hard link to something that is not a file");
            }
            fs::hard_link(original, &path)
        }
        _ => refuse("neither a file nor a directory nor a link"),
    }
}

pub(crate) fn write_file(
    entry: &mut Entry<'_, File>,
    path: &Path,
    mode: u32,
    (uid, gid): (u32, u32),
) -> io::Result<()> {
    let modified = entry.header().mtime()?;
    let size = entry.size();
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let copied = io::copy(&mut entry.take(size), &mut file)?;
    if copied != size {
        return refuse("it is cut short");
    }
    lchown(path, Some(uid), Some(gid))?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    match UNIX_EPOCH.checked_add(Duration::from_secs(modified)) {
        Some(modified) => file.set_modified(modified),
        None => Ok(()),
    }
}

pub(crate) fn link_name(entry: &Entry<'_, File>) -> io::Result<PathBuf> {
    match entry.link_name()? {
        Some(name) => Ok(name.into_owned()),
        None => refuse("a link to nothing"),
    }
}

/// The relative path of a name; refuses one that leads outside.
pub(crate) fn inner(name: &Path) -> io::Result<PathBuf> {
    let mut inner = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => inner.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return refuse("it leads out of the archive");
            }
        }
    }
    Ok(inner)
}

/// Creates missing parent directories; refuses a parent that is not a directory.
pub(crate) fn make_parents(into: &Path, inner: &Path, owners: Owners) -> io::Result<()> {
    let Some(parent) = inner.parent() else {
        return Ok(());
    };
    let mut reached = PathBuf::new();
    for part in parent.components() {
        reached.push(part);
        let path = into.join(&reached);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return refuse("it lies below something that is not a directory"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                directory(&path, 0o755, Some(owner_of(&reached, owners)))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Only files in the home directory belong to the user: the owner of the system's directories could change what the
/// verifier runs.
fn owner_of(inner: &Path, owners: Owners) -> u32 {
    if Path::new("/").join(inner).starts_with(HOME) {
        owners.user
    } else {
        owners.root
    }
}

pub(crate) fn refuse<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}
