//! The sandbox's file system, built in its own mount namespace. Everything writable lives in one tmpfs,
//! so that nothing is left on disk however the sandbox ends.
//!
//! Sources are opened first and attached to a staging area; after pivot_root all targets are resolved
//! inside the new root, so that no link in a layer can lead a mount or a new directory outside.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{chdir, pivot_root};

use super::mode::Mode;
use super::mount_fd::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};
use super::pseudo;
use super::skeleton::PROGRAM_DIRECTORIES;
use super::userns;
use super::wire::{Failure, InStep, Setup, Start};
use crate::{AGENT_LOGS, HOME, VERIFIER_LOGS};

const LOGS: &str = "/home/user/logs";
pub(crate) const LOGS_SIZE: &str = "64m";
pub(crate) const WALLED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
const NO: Option<&str> = None;

/// The sandbox's root and user, as whoever builds the sandbox has to name them.
#[derive(Clone, Copy)]
pub(crate) struct Owners {
    pub(crate) root: u32,
    pub(crate) user: u32,
}

impl Owners {
    pub(crate) fn new(setup: &Setup, start: &Start) -> Owners {
        match setup.mode {
            Mode::Root => {
                let root = userns::range_start(setup.engine_pid, start.slot);
                Owners {
                    root,
                    user: root + userns::USER,
                }
            }
            // There is but one uid inside.
            Mode::Rootless => Owners {
                root: userns::USER,
                user: userns::USER,
            },
        }
    }
}

/// Detached copies of all that comes from the host.
struct Sources {
    skeleton: OwnedFd,
    programs: Vec<(&'static str, OwnedFd)>,
    layers: Vec<OwnedFd>,
    mounts: Vec<(OwnedFd, PathBuf)>,
    devices: Vec<(&'static str, OwnedFd)>,
}

/// Builds the root and moves into it. Returns a handle on the sealed directory of the verifier.
pub(crate) fn build(
    setup: &Setup,
    start: &Start,
    userns: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Failure> {
    let owners = Owners::new(setup, start);
    mount(NO, "/", NO, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NO).step("make mounts private")?;
    let sources = open_sources(setup, start, userns)?;
    stage(setup, start, &sources, owners)?;

    overlay(setup.mode, "root", "root", &lowers(&sources, None))?;
    pivot_root("root", "root").step("pivot into the new root")?;
    for (name, _) in &sources.programs {
        overlay(
            setup.mode,
            name,
            &format!("/{name}"),
            &lowers(&sources, Some(name)),
        )?;
    }
    home(owners)?;
    bind(Path::new("tmp"), Path::new("/tmp")).step("bind /tmp")?;
    bind(Path::new("var-tmp"), Path::new("/var/tmp")).step("bind /var/tmp")?;
    pseudo::devices(&sources.devices)?;
    pseudo::proc()?;
    for (tree, target) in &sources.mounts {
        read_only(tree, target).step(format!("mount on {}", target.display()))?;
    }

    chdir("/").step("enter the new root")?;
    // The old root was stacked on the new one, so this takes the old one off.
    umount2(".", MntFlags::MNT_DETACH).step("leave the host's root")?;
    if setup.mode == Mode::Rootless {
        guard_system(&sources)?;
    }
    let verifier = open(
        VERIFIER_LOGS,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        FileMode::empty(),
    );
    verifier.step("open the verifier's directory")
}

fn open_sources(
    setup: &Setup,
    start: &Start,
    userns: Option<BorrowedFd<'_>>,
) -> Result<Sources, Failure> {
    let tree = |path: &Path| -> Result<OwnedFd, Failure> {
        let tree = mount_fd::clone_tree(path).step(format!("open {}", path.display()))?;
        if let Some(userns) = userns {
            match mount_fd::idmap(tree.as_fd(), userns) {
                // Some file systems cannot; then host root's files are nobody's inside, still readable.
                Err(error)
                    if [Some(libc::EINVAL), Some(libc::EOPNOTSUPP)]
                        .contains(&error.raw_os_error()) => {}
                result => result.step(format!("map the owners of {}", path.display()))?,
            }
        }
        Ok(tree)
    };
    let mut programs = Vec::new();
    for name in ["usr"].iter().chain(PROGRAM_DIRECTORIES) {
        let path = Path::new("/").join(name);
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            programs.push((*name, tree(&path)?));
        }
    }
    Ok(Sources {
        skeleton: tree(&setup.skeleton)?,
        programs,
        layers: start
            .layers
            .iter()
            .map(|path| tree(path))
            .collect::<Result<_, _>>()?,
        mounts: start
            .mounts
            .iter()
            .map(|mount| Ok((tree(&mount.source)?, mount.target.clone())))
            .collect::<Result<_, _>>()?,
        devices: pseudo::open_devices()?,
    })
}

/// Mounts the sandbox's tmpfs on the stage, enters it, and lays everything out that the overlays need:
/// `l` for lower trees, `u` and `w` for upper and work directories, `root` for the result.
fn stage(setup: &Setup, start: &Start, sources: &Sources, owners: Owners) -> Result<(), Failure> {
    let bytes = start.limits.disk_bytes;
    // Small files must not make inodes without limit: each takes about a KiB of unswappable memory.
    let inodes = (bytes / 4096).clamp(65_536, 4_194_304);
    let options = format!("size={bytes},nr_inodes={inodes},mode=0755");
    mount(
        Some("tmpfs"),
        &setup.stage,
        Some("tmpfs"),
        WALLED,
        Some(options.as_str()),
    )
    .step("mount a tmpfs for the sandbox's files")?;
    chdir(&setup.stage).step("enter the stage")?;
    for name in ["l", "u", "w", "root"] {
        directory(Path::new(name), 0o755, None).step("lay out the stage")?;
    }
    directory(Path::new("tmp"), 0o1777, Some(owners.root)).step("make /tmp")?;
    directory(Path::new("var-tmp"), 0o1777, Some(owners.root)).step("make /var/tmp")?;
    directory(Path::new("shm"), 0o1777, Some(owners.root)).step("make /dev/shm")?;
    attach_lower("skeleton", &sources.skeleton)?;
    for (name, tree) in &sources.programs {
        attach_lower(name, tree)?;
        layer_pair(name, owners)?;
    }
    for (index, tree) in sources.layers.iter().enumerate() {
        attach_lower(&index.to_string(), tree)?;
    }
    layer_pair("root", owners)?;
    upper(&start.id, owners).step("fill the sandbox's own layer")
}

fn attach_lower(name: &str, tree: &OwnedFd) -> Result<(), Failure> {
    let path = Path::new("l").join(name);
    directory(&path, 0o755, None).step("lay out the stage")?;
    mount_fd::attach(tree.as_fd(), &path).step(format!("attach {name} to the stage"))
}

fn layer_pair(name: &str, owners: Owners) -> Result<(), Failure> {
    directory(&Path::new("u").join(name), 0o755, Some(owners.root))
        .step("make an upper directory")?;
    directory(&Path::new("w").join(name), 0o755, None).step("make a work directory")
}

/// What differs from sandbox to sandbox lies in its upper layer from the start.
fn upper(id: &str, owners: Owners) -> io::Result<()> {
    let upper = Path::new("u/root");
    directory(&upper.join("etc"), 0o755, Some(owners.root))?;
    directory(&upper.join("home"), 0o755, Some(owners.root))?;
    for name in [
        "home/user",
        "home/user/workdir",
        "home/user/task",
        "home/user/logs",
    ] {
        directory(&upper.join(name), 0o755, Some(owners.user))?;
    }
    // Only IPv4: some clients take the first address of a name, and our listeners are on 127.0.0.1.
    for (name, content) in [
        ("hosts", format!("127.0.0.1 localhost\n127.0.1.1 {id}\n")),
        ("hostname", format!("{id}\n")),
    ] {
        let path = upper.join("etc").join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        chown(&path, Some(owners.root), Some(owners.root))?;
    }
    Ok(())
}

/// Lower directories for the root, or for one of its program directories, uppermost first.
fn lowers(sources: &Sources, program: Option<&str>) -> Vec<PathBuf> {
    let layers = (0..sources.layers.len()).map(|index| PathBuf::from("l").join(index.to_string()));
    match program {
        None => layers.chain([PathBuf::from("l/skeleton")]).collect(),
        // A layer may add to /usr as well.
        Some(name) => layers
            .map(|layer| layer.join(name))
            .filter(|path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()))
            .chain([Path::new("l").join(name)])
            .collect(),
    }
}

fn overlay(mode: Mode, name: &str, target: &str, lowers: &[PathBuf]) -> Result<(), Failure> {
    let lowers: Vec<String> = lowers
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let mut options = format!(
        "lowerdir={},upperdir=u/{name},workdir=w/{name}",
        lowers.join(":")
    );
    if mode == Mode::Rootless {
        // Only root may set the attributes that overlayfs uses otherwise.
        options.push_str(",userxattr");
    }
    let step = format!(
        "mount overlay on /{}",
        target.trim_start_matches('/').trim_start_matches("root")
    );
    mount(
        Some("overlay"),
        target,
        Some("overlay"),
        WALLED,
        Some(options.as_str()),
    )
    .step(step)
}

/// With but one uid inside, the agent owns the system's directories, and could give the verifier another
/// shell or dynamic linker. What belongs to root in root mode is therefore read-only here.
fn guard_system(sources: &Sources) -> Result<(), Failure> {
    let programs = sources.programs.iter().map(|(name, _)| format!("/{name}"));
    for path in programs.chain([String::from("/home"), String::from("/")]) {
        mount_fd::path_cstring(Path::new(&path))
            .and_then(|path| mount_fd::restrict_mount(&path, ATTR_RDONLY))
            .step(format!("make {path} read-only"))?;
    }
    Ok(())
}

/// A mount point can be neither renamed nor removed. Making each directory on the way to the verifier's
/// logs one, nobody inside can put anything else in their place, not even where he owns `/`.
fn home(owners: Owners) -> Result<(), Failure> {
    for path in ["/home", HOME] {
        bind(Path::new(path), Path::new(path)).step(format!("bind {path}"))?;
    }
    let owner = owners.root;
    let options = format!("size={LOGS_SIZE},mode=0755,uid={owner},gid={owner}");
    mount(
        Some("tmpfs"),
        LOGS,
        Some("tmpfs"),
        WALLED,
        Some(options.as_str()),
    )
    .step("mount the logs")?;
    directory(Path::new(AGENT_LOGS), 0o755, Some(owners.user)).step("make the agent's logs")?;
    directory(Path::new(VERIFIER_LOGS), 0o755, Some(owners.root))
        .step("make the verifier's logs")?;
    let sealed = WALLED | MsFlags::MS_RDONLY;
    let options = format!("size=4k,mode=0755,uid={owner},gid={owner}");
    mount(
        Some("tmpfs"),
        VERIFIER_LOGS,
        Some("tmpfs"),
        sealed,
        Some(options.as_str()),
    )
    .step("seal the verifier's logs")
}

fn read_only(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let is_directory = File::from(tree.try_clone()?).metadata()?.is_dir();
    mount_point(target, is_directory)?;
    mount_fd::restrict_tree(tree.as_fd(), ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)?;
    mount_fd::attach(tree.as_fd(), target)
}

/// Makes a target with its parents; what is new belongs to whoever owns the directory it is in.
fn mount_point(target: &Path, is_directory: bool) -> io::Result<()> {
    if fs::metadata(target).is_ok() {
        return Ok(());
    }
    let parent = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
    mount_point(parent, true)?;
    if is_directory {
        directory(target, 0o755, None)?;
    } else {
        File::create_new(target)?.set_permissions(fs::Permissions::from_mode(0o644))?;
    }
    let owner = fs::metadata(parent)?;
    // Fails for directories of host users that have no name inside; then it stays ours.
    let _ = chown(target, Some(owner.uid()), Some(owner.gid()));
    Ok(())
}

pub(crate) fn bind(source: &Path, target: &Path) -> nix::Result<()> {
    mount(Some(source), target, NO, MsFlags::MS_BIND, NO)
}

/// Makes a directory with exactly this mode; the caller's umask is 0.
pub(crate) fn directory(path: &Path, mode: u32, owner: Option<u32>) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    owner.map_or(Ok(()), |owner| chown(path, Some(owner), Some(owner)))
}
