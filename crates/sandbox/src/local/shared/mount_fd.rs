//! The new mount interface, which neither std nor nix wrap: mounts as descriptors, attached when complete.
#![expect(unsafe_code, reason = "raw system calls")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::syscall::{check, owned};

pub(crate) const ATTR_RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(crate) const ATTR_NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(crate) const ATTR_NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub(crate) const ATTR_NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

pub(crate) fn path_cstring(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A detached copy of the mount that `path` is on, rooted at `path`.
pub(crate) fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    match clone_tree_with(path, 0) {
        // In a user namespace, mounts below `path` are locked to it and must be cloned too.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => clone_whole_tree(path),
        result => result,
    }
}

/// As [`clone_tree`], with all mounts below.
pub(crate) fn clone_whole_tree(path: &Path) -> io::Result<OwnedFd> {
    clone_tree_with(path, libc::AT_RECURSIVE.cast_unsigned())
}

fn clone_tree_with(path: &Path, flags: u32) -> io::Result<OwnedFd> {
    let path = path_cstring(path)?;
    let flags = flags | libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

fn mount_setattr(
    tree: BorrowedFd<'_>,
    flags: i32,
    attributes: &libc::mount_attr,
) -> io::Result<()> {
    let flags = flags | libc::AT_EMPTY_PATH;
    let size = size_of::<libc::mount_attr>();
    // SAFETY: the empty path and the structure outlive the call, and `size` is the structure's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            attributes,
            size,
        )
    };
    check(result).map(drop)
}

fn no_attributes() -> libc::mount_attr {
    libc::mount_attr {
        attr_set: 0,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    }
}

/// Maps the owners of a detached tree's files through `userns`.
pub(crate) fn idmap(tree: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = u64::try_from(userns.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    mount_setattr(
        tree,
        0,
        &libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_IDMAP,
            userns_fd,
            ..no_attributes()
        },
    )
}

/// Adds attributes to a tree. Never clears any, so attributes locked by an outer namespace are no problem.
pub(crate) fn restrict_tree(tree: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    mount_setattr(
        tree,
        libc::AT_RECURSIVE,
        &libc::mount_attr {
            attr_set: attributes,
            ..no_attributes()
        },
    )
}

/// Adds attributes to the one mount that `path` is the root of.
pub(crate) fn restrict_mount(path: &CStr, attributes: u64) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: attributes,
        ..no_attributes()
    };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: path and structure outlive the call, and `size` is the structure's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            0,
            &raw const attributes,
            size,
        )
    };
    check(result).map(drop)
}

/// Attaches a detached tree.
pub(crate) fn attach(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = path_cstring(target)?;
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: both paths are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
        )
    };
    check(result).map(drop)
}

/// Attaches a detached tree on top of whatever the descriptor `target` refers to, without any path lookup.
pub(crate) fn attach_at(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let empty = c"".as_ptr();
    // SAFETY: the empty path is a static string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            empty,
            target.as_raw_fd(),
            empty,
            flags,
        )
    };
    check(result).map(drop)
}

/// A new, detached mount of a file system that needs no source.
pub(crate) fn new_mount(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    // SAFETY: `kind` is a NUL-terminated string that outlives the call.
    let context =
        owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), libc::FSOPEN_CLOEXEC) })?;
    let raw = context.as_raw_fd();
    for (key, value) in options {
        // SAFETY: key and value are NUL-terminated strings that outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                raw,
                libc::FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            )
        };
        check(result)?;
    }
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither key nor value.
    check(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            raw,
            libc::FSCONFIG_CMD_CREATE,
            none,
            none,
            0,
        )
    })?;
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, raw, libc::FSMOUNT_CLOEXEC, attributes) })
}

/// Checks that a file system supports the attributes that overlayfs uses for ordinary users.
pub(crate) fn try_user_attribute(path: &Path) -> io::Result<()> {
    let path = path_cstring(path)?;
    let name = c"user.overlay.rollcage";
    // SAFETY: path, name and value are valid for the call; the value is one byte long.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), c"y".as_ptr().cast(), 1, 0) };
    check(result.into())?;
    // SAFETY: as above.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }.into()).map(drop)
}

/// Marks a directory of an overlay's upper tree as opaque: nothing of the lower trees is visible in it.
pub(crate) fn hide_lower(path: &Path, by_user: bool) -> io::Result<()> {
    let path = path_cstring(path)?;
    let name = match by_user {
        true => c"user.overlay.opaque",
        false => c"trusted.overlay.opaque",
    };
    // SAFETY: path, name and value are valid for the call; the value is one byte long.
    let result =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), c"y".as_ptr().cast(), 1, 0) };
    check(result.into()).map(drop)
}
