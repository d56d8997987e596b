//! One installation, from the registry's description to a bundle in its directory.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::needing;
use super::fetch::Fetcher;
use super::list::PinnedList;
use super::packages::{FetchedPackage, PackageFetcher};
use super::progress::{INTERVAL, InstallPhase, ProgressReporter};
use super::registry::Registry;
use super::source::{Npm, Target};
use super::storage::{self, Lock, Staging, StorageError};
use super::tree::{self, PlacedPackage};
use super::unpack::{self, UnpackState};
use super::{Bundle, BundleManifest, BundleSpec, FORMAT, InstallError, MANIFEST};

/// What to install, with the lock that permits it.
pub(super) struct InstallRequest<'a> {
    pub(super) root: &'a Path,
    pub(super) directory: PathBuf,
    pub(super) spec: BundleSpec<'a>,
    pub(super) lock: Lock,
}

/// Downloads, verifies and unpacks the packages, then moves the bundle into place.
pub(super) async fn install(
    registry: &Registry,
    npm: &Npm,
    request: InstallRequest<'_>,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Bundle, InstallError> {
    let staging = new_staging(request.root).await?;
    let spec = &request.spec;
    let parts = PackageFetcher {
        fetcher: Fetcher::new(registry)?,
        agent: &spec.source.agent,
        directory: staging.path(),
        root: request.root,
    };
    let pinned = PinnedList::of(spec.source, &spec.version)?;
    let places = match pinned.filter(|pinned| pinned.is_for(spec.target)) {
        Some(pinned) => pinned.placed(npm, spec.source, spec.target)?,
        None => resolve(&parts.fetcher, npm, spec, reporter).await?,
    };
    let parts = parts.fetch(places, reporter).await?;

    let total = parts
        .iter()
        .map(|part| unpack::unpacked_bytes(&part.tarball).unwrap_or(part.bytes))
        .sum();
    reporter.phase(InstallPhase::Unpacking, Some(total));
    let shared = Arc::new(UnpackState::default());
    let needed = total + parts.iter().map(|part| part.bytes).sum::<u64>();
    let job = InstallJob {
        staging,
        parts,
        agent: spec.source.agent.clone(),
        program: npm.program(spec.target),
        machine: npm.node.is_none().then_some(spec.target),
        version: spec.version.clone(),
        directory: request.directory,
        shared: shared.clone(),
        _lock: request.lock,
    };
    let done = watch(shared, job, reporter).await;
    done.map_err(|error| needing(error, needed, request.root))
}

/// Resolves the packages with the registry.
async fn resolve(
    fetcher: &Fetcher<'_>,
    npm: &Npm,
    spec: &BundleSpec<'_>,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Vec<PlacedPackage>, InstallError> {
    let published = npm.published(spec.target, &spec.version);
    let published = published.ok_or_else(|| InstallError::NoTarget {
        agent: spec.source.agent.clone(),
        target: spec.target,
    })?;
    match &npm.node {
        None => Ok(vec![tree::alone(fetcher, published).await?]),
        Some(_) => tree::resolve(fetcher, published, reporter).await,
    }
}

/// Creates a staging directory, after removing those of dead processes.
pub(super) async fn new_staging(root: &Path) -> Result<Staging, InstallError> {
    let root = root.to_owned();
    let staging = run_blocking(move || {
        storage::sweep(&root);
        Staging::new(&root)
    });
    Ok(staging.await??)
}

/// Runs the job on a blocking thread and reports its progress. If this future is dropped, the thread stops soon after
/// and cleans up by itself.
async fn watch(
    shared: Arc<UnpackState>,
    job: InstallJob,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Bundle, InstallError> {
    let watcher = AbandonOnDrop(shared);
    let mut task = Box::pin(run_blocking(move || job.run()));
    loop {
        match tokio::time::timeout(INTERVAL, &mut task).await {
            Ok(done) => return done?,
            Err(_) => reporter.bytes(watcher.0.bytes.load(Ordering::Relaxed)),
        }
    }
}

pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, InstallError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|source| InstallError::Thread { source })
}

/// Tells the job on drop that nobody waits for it any more.
struct AbandonOnDrop(Arc<UnpackState>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// The blocking half of an installation. It owns everything it needs, so that it may outlive a dropped future; the
/// fields drop in order, the lock last.
struct InstallJob {
    staging: Staging,
    /// The agent's own package first.
    parts: Vec<FetchedPackage>,
    agent: String,
    program: String,
    /// The machine that a native program must be built for.
    machine: Option<Target>,
    version: String,
    directory: PathBuf,
    shared: Arc<UnpackState>,
    _lock: Lock,
}

impl InstallJob {
    fn run(self) -> Result<Bundle, InstallError> {
        let tree = self.staging.path().join("tree");
        let mut bytes = 0;
        for part in &self.parts {
            let place = tree.join(&part.place);
            if place.symlink_metadata().is_ok() {
                // Bundled by the package that depends on it.
                continue;
            }
            if part.place != Path::new("") {
                make_parents(&tree, &part.place)?;
            }
            bytes += unpack::unpack(&part.tarball, &place, &self.shared)?;
        }
        self.check_program(&tree.join(&self.program))?;
        let components = self.parts.iter().map(|part| {
            let name = part.place.to_string_lossy();
            let name = name.trim_start_matches("node_modules/");
            let name = if name.is_empty() { &part.package } else { name };
            (name.to_owned(), part.version.clone())
        });
        let own = self.parts.first();
        let manifest = BundleManifest {
            format: FORMAT,
            agent: self.agent.clone(),
            version: self.version.clone(),
            package: own.map(|part| part.package.clone()).unwrap_or_default(),
            integrity: own.map(|part| part.integrity.clone()).unwrap_or_default(),
            installed_at: jiff::Timestamp::now().to_string(),
            bytes,
            program: self.program.clone(),
            components: components.collect(),
            interpreter: None,
        };
        storage::sync(&tree)?;
        write_manifest(&tree, &manifest)?;
        place(&self.staging, &tree, &self.directory)?;
        Ok(manifest.bundle(&self.directory))
    }

    /// Inspects the program without running it: the host is not a sandbox.
    fn check_program(&self, path: &Path) -> Result<(), InstallError> {
        let check = || -> io::Result<bool> {
            // As npm does, whatever the archive says.
            std::fs::set_permissions(path, Permissions::from_mode(0o755))?;
            let Some(target) = self.machine else {
                return Ok(path.is_file());
            };
            let mut header = [0; 20];
            File::open(path)?.read_exact(&mut header)?;
            let machine = u16::from_le_bytes([header[18], header[19]]);
            Ok(header.starts_with(b"\x7fELF") && machine == target.elf_machine())
        };
        if check().unwrap_or(false) {
            return Ok(());
        }
        Err(InstallError::Program {
            package: self
                .parts
                .first()
                .map(|part| part.package.clone())
                .unwrap_or_default(),
            version: self.version.clone(),
            program: self.program.clone(),
            target: self.machine.unwrap_or_else(Target::of_host),
        })
    }
}

/// Creates the parent directories of a package, readable by any user of a sandbox.
fn make_parents(tree: &Path, place: &Path) -> Result<(), StorageError> {
    let mut directory = tree.to_owned();
    let above = place.parent().into_iter().flat_map(Path::components);
    for component in [None].into_iter().chain(above.map(Some)) {
        directory.extend(component);
        if !directory.is_dir() {
            std::fs::create_dir(&directory)
                .and_then(|()| std::fs::set_permissions(&directory, Permissions::from_mode(0o755)))
                .map_err(|error| StorageError::new("create", &directory, error))?;
        }
    }
    Ok(())
}

/// Moves a finished tree to the bundle's directory.
pub(super) fn place(staging: &Staging, tree: &Path, directory: &Path) -> Result<(), StorageError> {
    let storage = |error| StorageError::new("install", directory, error);
    let parent = directory.parent().unwrap_or(directory);
    std::fs::create_dir_all(parent).map_err(storage)?;
    if directory.symlink_metadata().is_ok() {
        // This was checked while holding the lock: what is here is broken or for another machine.
        let old = staging.path().join("old");
        std::fs::rename(directory, old).map_err(storage)?;
    }
    std::fs::rename(tree, directory).map_err(storage)?;
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(storage)
}

pub(super) fn write_manifest(tree: &Path, manifest: &BundleManifest) -> Result<(), StorageError> {
    let path = tree.join(MANIFEST);
    let write = || -> io::Result<()> {
        // The archive may contain a file or a link of this name.
        if path.symlink_metadata().is_ok() {
            std::fs::remove_file(&path)?;
        }
        let mut file = File::create(&path)?;
        file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.sync_all()?;
        File::open(tree)?.sync_all()
    };
    write().map_err(|error| StorageError::new("write", &path, error))
}
