//! House rules that a compiler does not check.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod imports;
mod layers;
mod source;

use source::{crate_names, crates, rust_files};

/// A file that is longer than this is two files; tests count as all other lines do.
const LINES_MAX: usize = 500;
/// The same for files outside `src`, which are lists of tests and benchmarks.
const LINES_MAX_OUTSIDE: usize = 900;

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    let mut problems = Vec::new();
    let mut n_files = 0;
    for name in crate_names() {
        let folder = crates().join(name);
        for path in rust_files(&folder) {
            n_files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_test =
                name == "tests.rs" || path.components().any(|part| part.as_os_str() == "tests");
            if !is_test && !text.starts_with("//!") {
                problems.push(format!("{}: no `//!` header", path.display()));
            }
            let lines_max = match path.starts_with(folder.join("src")) {
                true => LINES_MAX,
                false => LINES_MAX_OUTSIDE,
            };
            let lines = text.lines().count();
            if lines > lines_max {
                problems.push(format!("{}: {lines} lines of {lines_max}", path.display()));
            }
            if ["mod.rs", "utils.rs", "helpers.rs", "common.rs"].contains(&name.as_str()) {
                problems.push(format!("{}: find it a name", path.display()));
            }
        }
    }
    assert!(n_files > 50, "{n_files} files");
    assert!(problems.is_empty(), "{problems:#?}");
}

/// What SECURITY.md promises is shown by the tests that it names.
#[test]
fn every_promise_has_its_test() {
    let promises = std::fs::read_to_string(crates().join("../SECURITY.md")).unwrap();
    let code: String = rust_files(&crates())
        .into_iter()
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
