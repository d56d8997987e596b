//! Directories of this machine that a sandbox shows read-only. Only whoever runs the program can ask for them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use rollcage_model::task::path_inside;
use rollcage_sandbox::guest::{HOME, LOGS, SETUP, TASK_DIR, TESTS, WORKDIR};
use rollcage_sandbox::{Content, Mount};

/// Nothing is shown at these, below or above them: the sandbox or the verifier depends on what is there.
const RESERVED: [&str; 16] = [
    TESTS,
    LOGS,
    TASK_DIR,
    SETUP,
    "/opt/rollcage",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
];
/// Nothing is shown over these, where agents write; below them is fine.
const WRITTEN: [&str; 4] = [HOME, WORKDIR, "/tmp", "/var/tmp"];
/// Not files of this machine but views of its kernel.
const OF_THE_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// A directory or file of this machine, and where a sandbox shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMount {
    host: PathBuf,
    inside: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    #[error("`{0}` must be HOST:INSIDE, such as /data/images:/data")]
    Form(String),
    #[error("{} cannot be shown: {why}", host.display())]
    Host { host: PathBuf, why: String },
    #[error("`{0}` must be an absolute path inside, without `.` and `..` in it")]
    Inside(String),
    #[error(
        "nothing can be shown at {inside}: the sandbox itself needs {reserved}; take a path of its own, such as /data"
    )]
    Reserved {
        inside: String,
        reserved: &'static str,
    },
    #[error("nothing can be shown over {0}, where agents write: take a directory below it")]
    Written(String),
}

impl HostMount {
    /// Reads `HOST:INSIDE`. The host's path must exist.
    pub fn parse(text: &str) -> Result<HostMount, MountError> {
        let (host, inside) = text
            .rsplit_once(':')
            .filter(|(host, inside)| !host.is_empty() && !inside.is_empty())
            .ok_or_else(|| MountError::Form(text.to_owned()))?;
        check_inside(inside)?;
        let host = Path::new(host);
        let refused = |why: &str| MountError::Host {
            host: host.to_owned(),
            why: why.to_owned(),
        };
        // Absolute, and without links whose meaning could change until the sandbox starts.
        let real = host
            .canonicalize()
            .map_err(|error| refused(&error.to_string()))?;
        if real == Path::new("/") || OF_THE_KERNEL.iter().any(|path| real.starts_with(path)) {
            return Err(refused("only directories and files on disk can be"));
        }
        if !real.is_dir() && !real.is_file() {
            return Err(refused("it is neither a directory nor a file"));
        }
        Ok(HostMount {
            host: real,
            inside: inside.to_owned(),
        })
    }

    pub(crate) fn mount(&self) -> Mount {
        Mount {
            content: Content::HostTree(self.host.clone()),
            target: PathBuf::from(&self.inside),
        }
    }
}

impl fmt::Display for HostMount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host.display(), self.inside)
    }
}

fn check_inside(inside: &str) -> Result<(), MountError> {
    let reserved = |reserved| MountError::Reserved {
        inside: inside.to_owned(),
        reserved,
    };
    if inside == "/" {
        return Err(reserved("/"));
    }
    let path = Path::new(inside);
    let is_near = |other: &&str| path.starts_with(other) || Path::new(other).starts_with(path);
    if WRITTEN.contains(&inside) {
        return Err(MountError::Written(inside.to_owned()));
    }
    if let Some(found) = RESERVED.into_iter().find(|other| is_near(other)) {
        return Err(reserved(found));
    }
    match inside.starts_with('/') && path_inside(inside).is_ok() {
        true => Ok(()),
        false => Err(MountError::Inside(inside.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let shown = match HostMount::parse(text) {
            Ok(mount) => mount.to_string(),
            Err(error) => error.to_string(),
        };
        assert!(shown.contains(expect), "{text}: {shown}");
    }

    #[test]
    fn a_mount_has_a_place_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().canonicalize().unwrap().display().to_string();
        for inside in ["/data", "/home/user/workdir/data", "/opt/data", "/tmp/x"] {
            check(&format!("{host}:{inside}"), &format!("{host}:{inside}"));
        }
        for (inside, expect) in [
            ("data", "must be an absolute path"),
            ("/data/../etc", "must be an absolute path"),
            ("/data/", "must be an absolute path"),
            ("/", "needs /"),
            ("/home", "needs /home/user/tests"),
            ("/home/user", "over /home/user, where agents write"),
            ("/home/user/workdir", "take a directory below it"),
            ("/home/user/tests", "needs /home/user/tests"),
            ("/home/user/tests/a", "needs /home/user/tests"),
            ("/home/user/logs/verifier", "needs /home/user/logs"),
            ("/opt", "needs /opt/setup"),
            ("/opt/rollcage/agent", "needs /opt/rollcage"),
            ("/proc/self", "needs /proc"),
            ("/usr/lib", "needs /usr"),
            ("/tmp", "over /tmp"),
        ] {
            check(&format!("{host}:{inside}"), expect);
        }
        check("/data", "must be HOST:INSIDE");
        check(":/data", "must be HOST:INSIDE");
        check("/nonexistent/x:/data", "No such file");
        check("/proc/self:/data", "on disk");
        check("/:/data", "on disk");
    }
}
