//! Copies a directory tree into a sandbox's own files, for machines that do not support an overlay.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use super::layout::{Owners, directory};
use crate::guest::USER_ID;
use crate::local::shared::userns;

/// Existing files are kept: upper layers are copied first.
pub(crate) fn merge(from: &Path, to: &Path, owners: Owners) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = fs::symlink_metadata(&source)?;
        let existing = fs::symlink_metadata(&target).ok();
        if metadata.is_dir() {
            match existing {
                Some(existing) if !existing.is_dir() => continue,
                Some(_) => {}
                None => {
                    directory(&target, metadata.mode() & 0o7777, None)?;
                    map_owner(&target, &metadata, owners)?;
                }
            }
            merge(&source, &target, owners)?;
            continue;
        }
        if existing.is_some() {
            continue;
        }
        if metadata.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if metadata.is_file() {
            fs::copy(&source, &target)?;
            fs::set_permissions(
                &target,
                fs::Permissions::from_mode(metadata.mode() & 0o7777),
            )?;
        } else {
            continue;
        }
        map_owner(&target, &metadata, owners)?;
    }
    Ok(())
}

/// Maps the host's uid N to the sandbox's uid N, as an overlay would; an ordinary user has only one uid.
fn map_owner(target: &Path, metadata: &Metadata, owners: Owners) -> io::Result<()> {
    if owners.root == USER_ID {
        return Ok(());
    }
    let map_id = |id: u32| match id {
        // Already mapped when the tree was opened.
        userns::FIRST_UID.. => id,
        0..userns::RANGE => owners.root + id,
        _ => owners.root + userns::NOBODY,
    };
    lchown(
        target,
        Some(map_id(metadata.uid())),
        Some(map_id(metadata.gid())),
    )
}
