//! Restores a snapshot into the staging directory of a new sandbox, before any process runs there. As with any archive,
//! nothing in it may lead outside: see [`super::unpack`].

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode as FileMode, SFlag, mknod};
use tar::{Archive, Entry, EntryType};

use super::layout::Owners;
use super::snapshot::OPAQUE_DIRECTORY;
use super::unpack::{check_names, failure, inner, link_name, make_parents, refuse, write_file};
use crate::guest::USER_ID;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd;
use crate::local::shared::userns;
use crate::local::shared::wire::Failure;

/// How removed files are represented.
#[derive(Clone, Copy)]
pub(crate) enum Whiteouts {
    /// In an overlay's upper tree: whiteouts hide the lower files.
    Overlay(Mode),
    /// In a copy: the copied files are removed.
    Copy,
}

/// The directory that an area of the snapshot is restored to.
pub(crate) struct Destination {
    pub(crate) area: String,
    pub(crate) path: PathBuf,
    pub(crate) whiteouts: Whiteouts,
}

pub(crate) fn restore(
    mut archive: File,
    destinations: &[Destination],
    owners: Owners,
) -> Result<(), Failure> {
    let unread = |error: io::Error| failure("read a snapshot", &error);
    check_names(&mut archive).map_err(unread)?;
    let mut archive = Archive::new(archive);
    for entry in archive.entries().map_err(unread)? {
        let mut entry = entry.map_err(unread)?;
        let name = entry.path().map_err(unread)?.into_owned();
        let placed = place(&mut entry, &name, destinations, owners);
        placed.map_err(|error| {
            failure(&format!("restore {} of a snapshot", name.display()), &error)
        })?;
    }
    Ok(())
}

fn place(
    entry: &mut Entry<'_, File>,
    name: &Path,
    destinations: &[Destination],
    owners: Owners,
) -> io::Result<()> {
    let kind = entry.header().entry_type();
    let (destination, inner) = find(name, destinations)?;
    let path = destination.path.join(&inner);
    let is_opaque = kind == EntryType::new(OPAQUE_DIRECTORY);
    if inner.as_os_str().is_empty() {
        return match is_opaque {
            true => make_opaque(&path, destination.whiteouts),
            false => Ok(()),
        };
    }
    make_parents(&destination.path, &inner, owners)?;
    let is_directory = is_opaque || kind == EntryType::Directory;
    match fs::symlink_metadata(&path) {
        Ok(existing) if existing.is_dir() && is_directory => {}
        Ok(existing) if existing.is_dir() => fs::remove_dir_all(&path)?,
        Ok(_) => fs::remove_file(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let header = entry.header();
    let owner = (map_id(header.uid()?, owners), map_id(header.gid()?, owners));
    let mode = header.mode()? & 0o7777;
    match kind {
        _ if is_directory => {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path);
            made?;
            lchown(&path, Some(owner.0), Some(owner.1))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            match is_opaque {
                true => make_opaque(&path, destination.whiteouts),
                false => Ok(()),
            }
        }
        EntryType::Regular => write_file(entry, &path, mode, owner),
        EntryType::Symlink => {
            symlink(link_name(entry)?, &path)?;
            lchown(&path, Some(owner.0), Some(owner.1))
        }
        EntryType::Link => {
            let (origin, inner) = find(&link_name(entry)?, destinations)?;
            make_parents(&origin.path, &inner, owners)?;
            let original = origin.path.join(inner);
            if !fs::symlink_metadata(&original)?.is_file() {
                return refuse("a hard link to something that is not a file");
            }
            fs::hard_link(original, &path)
        }
        EntryType::Char => match destination.whiteouts {
            Whiteouts::Overlay(_) => Ok(mknod(&path, SFlag::S_IFCHR, FileMode::empty(), 0)?),
            Whiteouts::Copy => Ok(()),
        },
        _ => refuse("neither a file nor a directory nor a link"),
    }
}

fn find<'a>(
    name: &Path,
    destinations: &'a [Destination],
) -> io::Result<(&'a Destination, PathBuf)> {
    let inner = inner(name)?;
    let mut parts = inner.components();
    let area = parts.next().map(|part| part.as_os_str().to_owned());
    let found = destinations
        .iter()
        .find(|destination| Some(destination.area.as_ref()) == area.as_deref());
    match found {
        Some(destination) => Ok((destination, parts.as_path().to_owned())),
        None => refuse("it is of no part of a sandbox"),
    }
}

/// Makes a directory opaque: only content of the snapshot is visible in it.
fn make_opaque(path: &Path, whiteouts: Whiteouts) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    match whiteouts {
        Whiteouts::Overlay(mode) => mount_fd::hide_lower(path, mode == Mode::Rootless),
        Whiteouts::Copy => Ok(()),
    }
}

/// Maps an id of the sandbox to one outside; an ordinary user has only one.
fn map_id(id: u64, owners: Owners) -> u32 {
    if owners.root == USER_ID {
        return USER_ID;
    }
    match u32::try_from(id) {
        Ok(id) if id < userns::RANGE => owners.root + id,
        _ => owners.root + userns::NOBODY,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use tar::{Builder, Header};

    use super::*;
    use crate::local::shared::wire::FailureKind;

    fn entry(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
    }

    /// Restores into a directory that has a file `victim` beside it.
    fn check(entries: &[(EntryType, &str, &str)]) -> Result<(), Failure> {
        let stage = tempfile::tempdir().unwrap();
        let path = stage.path().join("u");
        fs::create_dir(&path).unwrap();
        let victim = stage.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        let mut builder = Builder::new(Vec::new());
        for (kind, name, link) in entries {
            entry(&mut builder, *kind, name, link);
        }
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(&builder.into_inner().unwrap()).unwrap();
        archive.rewind().unwrap();
        let destination = Destination {
            area: "root".to_owned(),
            path,
            whiteouts: Whiteouts::Copy,
        };
        let own = nix::unistd::geteuid().as_raw();
        let owners = Owners {
            root: own,
            user: own,
        };
        let restored = restore(archive, &[destination], owners);
        assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
        restored
    }

    #[test]
    fn nothing_of_a_snapshot_leads_elsewhere() {
        use EntryType as Is;
        check(&[(Is::Directory, "root/a", ""), (Is::Regular, "root/a/b", "")]).unwrap();
        for hostile in [
            &[(Is::Regular, "root/../victim", "")][..],
            &[(Is::Regular, "/root/x", "")],
            &[(Is::Regular, "other/x", "")],
            &[
                (Is::Symlink, "root/up", ".."),
                (Is::Regular, "root/up/victim", ""),
            ],
            &[
                (Is::Symlink, "root/up", ".."),
                (Is::Char, "root/up/victim", ""),
            ],
            &[
                (Is::Symlink, "root/up", ".."),
                (Is::Link, "root/x", "root/up/victim"),
            ],
            &[
                (Is::Symlink, "root/x", "../victim"),
                (Is::Link, "root/y", "root/x"),
            ],
            &[(Is::Link, "root/x", "root/../victim")],
            &[(Is::Fifo, "root/x", "")],
        ] {
            let refused = check(hostile).unwrap_err();
            assert_eq!(refused.kind, FailureKind::Archive, "{refused:?}");
        }
    }
}
