//! Bundles: agents installed once per host, from the npm registry directly, or from PyPI with the host's pip. Start
//! reading at `Bundles::ensure`. Nothing here runs an agent, npm or node.
//!
//! Layout: `ROOT/AGENT/VERSION/` is a complete bundle or absent; unfinished work lives in `ROOT/.tmp`.
//!
//! The pinned version of a built-in agent is installed from its list (`list`, made by `pin`); for other versions `tree`
//! resolves the dependencies. All JavaScript agents share one Node, which is a bundle of its own. Python agents use the
//! sandbox's Python with `-I` and their own path, so that nothing of theirs leaks into the programs that they start.

mod download;
mod error;
mod fetch;
mod install;
mod integrity;
mod list;
mod metadata;
mod npmrc;
mod packages;
mod pin;
mod progress;
mod pypi;
mod registry;
mod source;
mod storage;
mod tree;
mod unpack;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::fetch::Fetcher;
use self::metadata::VersionLookup;
use self::progress::ProgressReporter;
use self::storage::{Lock, Staging};

pub use self::error::{InstallError, ListError, PypiError, RemoveError};
pub use self::fetch::FetchError;
pub use self::metadata::is_newer;
pub use self::pin::PinOutcome;
pub use self::progress::{InstallPhase, InstallStatus, OnProgress};
pub use self::registry::{Registry, RegistryLimits};
pub use self::source::{
    Architecture, Cpu, Libc, NODE_VERSION, Npm, Origin, PinnedListSource, Pypi, Source, Target,
    VersionRequest, node,
};
pub use self::storage::StorageError;
pub use self::unpack::UnpackError;

/// The polling interval for the lock of another process; `flock` cannot be awaited.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// The tag of the newest version.
const LATEST: &str = "latest";
const MANIFEST: &str = "bundle.json";
const FORMAT: u32 = 2;
/// The empty directory that is mounted for an agent without a bundle.
const EMPTY: &str = ".empty";
/// The version reported for an agent that states none and is not installed from a registry.
const UNVERSIONED: &str = "local";

/// An installed agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    pub agent: String,
    pub version: String,
    pub package: String,
    /// The directory to mount into a sandbox.
    pub path: PathBuf,
    /// The program, inside `path`.
    pub program: PathBuf,
    pub bytes: u64,
    /// The verified hash of the tarball, for instance `sha512-…`.
    pub integrity: String,
    /// Every package in it, with its version.
    pub components: BTreeMap<String, String>,
    /// The Python interpreter that runs the program, as a path in the sandbox.
    pub interpreter: Option<PathBuf>,
}

/// The outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    pub bytes: u64,
}

/// `bundle.json`: written last, so a directory without it is not a bundle.
#[derive(Debug, Serialize, Deserialize)]
struct BundleManifest {
    format: u32,
    agent: String,
    version: String,
    package: String,
    integrity: String,
    installed_at: String,
    bytes: u64,
    /// Relative to the bundle.
    program: String,
    #[serde(default)]
    components: BTreeMap<String, String>,
    #[serde(default)]
    interpreter: Option<PathBuf>,
}

/// All bundles below one root directory, and the registry that new ones are installed from.
#[derive(Clone, Debug)]
pub struct Bundles {
    root: PathBuf,
    registry: Registry,
}

/// One version of an agent for one kind of machine.
#[derive(Clone, Debug)]
struct BundleSpec<'a> {
    source: &'a Source,
    target: Target,
    version: String,
    /// The package that the bundle is made from.
    package: String,
}

impl Bundles {
    pub fn new(root: PathBuf, registry: Registry) -> Self {
        Self { root, registry }
    }

    /// Returns the requested bundle for this machine, installing it if necessary.
    ///
    /// An exact version that is already installed needs no network. Dropping the future is safe at any time.
    pub async fn ensure(
        &self,
        source: &Source,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<Bundle, InstallError> {
        self.ensure_for(source, Target::of_host(), version, on)
            .await
    }

    /// As [`Bundles::ensure`], for a sandbox of another kind of machine than the host.
    pub async fn ensure_for(
        &self,
        source: &Source,
        target: Target,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<Bundle, InstallError> {
        let agent = source.agent.clone();
        let limit = self.registry.limits.total;
        let whole = Box::pin(self.ensure_whole(source, target, version, on));
        let ended = tokio::time::timeout(limit, whole).await;
        ended.unwrap_or(Err(InstallError::TimedOut { agent, limit }))
    }

    async fn ensure_whole(
        &self,
        source: &Source,
        target: Target,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<Bundle, InstallError> {
        if let Origin::Path { .. } | Origin::Nothing = source.origin {
            return self.host_bundle(source, &version);
        }
        let spec = self.spec(source, target, version, on).await?;
        for name in [&source.agent, &spec.version] {
            if !source::is_plain_name(name) {
                let name = name.to_owned();
                return Err(InstallError::Name { name });
            }
        }
        let directory = self.directory(&spec);
        if let Some(bundle) = read(&directory, &spec.package) {
            return Ok(bundle);
        }
        let mut reporter = ProgressReporter::new(on, &source.agent, &spec.version);
        storage::prepare(&self.root)?;
        let lock = self.lock(source, &directory, &mut reporter).await?;
        // The previous holder of the lock may have installed it.
        if let Some(bundle) = read(&directory, &spec.package) {
            reporter.phase(InstallPhase::Done, Some(bundle.bytes));
            return Ok(bundle);
        }
        reporter.phase(InstallPhase::Resolving, None);
        let request = install::InstallRequest {
            root: &self.root,
            directory,
            spec,
            lock,
        };
        let bundle = match &source.origin {
            Origin::Pypi(pypi) => {
                pypi::install(&self.registry, pypi, request, &mut reporter).await?
            }
            Origin::Npm(npm) => {
                install::install(&self.registry, npm, request, &mut reporter).await?
            }
            Origin::Path { .. } | Origin::Nothing => return Err(InstallError::NoTarball),
        };
        reporter.phase(InstallPhase::Done, Some(bundle.bytes));
        Ok(bundle)
    }

    /// The bundle of an agent that needs no installation.
    fn host_bundle(
        &self,
        source: &Source,
        version: &VersionRequest,
    ) -> Result<Bundle, InstallError> {
        if let VersionRequest::Exact(wanted) | VersionRequest::Tag(wanted) = version
            && *wanted != source.default_version
        {
            return Err(InstallError::NoVersions {
                agent: source.agent.clone(),
                wanted: wanted.clone(),
            });
        }
        let path = match &source.origin {
            Origin::Path { directory } => directory.clone(),
            Origin::Npm(_) | Origin::Pypi(_) | Origin::Nothing => {
                storage::prepare(&self.root)?;
                let path = self.root.join(EMPTY);
                std::fs::create_dir_all(&path)
                    .map_err(|error| StorageError::new("create", &path, error))?;
                path
            }
        };
        if !path.is_dir() {
            return Err(InstallError::NoDirectory {
                agent: source.agent.clone(),
                directory: path,
            });
        }
        Ok(Bundle {
            agent: source.agent.clone(),
            version: match source.default_version.as_str() {
                "" => UNVERSIONED.to_owned(),
                version => version.to_owned(),
            },
            package: String::new(),
            program: path.clone(),
            path,
            bytes: 0,
            integrity: String::new(),
            components: BTreeMap::new(),
            interpreter: None,
        })
    }

    async fn spec<'a>(
        &self,
        source: &'a Source,
        target: Target,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<BundleSpec<'a>, InstallError> {
        let version = self.version(source, version, on).await?;
        let package = match &source.origin {
            Origin::Npm(npm) => {
                let published = npm.published(target, &version);
                let published = published.ok_or_else(|| InstallError::NoTarget {
                    agent: source.agent.clone(),
                    target,
                })?;
                published.package
            }
            Origin::Pypi(pypi) => pypi.package.clone(),
            Origin::Path { .. } | Origin::Nothing => String::new(),
        };
        Ok(BundleSpec {
            source,
            target,
            version,
            package,
        })
    }

    async fn version(
        &self,
        source: &Source,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<String, InstallError> {
        match version {
            VersionRequest::Default => Ok(source.default_version.clone()),
            VersionRequest::Exact(version) => Ok(version),
            VersionRequest::Tag(tag) => self.resolve(source, &tag, on).await,
        }
    }

    async fn resolve(
        &self,
        source: &Source,
        tag: &str,
        on: OnProgress<'_>,
    ) -> Result<String, InstallError> {
        if !source::is_plain_name(tag) {
            let name = tag.to_owned();
            return Err(InstallError::Name { name });
        }
        let (agent, wanted) = (source.agent.clone(), tag.to_owned());
        let mut reporter = ProgressReporter::new(on, &source.agent, tag);
        reporter.phase(InstallPhase::Resolving, None);
        match &source.origin {
            Origin::Npm(npm) => {
                let fetcher = Fetcher::new(&self.registry)?;
                let found = metadata::resolve_tag(&fetcher, &npm.package, tag).await?;
                found.or_missing(&npm.package, tag)
            }
            Origin::Pypi(pypi) if tag == LATEST => {
                pypi::newest(&self.registry, &source.agent, &pypi.package, &mut reporter).await
            }
            Origin::Pypi(_) => Err(PypiError::Tag { agent, tag: wanted }.into()),
            Origin::Path { .. } | Origin::Nothing => {
                Err(InstallError::NoVersions { agent, wanted })
            }
        }
    }

    /// The newest version of an agent, as its registry tells. Installs nothing.
    pub async fn newest(
        &self,
        source: &Source,
        on: OnProgress<'_>,
    ) -> Result<String, InstallError> {
        let limit = self.registry.limits.total;
        let resolved = tokio::time::timeout(limit, self.resolve(source, LATEST, on)).await;
        let agent = source.agent.clone();
        resolved.unwrap_or(Err(InstallError::TimedOut { agent, limit }))
    }

    async fn lock(
        &self,
        source: &Source,
        directory: &Path,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<Lock, InstallError> {
        let name = lock_name(&source.agent, directory);
        let mut is_reported = false;
        loop {
            if let Some(lock) = Lock::try_take(&self.root, &name)? {
                return Ok(lock);
            }
            if !is_reported {
                reporter.phase(InstallPhase::Waiting, None);
                is_reported = true;
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    /// The directory of a bundle. Those for other machines have the machine's name appended.
    fn directory(&self, spec: &BundleSpec<'_>) -> PathBuf {
        let name = if spec.target == Target::of_host() {
            spec.version.clone()
        } else {
            format!("{}+{}", spec.version, spec.target)
        };
        self.root.join(&spec.source.agent).join(name)
    }

    /// Every complete bundle, sorted by agent and version.
    pub fn list(&self) -> Vec<Bundle> {
        let agents = children(&self.root).into_iter();
        let directories = agents.flat_map(|agent| children(&agent));
        let mut bundles: Vec<Bundle> = directories
            .filter_map(|directory| bundle_at(&directory))
            .collect();
        bundles.sort_by(|a, b| {
            let by_version = || metadata::compare(&a.version, &b.version);
            a.agent.cmp(&b.agent).then_with(by_version)
        });
        bundles
    }

    /// Removes one version of an agent, for all kinds of machines.
    pub fn remove(&self, agent: &str, version: &str) -> Result<Removed, RemoveError> {
        let missing = || RemoveError::NotInstalled {
            agent: agent.to_owned(),
            version: version.to_owned(),
        };
        if !source::is_plain_name(agent) || !source::is_plain_name(version) {
            return Err(missing());
        }
        let is_meant = |directory: &PathBuf| {
            let name = directory.file_name().unwrap_or_default().to_string_lossy();
            name.split('+').next() == Some(version)
        };
        let directories = children(&self.root.join(agent)).into_iter();
        let directories: Vec<PathBuf> = directories.filter(is_meant).collect();
        if directories.is_empty() {
            return Err(missing());
        }
        storage::prepare(&self.root)?;
        let mut bytes = 0;
        for directory in directories {
            let lock = Lock::try_take(&self.root, &lock_name(agent, &directory))?;
            let Some(_lock) = lock else {
                return Err(RemoveError::Busy {
                    agent: agent.to_owned(),
                    version: version.to_owned(),
                });
            };
            bytes += bundle_at(&directory).map_or(0, |bundle| bundle.bytes);
            // Renamed first, so that a bundle is never half removed.
            let staging = Staging::new(&self.root)?;
            std::fs::rename(&directory, staging.path().join("removed"))
                .map_err(|error| StorageError::new("remove", &directory, error))?;
        }
        Ok(Removed { bytes })
    }
}

impl<T> VersionLookup<T> {
    fn or_missing(self, package: &str, version: &str) -> Result<T, InstallError> {
        let package = package.to_owned();
        match self {
            Self::Found(found) => Ok(found),
            Self::NoPackage => Err(InstallError::NoPackage { package }),
            Self::NoVersion { latest, near } => Err(InstallError::NoVersion {
                package,
                version: version.to_owned(),
                latest,
                near,
            }),
        }
    }
}

fn lock_name(agent: &str, directory: &Path) -> String {
    let version = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("{agent}@{version}")
}

/// The visible directories in one directory; none if it cannot be read.
fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// The bundle in `directory`, if there is one and it came from `package`.
fn read(directory: &Path, package: &str) -> Option<Bundle> {
    bundle_at(directory).filter(|bundle| bundle.package == package)
}

fn bundle_at(directory: &Path) -> Option<Bundle> {
    let text = std::fs::read(directory.join(MANIFEST)).ok()?;
    let manifest: BundleManifest = serde_json::from_slice(&text).ok()?;
    let program = directory.join(&manifest.program);
    let has_interpreter = |path: &PathBuf| path.is_file();
    let is_usable = manifest.format == FORMAT
        && program.is_file()
        && manifest.interpreter.as_ref().is_none_or(has_interpreter);
    is_usable.then(|| manifest.bundle(directory))
}

impl BundleManifest {
    fn bundle(self, directory: &Path) -> Bundle {
        Bundle {
            path: directory.to_owned(),
            program: directory.join(&self.program),
            agent: self.agent,
            version: self.version,
            package: self.package,
            bytes: self.bytes,
            integrity: self.integrity,
            components: self.components,
            interpreter: self.interpreter,
        }
    }
}
