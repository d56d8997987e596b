//! System calls about processes that neither std nor nix wrap: clone, pidfds, capabilities, signals.
#![expect(unsafe_code, reason = "raw system calls")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes over a descriptor that a call has just returned.
pub(crate) fn adopt(raw: RawFd) -> OwnedFd {
    // SAFETY: only called on new descriptors, which nobody else owns.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

pub(crate) fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let raw = RawFd::try_from(check(result)?).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: only called on results of system calls that return a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// In which process [`clone_process`] returned.
pub(crate) enum Cloned {
    Child,
    Parent { pidfd: OwnedFd },
}

/// Clones this process like fork, but as a child of our own parent, with a pidfd and new namespaces. Not with clone3,
/// which containers' seccomp filters refuse because they cannot inspect its arguments.
pub(crate) fn clone_process(namespaces: i32) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    // The exit signal, in the lowest bits, is inherited from the caller's with CLONE_PARENT.
    let flags = libc::CLONE_PARENT | libc::CLONE_PIDFD | namespaces;
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: without a new stack this is a fork. The caller is single threaded, so the child may go on
    // using the heap. The kernel writes only to `pidfd`, which outlives the call; it is the third argument
    // on all our architectures, and those that change places are null.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    Ok(Cloned::Parent {
        pidfd: owned(pidfd.into())?,
    })
}

/// Forks a single-threaded process, as zygote and init are.
pub(crate) fn fork() -> io::Result<Option<nix::unistd::Pid>> {
    // SAFETY: zygote and init are single threaded, so the child may do what the parent could.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => Ok(None),
        nix::unistd::ForkResult::Parent { child } => Ok(Some(child)),
    }
}

/// As [`fork`], with the child as the first process of new namespaces. Returns its process id.
pub(crate) fn fork_into(namespaces: i32) -> io::Result<Option<i32>> {
    let flags = libc::SIGCHLD | namespaces;
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: without a new stack this is a fork, and the caller is single threaded as for [`fork`].
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) })?;
    Ok(match i32::try_from(pid) {
        Ok(0) => None,
        Ok(pid) => Some(pid),
        Err(_) => return Err(io::ErrorKind::InvalidData.into()),
    })
}

/// A non-blocking descriptor that is readable when a child has ended. Blocks the signal.
pub(crate) fn child_signals() -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    Ok(SignalFd::with_flags(
        &mask,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// Ends this process immediately, without running destructors or exit handlers of its parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: does not return and touches no memory.
    unsafe { libc::_exit(code) }
}

/// Sets close-on-exec on all descriptors from `first` on.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: only sets a flag on descriptors.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    check(result).map(drop)
}

/// Leaves stdin, stdout, stderr and `kept` open; the latter only until exec. For a forked child that will
/// never run the destructors of what it inherited.
pub(crate) fn close_all_but(kept: OwnedFd) -> io::Result<File> {
    const PLACE: RawFd = 3;
    if kept.as_raw_fd() != PLACE {
        // SAFETY: whatever was at this place is never used again in this process, see above.
        check(unsafe { libc::dup3(kept.as_raw_fd(), PLACE, libc::O_CLOEXEC) }.into())?;
    }
    // Closed or moved below; its destructor must not close another descriptor with its number.
    std::mem::forget(kept);
    // SAFETY: as above, for all descriptors after the kept one, which is open and now ours.
    let kept = unsafe {
        check(libc::syscall(libc::SYS_close_range, PLACE + 1, u32::MAX, 0))?;
        File::from_raw_fd(PLACE)
    };
    Ok(kept)
}

pub(crate) fn ignore_signals(signals: &[i32]) {
    for &signal in signals {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Closes all descriptors from `first` on.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: only called at the start of the zygote, before it owns any of these.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Undoes init's own signal settings, which would survive exec: it ignores SIGPIPE and blocks SIGCHLD.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the default disposition runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Restores default handlers and an empty mask, whatever was inherited.
pub(crate) fn reset_signals() -> io::Result<()> {
    // The kernel's sigaction on all our architectures: zeros are the default handler, no flags, no mask.
    let default = [0_u64; 4];
    let none = std::ptr::null_mut::<u64>();
    for signal in 1..=64 {
        // Not by libc's function, which leaves out the two signals that it uses itself.
        // SAFETY: installs the default disposition; fails harmlessly for the few signals that have no other.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                none,
                size_of::<u64>(),
            )
        };
    }
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Drops every capability that is not in the bit set `kept`, permanently.
pub(crate) fn keep_capabilities(kept: u64) -> io::Result<()> {
    for capability in 0..64 {
        if kept & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: plain numbers. Fails with EINVAL past the kernel's last capability.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return Err(error);
        }
    }
    set_capabilities(kept)
}

/// Sets the effective and permitted capabilities; the inheritable and ambient ones become empty.
pub(crate) fn set_capabilities(kept: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header {
        version: 0x2008_0522,
        pid: 0,
    };
    let half = |bits: u64| {
        let bits = u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        Data {
            effective: bits,
            permitted: bits,
            inheritable: 0,
        }
    };
    let data = [half(kept), half(kept >> 32)];
    // SAFETY: the kernel reads one header and two data blocks, the layout of capability version 3.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

pub(crate) fn clear_ambient() -> io::Result<()> {
    // SAFETY: plain numbers.
    let result = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    check(result.into()).map(drop)
}

/// How a child ended; either `code` or `signal` is zero.
pub(crate) struct ChildExit {
    pub(crate) pid: i32,
    pub(crate) code: i32,
    pub(crate) signal: i32,
}

/// Whether to wait for a child to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMode {
    Wait,
    NoWait,
}

/// Reaps any dead child. `None` if none is dead yet; an error if there are no children at all. Not with nix, which
/// cannot represent death by a real-time signal and returns an error instead.
pub(crate) fn reap_any(wait_mode: WaitMode) -> io::Result<Option<ChildExit>> {
    let options = libc::__WALL
        | if wait_mode == WaitMode::NoWait {
            libc::WNOHANG
        } else {
            0
        };
    let mut status = 0;
    // SAFETY: the kernel writes to `status` only, which outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, options) };
    if check(pid.into())? == 0 {
        return Ok(None);
    }
    let signal = if libc::WIFSIGNALED(status) {
        libc::WTERMSIG(status)
    } else {
        0
    };
    let code = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        0
    };
    Ok(Some(ChildExit { pid, code, signal }))
}

/// As kill(2): a negative number is a process group, -1 all processes. Best effort.
pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: plain numbers.
    let _ = unsafe { libc::kill(pid, signal) };
}

pub(crate) fn pidfd_kill(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed and means that of kill(2).
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            none,
            0,
        )
    })
    .map(drop)
}

/// Reaps a dead child. `Ok(false)` while it lives; a child that was already reaped counts as dead.
pub(crate) fn pidfd_reap(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: an all-zero siginfo is valid, and the kernel only writes to it.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let id = pidfd.as_raw_fd().cast_unsigned();
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` outlives the call.
    if unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, options) } < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) {
            Ok(true)
        } else {
            Err(error)
        };
    }
    // SAFETY: waitid filled in the fields of a child event, or left the zeros.
    Ok(unsafe { info.si_pid() } != 0)
}
