//! Errors of installing, removing and pinning bundles.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::fetch::FetchError;
use super::source::{PinnedListSource, Target};
use super::storage::StorageError;
use super::unpack::UnpackError;

/// Python interpreters below `/usr`, which every sandbox has: one in a user's home directory is not visible inside.
pub(super) const PYTHONS: [&str; 2] = ["/usr/bin/python3", "/usr/local/bin/python3"];

/// The supported format version of pinned lists.
pub(super) const LIST_FORMAT: u32 = 1;

/// Why an agent was not installed. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{agent} is not published for {target}")]
    NoTarget { agent: String, target: Target },
    #[error("{name:?} is no name for an agent or a version")]
    Name { name: String },
    #[error("the registry has no package {package}")]
    NoPackage { package: String },
    #[error("{package} has no version {version}{}", alternatives(latest.as_deref(), near))]
    NoVersion {
        package: String,
        version: String,
        latest: Option<String>,
        /// Alternatives: nearby versions, or the names of tags.
        near: Vec<String>,
    },
    #[error("the registry gives {package}@{version} neither integrity nor shasum")]
    NoIntegrity { package: String, version: String },
    #[error("{name:?} is no name for a package, and another depends on it")]
    PackageName { name: String },
    #[error(
        "the registry does not have {package}@{version}, to which {agent} is pinned: name one that has it in npm's \
         settings (`registry=…`), or ask for another version, as in {agent}@latest"
    )]
    NotServed {
        agent: String,
        package: String,
        version: String,
        source: Box<InstallError>,
    },
    #[error("the registry names no tarball that can be fetched")]
    NoTarball,
    #[error("the tarball is larger than any agent")]
    TarballTooLarge,
    #[error("{url} is not what {stated_by}: expected {expected}, got {got}")]
    Integrity {
        url: String,
        /// Where the expected hash comes from.
        stated_by: &'static str,
        expected: String,
        got: String,
    },
    #[error("{package}@{version} holds no program {program} for {target}")]
    Program {
        package: String,
        version: String,
        program: String,
        target: Target,
    },
    #[error("{} is not a directory: it is what {agent}'s manifest gives as its bundle", directory.display())]
    NoDirectory { agent: String, directory: PathBuf },
    #[error("{agent} comes in no versions to choose from, so {wanted} means nothing")]
    NoVersions { agent: String, wanted: String },
    #[error(transparent)]
    Pypi(#[from] PypiError),
    #[error(transparent)]
    List(#[from] ListError),
    #[error("installing {agent} took longer than {} s", limit.as_secs())]
    TimedOut { agent: String, limit: Duration },
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the installing thread ended")]
    Thread { source: tokio::task::JoinError },
}

fn alternatives(latest: Option<&str>, near: &[String]) -> String {
    let latest = latest.map(|latest| format!("; latest is {latest}"));
    let near = (!near.is_empty()).then(|| format!("; there are {}", near.join(", ")));
    [latest, near].into_iter().flatten().collect()
}

/// Why a bundle was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("{agent}@{version} is not installed")]
    NotInstalled { agent: String, version: String },
    #[error("{agent}@{version} is being installed")]
    Busy { agent: String, version: String },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Why a Python agent was not installed.
#[derive(Debug, thiserror::Error)]
pub enum PypiError {
    #[error("{agent} needs Python: install python3 so that one of {} exists", PYTHONS.join(", "))]
    NoPython { agent: String },
    #[error("{agent} is installed with pip, and {} has none: install python3-pip", python.display())]
    NoPip { agent: String, python: PathBuf },
    #[error("run {}", python.display())]
    Run { python: PathBuf, source: io::Error },
    #[error("pip could not install {package}: {said}")]
    Failed { package: String, said: String },
    #[error("pip of {} does not say what it would install: version 22.2 or later is needed", python.display())]
    Report {
        python: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{agent} comes from PyPI, where `{tag}` is no version: give a number, as in {agent}@1.2.3, or `latest`"
    )]
    Tag { agent: String, tag: String },
}

/// Adds the space needed by an installation to an error about a full disk.
pub(super) fn needing(error: InstallError, bytes: u64, root: &Path) -> InstallError {
    match error {
        InstallError::Storage(error) | InstallError::Unpack(UnpackError::Storage(error)) => {
            error.needing(bytes, root).into()
        }
        other => other,
    }
}

/// Why a pinned list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(
        "read {agent}'s pinned list {}: make it with `rollcage agent lock {agent} --output FILE`, or leave `lock` out of \
         the manifest",
        path.display()
    )]
    Read {
        agent: String,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the pinned list {list} is wrong")]
    Toml {
        list: PinnedListSource,
        source: Box<toml::de::Error>,
    },
    #[error(
        "the pinned list {list} has format {format}, and this version of Rollcage reads {LIST_FORMAT}"
    )]
    Format { list: PinnedListSource, format: u32 },
    #[error(
        "the pinned list {list} is for {found}, and the manifest wants {wanted}: make it anew with \
         `rollcage agent lock`"
    )]
    Other {
        list: PinnedListSource,
        found: String,
        wanted: String,
    },
    #[error("the pinned list {list} is wrong about {package}: {problem}")]
    Package {
        list: PinnedListSource,
        package: String,
        problem: &'static str,
    },
    #[error(
        "the pinned list {list} lacks {package} for {target}: make it anew with `rollcage agent lock`"
    )]
    Missing {
        list: PinnedListSource,
        package: String,
        target: Target,
    },
    #[error("{agent} is installed from no registry, so there is nothing to pin")]
    NothingToPin { agent: String },
    #[error(
        "the registry describes {package}@{version} with SHA-1 alone, which protects nothing: pin it from a registry \
         that gives `integrity`"
    )]
    Weak { package: String, version: String },
    #[error("write the pinned list")]
    Write { source: Box<toml::ser::Error> },
}
