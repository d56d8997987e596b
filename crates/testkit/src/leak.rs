//! Detects what a test must not leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The resources that exist now: child processes of this process, mounts, and its cgroups.
#[derive(Debug, PartialEq, Eq)]
pub struct ResourceUse {
    pub children: BTreeSet<String>,
    pub mounts: usize,
    pub cgroups: BTreeSet<String>,
}

impl ResourceUse {
    pub fn now() -> Self {
        ResourceUse {
            children: children(),
            mounts: mounts(),
            cgroups: cgroups(std::process::id()),
        }
    }
}

/// What an ended process left behind: its cgroups, and temporary directories in `home`.
pub fn left_by(process: u32, home: &Path) -> BTreeSet<String> {
    let mut left = cgroups(process);
    for directory in ["sandboxes", "running", "bundles/.tmp"] {
        let entries = fs::read_dir(home.join(directory));
        let paths = entries.into_iter().flatten().flatten();
        left.extend(paths.map(|entry| entry.path().display().to_string()));
    }
    let layers = fs::read_dir(home.join("layers"));
    let paths = layers.into_iter().flatten().flatten();
    let unfinished = paths.filter(|entry| entry.file_name().as_encoded_bytes()[0] == b'.');
    left.extend(unfinished.map(|entry| entry.path().display().to_string()));
    left
}

fn children() -> BTreeSet<String> {
    let mine = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent_is_us = |stat: &str| {
        // The fields after the command's name, which may contain anything: state, then parent.
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1))
            == Some(mine.as_str())
    };
    entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| parent_is_us(stat))
        .map(|stat| stat.trim().chars().take(40).collect())
        .collect()
}

fn mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo").map_or(0, |text| text.lines().count())
}

/// Cgroup directories whose name contains a process's id.
fn cgroups(process: u32) -> BTreeSet<String> {
    let prefix = format!("rollcage-{process}-");
    let mut found = BTreeSet::new();
    let mut roots = vec![Path::new("/sys/fs/cgroup").to_path_buf()];
    roots.extend(
        fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    for root in roots {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                found.insert(entry.path().display().to_string());
            }
        }
    }
    found
}
