//! `docs/reference.md` against the code: which environment variables are read, and which files there are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::page::root;

const UPDATE: &str = "ROLLCAGE_UPDATE_DOCS";

fn path() -> PathBuf {
    root().join("docs/reference.md")
}

fn text() -> String {
    std::fs::read_to_string(path()).unwrap()
}

/// Everything in backticks.
pub(crate) fn documented() -> BTreeSet<String> {
    let text = text();
    let spans = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    spans
        .map(|span| span.trim_end_matches('/').to_owned())
        .collect()
}

/// What the program asks the environment for by name.
fn asked_for() -> BTreeSet<String> {
    const ASKING: [&str; 7] = [
        "variable(\"",
        "get)(\"",
        "get(\"",
        "var(\"",
        "var_os(\"",
        "try_from_env(\"",
        "env = \"",
    ];
    let mut files = Vec::new();
    sources(&root().join("crates"), &TESTS, &mut files);
    let mut names = BTreeSet::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        for asking in ASKING {
            for (_, rest) in text
                .match_indices(asking)
                .map(|(at, it)| text.split_at(at + it.len()))
            {
                let name = rest.split('"').next().unwrap();
                let is_name = |letter: char| letter.is_ascii_uppercase() || letter == '_';
                let is_proxy = name.ends_with("_proxy");
                if is_proxy || (name.len() > 3 && name.chars().all(is_name)) {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names
}

/// Names of files and folders that only tests are made of.
const TESTS: [&str; 5] = ["tests", "benches", "testkit", "tests.rs", "harness.rs"];

fn sources(directory: &Path, without: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        match path.is_dir() {
            _ if without.contains(&name.as_str()) => {}
            true => sources(&path, without, found),
            false if name.ends_with(".rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn every_variable_that_is_read_is_in_the_reference() {
    let (asked, documented) = (asked_for(), documented());
    assert!(
        asked.contains("ROLLCAGE_HOME") && asked.len() > 12,
        "{asked:?}"
    );
    let missing: Vec<_> = asked.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/reference.md: {missing:?}");
    let mut files = Vec::new();
    sources(&root().join("crates"), &[], &mut files);
    let code: String = files
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let ours = documented
        .iter()
        .filter(|name| name.starts_with("ROLLCAGE_"));
    for name in ours {
        assert!(
            code.contains(&format!("\"{name}\"")),
            "nothing reads {name}"
        );
    }
}

/// The table of providers is what the program says of them.
#[test]
fn the_variables_of_every_provider_are_in_the_reference() {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args(["endpoint", "list", "--json"])
        .env_clear()
        .env("ROLLCAGE_HOME", home.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    let mut table = String::from("| `--endpoint` | URL | key | model |\n|---|---|---|---|\n");
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let endpoint: serde_json::Value = serde_json::from_str(line).unwrap();
        let list = |value: &serde_json::Value| {
            let names = value.as_array().into_iter().flatten();
            let names = names.map(|name| format!("`{}`", name.as_str().unwrap()));
            names.collect::<Vec<_>>().join(", ")
        };
        let variables = &endpoint["variables"];
        if variables.is_null() {
            continue;
        }
        let names = match list(&endpoint["aliases"]).as_str() {
            "" => list(&serde_json::json!([endpoint["endpoint"]])),
            aliases => format!("`{}`, {aliases}", endpoint["endpoint"].as_str().unwrap()),
        };
        let cells = ["base_url", "api_key", "model"].map(|kind| list(&variables[kind]));
        table.push_str(&format!("| {names} | {} |\n", cells.join(" | ")));
    }
    let page = text();
    let (before, rest) = page.split_once("<!-- providers -->\n").unwrap();
    let (shown, after) = rest.split_once("<!-- end -->").unwrap();
    if std::env::var_os(UPDATE).is_some() {
        let new = format!("{before}<!-- providers -->\n{table}<!-- end -->{after}");
        std::fs::write(path(), new).unwrap();
        return;
    }
    assert_eq!(
        shown, table,
        "docs/reference.md is out of date: set {UPDATE}=1 to write it anew"
    );
}
