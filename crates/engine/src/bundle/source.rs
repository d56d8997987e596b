//! Which packages an agent comes in, as data. Adding an agent that ships as one
//! native program is one more `Source`.

use std::fmt;
use std::path::Path;

/// How an agent is published.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub agent: &'static str,
    /// The package whose tags (`latest`, …) say which version is meant.
    pub tags: &'static str,
    /// The package that holds the program, for each machine there is one for.
    pub packages: &'static [(Target, &'static str)],
    /// The program, relative to the package.
    pub program: &'static str,
    /// What `AGENT` without a version means.
    pub default_version: &'static str,
}

/// OpenCode: one self-contained program, no node needed.
pub const OPENCODE: Source = Source {
    agent: "opencode",
    tags: "opencode-ai",
    packages: &[
        (Target::X64, "opencode-linux-x64"),
        (Target::X64_BASELINE, "opencode-linux-x64-baseline"),
        (Target::X64_MUSL, "opencode-linux-x64-musl"),
        (
            Target::X64_BASELINE_MUSL,
            "opencode-linux-x64-baseline-musl",
        ),
        (Target::ARM64, "opencode-linux-arm64"),
        (Target::ARM64_MUSL, "opencode-linux-arm64-musl"),
    ],
    program: "bin/opencode",
    default_version: "1.18.33",
};

impl Source {
    pub(super) fn package(&self, target: Target) -> Option<&'static str> {
        let mut packages = self.packages.iter();
        packages.find_map(|(own, package)| (*own == target).then_some(*package))
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

/// Whether the processor has what ordinary builds ask for (AVX2 on x64).
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

    /// The machine we run on.
    pub fn of_host() -> Self {
        #[cfg(target_arch = "aarch64")]
        let (architecture, cpu) = (Architecture::Arm64, Cpu::Modern);
        #[cfg(not(target_arch = "aarch64"))]
        let (architecture, cpu) = (Architecture::X64, x64_cpu());
        Self::new(architecture, Libc::below(Path::new("/"), architecture), cpu)
    }

    /// ELF's number for this architecture.
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
    /// What the system whose root is `root` offers programs. Our own build says
    /// nothing: a static one runs on both kinds.
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

/// Which version of an agent is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionRequest {
    /// The one we pinned and tested.
    Default,
    Exact(String),
    /// A name that the registry resolves, such as `latest`.
    Tag(String),
}

impl VersionRequest {
    /// Reads what stands behind the `@` of `AGENT@VERSION`.
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

#[cfg(test)]
mod tests {
    use super::{Architecture, Cpu, Libc, OPENCODE, Target, VersionRequest, is_plain_name};

    #[test]
    fn a_version_is_exact_a_tag_or_the_default() {
        let exact = VersionRequest::Exact("1.2.3".to_owned());
        assert_eq!(VersionRequest::parse("1.2.3"), exact);
        assert_eq!(VersionRequest::parse("v1.2.3"), exact);
        assert_eq!(VersionRequest::parse(""), VersionRequest::Default);
        let tag = VersionRequest::Tag("latest".to_owned());
        assert_eq!(VersionRequest::parse("latest"), tag);
    }

    #[test]
    fn every_machine_has_its_own_package() {
        let package =
            |architecture, libc, cpu| OPENCODE.package(Target::new(architecture, libc, cpu));
        use Architecture::{Arm64, X64};
        let got = [
            package(X64, Libc::Glibc, Cpu::Modern),
            package(X64, Libc::Musl, Cpu::Baseline),
            package(Arm64, Libc::Musl, Cpu::Modern),
            package(Arm64, Libc::Glibc, Cpu::Baseline),
        ];
        let expect = [
            Some("opencode-linux-x64"),
            Some("opencode-linux-x64-baseline-musl"),
            Some("opencode-linux-arm64-musl"),
            None,
        ];
        assert_eq!(got, expect);
        assert_eq!(
            Target::X64_BASELINE_MUSL.to_string(),
            "linux-x64-baseline-musl"
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
