//! The sandbox's file system, built in its own mount namespace. Everything writable lives in one tmpfs,
//! so that nothing is left on disk however the sandbox ends.
//!
//! Sources are opened first and attached to a staging area; after pivot_root all targets are resolved
//! inside the new root, so that no link in a layer can lead a mount or a new directory outside.

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
    EMPTY, Owners, Site, WALLED, attach_lower, bind, directory, layer_pair, overlay,
};
use super::programs::{self, Programs};
use super::pseudo;
use super::restore::{self, Destination, Marks};
use super::snapshot::{Areas, ROOT};
use super::unpack;
use crate::guest::{HOME, LOGS, SETUP, TASK_DIR, TESTS, VERIFIER_LOGS, WORKDIR};
use crate::local::shared::PROGRAM_DIRECTORIES;
use crate::local::shared::mode::Mode;
use crate::local::shared::mount_fd::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};
use crate::local::shared::wire::{Failure, FailureKind, InStep, Source, Start};

pub(crate) const LOGS_SIZE: &str = "64m";
const NO: Option<&str> = None;
/// Directories of the stage that are bound to `/tmp` and `/var/tmp`.
const TEMPORARY: [&str; 2] = ["tmp", "var-tmp"];
/// The directory of the stage that is bound to [`SETUP`].
const SETUP_AREA: &str = "setup";

/// All of a root that does not depend on what the sandbox is for, laid out on the stage, which is the
/// current directory: `l` for lower trees, `m` for archives that are shown, `u` and `w` for upper and work directories, `root` for the
/// result, and by their names what will be moved or bound into it.
pub(crate) struct Stage<'a> {
    site: Site<'a>,
    programs: Vec<Programs>,
    /// Where overlays cannot be, what the root is made of is copied.
    can_overlay: bool,
}

impl Stage<'_> {
    pub(crate) fn prepare(site: Site<'_>) -> Result<Stage<'_>, Failure> {
        let owners = site.owners;
        // A slave until it is needed: what is unmounted outside must not be kept by those that wait.
        propagate(MsFlags::MS_SLAVE)?;
        let skeleton = site.tree(&site.setup.skeleton)?;
        let mounts = programs::host_mounts()?;
        let mut programs = Vec::new();
        for name in ["usr"].iter().chain(PROGRAM_DIRECTORIES) {
            programs.extend(Programs::open(&site, name, &mounts)?);
        }
        let nodes = pseudo::open_devices()?;

        // Too small for anything but this; its real size comes with the limits.
        let options = Some("size=64k,nr_inodes=256,mode=0755");
        let stage = &site.setup.stage;
        mount(Some("tmpfs"), stage, Some("tmpfs"), WALLED, options)
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
            program.stage(&site, tree)?;
        }
        layer_pair("root", owners)?;
        upper(owners).step("make the sandbox's own layer")?;
        seal(owners)?;
        File::create_new(EMPTY).step("lay out the stage")?;
        pseudo::make_boot_id()?;
        pseudo::devices(&nodes)?;
        pseudo::proc()?;
        Ok(Stage {
            site,
            programs: programs.into_iter().map(|(program, _)| program).collect(),
            // For an ordinary user overlayfs takes attributes that tmpfs has from Linux 6.6 on.
            can_overlay: site.setup.mode == Mode::Root
                || mount_fd::try_user_attribute(Path::new("u/root")).is_ok(),
        })
    }

    /// Builds the root and moves into it.
    pub(crate) fn finish(&self, start: &Start, archives: Vec<OwnedFd>) -> Result<Built, Failure> {
        let Site { setup, .. } = self.site;
        propagate(MsFlags::MS_PRIVATE)?;
        resize(start.disk_bytes).step("size the sandbox's tmpfs")?;
        name(&start.id, self.site.owners).step("name the sandbox")?;
        let mut archives = archives.into_iter();
        let snapshot = if start.has_snapshot {
            archives.next()
        } else {
            None
        };
        let mounts = self.open_content(start, archives)?;
        let mut areas = Areas::default();
        areas.add(ROOT, "u/root", self.make_root(start, snapshot)?)?;
        pivot_root("root", "root").step("pivot into the new root")?;
        for program in &self.programs {
            if let Some(seen) = program.place(setup.mode, start)? {
                let own = format!("u/{}", program.name());
                areas.add(program.name(), &own, Some(seen))?;
            }
        }
        for name in TEMPORARY.into_iter().chain([SETUP_AREA]) {
            areas.add(name, name, None)?;
        }
        self.move_in(&mounts)?;

        chdir("/").step("enter the new root")?;
        // The old root was stacked on the new one, so this takes the old one off.
        umount2(".", MntFlags::MNT_DETACH).step("leave the host's root")?;
        if setup.mode == Mode::Rootless {
            guard_system(&self.programs)?;
        }
        let handle = |path: &str| {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            open(path, flags, FileMode::empty()).step(format!("open {path}"))
        };
        Ok(Built {
            logs: handle(VERIFIER_LOGS)?,
            tests: handle(TESTS)?,
            setup: handle(SETUP)?,
            areas,
        })
    }

    /// Has layers on the stage; returns what is to be shown, and where.
    fn open_content<'a>(
        &self,
        start: &'a Start,
        mut archives: impl Iterator<Item = OwnedFd>,
    ) -> Result<Vec<(OwnedFd, &'a Path)>, Failure> {
        for (index, layer) in start.layers.iter().enumerate() {
            let name = index.to_string();
            match layer {
                Source::HostTree(path) => attach_lower(&name, &self.site.tree(path)?)?,
                Source::Archive => {
                    let path = Path::new("l").join(name);
                    unpack_onto(&path, archives.next(), self.site.owners)?;
                }
            }
        }
        let mut mounts = Vec::new();
        for (index, mount) in start.mounts.iter().enumerate() {
            let tree = match &mount.source {
                Source::HostTree(path) => self.site.tree(path)?,
                Source::Archive => {
                    let path = Path::new("m").join(index.to_string());
                    // Nobody can change it, so it may as well be the user's, who then can read all of it.
                    let user = self.site.owners.user;
                    unpack_onto(&path, archives.next(), Owners { root: user, user })?;
                    mount_fd::clone_tree(&path).step("open an unpacked archive")?
                }
            };
            mounts.push((tree, mount.target.as_path()));
        }
        Ok(mounts)
    }

    /// Puts everything else into the new root, which is `/` already.
    fn move_in(&self, mounts: &[(OwnedFd, &Path)]) -> Result<(), Failure> {
        // A mount point can be neither renamed nor removed. Making each directory on the way to the verifier's
        // one, nobody inside can put anything else in their place, not even where he owns `/`.
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

    /// An overlay, or where there can be none (no such module, file systems stacked too deeply) a copy. Returns the overlay
    /// by itself, if it is one.
    fn make_root(
        &self,
        start: &Start,
        snapshot: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let mode = self.site.setup.mode;
        let layers = (0..start.layers.len()).map(|index| Path::new("l").join(index.to_string()));
        let lowers: Vec<PathBuf> = layers.chain([PathBuf::from("l/skeleton")]).collect();
        let is_overlaid = self.can_overlay && overlay(mode, "root", "root", &lowers).is_ok();
        if !is_overlaid {
            for lower in &lowers {
                copy::merge(lower, Path::new("u/root"), self.site.owners)
                    .step(format!("copy {} into the sandbox", lower.display()))?;
            }
        }
        if let Some(snapshot) = snapshot {
            // Only now is it known what it has to be laid on. An upper tree may not be changed behind its overlay's back.
            if is_overlaid {
                umount2("root", MntFlags::empty()).step("take an overlay off")?;
            }
            self.restore(snapshot.into(), is_overlaid)?;
            name(&start.id, self.site.owners).step("name the sandbox")?;
            if is_overlaid {
                overlay(mode, "root", "root", &lowers)?;
            }
        }
        if !is_overlaid {
            bind(Path::new("u/root"), Path::new("root")).step("bind the sandbox's root")?;
            return Ok(None);
        }
        let seen = mount_fd::clone_tree(Path::new("root")).step("open the sandbox's root")?;
        Ok(Some(seen))
    }

    fn restore(&self, snapshot: File, is_overlaid: bool) -> Result<(), Failure> {
        let mode = self.site.setup.mode;
        let overlaid = |name: &str| Destination {
            area: name.to_owned(),
            path: Path::new("u").join(name),
            marks: Marks::Overlay(mode),
        };
        let mut destinations = vec![Destination {
            marks: match is_overlaid {
                true => Marks::Overlay(mode),
                false => Marks::Copy,
            },
            ..overlaid(ROOT)
        }];
        destinations.extend(self.programs.iter().map(|program| overlaid(program.name())));
        let plain = TEMPORARY.into_iter().chain([SETUP_AREA]);
        destinations.extend(plain.map(|name| Destination {
            area: name.to_owned(),
            path: PathBuf::from(name),
            marks: Marks::Copy,
        }));
        restore::restore(snapshot, &destinations, self.site.owners)?;
        // On these the verifier's directories depend.
        for (path, owner) in base(self.site.owners) {
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

/// What init needs of a sandbox that is built.
pub(crate) struct Built {
    /// Directories that nobody inside can write to, until a new mount goes on top of each.
    pub(crate) logs: OwnedFd,
    pub(crate) tests: OwnedFd,
    /// The mount at [`SETUP`].
    pub(crate) setup: OwnedFd,
    pub(crate) areas: Areas,
}

/// Makes a directory of an archive, on the stage.
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
    // Small files must not make inodes without limit: each takes about a KiB of unswappable memory.
    let inodes = (bytes / 4096).clamp(65_536, 4_194_304);
    let options = format!("size={bytes},nr_inodes={inodes}");
    let flags = WALLED | MsFlags::MS_REMOUNT;
    mount(NO, ".", NO, flags, Some(options.as_str()))
}

/// Directories that no sandbox can do without, and whose they are.
fn base(owners: Owners) -> [(&'static str, u32); 5] {
    [
        ("/etc", owners.root),
        ("/home", owners.root),
        (HOME, owners.user),
        (LOGS, owners.user),
        (TESTS, owners.user),
    ]
}

/// What belongs to the sandbox's user lies in the upper layer from the start.
fn upper(owners: Owners) -> io::Result<()> {
    let upper = Path::new("u/root");
    let user = [(WORKDIR, owners.user), (TASK_DIR, owners.user)];
    for (name, owner) in base(owners).into_iter().chain(user) {
        directory(&upper.join(&name[1..]), 0o755, Some(owner))?;
    }
    Ok(())
}

fn name(id: &str, owners: Owners) -> io::Result<()> {
    // Only IPv4: some clients take the first address of a name, and our listeners are on 127.0.0.1.
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

/// With but one uid inside, the agent owns the system's directories, and could give the verifier another
/// shell or dynamic linker. What belongs to root in root mode is therefore read-only here.
fn guard_system(programs: &[Programs]) -> Result<(), Failure> {
    let programs = programs.iter().map(Programs::path);
    for path in programs.chain([String::from("/home"), String::from("/")]) {
        mount_fd::path_cstring(Path::new(&path))
            .and_then(|path| mount_fd::restrict_mount(&path, ATTR_RDONLY))
            .step(format!("make {path} read-only"))?;
    }
    Ok(())
}

/// The logs of agent and verifier, and the verifier's tests; what is the verifier's is sealed.
fn seal(owners: Owners) -> Result<(), Failure> {
    let owner = format!("mode=0755,uid={0},gid={0}", owners.root);
    let tmpfs = |path: &str, flags, size: &str| {
        let options = format!("size={size},{owner}");
        let options = Some(options.as_str());
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, options)
    };
    tmpfs("logs", WALLED, LOGS_SIZE).step("mount the logs")?;
    directory(Path::new("logs/agent"), 0o755, Some(owners.user)).step("make the agent's logs")?;
    directory(Path::new("logs/verifier"), 0o755, Some(owners.root))
        .step("make the verifier's logs")?;
    let sealed = WALLED | MsFlags::MS_RDONLY;
    tmpfs("logs/verifier", sealed, "4k").step("seal the verifier's logs")?;
    tmpfs("tests", sealed, "4k").step("seal the verifier's tests")
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
