//! Tries each thing that building a sandbox takes, one by one and for real, in children that then end.
//! Versions and settings are only read to say what to do about a failure.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{chdir, getegid, geteuid};

use super::cgroup::{self, Cgroups, Controller};
use super::cgroup_mount::Mounts;
use super::instance;
use super::mode::Mode;
use super::mount_fd;
use super::net;
use super::seccomp::Filter;
use super::syscall;
use super::userns;
use crate::doctor::{Check, Status};

const NAMESPACES: [(&str, CloneFlags); 6] = [
    ("mount namespace", CloneFlags::CLONE_NEWNS),
    ("pid namespace", CloneFlags::CLONE_NEWPID),
    ("network namespace", CloneFlags::CLONE_NEWNET),
    ("ipc namespace", CloneFlags::CLONE_NEWIPC),
    ("uts namespace", CloneFlags::CLONE_NEWUTS),
    ("cgroup namespace", CloneFlags::CLONE_NEWCGROUP),
];
/// A directory of every system; tmpfs goes over it in a mount namespace of our own.
const SPOT: &str = "/tmp";
const IN_CONTAINER: &str = "in a container, start it with --security-opt seccomp=unconfined --security-opt \
                            systempaths=unconfined (or --privileged)";

pub(crate) fn all() -> Vec<Check> {
    let mode = Mode::detect();
    let user_namespace = user_namespace();
    // An ordinary user gets everything else by way of it, so the rest would only repeat its failure.
    let is_stuck = mode == Mode::Rootless && user_namespace.status == Status::Missing;
    let mut checks = vec![user(mode), kernel(), clone3(), user_namespace];
    if !is_stuck {
        checks.extend(walls(mode));
    }
    checks.push(essential("system call filter", attempt(filter)));
    checks.extend(cgroups());
    checks
}

fn walls(mode: Mode) -> Vec<Check> {
    let mut checks: Vec<Check> = NAMESPACES
        .map(|(name, flag)| essential(name, attempt(|| enter(mode, flag))))
        .into();
    checks.push(essential("loopback interface", attempt(|| loopback(mode))));
    checks.push(essential("overlayfs", attempt(|| overlay(mode))));
    checks.push(essential("fresh /proc", attempt(|| proc(mode))));
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

fn essential(name: &str, result: io::Result<()>) -> Check {
    match result {
        Ok(()) => Check::new(name, Status::Ok, "works"),
        Err(error) => Check::new(name, Status::Missing, error.to_string()).with_fix(IN_CONTAINER),
    }
}

fn user(mode: Mode) -> Check {
    match mode {
        Mode::Root => Check::new(
            "user",
            Status::Ok,
            "root: every sandbox has its own range of user ids",
        ),
        Mode::Rootless => Check::new(
            "user",
            Status::Degraded,
            "ordinary user: sandboxes share your user id, and have no inner root",
        )
        .with_fix(
            "run as root for user ids of their own and for hard limits on memory and processes",
        ),
    }
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let release = release.trim();
    match version {
        (5.., _) if version >= (5, 19) => Check::new("kernel", Status::Ok, release),
        (5.., _) if version >= (5, 12) => Check::new("kernel", Status::Degraded, release)
            .with_fix("update to Linux 5.19 or later for files with the right owners in sandboxes"),
        _ => {
            Check::new("kernel", Status::Missing, release).with_fix("update to Linux 5.12 or later")
        }
    }
}

fn clone3() -> Check {
    match syscall::try_clone3() {
        Ok(()) => Check::new("clone3", Status::Ok, "works"),
        Err(error) => Check::new(
            "clone3",
            Status::Missing,
            format!("{error}; a container's filter hides it"),
        )
        .with_fix(IN_CONTAINER),
    }
}

fn user_namespace() -> Check {
    let result = attempt(|| {
        let outer = (geteuid().as_raw(), getegid().as_raw());
        unshare(CloneFlags::CLONE_NEWUSER)?;
        userns::map_self(outer.0, outer.1)?;
        // AppArmor lets the namespace be made and takes all rights in it away; this needs one.
        Ok(unshare(CloneFlags::CLONE_NEWUTS)?)
    });
    let Err(error) = result else {
        return Check::new("user namespace", Status::Ok, "works");
    };
    let setting =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let fix = if setting("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sysctl -w kernel.unprivileged_userns_clone=1"
    } else if setting("/proc/sys/user/max_user_namespaces", "0") {
        "sysctl -w user.max_user_namespaces=15000"
    } else if setting(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ) {
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or install an AppArmor profile that allows \
         `userns` to rollcage"
    } else {
        IN_CONTAINER
    };
    Check::new("user namespace", Status::Missing, error.to_string()).with_fix(fix)
}

fn loopback(mode: Mode) -> io::Result<()> {
    enter(mode, CloneFlags::CLONE_NEWNET)?;
    net::loopback_up()?;
    net::listen(0).map(drop)
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
        SPOT,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64k"),
    )?;
    chdir(SPOT)?;
    for name in ["l", "u", "w", "m"] {
        fs::create_dir(name)?;
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
            SPOT,
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

fn cgroups() -> Vec<Check> {
    let (cgroups, claims) = Cgroups::create(&Mounts::detect(), &instance::new_name());
    for claim in claims {
        // Made a moment ago and still empty.
        let _ = cgroup::remove_engine(&claim.path);
    }
    let Cgroups {
        memory, pids, cpu, ..
    } = &cgroups;
    [
        ("memory limit", memory, "per process"),
        ("process limit", pids, "per user namespace"),
        ("cpu limit", cpu, "none"),
    ]
    .map(|(name, controller, otherwise)| match controller {
        Controller::V1(_) | Controller::V2 => Check::new(name, Status::Ok, controller.describe("")),
        Controller::None => Check::new(
            name,
            Status::Degraded,
            format!("no writable cgroup: {otherwise}"),
        )
        .with_fix("run as root, or under `systemd-run --user --scope -p Delegate=yes rollcage …`"),
    })
    .into()
}
