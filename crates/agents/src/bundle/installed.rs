//! An installed bundle: what is known of it, as its own directory says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(super) const MANIFEST: &str = "bundle.json";
pub(super) const FORMAT: u32 = 2;

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

/// `bundle.json`: written last, so a directory without it is no bundle.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) agent: String,
    pub(super) version: String,
    pub(super) package: String,
    pub(super) integrity: String,
    pub(super) installed_at: String,
    pub(super) bytes: u64,
    /// Relative to the bundle.
    pub(super) program: String,
    #[serde(default)]
    pub(super) components: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) interpreter: Option<PathBuf>,
}

/// The bundle in `directory`, if there is one and it came from `package`.
pub(super) fn read(directory: &Path, package: &str) -> Option<Bundle> {
    bundle_at(directory).filter(|bundle| bundle.package == package)
}

pub(super) fn bundle_at(directory: &Path) -> Option<Bundle> {
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
    pub(super) fn bundle(self, directory: &Path) -> Bundle {
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
