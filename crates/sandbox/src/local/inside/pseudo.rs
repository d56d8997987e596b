//! `/dev` and `/proc` of a sandbox, built in directories of these names in its staging directory.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::unistd::chdir;

use super::layout::{NOSUID_NODEV, Owners, bind, directory};
use super::net;
use crate::local::shared::mount_fd::{
    self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, path_cstring,
};
use crate::local::shared::wire::{Failure, FailureKind, WithStep};

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Files that reveal or change the state of the whole machine.
const MASKED_FILES: [&str; 8] = [
    "cmdline",
    "config.gz",
    "kcore",
    "keys",
    "timer_list",
    "sysrq-trigger",
    "latency_stats",
    "sched_debug",
];
const MASKED_DIRECTORIES: [&str; 2] = ["acpi", "scsi"];
const BOOT_ID: &str = "boot_id";
/// Where the machine's own is, below `/proc`.
const OUTER_BOOT_ID: &str = "sys/kernel/random/boot_id";
const READ_ONLY: [&str; 4] = ["sys", "irq", "bus", "fs"];

/// Device nodes are cloned from the host: creating new ones needs rights that an ordinary user lacks.
pub(crate) fn open_devices() -> Result<Vec<(&'static str, OwnedFd)>, Failure> {
    let open = |name| {
        let path = Path::new("/dev").join(name);
        Ok((
            name,
            mount_fd::clone_tree(&path).step(format!("open {}", path.display()))?,
        ))
    };
    DEVICES.into_iter().map(open).collect()
}

/// Builds `/dev`, with `shm` bound from the staging directory.
pub(crate) fn devices(nodes: &[(&'static str, OwnedFd)]) -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(
        Some("tmpfs"),
        "dev",
        Some("tmpfs"),
        flags,
        Some("size=64k,nr_inodes=64,mode=0755"),
    )
    .step("mount /dev")?;
    for (name, node) in nodes {
        let path = Path::new("dev").join(name);
        File::create_new(&path)
            .and_then(|_| mount_fd::attach(node.as_fd(), &path))
            .step(format!("attach {}", path.display()))?;
    }
    for (name, target) in LINKS {
        symlink(target, Path::new("dev").join(name)).step("link in /dev")?;
    }
    for name in ["pts", "shm"] {
        directory(&Path::new("dev").join(name), 0o755, None).step("make a directory in /dev")?;
    }
    let options = "newinstance,ptmxmode=0666,mode=0620";
    mount(
        Some("devpts"),
        "dev/pts",
        Some("devpts"),
        flags,
        Some(options),
    )
    .step("mount /dev/pts")?;
    bind(Path::new("shm"), Path::new("dev/shm")).step("bind /dev/shm")?;
    mount_fd::restrict_mount(c"dev", ATTR_RDONLY).step("make /dev read-only")
}

/// Gives `/dev/shm` a size of its own.
pub(crate) fn shared_memory(bytes: u64, owners: Owners) -> Result<(), Failure> {
    let owner = owners.root;
    let options = format!("size={bytes},mode=1777,uid={owner},gid={owner}");
    mount(
        Some("tmpfs"),
        "dev/shm",
        Some("tmpfs"),
        NOSUID_NODEV,
        Some(options.as_str()),
    )
    .step("mount /dev/shm")
}

pub(crate) fn proc() -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // Processes of other users are hidden: our own would reveal information about the host.
    let mounted = mount(Some("proc"), "proc", Some("proc"), flags, Some("hidepid=2"));
    mounted.map_err(|errno| Failure::new(FailureKind::Proc, "mount /proc", &errno.into()))?;
    net::tune(Path::new("proc/sys/net"));
    let boot_id = mount_fd::clone_tree(Path::new(BOOT_ID)).step("open the boot id")?;
    mask(&boot_id)
}

/// Mounts a `/proc` of this process's own process namespace on top of the one that is there.
pub(crate) fn proc_anew() -> Result<(), Failure> {
    let boot_id = mount_fd::clone_tree(&Path::new("/proc").join(OUTER_BOOT_ID));
    let boot_id = boot_id.step("open the boot id")?;
    let attributes = ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC;
    let proc = mount_fd::new_mount(c"proc", &[(c"hidepid", c"2")], attributes);
    let proc = proc.map_err(|error| Failure::new(FailureKind::Proc, "mount /proc", &error))?;
    mount_fd::attach(proc.as_fd(), Path::new("/proc")).step("attach /proc")?;
    chdir("/").step("enter the root")?;
    mask(&boot_id)
}

/// Covers what tells of the machine, in the `proc` of the current directory.
fn mask(boot_id: &OwnedFd) -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let there = |name: &&str| fs::symlink_metadata(Path::new("proc").join(name)).is_ok();
    for name in MASKED_FILES.iter().filter(|name| there(name)) {
        bind(Path::new("dev/null"), &Path::new("proc").join(name))
            .step(format!("mask /proc/{name}"))?;
    }
    for name in MASKED_DIRECTORIES.iter().filter(|name| there(name)) {
        let flags = flags | MsFlags::MS_RDONLY;
        let path = Path::new("proc").join(name);
        mount(Some("tmpfs"), &path, Some("tmpfs"), flags, Some("size=4k"))
            .step(format!("mask /proc/{name}"))?;
    }
    for name in READ_ONLY.iter().filter(|name| there(name)) {
        let path = Path::new("proc").join(name);
        bind(&path, &path).step(format!("bind /proc/{name}"))?;
        path_cstring(&path)
            .and_then(|path| {
                mount_fd::restrict_mount(
                    &path,
                    ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC,
                )
            })
            .step(format!("make /proc/{name} read-only"))?;
    }
    let place = Path::new("proc").join(OUTER_BOOT_ID);
    if fs::symlink_metadata(&place).is_ok() {
        mount_fd::attach(boot_id.as_fd(), &place).step("mask the boot id")?;
    }
    Ok(())
}

/// Some programs read the boot id; a sandbox has its own.
pub(crate) fn make_boot_id() -> Result<(), Failure> {
    fs::read_to_string("/proc/sys/kernel/random/uuid")
        .and_then(|id| fs::write(BOOT_ID, id))
        .and_then(|()| fs::set_permissions(BOOT_ID, fs::Permissions::from_mode(0o444)))
        .step("make a boot id")
}
