//! Removes what stands at a path, with the rights of the sandbox's user, also where that user has locked it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::local::shared::wire::{Failure, FailureKind};

/// A deeper tree is left where it is: each level takes a frame of the stack.
const DEPTH_MAX: u32 = 256;

pub(crate) fn remove(path: &str) -> Result<(), Failure> {
    match remove_at(Path::new(path), DEPTH_MAX) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::new(FailureKind::File, path, &error))
        }
        _ => Ok(()),
    }
}

fn remove_at(path: &Path, depth: u32) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path);
    }
    if depth == 0 {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    // Its owner may have taken away their own rights.
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove_at(&entry?.path(), depth - 1)?;
    }
    fs::remove_dir(path)
}
