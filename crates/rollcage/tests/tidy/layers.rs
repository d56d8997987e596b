//! Who may know of whom: crates by their manifests, modules by their imports, and words that belong elsewhere.

use std::path::Path;

use super::imports::{Crate, circles};
use super::source::{crate_folder, crate_names};

/// What each crate may depend on, of ours. Tests may use `testkit` besides.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("dialect", &[]),
    ("mirrors", &[]),
    ("sandbox", &[]),
    ("model", &["dialect"]),
    ("egress", &["model", "mirrors"]),
    ("proxy", &["dialect", "model", "sandbox"]),
    ("agents", &["dialect", "model", "sandbox"]),
    ("scripted", &["dialect", "model"]),
    ("live", &["dialect", "model", "sandbox"]),
    ("endpoints", &["dialect", "model", "sandbox", "proxy"]),
    (
        "engine",
        &[
            "dialect",
            "model",
            "sandbox",
            "egress",
            "proxy",
            "agents",
            "scripted",
            "endpoints",
            "live",
        ],
    ),
    (
        "rollcage",
        &[
            "dialect",
            "model",
            "sandbox",
            "egress",
            "proxy",
            "agents",
            "scripted",
            "endpoints",
            "live",
            "engine",
            "mirrors",
        ],
    ),
    // Whatever tests engine or proxy may use it, so it can use neither.
    (
        "testkit",
        &["dialect", "model", "sandbox", "agents", "scripted"],
    ),
];

/// What a part of the program does not name, neither as a path nor inside another name.
struct Rule {
    /// A crate's folder, or one inside its `src`.
    part: &'static str,
    /// From `crate` or from another crate on.
    paths: &'static [&'static str],
    /// Inside names, whatever their case.
    words: &'static [&'static str],
    why: &'static str,
}

const NO_IO: [&str; 8] = [
    "tokio",
    "hyper",
    "reqwest",
    "axum",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
];

const ONLY_THE_PROGRAM_TALKS: Rule = Rule {
    part: "",
    paths: &[
        "clap",
        "std::env::var",
        "std::env::var_os",
        "std::env::vars",
    ],
    words: &["println", "eprint"],
    why: "only the program itself reads arguments and variables, and writes to the terminal",
};

const RULES: [Rule; 14] = [
    Rule {
        part: "dialect",
        paths: &NO_IO,
        words: &["println", "rollout", "sandbox", "verifier", "reward"],
        why: "dialects are pure, and know nothing of what they are used for",
    },
    Rule {
        part: "model",
        paths: &NO_IO,
        words: &["println"],
        why: "the model is pure",
    },
    Rule {
        part: "sandbox",
        paths: &["clap"],
        words: &[
            "rollout", "reward", "model", "prompt", "dialect", "endpoint", "llm",
        ],
        why: "a sandbox runs whatever it is given",
    },
    Rule {
        part: "scripted",
        words: &["println", "sandbox"],
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "mirrors",
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "egress",
        words: &[
            "println", "eprint", "rollout", "reward", "dialect", "endpoint", "llm",
        ],
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "proxy",
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "agents",
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "live",
        words: &["println", "eprint", "rollout", "reward", "verif"],
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "endpoints",
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "engine",
        ..ONLY_THE_PROGRAM_TALKS
    },
    Rule {
        part: "rollcage/server",
        paths: &["crate::cli"],
        words: &[],
        why: "the server stands beside the command line",
    },
    Rule {
        part: "rollcage/server/api",
        paths: &["crate::cli", "crate::server::openenv"],
        words: &[],
        why: "`/v1` and OpenEnv stand side by side",
    },
    Rule {
        part: "rollcage/server/openenv",
        paths: &[
            "rollcage_engine",
            "rollcage_model",
            "rollcage_proxy",
            "rollcage_sandbox",
            "rollcage_agents",
            "rollcage_endpoints",
            "crate::cli",
            "crate::server::api",
            "crate::server::backend",
            "crate::server::rollouts",
            "crate::server::tools",
        ],
        words: &[],
        why: "the wire knows nothing of rollouts: `tool` is all that it and the tools know of each other",
    },
];

#[test]
fn crates_depend_downwards() {
    let mut problems = Vec::new();
    for name in crate_names() {
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("{name} is not in this test's table"));
            continue;
        };
        let path = crate_folder(&name).join("Cargo.toml");
        let manifest: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        for table in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let used = manifest.get(table).and_then(toml::Value::as_table);
            let used = used.into_iter().flat_map(toml::Table::keys);
            for used in used.filter_map(|name| name.strip_prefix("rollcage-")) {
                let is_for_tests = table == "dev-dependencies" && used == "testkit";
                if !allowed.contains(&used) && !is_for_tests {
                    problems.push(format!("{name} must not use {used} ({table})"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Of the modules in one folder (`src` itself, or a module's own), none imports another that imports it, be it through
/// others. A module and those inside it are one family.
#[test]
fn no_module_imports_in_a_circle() {
    let mut problems = String::new();
    for name in crate_names() {
        for circle in circles(&Crate::load(&crate_folder(&name))) {
            problems += &format!("crates/{name}: {circle}\n");
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

#[test]
fn no_part_names_what_belongs_to_another() {
    let problems: Vec<String> = RULES.iter().flat_map(offences).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

fn offences(rule: &Rule) -> Vec<String> {
    let (name, inside) = rule.part.split_once('/').unwrap_or((rule.part, ""));
    let code = Crate::load(&crate_folder(name));
    let inside = Path::new("src").join(inside);
    let is_inside = |path: &Path| path.with_extension("").starts_with(&inside);
    let files: Vec<_> = code.files.iter().filter(|it| is_inside(&it.path)).collect();
    assert!(!files.is_empty(), "there is no {}", rule.part);
    let mut found = Vec::new();
    for file in files {
        let place = |line: usize| format!("crates/{name}/{}:{line}", file.path.display());
        for mention in &file.mentions {
            let path = mention.path.join("::");
            let is_in = |outer: &&&str| {
                let rest = path.strip_prefix(**outer);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            };
            if let Some(outer) = rule.paths.iter().find(is_in) {
                let place = place(mention.line);
                found.push(format!("{place} names {outer}: {}", rule.why));
            }
        }
        for (line, name) in &file.names {
            let lower = name.to_lowercase();
            if rule.words.iter().any(|word| lower.contains(word)) {
                found.push(format!("{} names {name}: {}", place(*line), rule.why));
            }
        }
    }
    found
}
