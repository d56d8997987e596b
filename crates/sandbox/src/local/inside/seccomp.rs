//! The system calls that programs in a sandbox may not make. A deny list: agents run compilers, browsers, language
//! servers, and an allow list would break one of them each week. Namespaces and missing capabilities already stop most
//! of these; the filter also reduces the attack surface of the kernel.
//!
//! It is a single BPF program, a binary search for the call's number: every started process pays for its verification,
//! and the kernel runs it once for every call number, to cache what is always allowed.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, apply_filter, sock_filter};

/// Compiled once, in the zygote, and inherited by every sandbox.
pub(crate) struct Filter(BpfProgram);

/// Refused with EPERM.
const DENIED: &[i64] = &[
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    467, // open_tree_attr
    libc::SYS_setns,
    libc::SYS_unshare,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_nfsservctl,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_kcmp,
    libc::SYS_vhangup,
    // Key rings are not namespaced.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The clock is shared with the host.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    // Access to other processes' memory, without ptrace's checks.
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
];

#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
    libc::SYS_lookup_dcookie,
];
#[cfg(target_arch = "aarch64")]
const DENIED_HERE: &[i64] = &[libc::SYS_lookup_dcookie];

/// Refused with ENOSYS, on which runtimes fall back to older calls: their arguments cannot be inspected (clone3) or
/// they bypass the filter (io_uring).
const ABSENT: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const NEW_NAMESPACE_FLAGS: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Address families that network namespaces confine. vsock, for example, reaches the hypervisor from any namespace.
const FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// Options that set the size of a socket's buffers. For TCP, waiting for much at once (SO_RCVLOWAT) is one.
const BUFFER_OPTIONS: [i32; 5] = [
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_RCVLOWAT,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVBUFFORCE,
];

const TIOCLINUX: u64 = 0x541C;

/// Numbers from here on belong to the x32 ABI, which shares the architecture number of x86-64 and is not covered by the
/// lists above.
const X32_START: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// Offsets in the kernel's `seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE_NUMBER: u32 = 4;

impl Filter {
    pub(crate) fn compile() -> io::Result<Filter> {
        let verdicts = verdicts()?;
        let verdict = |number: u32| {
            let x32 = cfg!(target_arch = "x86_64") && number >= X32_START;
            match verdicts.get(&number) {
                _ if x32 => vec![refuse(libc::ENOSYS)],
                Some(verdict) => verdict.clone(),
                None => vec![allow()],
            }
        };
        let mut starts: Vec<u32> = verdicts
            .keys()
            .flat_map(|&number| [number, number + 1])
            .chain([0, X32_START])
            .collect();
        starts.sort_unstable();
        let mut ranges: Vec<(u32, BpfProgram)> = starts
            .into_iter()
            .map(|start| (start, verdict(start)))
            .collect();
        ranges.dedup_by(|next, previous| next.1 == previous.1);
        let mut program = vec![
            step(LOAD, ARCHITECTURE_NUMBER),
            jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
            step(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
            step(LOAD, NUMBER),
        ];
        program.extend(search(&ranges)?);
        Ok(Filter(program))
    }

    /// Applies the filter to this process and its descendants; also sets no_new_privs.
    pub(crate) fn apply(&self) -> io::Result<()> {
        apply_filter(&self.0).map_err(|error| match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            error => io::Error::other(error),
        })
    }
}

/// The verdict for each call that is not simply allowed: a program fragment that ends in a return.
fn verdicts() -> io::Result<BTreeMap<u32, BpfProgram>> {
    let all =
        |calls: &'static [i64], errno| calls.iter().map(move |&call| (call, vec![refuse(errno)]));
    let inspected = [
        (libc::SYS_clone, namespace_clone()),
        (libc::SYS_ioctl, terminal_injection()),
        (libc::SYS_prlimit64, other_process_limits()),
        (libc::SYS_socket, foreign_family()),
        (libc::SYS_socketpair, foreign_family()),
        (libc::SYS_setsockopt, socket_buffers()),
    ];
    all(DENIED, libc::EPERM)
        .chain(all(DENIED_HERE, libc::EPERM))
        .chain(all(ABSENT, libc::ENOSYS))
        .chain(inspected)
        .map(|(call, verdict)| Ok((u32::try_from(call).map_err(io::Error::other)?, verdict)))
        .collect()
}

/// A binary search for the range of the loaded number. The first range starts at 0.
fn search(ranges: &[(u32, BpfProgram)]) -> io::Result<BpfProgram> {
    if let [(_, verdict)] = ranges {
        return Ok(verdict.clone());
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (lower, first) = (search(lower)?, upper.first().map_or(0, |range| range.0));
    let over = u8::try_from(lower.len()).map_err(io::Error::other)?;
    let mut program = vec![jump(JUMP_GREATER_OR_EQUAL, first, over, 0)];
    program.extend(lower);
    program.extend(search(upper)?);
    Ok(program)
}

fn step(code: u16, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

/// Skips `jt` instructions if the condition holds, else `jf`.
fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn allow() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ALLOW)
}

fn refuse(errno: i32) -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

/// Loads the lower half of an argument, which is all that the kernel uses for most of them.
fn load(argument: u32) -> sock_filter {
    step(LOAD, 16 + 8 * argument)
}

fn load_upper_half(argument: u32) -> sock_filter {
    step(LOAD, 16 + 8 * argument + 4)
}

fn namespace_clone() -> BpfProgram {
    // Without CLONE_NEWTIME: for clone its bit is part of the exit signal.
    let flags = NEW_NAMESPACE_FLAGS.iter().fold(0, |all, flag| all | flag);
    vec![
        load(0),
        jump(JUMP_ANY_BIT, flags.cast_unsigned(), 0, 1),
        refuse(libc::EPERM),
        allow(),
    ]
}

/// Refuses to inject input into a terminal.
fn terminal_injection() -> BpfProgram {
    let request = |request: u64| u32::try_from(request).unwrap_or(u32::MAX);
    vec![
        load(1),
        jump(JUMP_EQUAL, request(libc::TIOCSTI), 1, 0),
        jump(JUMP_EQUAL, request(TIOCLINUX), 0, 1),
        refuse(libc::EPERM),
        allow(),
    ]
}

/// Refuses to change limits of other processes: in rootless mode init has the payload's uid, and lowering its limits
/// would lower the verifier's.
fn other_process_limits() -> BpfProgram {
    vec![
        load(0),
        jump(JUMP_EQUAL, 0, 5, 0),
        // Another process; reading its limits, with a null pointer for the new ones, is fine.
        load(2),
        jump(JUMP_EQUAL, 0, 0, 2),
        load_upper_half(2),
        jump(JUMP_EQUAL, 0, 1, 0),
        refuse(libc::EPERM),
        allow(),
    ]
}

fn foreign_family() -> BpfProgram {
    let [a, b, c, d] = FAMILIES.map(i32::cast_unsigned);
    vec![
        load(0),
        jump(JUMP_EQUAL, a, 4, 0),
        jump(JUMP_EQUAL, b, 3, 0),
        jump(JUMP_EQUAL, c, 2, 0),
        jump(JUMP_EQUAL, d, 1, 0),
        refuse(libc::EAFNOSUPPORT),
        allow(),
    ]
}

/// Other sizes of socket buffers are accepted and have no effect. Their memory belongs to the whole machine, and explicit sizes
/// are not bound by the limits of the sandbox's network.
fn socket_buffers() -> BpfProgram {
    let [a, b, c, d, e] = BUFFER_OPTIONS.map(i32::cast_unsigned);
    vec![
        load(1),
        jump(JUMP_EQUAL, libc::SOL_SOCKET.cast_unsigned(), 0, 7),
        load(2),
        jump(JUMP_EQUAL, a, 4, 0),
        jump(JUMP_EQUAL, b, 3, 0),
        jump(JUMP_EQUAL, c, 2, 0),
        jump(JUMP_EQUAL, d, 1, 0),
        jump(JUMP_EQUAL, e, 0, 1),
        refuse(0),
        allow(),
    ]
}

#[cfg(test)]
#[path = "seccomp/tests.rs"]
mod tests;
