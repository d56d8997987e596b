//! How to fix a machine that refuses a step of building a sandbox. Settings are read only to name the one that is in
//! the way; whether something works is always found out by trying it.

use std::fs;
use std::io;

use nix::unistd::geteuid;

use super::wire::FailureKind;

/// The oldest kernel with `mount_setattr`, which makes a whole tree of mounts read-only at once.
pub(crate) const LOWEST_KERNEL: (u32, u32) = (5, 12);

const CONTAINER: &str = "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined \
     --security-opt apparmor=unconfined (docs/deployment.md, \"In a container\"); where these cannot be had, as under gVisor or on \
     hosted Spaces, sandboxes cannot run";
const PROC: &str = "parts of /proc are masked: start the container with --security-opt systempaths=unconfined (Podman: \
     unmask=ALL, Kubernetes: procMount: Unmasked)";
const DISK: &str = "nothing can be written: set ROLLCAGE_HOME to a directory on a disk with room";

/// One sentence with the fix, if known.
pub(crate) fn of(kind: FailureKind, error: &io::Error) -> Option<String> {
    let code = error.raw_os_error()?;
    let refused = matches!(code, libc::EPERM | libc::EACCES);
    if let Some(old) = old_kernel() {
        return Some(old);
    }
    match kind {
        FailureKind::Namespaces if refused || matches!(code, libc::ENOSPC | libc::EUSERS) => {
            Some(namespaces())
        }
        FailureKind::Proc if refused => Some(PROC.to_owned()),
        FailureKind::Setup if refused && setting_in_the_way().is_some() => setting_in_the_way(),
        FailureKind::Namespaces | FailureKind::Setup if refused && profile().is_some() => {
            Some(format!(
                "AppArmor's profile {} forbids it: start the container with --security-opt apparmor=unconfined, or with \
             apparmor=rollcage and our profile (deploy/apparmor/rollcage)",
                profile().unwrap_or_default()
            ))
        }
        FailureKind::Namespaces | FailureKind::Setup | FailureKind::Proc
            if refused || matches!(code, libc::ENOSYS) =>
        {
            Some(if is_filtered() {
                CONTAINER.to_owned()
            } else {
                format!(
                    "a security module or a missing capability forbids it; {}",
                    hint()
                )
            })
        }
        FailureKind::Setup if matches!(code, libc::EROFS | libc::ENOSPC | libc::EDQUOT) => {
            Some(DISK.to_owned())
        }
        _ => None,
    }
}

fn hint() -> &'static str {
    if geteuid().is_root() {
        "run it with CAP_SYS_ADMIN, or in a container with --privileged"
    } else {
        "run it as root"
    }
}

/// How to get namespaces.
pub(crate) fn namespaces() -> String {
    setting_in_the_way().unwrap_or_else(|| {
        if is_filtered() {
            CONTAINER.to_owned()
        } else {
            format!(
                "this machine gives no user namespaces to ordinary users; {}",
                hint()
            )
        }
    })
}

/// A setting that forbids user namespaces, as a command that changes it.
fn setting_in_the_way() -> Option<String> {
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        return Some(String::from("sysctl -w user.max_user_namespaces=15000"));
    }
    if geteuid().is_root() {
        return None;
    }
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return Some(String::from("sysctl -w kernel.unprivileged_userns_clone=1"));
    }
    if is(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ) {
        return Some(String::from(
            "install the AppArmor profile deploy/apparmor/rollcage-host, which lets rollcage have user namespaces, or \
             sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ));
    }
    None
}

/// The AppArmor profile that confines us.
fn profile() -> Option<String> {
    let paths = [
        "/proc/self/attr/apparmor/current",
        "/proc/self/attr/current",
    ];
    let text = paths
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok())?;
    // `NAME (enforce)`; other modules use the second file too, in other forms.
    let (name, _) = text
        .trim()
        .trim_end_matches('\0')
        .split_once(" (enforce)")?;
    Some(name.to_owned())
}

/// Whether a seccomp filter applies to us, which only containers do.
fn is_filtered() -> bool {
    fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Seccomp:\t2")))
}

/// A message if this kernel is too old.
pub(crate) fn old_kernel() -> Option<String> {
    let release = kernel_release();
    (kernel_version(&release) < LOWEST_KERNEL).then(|| {
        let (major, minor) = LOWEST_KERNEL;
        format!("Linux {major}.{minor} or later is needed, and this is {release} (gVisor calls itself 4.4.0, and cannot run sandboxes)")
    })
}

pub(crate) fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

pub(crate) fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_first_two_numbers() {
        assert_eq!(kernel_version("6.1.0-50-amd64"), (6, 1));
        assert_eq!(
            kernel_version("5.15.167.4-microsoft-standard-WSL2"),
            (5, 15)
        );
        assert_eq!(kernel_version(""), (0, 0));
        assert!(kernel_version("4.4.0") < LOWEST_KERNEL);
    }

    #[test]
    fn a_masked_proc_and_a_full_disk_have_a_fix() {
        let fix = |kind, code| of(kind, &io::Error::from_raw_os_error(code));
        assert!(fix(FailureKind::Proc, libc::EPERM).is_some_and(|fix| fix.contains("systempaths")));
        assert!(
            fix(FailureKind::Setup, libc::ENOSPC).is_some_and(|fix| fix.contains("ROLLCAGE_HOME"))
        );
        assert_eq!(fix(FailureKind::Setup, libc::EINVAL), None);
    }
}
