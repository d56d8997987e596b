//! Bundles: agents installed once per host, straight from the npm registry, or from PyPI with the host's pip.
//! Start at `Bundles::ensure`. Nothing here runs an agent, nor npm or node.
//!
//! Layout: `ROOT/AGENT/VERSION/` is a whole bundle or absent; everything half
//! done lives in `ROOT/.tmp`.

mod download;
mod error;
mod fetch;
mod install;
mod integrity;
mod list;
mod metadata;
mod npmrc;
mod part;
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
use self::metadata::Found;
use self::progress::Reporter;
use self::storage::{Lock, Staging};

pub use self::error::{InstallError, ListError, PypiError, RemoveError};
pub use self::fetch::FetchError;
pub use self::pin::PinnedList;
pub use self::progress::{OnProgress, Phase, Progress};
pub use self::registry::{Limits, Registry};
pub use self::source::{
    Architecture, Cpu, Libc, List, NODE_VERSION, Npm, Origin, Pypi, Source, Target, VersionRequest,
    node,
};
pub use self::storage::StorageError;
pub use self::unpack::UnpackError;

/// How often we look whether another process is done; `flock` cannot be awaited.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

const MANIFEST: &str = "bundle.json";
const FORMAT: u32 = 2;
/// What an agent without a bundle gets mounted.
const EMPTY: &str = ".empty";
/// The version of an agent that states none and is not installed from anywhere.
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
    /// What was checked of the tarball, for instance `sha512-…`.
    pub integrity: String,
    /// Every package in it, with its version.
    pub components: BTreeMap<String, String>,
    /// What runs the program, when that is a Python of the sandbox's.
    pub interpreter: Option<PathBuf>,
}

/// What a removal gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    pub bytes: u64,
}

/// `bundle.json`: written last, so a directory without it is no bundle.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
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

/// All bundles below one root directory, and where new ones come from.
#[derive(Clone, Debug)]
pub struct Bundles {
    root: PathBuf,
    registry: Registry,
}

/// One agent in one version for one kind of machine.
#[derive(Clone, Debug)]
struct Wanted<'a> {
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

    /// The bundle asked for, for this machine, installed now if need be.
    ///
    /// An exact version that is already here needs no network. Dropping the
    /// future is safe at any time.
    pub async fn ensure(
        &self,
        source: &Source,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<Bundle, InstallError> {
        self.ensure_for(source, Target::of_host(), version, on)
            .await
    }

    /// As `ensure`, for a sandbox that is another kind of machine than the host.
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
            return self.uninstalled(source, &version);
        }
        let wanted = self.wanted(source, target, version, on).await?;
        for name in [&source.agent, &wanted.version] {
            if !source::is_plain_name(name) {
                let name = name.to_owned();
                return Err(InstallError::Name { name });
            }
        }
        let directory = self.directory(&wanted);
        if let Some(bundle) = read(&directory, &wanted.package) {
            return Ok(bundle);
        }
        let mut reporter = Reporter::new(on, &source.agent, &wanted.version);
        storage::prepare(&self.root)?;
        let lock = self.lock(source, &directory, &mut reporter).await?;
        // Whoever held the lock before us may have done the work.
        if let Some(bundle) = read(&directory, &wanted.package) {
            reporter.phase(Phase::Done, Some(bundle.bytes));
            return Ok(bundle);
        }
        reporter.phase(Phase::Resolving, None);
        let order = install::Order {
            root: &self.root,
            directory,
            wanted,
            lock,
        };
        let bundle = match &source.origin {
            Origin::Pypi(pypi) => pypi::install(&self.registry, pypi, order, &mut reporter).await?,
            Origin::Npm(npm) => install::install(&self.registry, npm, order, &mut reporter).await?,
            Origin::Path { .. } | Origin::Nothing => return Err(InstallError::NoTarball),
        };
        reporter.phase(Phase::Done, Some(bundle.bytes));
        Ok(bundle)
    }

    /// What needs no installation.
    fn uninstalled(
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

    async fn wanted<'a>(
        &self,
        source: &'a Source,
        target: Target,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<Wanted<'a>, InstallError> {
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
        Ok(Wanted {
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
        let Origin::Npm(npm) = &source.origin else {
            let agent = source.agent.clone();
            return Err(PypiError::Tag {
                agent,
                tag: tag.to_owned(),
            }
            .into());
        };
        Reporter::new(on, &source.agent, tag).phase(Phase::Resolving, None);
        let fetcher = Fetcher::new(&self.registry)?;
        let found = metadata::resolve_tag(&fetcher, &npm.package, tag).await?;
        found.or_missing(&npm.package, tag)
    }

    async fn lock(
        &self,
        source: &Source,
        directory: &Path,
        reporter: &mut Reporter<'_>,
    ) -> Result<Lock, InstallError> {
        let name = lock_name(&source.agent, directory);
        let mut is_told = false;
        loop {
            if let Some(lock) = Lock::try_take(&self.root, &name)? {
                return Ok(lock);
            }
            if !is_told {
                reporter.phase(Phase::Waiting, None);
                is_told = true;
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    /// Builds for other machines than this one stand beside ours.
    fn directory(&self, wanted: &Wanted<'_>) -> PathBuf {
        let name = if wanted.target == Target::of_host() {
            wanted.version.clone()
        } else {
            format!("{}+{}", wanted.version, wanted.target)
        };
        self.root.join(&wanted.source.agent).join(name)
    }

    /// Every whole bundle, by agent and version.
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
            // Moved away first: a bundle is never half there.
            let staging = Staging::new(&self.root)?;
            std::fs::rename(&directory, staging.path().join("removed"))
                .map_err(|error| StorageError::new("remove", &directory, error))?;
        }
        Ok(Removed { bytes })
    }
}

impl<T> Found<T> {
    fn or_missing(self, package: &str, version: &str) -> Result<T, InstallError> {
        let package = package.to_owned();
        match self {
            Self::Yes(found) => Ok(found),
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
    let manifest: Manifest = serde_json::from_slice(&text).ok()?;
    let program = directory.join(&manifest.program);
    let has_interpreter = |path: &PathBuf| path.is_file();
    let is_usable = manifest.format == FORMAT
        && program.is_file()
        && manifest.interpreter.as_ref().is_none_or(has_interpreter);
    is_usable.then(|| manifest.bundle(directory))
}

impl Manifest {
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
