//! House rules that a compiler does not check.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};

/// Before its tests, a file that is longer than this is two files.
const LINES_MAX: usize = 500;

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
        &mut files,
    );
    assert!(files.len() > 50, "{} files", files.len());
    let mut problems = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test =
            name == "tests.rs" || path.components().any(|part| part.as_os_str() == "tests");
        if !is_test && !text.starts_with("//!") {
            problems.push(format!("{}: no `//!` header", path.display()));
        }
        let lines = text
            .lines()
            .take_while(|line| *line != "#[cfg(test)]")
            .count();
        if !is_test && lines > LINES_MAX {
            problems.push(format!("{}: {lines} lines", path.display()));
        }
        if ["mod.rs", "utils.rs", "helpers.rs", "common.rs"].contains(&name.as_str()) {
            problems.push(format!("{}: find it a name", path.display()));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Inside the engine nothing imports upwards, so that one path stays one path.
#[test]
fn the_engine_imports_downwards() {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    for (lower, upper) in [("rollout", "dispatch"), ("store", "rollout")] {
        let mut files = vec![engine.join(format!("{lower}.rs"))];
        if engine.join(lower).is_dir() {
            sources(&engine.join(lower), &mut files);
        }
        for path in files {
            let text = std::fs::read_to_string(&path).unwrap();
            let import = format!("crate::{upper}");
            assert!(
                !text.contains(&import),
                "{} imports {import}",
                path.display()
            );
        }
    }
}

/// What SECURITY.md promises is shown by the tests that it names.
#[test]
fn every_promise_has_its_test() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let promises = std::fs::read_to_string(crates.join("../SECURITY.md")).unwrap();
    let mut files = Vec::new();
    sources(&crates, &mut files);
    let code: String = files
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let rows = promises.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.rsplit('|').nth(1));
    let named: Vec<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| name.contains('_') && !name.contains('/'))
        .collect();
    assert!(named.len() > 25, "{named:?}");
    for name in named {
        assert!(code.contains(&format!("fn {name}(")), "no test {name}");
    }
}
