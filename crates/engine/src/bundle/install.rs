//! One installation, from the registry's description to a bundle in its place.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::download::{self, Tarball};
use super::fetch::Fetcher;
use super::integrity::Integrity;
use super::progress::{INTERVAL, Phase, Reporter};
use super::registry::Registry;
use super::source::Target;
use super::storage::{self, Lock, Staging, StorageError};
use super::unpack::{self, Shared, UnpackError};
use super::{Bundle, FORMAT, InstallError, MANIFEST, Manifest, Wanted, metadata};

/// What to install, and the right to do so.
pub(super) struct Order<'a> {
    pub(super) root: &'a Path,
    pub(super) directory: PathBuf,
    pub(super) wanted: Wanted<'a>,
    pub(super) version: String,
    pub(super) lock: Lock,
}

/// Fetches, checks, unpacks and moves into place.
pub(super) async fn install(
    registry: &Registry,
    order: Order<'_>,
    reporter: &mut Reporter<'_>,
) -> Result<Bundle, InstallError> {
    let package = order.wanted.package;
    let root = order.root.to_owned();
    let staging = run_blocking(move || {
        storage::sweep(&root);
        Staging::new(&root)
    });
    let staging = staging.await??;

    let fetcher = Fetcher::new(registry)?;
    let found = metadata::find(&fetcher, package, &order.version).await?;
    let dist = found.or_missing(package, &order.version)?;
    let integrity = Integrity::read(dist.integrity.as_deref(), dist.shasum.as_deref());
    let Some(integrity) = integrity else {
        return Err(InstallError::NoIntegrity {
            package: package.to_owned(),
            version: order.version,
        });
    };
    if integrity.is_weak() {
        tracing::warn!(
            package,
            version = order.version,
            "only SHA-1 protects this download"
        );
    }

    let path = staging.path().join("package.tgz");
    let urls = metadata::tarball_urls(&fetcher, package, &dist.tarball);
    let unpacked_bytes = dist.unpacked_bytes.unwrap_or(0);
    let tarball = download::download(&fetcher, urls, &integrity, &path, reporter).await;
    let tarball = tarball.map_err(|error| needing(error, unpacked_bytes, order.root))?;

    let total = unpack::unpacked_bytes(&path).unwrap_or(unpacked_bytes);
    reporter.phase(Phase::Unpacking, Some(total));
    let shared = Arc::new(Shared::default());
    let job = Job {
        staging,
        tarball,
        package: package.to_owned(),
        agent: order.wanted.source.agent,
        program: order.wanted.source.program,
        target: order.wanted.target,
        version: order.version,
        directory: order.directory,
        shared: shared.clone(),
        _lock: order.lock,
    };
    let needed = job.tarball.bytes + total;
    let done = watch(shared, job, reporter).await;
    done.map_err(|error| needing(error, needed, order.root))
}

/// Runs the job on a blocking thread and tells how far it is. If we are dropped
/// the thread stops soon after, and cleans up by itself.
async fn watch(
    shared: Arc<Shared>,
    job: Job,
    reporter: &mut Reporter<'_>,
) -> Result<Bundle, InstallError> {
    let watcher = Watcher(shared);
    let mut task = Box::pin(run_blocking(move || job.run()));
    loop {
        match tokio::time::timeout(INTERVAL, &mut task).await {
            Ok(done) => return done?,
            Err(_) => reporter.bytes(watcher.0.bytes.load(Ordering::Relaxed)),
        }
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, InstallError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|source| InstallError::Thread { source })
}

/// Says that nobody waits any more when it is dropped.
struct Watcher(Arc<Shared>);

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.is_abandoned.store(true, Ordering::Relaxed);
    }
}

fn needing(error: InstallError, bytes: u64, root: &Path) -> InstallError {
    match error {
        InstallError::Storage(error) | InstallError::Unpack(UnpackError::Storage(error)) => {
            error.needing(bytes, root).into()
        }
        other => other,
    }
}

/// The blocking half. Owns all it needs, so that it outlives a dropped future safely;
/// the fields drop in order, the lock last.
struct Job {
    staging: Staging,
    tarball: Tarball,
    package: String,
    agent: &'static str,
    program: &'static str,
    target: Target,
    version: String,
    directory: PathBuf,
    shared: Arc<Shared>,
    _lock: Lock,
}

impl Job {
    fn run(self) -> Result<Bundle, InstallError> {
        let tree = self.staging.path().join("tree");
        let path = self.staging.path().join("package.tgz");
        let bytes = unpack::unpack(&path, &tree, &self.shared)?;
        self.check_program(&tree.join(self.program))?;
        let manifest = Manifest {
            format: FORMAT,
            agent: self.agent.to_owned(),
            version: self.version.clone(),
            package: self.package.clone(),
            integrity: self.tarball.integrity.clone(),
            installed_at: jiff::Timestamp::now().to_string(),
            bytes,
            program: self.program.to_owned(),
        };
        write_manifest(&tree, &manifest)?;
        self.place(&tree)?;
        Ok(manifest.bundle(&self.directory))
    }

    /// Looks at the program without running it: the host is not a sandbox.
    fn check_program(&self, path: &Path) -> Result<(), InstallError> {
        let check = || -> io::Result<bool> {
            // npm makes programs executable too, whatever the archive says.
            std::fs::set_permissions(path, Permissions::from_mode(0o755))?;
            let mut header = [0; 20];
            File::open(path)?.read_exact(&mut header)?;
            let machine = u16::from_le_bytes([header[18], header[19]]);
            Ok(header.starts_with(b"\x7fELF") && machine == self.target.elf_machine())
        };
        if check().unwrap_or(false) {
            return Ok(());
        }
        Err(InstallError::Program {
            package: self.package.clone(),
            version: self.version.clone(),
            program: self.program.to_owned(),
            target: self.target,
        })
    }

    fn place(&self, tree: &Path) -> Result<(), StorageError> {
        let storage = |error| StorageError::new("install", &self.directory, error);
        let parent = self.directory.parent().unwrap_or(&self.directory);
        std::fs::create_dir_all(parent).map_err(storage)?;
        if self.directory.symlink_metadata().is_ok() {
            // We hold the lock and looked: what is here is broken or for another machine.
            let old = self.staging.path().join("old");
            std::fs::rename(&self.directory, old).map_err(storage)?;
        }
        std::fs::rename(tree, &self.directory).map_err(storage)?;
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(storage)
    }
}

fn write_manifest(tree: &Path, manifest: &Manifest) -> Result<(), StorageError> {
    let path = tree.join(MANIFEST);
    let write = || -> io::Result<()> {
        // The archive may bring a file, or a link, of this name.
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
