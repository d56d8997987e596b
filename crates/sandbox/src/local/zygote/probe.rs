//! Tests everything that building a sandbox needs, one by one and for real, in short-lived children. Versions and
//! settings are only read to suggest a fix for a failure.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{chdir, getegid, geteuid};

use crate::doctor::{Check, Status};
use crate::local::inside::net;
use crate::local::inside::seccomp::Filter;
use crate::local::shared::advice;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd;
use crate::local::shared::syscall;
use crate::local::shared::userns;
use crate::local::shared::wire::FailureKind;

const NAMESPACES: [(&str, CloneFlags); 6] = [
    ("mount namespace", CloneFlags::CLONE_NEWNS),
    ("pid namespace", CloneFlags::CLONE_NEWPID),
    ("network namespace", CloneFlags::CLONE_NEWNET),
    ("ipc namespace", CloneFlags::CLONE_NEWIPC),
    ("uts namespace", CloneFlags::CLONE_NEWUTS),
    ("cgroup namespace", CloneFlags::CLONE_NEWCGROUP),
];
/// A directory of every system, over which tmpfs is mounted in our own mount namespace.
const SCRATCH: &str = "/tmp";

pub(crate) fn all() -> Vec<Check> {
    let mode = Mode::detect();
    let user_namespace = user_namespace();
    // For an ordinary user everything else depends on it, so the rest would only repeat its failure.
    let is_stuck = mode == Mode::Rootless && user_namespace.status == Status::Missing;
    let mut checks = vec![user(mode), kernel(), user_namespace];
    if !is_stuck {
        checks.extend(namespaces_and_mounts(mode));
    }
    checks.push(essential(
        "system call filter",
        FailureKind::Setup,
        attempt(filter),
    ));
    checks
}

fn namespaces_and_mounts(mode: Mode) -> Vec<Check> {
    let mut checks: Vec<Check> = NAMESPACES
        .map(|(name, flag)| essential(name, FailureKind::Namespaces, attempt(|| enter(mode, flag))))
        .into();
    let network = attempt(|| loopback(mode));
    checks.push(essential("loopback interface", FailureKind::Setup, network));
    checks.push(overlayfs(mode));
    let proc = attempt(|| proc(mode));
    checks.push(essential("fresh /proc", FailureKind::Proc, proc));
    if mode == Mode::Root {
        checks.push(idmap());
    }
    checks
}

/// Runs `what` in a child and returns its error.
fn attempt(what: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some(child) = syscall::fork()? else {
        let code = match what() {
            Ok(()) => 0,
            Err(error) => error
                .raw_os_error()
                .filter(|code| (1..=255).contains(code))
                .unwrap_or(libc::EIO),
        };
        syscall::exit_now(code)
    };
    match waitpid(child, None)? {
        WaitStatus::Exited(_, 0) => Ok(()),
        WaitStatus::Exited(_, code) => Err(io::Error::from_raw_os_error(code)),
        status => Err(io::Error::other(format!("{status:?}"))),
    }
}

fn enter(mode: Mode, namespaces: CloneFlags) -> io::Result<()> {
    match mode {
        Mode::Root => Ok(unshare(namespaces)?),
        Mode::Rootless => {
            let outer = (geteuid().as_raw(), getegid().as_raw());
            unshare(namespaces | CloneFlags::CLONE_NEWUSER)?;
            userns::map_self(outer.0, outer.1)
        }
    }
}

fn essential(name: &str, kind: FailureKind, result: io::Result<()>) -> Check {
    let Err(error) = result else {
        return Check::new(name, Status::Ok, "works");
    };
    let check = Check::new(name, Status::Missing, error.to_string());
    match advice::of(kind, &error) {
        Some(fix) => check.with_fix(fix),
        None => check,
    }
}

fn user(mode: Mode) -> Check {
    match mode {
        Mode::Root => Check::new(
            "user",
            Status::Ok,
            "root: every sandbox has its own range of user ids",
        ),
        Mode::Rootless if geteuid().is_root() => Check::new(
            "user",
            Status::Degraded,
            "root without all capabilities or user ids: sandboxes share your user id, and have no inner root",
        )
        .with_fix("in a container, start it with --privileged, or --cap-add SYS_ADMIN,NET_ADMIN"),
        Mode::Rootless => Check::new(
            "user",
            Status::Degraded,
            "ordinary user: sandboxes share your user id, and have no inner root",
        )
        .with_fix("run as root for user ids of their own"),
    }
}

fn kernel() -> Check {
    let release = advice::kernel_release();
    if let Some(old) = advice::old_kernel() {
        return Check::new("kernel", Status::Missing, release).with_fix(old);
    }
    if advice::kernel_version(&release) < (5, 19) {
        return Check::new("kernel", Status::Degraded, release).with_fix(
            "update to Linux 5.19 or later for files with the right owners in sandboxes",
        );
    }
    Check::new("kernel", Status::Ok, release)
}

fn user_namespace() -> Check {
    let result = attempt(|| {
        let outer = (geteuid().as_raw(), getegid().as_raw());
        unshare(CloneFlags::CLONE_NEWUSER)?;
        userns::map_self(outer.0, outer.1)?;
        // AppArmor permits creating the namespace but removes all rights in it; this needs one.
        Ok(unshare(CloneFlags::CLONE_NEWUTS)?)
    });
    essential("user namespace", FailureKind::Namespaces, result)
}

/// Without overlayfs the layers of a sandbox are copied.
fn overlayfs(mode: Mode) -> Check {
    let name = "overlayfs";
    let copied = |why: String| {
        let detail = format!("{why}: agents' homes are copied into each sandbox");
        Check::new(name, Status::Degraded, detail)
    };
    match attempt(|| overlay(mode)) {
        Ok(()) => Check::new(name, Status::Ok, "works"),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            copied(String::from("tmpfs keeps no attributes for it"))
                .with_fix("update to Linux 6.6 or later, or run as root")
        }
        Err(error) => copied(error.to_string()).with_fix("modprobe overlay, as root"),
    }
}

fn loopback(mode: Mode) -> io::Result<()> {
    enter(mode, CloneFlags::CLONE_NEWNET)?;
    net::loopback_up()?;
    net::listen(std::net::Ipv4Addr::LOCALHOST, 0).map(drop)
}

fn enter_mounts(mode: Mode, further: CloneFlags) -> io::Result<()> {
    enter(mode, CloneFlags::CLONE_NEWNS | further)?;
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )?;
    Ok(())
}

fn overlay(mode: Mode) -> io::Result<()> {
    enter_mounts(mode, CloneFlags::empty())?;
    mount(
        Some("tmpfs"),
        SCRATCH,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64k"),
    )?;
    chdir(SCRATCH)?;
    for name in ["l", "u", "w", "m"] {
        fs::create_dir(name)?;
    }
    if mode == Mode::Rootless {
        mount_fd::try_user_attribute(Path::new("u"))?;
    }
    let options = "lowerdir=l,upperdir=u,workdir=w";
    let options = if mode == Mode::Rootless {
        format!("{options},userxattr")
    } else {
        options.to_owned()
    };
    mount(
        Some("overlay"),
        "m",
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )?;
    fs::write("m/file", "content")
}

fn proc(mode: Mode) -> io::Result<()> {
    enter_mounts(mode, CloneFlags::CLONE_NEWPID)?;
    // Only children are in the new pid namespace.
    attempt(|| {
        Ok(mount(
            Some("proc"),
            SCRATCH,
            Some("proc"),
            MsFlags::empty(),
            None::<&str>,
        )?)
    })
}

fn idmap() -> Check {
    let name = "id-mapped mounts";
    let result = attempt(|| {
        let userns = userns::create(userns::range_start(std::process::id(), 0))?;
        mount_fd::idmap(
            mount_fd::clone_tree(Path::new("/usr"))?.as_fd(),
            userns.as_fd(),
        )
    });
    match result {
        Ok(()) => Check::new(name, Status::Ok, "works on /usr"),
        Err(error) => Check::new(
            name,
            Status::Degraded,
            format!("{error}; programs belong to nobody inside"),
        )
        .with_fix("keep /usr on ext4, xfs or btrfs, with Linux 5.19 or later"),
    }
}

fn filter() -> io::Result<()> {
    Filter::compile()?.apply()
}
