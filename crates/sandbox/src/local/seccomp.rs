//! The system calls that programs in a sandbox may not make. A deny list: agents run compilers, browsers,
//! language servers, and an allow list would break one of them each week. Namespaces and the lack of
//! capabilities already stop most of these; the filter also takes their code out of reach.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

/// Compiled once, in the zygote, and inherited by every sandbox.
pub(crate) struct Filters(Vec<BpfProgram>);

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

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
    // The clock is everybody's.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    // Other processes' memory, without ptrace's bookkeeping.
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

/// Answered with ENOSYS, on which runtimes fall back to older calls: their arguments cannot be inspected
/// (clone3) or they bypass the filter (io_uring).
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

/// Address families that network namespaces confine. vsock, for one, reaches the hypervisor from any of them.
const FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

impl Filters {
    pub(crate) fn compile() -> Result<Filters, seccompiler::Error> {
        let mut denied: Rules = DENIED
            .iter()
            .chain(DENIED_HERE)
            .map(|&number| (number, Vec::new()))
            .collect();
        denied.insert(libc::SYS_clone, namespace_clones()?);
        denied.insert(libc::SYS_ioctl, terminal_injection()?);
        denied.insert(libc::SYS_prlimit64, vec![other_process_limits()?]);
        let absent: Rules = ABSENT.iter().map(|&number| (number, Vec::new())).collect();
        let families: Rules = [
            (libc::SYS_socket, vec![foreign_family()?]),
            (libc::SYS_socketpair, vec![foreign_family()?]),
        ]
        .into();
        let mut programs = vec![
            program(denied, libc::EPERM)?,
            program(absent, libc::ENOSYS)?,
            program(families, libc::EAFNOSUPPORT)?,
        ];
        if cfg!(target_arch = "x86_64") {
            programs.push(no_x32());
        }
        Ok(Filters(programs))
    }

    /// Applies the filters to this process and all it will ever become; sets no_new_privs too.
    pub(crate) fn apply(&self) -> std::io::Result<()> {
        for program in &self.0 {
            apply_filter(program).map_err(|error| match error {
                seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
                error => std::io::Error::other(error),
            })?;
        }
        Ok(())
    }
}

fn program(rules: Rules, errno: i32) -> Result<BpfProgram, seccompiler::Error> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture)?.try_into()?)
}

fn condition(
    argument: u8,
    operation: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::Error> {
    Ok(SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        operation,
        value,
    )?)
}

fn namespace_clones() -> Result<Vec<SeccompRule>, seccompiler::Error> {
    let rule = |flag: i32| {
        let flag = u64::from(flag.cast_unsigned());
        Ok(SeccompRule::new(vec![condition(
            0,
            SeccompCmpOp::MaskedEq(flag),
            flag,
        )?])?)
    };
    // CLONE_NEWTIME is not among them: clone takes its bit for part of the exit signal.
    NEW_NAMESPACE_FLAGS.into_iter().map(rule).collect()
}

/// Typing into a terminal on someone else's behalf.
fn terminal_injection() -> Result<Vec<SeccompRule>, seccompiler::Error> {
    const TIOCLINUX: u64 = 0x541C;
    [libc::TIOCSTI, TIOCLINUX]
        .into_iter()
        .map(|request| {
            Ok(SeccompRule::new(vec![condition(
                1,
                SeccompCmpOp::Eq,
                request,
            )?])?)
        })
        .collect()
}

/// In rootless mode init has the payload's uid, and whoever could lower its limits would lower the verifier's.
fn other_process_limits() -> Result<SeccompRule, seccompiler::Error> {
    let other = condition(0, SeccompCmpOp::Ne, 0)?;
    let sets = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    Ok(SeccompRule::new(vec![other, sets])?)
}

fn foreign_family() -> Result<SeccompRule, seccompiler::Error> {
    let not = |family: i32| condition(0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned()));
    Ok(SeccompRule::new(
        FAMILIES.into_iter().map(not).collect::<Result<_, _>>()?,
    )?)
}

/// The x32 interface has the architecture number of x86-64 and numbers of its own, which the lists above miss.
fn no_x32() -> BpfProgram {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const X32_BIT: u32 = 0x4000_0000;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_GREATER_OR_EQUAL, 0, 1, X32_BIT),
        step(
            RETURN,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
        ),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_filters_compile() {
        assert_eq!(
            Filters::compile().unwrap().0.len(),
            if cfg!(target_arch = "x86_64") { 4 } else { 3 }
        );
    }
}
