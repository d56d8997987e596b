//! Every dependency is used where it is declared: what nobody names any more is compiled by everybody who builds this.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: &Path) -> Table {
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

fn names(manifest: &Table, section: &str) -> BTreeSet<String> {
    let table = manifest.get(section).and_then(Value::as_table);
    table
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

/// Of a crate: its program, and everything with its tests and benchmarks.
struct Code {
    program: String,
    all: String,
}

impl Code {
    fn read(directory: &Path) -> Code {
        let mut code = Code {
            program: String::new(),
            all: String::new(),
        };
        for part in ["src", "tests", "benches", "targets", "build.rs"] {
            code.add(&directory.join(part), part != "src");
        }
        code
    }

    fn add(&mut self, path: &Path, is_test: bool) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test = is_test || ["tests", "tests.rs"].contains(&name.as_str());
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap().flatten() {
                self.add(&entry.path(), is_test);
            }
        } else if path.extension().is_some_and(|it| it == "rs") && path.is_file() {
            let text = std::fs::read_to_string(path).unwrap();
            // Tests come last in a file.
            let program = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            self.program.push_str(if is_test { "" } else { program });
            self.all.push_str(&text);
        }
    }
}

/// Whether a crate is named as such: `name::`, `use name;` or `extern crate name`.
fn is_named(code: &str, dependency: &str) -> bool {
    let name = dependency.replace('-', "_");
    code.match_indices(&name).any(|(at, name)| {
        let before = code[..at].chars().next_back();
        let after = &code[at + name.len()..];
        let is_word = !before.is_some_and(|it| it.is_alphanumeric() || "_:".contains(it))
            || code[..at].ends_with(" ::");
        is_word
            && (after.starts_with("::") || (after.starts_with(';') && code[..at].ends_with(' ')))
    })
}

fn crates() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(root().join("crates")).unwrap();
    let mut found: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    found.push(root().join("fuzz"));
    found.retain(|path| path.join("Cargo.toml").is_file());
    found
}

#[test]
fn every_dependency_is_used_where_it_is_declared() {
    let mut problems = Vec::new();
    let mut declared = BTreeSet::new();
    for directory in crates() {
        let manifest = read(&directory.join("Cargo.toml"));
        let code = Code::read(&directory);
        let mut complain = |section: &str, name: &str, why: &str| {
            problems.push(format!("{}: {section} {name}: {why}", directory.display()));
        };
        for name in names(&manifest, "dependencies") {
            // A fuzz target is a program of its own.
            let is_used = is_named(&code.program, &name);
            match is_named(&code.all, &name) {
                true if is_used || directory.ends_with("fuzz") => {}
                true => complain("dependencies", &name, "only tests use it"),
                false => complain("dependencies", &name, "nothing uses it"),
            }
            declared.insert(name);
        }
        for name in names(&manifest, "dev-dependencies") {
            if !is_named(&code.all, &name) {
                complain("dev-dependencies", &name, "nothing uses it");
            }
            declared.insert(name);
        }
    }
    let workspace = read(&root().join("Cargo.toml"));
    let workspace = workspace["workspace"].as_table().unwrap();
    for name in names(workspace, "dependencies").difference(&declared) {
        problems.push(format!("Cargo.toml: no crate of the workspace uses {name}"));
    }
    assert!(declared.len() > 20, "{declared:?}");
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn a_name_is_told_from_words_that_hold_it() {
    assert!(is_named("use libc::c_int;", "libc"));
    assert!(is_named("let x = tokio_util::sync::X;", "tokio-util"));
    assert!(is_named("use anyhow;", "anyhow"));
    assert!(!is_named("use serde_json::Value;", "serde"));
    assert!(!is_named("use crate::bytes::Bytes;", "bytes"));
    assert!(!is_named("// the bytes; of it", "byte"));
}
