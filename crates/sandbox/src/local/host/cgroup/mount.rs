//! Where control groups are mounted on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::instance;
use super::remove_engine;

/// Read from `/proc/self`, or built by tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    /// Controller to mount point.
    pub(crate) v1: BTreeMap<String, PathBuf>,
    pub(crate) unified: Option<Unified>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unified {
    pub(crate) mount: PathBuf,
    /// Our own cgroup, below `mount`.
    pub(crate) own: PathBuf,
}

impl Mounts {
    pub(crate) fn detect() -> Mounts {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Mounts::parse(&mountinfo, &own)
    }

    fn parse(mountinfo: &str, own: &str) -> Mounts {
        let mut mounts = Mounts::default();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let left: Vec<&str> = left.split(' ').collect();
            let right: Vec<&str> = right.split(' ').collect();
            let ([_, _, _, root, mount, ..], [kind, _, options]) = (&left[..], &right[..]) else {
                continue;
            };
            if *kind == "cgroup" {
                for controller in options
                    .split(',')
                    .filter(|option| ["memory", "pids", "cpu", "cpuacct"].contains(option))
                {
                    mounts
                        .v1
                        .entry(controller.to_owned())
                        .or_insert_with(|| PathBuf::from(mount));
                }
            }
            if *kind == "cgroup2" && mounts.unified.is_none() {
                let path = own
                    .lines()
                    .find_map(|line| line.strip_prefix("0::"))
                    .unwrap_or("/");
                let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
                let below = below.strip_prefix("/").unwrap_or(below);
                mounts.unified = Some(Unified {
                    mount: PathBuf::from(mount),
                    own: PathBuf::from(mount).join(below),
                });
            }
        }
        mounts
    }

    /// Our own version 2 group and its ancestors, nearest first.
    pub(crate) fn unified_candidates(&self) -> Vec<PathBuf> {
        let Some(unified) = &self.unified else {
            return Vec::new();
        };
        unified
            .own
            .ancestors()
            .take_while(|path| path.starts_with(&unified.mount))
            .map(Path::to_path_buf)
            .collect()
    }

    /// Removes the groups of engines that died without cleaning up.
    pub(crate) fn sweep(&self) {
        for parent in self.v1.values().cloned().chain(self.unified_candidates()) {
            instance::sweep(&parent, remove_engine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_machine_has_both_versions() {
        let mounts = Mounts::parse(
            "30 29 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
             31 29 0:27 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n\
             32 29 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
            "4:memory:/x\n0::/a/b\n",
        );
        let path = PathBuf::from;
        assert_eq!(mounts.v1["cpu"], path("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(mounts.v1["cpuacct"], path("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(mounts.v1["memory"], path("/sys/fs/cgroup/memory"));
        assert_eq!(
            mounts.unified_candidates(),
            ["unified/a/b", "unified/a", "unified"].map(|name| path("/sys/fs/cgroup").join(name))
        );
    }
}
