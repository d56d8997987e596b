//! The sandbox's file system, built in its own mount namespace. Everything writable lives in one tmpfs,
//! so that nothing is left on disk however the sandbox ends.
//!
//! Sources are opened first and attached to a staging directory; after pivot_root all targets are resolved inside the
//! new root, so that no link in a layer can lead a mount or a new directory outside.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{chdir, pivot_root};

use super::copy;
use super::layout::{
    BuildContext, EMPTY, NOSUID_NODEV, Owners, attach_lower, bind, directory, layer_pair, overlay,
};
use super::programs::{self, ProgramTree};
use super::pseudo;
use super::restore::{self, Destination, Whiteouts};
use super::snapshot::{ROOT, SnapshotAreas};
use super::unpack;
use crate::guest::{
    AS_AGENT, HOME, LOGS, SETUP, TASK_DIR, TESTS, VERIFIER_LOGS, VERIFY_HOME, VERIFY_RUN, WORKDIR,
};
use crate::local::shared::PROGRAM_DIRECTORIES;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};
use crate::local::shared::wire::{ContentSource, Failure, FailureKind, StartMessage, WithStep};

pub(crate) const LOGS_SIZE: &str = "64m";
const NO: Option<&str> = None;
/// Directories of the staging directory that are bound to `/tmp` and `/var/tmp`.
const TEMPORARY: [&str; 2] = ["tmp", "var-tmp"];
/// The directory of the stage that is bound to [`SETUP`].
const SETUP_AREA: &str = "setup";

/// The part of a root that is the same for every sandbox, in the staging directory, which is the current directory: `l`
/// for lower trees, `m` for mounted archives, `u` and `w` for upper and work directories, `root` for the result, and by
/// their names the directories that will be moved or bound into it.
pub(crate) struct StagedRoot<'a> {
    context: BuildContext<'a>,
    programs: Vec<ProgramTree>,
    /// The program that is shown as [`AS_AGENT`], where it can be: a sandbox without it is of use, too.
    as_agent: Option<OwnedFd>,
    /// Without overlays, the layers of the root are copied.
    can_overlay: bool,
}

impl StagedRoot<'_> {
    pub(crate) fn prepare(context: BuildContext<'_>) -> Result<StagedRoot<'_>, Failure> {
        let owners = context.owners;
        // A slave while it is a spare: a disk unmounted outside must not be kept busy by spares.
        propagate(MsFlags::MS_SLAVE)?;
        let skeleton = context.tree(&context.setup.skeleton)?;
        let mounts = programs::host_mounts()?;
        let mut programs = Vec::new();
        for name in ["usr"].iter().chain(PROGRAM_DIRECTORIES) {
            programs.extend(ProgramTree::open(&context, name, &mounts)?);
        }
        let nodes = pseudo::open_devices()?;
        let as_agent = context.tree(&context.setup.program).ok().filter(|tree| {
            let restrictions = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV;
            mount_fd::restrict_tree(tree.as_fd(), restrictions).is_ok()
        });

        // Just large enough for this; the real size is set with the limits.
        let options = Some("size=64k,nr_inodes=256,mode=0755");
        let stage = &context.setup.stage;
        mount(Some("tmpfs"), stage, Some("tmpfs"), NOSUID_NODEV, options)
            .step("mount a tmpfs for the sandbox's files")?;
        chdir(stage).step("enter the stage")?;
        for name in ["l", "m", "u", "w", "root", "dev", "proc", "logs", "tests"] {
            directory(Path::new(name), 0o755, None).step("lay out the stage")?;
        }
        for name in ["tmp", "var-tmp", "shm"] {
            directory(Path::new(name), 0o1777, Some(owners.root)).step("lay out the stage")?;
        }
        directory(Path::new(SETUP_AREA), 0o755, Some(owners.user)).step("lay out the stage")?;
        attach_lower("skeleton", &skeleton)?;
        for (program, tree) in &programs {
            program.stage(&context, tree)?;
        }
        layer_pair("root", owners)?;
        upper(owners).step("make the sandbox's own layer")?;
        seal(owners)?;
        File::create_new(EMPTY).step("lay out the stage")?;
        pseudo::make_boot_id()?;
        pseudo::devices(&nodes)?;
        pseudo::proc()?;
        Ok(StagedRoot {
            context,
            programs: programs.into_iter().map(|(program, _)| program).collect(),
            as_agent,
            // For an ordinary user overlayfs needs attributes that tmpfs supports since Linux 6.6.
            can_overlay: context.setup.mode == Mode::Root
                || mount_fd::try_user_attribute(Path::new("u/root")).is_ok(),
        })
    }

    /// Builds the root and moves into it.
    pub(crate) fn finish(
        &self,
        start: &StartMessage,
        archives: Vec<OwnedFd>,
    ) -> Result<RootHandles, Failure> {
        let BuildContext { setup, .. } = self.context;
        propagate(MsFlags::MS_PRIVATE)?;
        resize(start.disk_bytes).step("size the sandbox's tmpfs")?;
        if let Some(bytes) = start.shm_bytes {
            pseudo::shared_memory(bytes, self.context.owners)?;
        }
        name(&start.id, self.context.owners).step("name the sandbox")?;
        let mut archives = archives.into_iter();
        let snapshot = if start.has_snapshot {
            archives.next()
        } else {
            None
        };
        let mounts = self.open_content(start, archives)?;
        let mut areas = SnapshotAreas::default();
        areas.add(ROOT, "u/root", self.make_root(start, snapshot)?)?;
        pivot_root("root", "root").step("pivot into the new root")?;
        for program in &self.programs {
            if let Some(merged) = program.place(setup.mode, start)? {
                let own = format!("u/{}", program.name());
                areas.add(program.name(), &own, Some(merged))?;
            }
        }
        for name in TEMPORARY.into_iter().chain([SETUP_AREA]) {
            areas.add(name, name, None)?;
        }
        self.move_in(&mounts)?;

        chdir("/").step("enter the new root")?;
        // The old root was stacked on the new one, so this detaches the old one.
        umount2(".", MntFlags::MNT_DETACH).step("leave the host's root")?;
        if setup.mode == Mode::Rootless {
            guard_system(&self.programs)?;
        }
        let handle = |path: &str| {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            open(path, flags, FileMode::empty()).step(format!("open {path}"))
        };
        Ok(RootHandles {
            logs: handle(VERIFIER_LOGS)?,
            tests: handle(TESTS)?,
            verify_home: handle(VERIFY_HOME)?,
            verify_run: handle(VERIFY_RUN)?,
            as_agent: handle(AS_AGENT)?,
            program: self
                .as_agent
                .as_ref()
                .and_then(|tree| tree.try_clone().ok()),
            setup: handle(SETUP)?,
            areas,
        })
    }

    /// Attaches the layers; returns the mounts with their targets.
    fn open_content<'a>(
        &self,
        start: &'a StartMessage,
        mut archives: impl Iterator<Item = OwnedFd>,
    ) -> Result<Vec<(OwnedFd, &'a Path)>, Failure> {
        for (index, layer) in start.layers.iter().enumerate() {
            let name = index.to_string();
            match layer {
                ContentSource::HostTree(path) => attach_lower(&name, &self.context.tree(path)?)?,
                ContentSource::Archive => {
                    let path = Path::new("l").join(name);
                    unpack_onto(&path, archives.next(), self.context.owners)?;
                }
            }
        }
        let mut mounts = Vec::new();
        for (index, mount) in start.mounts.iter().enumerate() {
            let tree = match &mount.source {
                ContentSource::HostTree(path) => self.context.tree(path)?,
                ContentSource::Archive => {
                    let path = Path::new("m").join(index.to_string());
                    // It is read-only, so it may belong to the user, who can then read all of it.
                    let user = self.context.owners.user;
                    unpack_onto(&path, archives.next(), Owners { root: user, user })?;
                    mount_fd::clone_tree(&path).step("open an unpacked archive")?
                }
            };
            mounts.push((tree, mount.target.as_path()));
        }
        Ok(mounts)
    }

    /// Mounts everything else in the new root, which is already `/`.
    fn move_in(&self, mounts: &[(OwnedFd, &Path)]) -> Result<(), Failure> {
        // A mount point can be neither renamed nor removed. With each parent of the verifier's directories being one,
        // nobody inside can replace them, not even the owner of `/`.
        for path in ["/home", HOME] {
            bind(Path::new(path), Path::new(path)).step(format!("bind {path}"))?;
        }
        for (from, to) in [
            ("tmp", "/tmp"),
            ("var-tmp", "/var/tmp"),
            (SETUP_AREA, SETUP),
        ] {
            bind(Path::new(from), Path::new(to)).step(format!("bind {to}"))?;
        }
        for (from, to) in [
            ("logs", LOGS),
            ("tests", TESTS),
            ("dev", "/dev"),
            ("proc", "/proc"),
        ] {
            mount(Some(from), to, NO, MsFlags::MS_MOVE, NO).step(format!("mount {to}"))?;
        }
        for (tree, target) in mounts {
            read_only(tree, target).step(format!("mount on {}", target.display()))?;
        }
        Ok(())
    }

    /// Creates the root as an overlay, or as a copy if that is impossible (no such module, file systems stacked too
    /// deeply). Returns the overlay alone, if it is one.
    fn make_root(
        &self,
        start: &StartMessage,
        snapshot: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let mode = self.context.setup.mode;
        let layers = (0..start.layers.len()).map(|index| Path::new("l").join(index.to_string()));
        let lowers: Vec<PathBuf> = layers.chain([PathBuf::from("l/skeleton")]).collect();
        let is_overlaid = self.can_overlay && overlay(mode, "root", "root", &lowers).is_ok();
        if !is_overlaid {
            for lower in &lowers {
                copy::merge(lower, Path::new("u/root"), self.context.owners)
                    .step(format!("copy {} into the sandbox", lower.display()))?;
            }
        }
        if let Some(snapshot) = snapshot {
            // Only now is it known whether the root is an overlay. An upper tree must not be changed while its overlay
            // is mounted.
            if is_overlaid {
                umount2("root", MntFlags::empty()).step("take an overlay off")?;
            }
            self.restore(snapshot.into(), is_overlaid)?;
            name(&start.id, self.context.owners).step("name the sandbox")?;
            if is_overlaid {
                overlay(mode, "root", "root", &lowers)?;
            }
        }
        if !is_overlaid {
            bind(Path::new("u/root"), Path::new("root")).step("bind the sandbox's root")?;
            return Ok(None);
        }
        let merged = mount_fd::clone_tree(Path::new("root")).step("open the sandbox's root")?;
        Ok(Some(merged))
    }

    fn restore(&self, snapshot: File, is_overlaid: bool) -> Result<(), Failure> {
        let mode = self.context.setup.mode;
        let overlaid = |name: &str| Destination {
            area: name.to_owned(),
            path: Path::new("u").join(name),
            whiteouts: Whiteouts::Overlay(mode),
        };
        let mut destinations = vec![Destination {
            whiteouts: match is_overlaid {
                true => Whiteouts::Overlay(mode),
                false => Whiteouts::Copy,
            },
            ..overlaid(ROOT)
        }];
        destinations.extend(self.programs.iter().map(|program| overlaid(program.name())));
        let plain = TEMPORARY.into_iter().chain([SETUP_AREA]);
        destinations.extend(plain.map(|name| Destination {
            area: name.to_owned(),
            path: PathBuf::from(name),
            whiteouts: Whiteouts::Copy,
        }));
        restore::restore(snapshot, &destinations, self.context.owners)?;
        // The verifier's directories depend on these.
        for (path, owner) in base(self.context.owners) {
            let path = Path::new("u/root").join(&path[1..]);
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => {
                    let error = io::Error::from(io::ErrorKind::InvalidData);
                    let step = format!("{} of a snapshot is not a directory", path.display());
                    return Err(Failure::new(FailureKind::Archive, step, &error));
                }
                Err(_) => directory(&path, 0o755, Some(owner)).step("make a directory anew")?,
            }
        }
        Ok(())
    }
}

/// What init needs to know about the finished root.
pub(crate) struct RootHandles {
    /// Directories that nobody inside can write to, until a new mount is put on top of each.
    pub(crate) logs: OwnedFd,
    pub(crate) tests: OwnedFd,
    /// An empty directory of root's.
    pub(crate) verify_home: OwnedFd,
    /// Likewise.
    pub(crate) verify_run: OwnedFd,
    /// An empty file of root's.
    pub(crate) as_agent: OwnedFd,
    /// What is to be mounted there.
    pub(crate) program: Option<OwnedFd>,
    /// The mount at [`SETUP`].
    pub(crate) setup: OwnedFd,
    pub(crate) areas: SnapshotAreas,
}

/// Unpacks an archive into a new directory in the staging directory.
fn unpack_onto(path: &Path, archive: Option<OwnedFd>, owners: Owners) -> Result<(), Failure> {
    directory(path, 0o755, Some(owners.root)).step("lay out the stage")?;
    match archive {
        Some(archive) => unpack::unpack(archive.into(), path, owners),
        None => Err(io::Error::from(io::ErrorKind::InvalidData)).step("find an archive"),
    }
}

fn propagate(how: MsFlags) -> Result<(), Failure> {
    mount(NO, "/", NO, MsFlags::MS_REC | how, NO).step("separate mounts from the host's")
}

fn resize(bytes: u64) -> nix::Result<()> {
    // Limit the number of inodes too: each takes about a KiB of unswappable memory.
    let inodes = (bytes / 4096).clamp(65_536, 4_194_304);
    let options = format!("size={bytes},nr_inodes={inodes}");
    let flags = NOSUID_NODEV | MsFlags::MS_REMOUNT;
    mount(NO, ".", NO, flags, Some(options.as_str()))
}

/// Directories that every sandbox needs, with their owners.
fn base(owners: Owners) -> [(&'static str, u32); 5] {
    [
        ("/etc", owners.root),
        ("/home", owners.root),
        (HOME, owners.user),
        (LOGS, owners.user),
        (TESTS, owners.user),
    ]
}

/// Creates the base directories, and those of the sandbox's user, in the upper layer.
fn upper(owners: Owners) -> io::Result<()> {
    let upper = Path::new("u/root");
    let user = [(WORKDIR, owners.user), (TASK_DIR, owners.user)];
    for (name, owner) in base(owners).into_iter().chain(user) {
        directory(&upper.join(&name[1..]), 0o755, Some(owner))?;
    }
    Ok(())
}

fn name(id: &str, owners: Owners) -> io::Result<()> {
    // Only IPv4: some clients use the first address of a name, and our listeners are on 127.0.0.1.
    for (path, content) in [
        (
            "u/root/etc/hosts",
            format!("127.0.0.1 localhost\n127.0.1.1 {id}\n"),
        ),
        ("u/root/etc/hostname", format!("{id}\n")),
    ] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path)?;
        file.write_all(content.as_bytes())?;
        fchown(&file, Some(owners.root), Some(owners.root))?;
    }
    Ok(())
}

/// With only one uid inside, the agent owns the system's directories, and could give the verifier another shell or
/// dynamic linker. So what belongs to root in root mode is read-only here.
fn guard_system(programs: &[ProgramTree]) -> Result<(), Failure> {
    let programs = programs.iter().map(ProgramTree::path);
    for path in programs.chain([String::from("/home"), String::from("/")]) {
        mount_fd::path_cstring(Path::new(&path))
            .and_then(|path| mount_fd::restrict_mount(&path, ATTR_RDONLY))
            .step(format!("make {path} read-only"))?;
    }
    Ok(())
}

/// Creates the logs of agent and verifier, and the verifier's tests; those of the verifier are sealed.
fn seal(owners: Owners) -> Result<(), Failure> {
    let owner = format!("mode=0755,uid={0},gid={0}", owners.root);
    let tmpfs = |path: &str, flags, size: &str| {
        let options = format!("size={size},{owner}");
        let options = Some(options.as_str());
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, options)
    };
    tmpfs("logs", NOSUID_NODEV, LOGS_SIZE).step("mount the logs")?;
    directory(Path::new("logs/agent"), 0o755, Some(owners.user)).step("make the agent's logs")?;
    directory(Path::new("logs/verifier"), 0o755, Some(owners.root))
        .step("make the verifier's logs")?;
    let sealed = NOSUID_NODEV | MsFlags::MS_RDONLY;
    tmpfs("logs/verifier", sealed, "4k").step("seal the verifier's logs")?;
    tmpfs("tests", sealed, "4k").step("seal the verifier's tests")
}

fn read_only(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let is_directory = File::from(tree.try_clone()?).metadata()?.is_dir();
    mount_point(target, is_directory)?;
    mount_fd::restrict_tree(tree.as_fd(), ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)?;
    mount_fd::attach(tree.as_fd(), target)
}

/// Creates a mount point with its parents; new ones get the owner of their parent directory.
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
    // Fails for directories of host users without an id inside; then it stays ours.
    let _ = chown(target, Some(owner.uid()), Some(owner.gid()));
    Ok(())
}
