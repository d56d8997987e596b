//! The Python modules that stand in the user's home when setup ends. Verify commands take those that the agent adds last, where
//! setup or the system has one of the same name.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name of the list beside what is kept of the home.
pub(crate) const LIST: &str = ".python-modules";
/// More entries than a project has that nobody installed.
const ENTRIES_MAX: usize = 50_000;
/// Of other languages, of no language, or of package managers.
const SKIPPED: [&str; 10] = [
    ".git",
    "node_modules",
    "__pycache__",
    ".cache",
    ".cargo",
    ".rustup",
    ".npm",
    ".m2",
    ".nuget",
    ".rollcage",
];
/// Directories of installed packages, of which only what can be imported by one name is listed.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];
const SUFFIXES: [&[u8]; 5] = [b".py", b".so", b".pyc", b".dist-info", b".egg-info"];
/// Stands for those that there were too many of.
const MORE: &[u8] = b"*";

/// The paths below `home`, each followed by a zero byte; the shallow ones first.
pub(super) fn list(home: &Path) -> Vec<u8> {
    let mut list = Vec::new();
    let mut add = |path: &[u8]| {
        list.extend_from_slice(path);
        list.push(0);
    };
    let mut left = ENTRIES_MAX;
    let mut directories = VecDeque::from([(PathBuf::new(), false)]);
    while let Some((directory, is_package)) = directories.pop_front() {
        let is_of_packages = directory
            .file_name()
            .is_some_and(|name| is_any(name, &PACKAGES));
        for entry in fs::read_dir(home.join(&directory))
            .into_iter()
            .flatten()
            .flatten()
        {
            if left == 0 {
                add(MORE);
                return list;
            }
            left -= 1;
            let (name, path) = (entry.file_name(), directory.join(entry.file_name()));
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if SUFFIXES
                .iter()
                .any(|suffix| name.as_bytes().ends_with(suffix))
            {
                add(path.as_os_str().as_bytes());
            } else if is_directory && !is_package && !is_any(&name, &SKIPPED) {
                directories.push_back((path, is_of_packages));
            }
        }
    }
    list
}

fn is_any(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|known| name == *known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_could_import_is_listed_and_little_else() {
        let home = tempfile::tempdir().unwrap();
        for path in [
            "workdir/a.py",
            "workdir/deep/b.py",
            "workdir/text.md",
            "workdir/node_modules/x/c.py",
            "workdir/.venv/lib/python3/site-packages/lib/__init__.py",
            "workdir/.venv/lib/python3/site-packages/lib/deep/__init__.py",
            "workdir/.venv/lib/python3/site-packages/lib-1.dist-info/METADATA",
        ] {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let listed = String::from_utf8(list(home.path())).unwrap();
        let mut listed: Vec<&str> = listed.split_terminator('\0').collect();
        listed.sort_unstable();
        let packages = "workdir/.venv/lib/python3/site-packages";
        assert_eq!(
            listed,
            [
                format!("{packages}/lib-1.dist-info").as_str(),
                &format!("{packages}/lib/__init__.py"),
                "workdir/a.py",
                "workdir/deep/b.py",
            ]
        );
    }

    #[test]
    fn too_many_are_not_all_listed_and_that_is_said() {
        let home = tempfile::tempdir().unwrap();
        for at in 0..=ENTRIES_MAX {
            fs::write(home.path().join(at.to_string()), "").unwrap();
        }
        assert_eq!(list(home.path()), b"*\0");
    }
}
