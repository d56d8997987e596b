//! HOME of verify commands: made of what setup left in the user's home, and of links to the agent's work.
//!
//! Programs read start files and settings from HOME (`.gitconfig`, `.npmrc`, `.profile` …), and the agent can write all of
//! them. What it may not choose is how its work is checked, so those files are the ones that were there when setup ended.
//!
//! Small entries are copied when setup ends. Large ones (a toolchain, a package cache) would take up the memory a second
//! time, so they are linked to where the agent has them, as far as their change time says that nothing changed them since.
//! Nobody inside can set a change time or the clock.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::guest::{HOME, KEPT_HOME, LOGS, TASK_DIR, TESTS, VERIFY_HOME, WORKDIR};
use crate::local::inside::modules;
use crate::local::shared::wire::{Failure, FailureKind};

/// Always linked, also where the agent locked its home.
const STANDARD: [&str; 4] = [WORKDIR, TESTS, LOGS, TASK_DIR];
/// What package managers downloaded: packages, but no settings and no programs that run by themselves. Of these, changed
/// and new files are the agent's.
const CACHES: [&str; 7] = [
    ".cargo/registry",
    ".cargo/git",
    ".m2/repository",
    ".npm/_cacache",
    ".cache/pip",
    ".cache/uv",
    ".nuget/packages",
];
/// Where curl looks for settings.
const CURL_SETTINGS: [&str; 2] = [".curlrc", ".config/curlrc"];
/// More entries than a person keeps in a home.
const ENTRIES_MAX: usize = 4096;
/// A larger entry of the home is not copied whole.
const ENTRY_BYTES_MAX: u64 = 16 << 20;
/// Of a larger entry, what is smaller than this is.
const PART_BYTES_MAX: u64 = 1 << 20;
const DEPTH_MAX: u32 = 64;
/// Lists what was not copied, beside the copies. Its own change time is the end of setup.
const LARGE: &str = ".large-entries.json";

/// Relative paths of what was too large to copy.
#[derive(Default, Serialize, Deserialize)]
struct Large(BTreeSet<PathBuf>);

fn failure(path: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(FailureKind::File, path, &error)
}

fn has_dot(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// Copies what begins with a dot to where it is kept.
pub(crate) fn keep() -> Result<(), Failure> {
    keep_in(Path::new(HOME), Path::new(KEPT_HOME)).map_err(failure(KEPT_HOME))
}

fn keep_in(home: &Path, kept: &Path) -> io::Result<()> {
    let mut large = Large::default();
    fs::create_dir_all(kept)?;
    for name in names(home)?.into_iter().filter(|name| has_dot(name)) {
        let (from, to) = (home.join(&name), kept.join(&name));
        if is_within(&from, DEPTH_MAX, ENTRY_BYTES_MAX) {
            copy(&from, &to, DEPTH_MAX)?;
            continue;
        }
        if !fs::symlink_metadata(&from)?.is_dir() {
            large.0.insert(name.into());
            continue;
        }
        fs::create_dir(&to)?;
        for part in names(&from)? {
            let from = from.join(&part);
            match is_within(&from, DEPTH_MAX, PART_BYTES_MAX) {
                true => copy(&from, &to.join(&part), DEPTH_MAX)?,
                false => drop(large.0.insert(Path::new(&name).join(&part))),
            }
        }
    }
    fs::write(kept.join(LARGE), serde_json::to_vec(&large)?)?;
    fs::write(kept.join(modules::LIST), modules::list(home))
}

/// Fills the home of a verify command.
pub(crate) fn lay(named: &[PathBuf]) -> Result<(), Failure> {
    let [home, kept, target] = [HOME, KEPT_HOME, VERIFY_HOME].map(Path::new);
    let layout = Layout { home, kept, target };
    layout.lay(named).map_err(failure(VERIFY_HOME))
}

#[derive(Clone, Copy)]
struct Layout<'a> {
    home: &'a Path,
    kept: &'a Path,
    target: &'a Path,
}

impl Layout<'_> {
    fn lay(self, named: &[PathBuf]) -> io::Result<()> {
        let standard = STANDARD
            .iter()
            .filter_map(|path| Path::new(path).file_name());
        let mut linked: BTreeSet<OsString> = standard.map(OsStr::to_owned).collect();
        // A home that cannot be listed has nothing else to show.
        let entries = names(self.home).unwrap_or_default();
        linked.extend(entries.into_iter().filter(|name| !has_dot(name)));
        for name in &linked {
            symlink(self.home.join(name), self.target.join(name))?;
        }
        for name in names(self.kept).unwrap_or_default() {
            if name != LARGE && name != modules::LIST {
                copy(&self.kept.join(&name), &self.target.join(&name), DEPTH_MAX)?;
            }
        }
        self.lay_large()?;
        for cache in CACHES.map(Path::new) {
            if fs::symlink_metadata(self.target.join(cache)).is_err() {
                self.link(cache)?;
            }
        }
        for path in named {
            let is_inside = path
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            if is_inside && !self.is_linked(path) {
                let _ = fs::remove_dir_all(self.target.join(path));
                let _ = fs::remove_file(self.target.join(path));
                self.link(path)?;
            }
        }
        self.end_search()
    }

    /// curl goes on to the home that the user database has if it finds no settings here.
    fn end_search(self) -> io::Result<()> {
        let mut found = CURL_SETTINGS.iter().map(|name| self.target.join(name));
        if found.any(|path| fs::symlink_metadata(path).is_ok()) {
            return Ok(());
        }
        fs::write(self.target.join(CURL_SETTINGS[0]), "")
    }

    fn lay_large(self) -> io::Result<()> {
        let list = self.kept.join(LARGE);
        let Ok(since) = fs::symlink_metadata(&list).map(|it| changed(&it)) else {
            return Ok(());
        };
        let large: Large = serde_json::from_slice(&fs::read(&list)?)?;
        large
            .0
            .iter()
            .try_for_each(|path| self.lay_unchanged(path, since, DEPTH_MAX))
    }

    /// Links what nothing changed since the end of setup.
    fn lay_unchanged(self, path: &Path, since: ChangeTime, depth: u32) -> io::Result<()> {
        let live = self.home.join(path);
        let Ok(metadata) = fs::symlink_metadata(&live) else {
            return Ok(());
        };
        let is_cache = CACHES.iter().any(|cache| path.starts_with(cache));
        if is_cache || is_unchanged(&live, &metadata, since, depth) {
            return self.link(path);
        }
        if metadata.is_dir() && depth > 0 {
            fs::create_dir_all(self.target.join(path))?;
            for name in names(&live).unwrap_or_default() {
                self.lay_unchanged(&path.join(name), since, depth - 1)?;
            }
        }
        Ok(())
    }

    /// Whether a directory above a path is a link, so that what is there is not in the target.
    fn is_linked(self, path: &Path) -> bool {
        let mut above = path.ancestors().skip(1);
        above.any(|path| {
            fs::symlink_metadata(self.target.join(path)).is_ok_and(|it| it.is_symlink())
        })
    }

    /// Links to what the agent has at a path, if it has anything there.
    fn link(self, path: &Path) -> io::Result<()> {
        let (live, link) = (self.home.join(path), self.target.join(path));
        if fs::symlink_metadata(&live).is_err() || self.is_linked(path) {
            return Ok(());
        }
        if let Some(parent) = link.parent() {
            fs::create_dir_all(parent)?;
        }
        match symlink(live, link) {
            // It is there with a directory that holds it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }
}

type ChangeTime = (i64, i64);

fn changed(metadata: &Metadata) -> ChangeTime {
    (metadata.ctime(), metadata.ctime_nsec())
}

/// Whether nothing in a tree changed since then. Adding, removing and renaming change a directory's time.
fn is_unchanged(path: &Path, metadata: &Metadata, since: ChangeTime, depth: u32) -> bool {
    if changed(metadata) > since || depth == 0 {
        return false;
    }
    if !metadata.is_dir() {
        return true;
    }
    let entries = fs::read_dir(path).into_iter().flatten();
    entries.flatten().all(|entry| {
        let is_old = |metadata: Metadata| is_unchanged(&entry.path(), &metadata, since, depth - 1);
        entry.metadata().is_ok_and(is_old)
    })
}

fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(directory)?.take(ENTRIES_MAX).flatten();
    Ok(entries.map(|entry| entry.file_name()).collect())
}

/// Whether a tree has at most so many bytes.
fn is_within(path: &Path, depth: u32, bytes_max: u64) -> bool {
    size(path, depth, bytes_max).is_some()
}

/// The size of a tree, or `None` above `left` bytes.
fn size(path: &Path, depth: u32, left: u64) -> Option<u64> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if !metadata.is_dir() {
        return (metadata.len() <= left).then_some(metadata.len());
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        bytes += size(&entry.path(), depth.checked_sub(1)?, left - bytes)?;
    }
    Some(bytes)
}

/// Copies files, directories and links. What its owner cannot read is left out, as it could not be used either.
fn copy(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    let is_locked = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    if metadata.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if metadata.is_file() {
        return match fs::copy(from, to) {
            Err(error) if is_locked(&error) => Ok(()),
            copied => copied.map(drop),
        };
    }
    if !metadata.is_dir() || depth == 0 {
        return Ok(());
    }
    fs::create_dir(to)?;
    match fs::read_dir(from) {
        Err(error) if is_locked(&error) => {}
        entries => {
            for entry in entries? {
                let entry = entry?;
                copy(&entry.path(), &to.join(entry.file_name()), depth - 1)?;
            }
        }
    }
    // When it is full: a directory may be one that its owner cannot write to.
    fs::set_permissions(
        to,
        Permissions::from_mode(metadata.permissions().mode() & 0o7777),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: impl AsRef<[u8]>) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Home, what is kept of it, and the home of verify commands.
    fn places(root: &Path) -> [PathBuf; 3] {
        ["home", "kept", "target"].map(|name| root.join(name))
    }

    fn lay_in([home, kept, target]: &[PathBuf; 3], named: &[&str]) {
        fs::create_dir(target).unwrap();
        let named: Vec<PathBuf> = named.iter().map(PathBuf::from).collect();
        Layout { home, kept, target }.lay(&named).unwrap();
    }

    #[test]
    fn settings_are_those_of_setup_and_work_is_the_agents() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let [home, kept, target] = &places;
        write(&home.join(".config/tool/a"), "setup's");
        write(&home.join(".npmrc"), "setup's");
        write(&home.join("notes.txt"), "setup's");
        symlink("notes.txt", home.join(".link")).unwrap();
        keep_in(home, kept).unwrap();
        for name in [
            ".npmrc",
            ".bashrc",
            ".vimrc",
            "notes.txt",
            ".cargo/registry/x",
            ".cargo/config.toml",
            ".config/tool/a",
            ".config/editor/b",
        ] {
            write(&home.join(name), "agent's");
        }
        let named = [
            ".vimrc",
            ".config/editor",
            ".config/editor/b",
            "../kept",
            ".none",
        ];
        lay_in(&places, &named);
        let read = |name: &str| fs::read_to_string(target.join(name)).ok();
        let setups = Some("setup's".to_owned());
        let agents = Some("agent's".to_owned());
        assert_eq!(read(".config/tool/a"), setups);
        assert_eq!(read(".config/editor/b"), agents);
        assert_eq!(read(".npmrc"), setups);
        assert_eq!(read(".bashrc"), None);
        assert_eq!(read(".vimrc"), agents);
        assert_eq!(read("notes.txt"), agents);
        assert_eq!(read(".link"), agents);
        assert_eq!(read(".cargo/registry/x"), agents);
        assert_eq!(read(".cargo/config.toml"), None);
        assert!(fs::symlink_metadata(target.join(".none")).is_err());
        for standard in ["workdir", "tests", "logs", "task"] {
            assert!(fs::symlink_metadata(target.join(standard)).is_ok());
        }
    }

    #[test]
    fn of_large_entries_what_did_not_change_is_linked() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let [home, kept, target] = &places;
        let large = vec![0; usize::try_from(ENTRY_BYTES_MAX).unwrap()];
        write(&home.join(".tool/settings"), "setup's");
        write(&home.join(".tool/bin/kept"), &large);
        write(&home.join(".tool/bin/changed"), &large);
        write(&home.join(".tool/lib/all"), &large);
        write(&home.join(".cargo/registry/index"), &large);
        write(&home.join(".cargo/registry/more"), "x");
        keep_in(home, kept).unwrap();
        assert!(size(kept, DEPTH_MAX, PART_BYTES_MAX).is_some());
        // Change times have the grain of the kernel's clock ticks.
        std::thread::sleep(std::time::Duration::from_millis(50));
        write(&home.join(".tool/settings"), "agent's");
        write(&home.join(".tool/bin/changed"), "agent's");
        write(&home.join(".tool/bin/new"), "agent's");
        write(&home.join(".cargo/registry/index"), "agent's");
        lay_in(&places, &[]);
        let read = |name: &str| fs::read(target.join(name)).ok();
        assert_eq!(read(".tool/settings"), Some(b"setup's".to_vec()));
        assert_eq!(read(".tool/bin/kept"), Some(large.clone()));
        assert_eq!(read(".tool/bin/changed"), None);
        assert_eq!(read(".tool/bin/new"), None);
        assert_eq!(read(".tool/lib/all"), Some(large));
        assert_eq!(read(".cargo/registry/index"), Some(b"agent's".to_vec()));
    }

    #[test]
    fn a_home_that_is_gone_still_leads_to_the_work() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        lay_in(&places, &[]);
        let link = fs::read_link(places[2].join("workdir")).unwrap();
        assert_eq!(link, places[0].join("workdir"));
    }
}
