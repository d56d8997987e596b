//! User namespaces: one per uid range in root mode, the sandbox's own in rootless mode.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::pipe2;

use super::syscall::{exit_now, fork};
use crate::guest::USER_ID;

/// The uids for sandboxes, far from those of login users, containers and systemd.
pub(crate) const FIRST_UID: u32 = 0x7000_0000;
pub(crate) const LAST_UID: u32 = 0x8000_0000;
pub(crate) const RANGE: u32 = 65536;
/// The owner of files whose owner has no id inside.
pub(crate) const NOBODY: u32 = 65534;

/// The first uid of a sandbox's range. Engines on one machine start at different offsets, so that they do not share
/// limits that the kernel counts per uid.
pub(crate) fn range_start(engine_pid: u32, slot: u32) -> u32 {
    let ranges = (LAST_UID - FIRST_UID) / RANGE;
    FIRST_UID + RANGE * (engine_pid.wrapping_mul(64).wrapping_add(slot) % ranges)
}

/// Creates a user namespace in which 0..65536 map to the uids from `start` on. The kernel ties a new namespace to a
/// process, so a short-lived child holds it until it is opened.
pub(crate) fn create(start: u32) -> io::Result<OwnedFd> {
    let (mut reports, report) =
        pipe2(OFlag::O_CLOEXEC).map(|(read, write)| (File::from(read), File::from(write)))?;
    let (mut go, mut release) =
        pipe2(OFlag::O_CLOEXEC).map(|(read, write)| (File::from(read), File::from(write)))?;
    let Some(child) = fork()? else {
        drop(reports);
        drop(release);
        let refused = unshare(CloneFlags::CLONE_NEWUSER).map_or_else(|errno| errno as i32, |()| 0);
        let refused = u8::try_from(refused).unwrap_or(u8::MAX);
        if (&report).write_all(&[refused]).is_err() || refused != 0 {
            exit_now(0);
        }
        if go.read_exact(&mut [0]).is_ok() {
            forbid_nesting();
            let _ = (&report).write_all(b"d");
        }
        // Lives until the parent has opened its namespace and closes the pipe.
        let _ = go.read(&mut [0]);
        exit_now(0);
    };
    drop(report);
    drop(go);
    let mut refused = [0];
    let result = reports
        .read_exact(&mut refused)
        .and_then(|()| match refused[0] {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.into())),
        })
        .and_then(|()| {
            fs::write(
                format!("/proc/{child}/uid_map"),
                format!("0 {start} {RANGE}"),
            )
        })
        .and_then(|()| {
            fs::write(
                format!("/proc/{child}/gid_map"),
                format!("0 {start} {RANGE}"),
            )
        })
        .and_then(|()| release.write_all(b"g"))
        .and_then(|()| reports.read_exact(&mut [0]))
        .and_then(|()| File::open(format!("/proc/{child}/ns/user")));
    drop(release);
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
    result.map(OwnedFd::from)
}

/// Maps the caller alone to the sandbox's user. For a process that is already in its new namespace.
pub(crate) fn map_self(outer_uid: u32, outer_gid: u32) -> io::Result<()> {
    // The kernel requires this before an unprivileged process may write a gid map.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{USER_ID} {outer_uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{USER_ID} {outer_gid} 1"))
}

/// A second line of defence behind the seccomp filter: no user namespaces inside this one.
pub(crate) fn forbid_nesting() {
    // Missing on kernels without the sysctl; the filter forbids it anyway.
    let _ = fs::write("/proc/sys/user/max_user_namespaces", "0");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_within_bounds_and_differ_between_slots() {
        for pid in [1, 2, 4_194_304, u32::MAX] {
            let starts: Vec<u32> = (0..64).map(|slot| range_start(pid, slot)).collect();
            assert!(
                starts
                    .iter()
                    .all(|start| (FIRST_UID..=LAST_UID - RANGE).contains(start))
            );
            assert_eq!(
                starts
                    .iter()
                    .collect::<std::collections::BTreeSet<_>>()
                    .len(),
                64
            );
        }
    }
}
