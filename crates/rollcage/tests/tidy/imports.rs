//! Which modules of a crate name which others.
//!
//! A path counts wherever it stands: in `use` with or without groups, and in the middle of code. A name that a module only
//! passes on (`pub use`) counts as a name of the module that has it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::source::{Source, Word, rust_files};

/// A module by its names from the crate's root on; the root is empty.
pub(crate) type Module = Vec<String>;

/// One mention of a name.
#[derive(Clone, Debug)]
pub(crate) struct Mention {
    /// From the crate's root with `crate` before it, or from another crate.
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// One file of a crate.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) module: Module,
    pub(crate) mentions: Vec<Mention>,
    /// Every name in it, with its line.
    pub(crate) names: Vec<(usize, String)>,
    /// What `use` brings into the module, by its name there.
    imports: HashMap<String, Vec<String>>,
}

/// The code of a crate, without its tests and its other programs (`src/bin`).
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) files: Vec<File>,
}

/// Where a module names another one.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

impl Crate {
    pub(crate) fn load(folder: &Path) -> Self {
        let src = folder.join("src");
        let paths = rust_files(&src).into_iter();
        let paths = paths.filter(|path| !path.starts_with(src.join("bin")));
        Self::read(paths.map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.strip_prefix(folder).unwrap().to_owned(), text)
        }))
    }

    /// Of files below a crate's folder, by their path in it.
    pub(crate) fn read(files: impl Iterator<Item = (PathBuf, String)>) -> Self {
        let read: Vec<_> = files
            .map(|(path, text)| (module_of(&path), path, Source::read(&text)))
            .collect();
        let tests: Vec<Module> = read
            .iter()
            .flat_map(|(module, _, source)| {
                let of = |name: &String| [module.as_slice(), std::slice::from_ref(name)].concat();
                source.test_modules.iter().map(of)
            })
            .collect();
        let is_test = |module: &Module| tests.iter().any(|test| module.starts_with(test));
        let modules: Vec<Module> = read.iter().map(|(module, _, _)| module.clone()).collect();
        let files = read.into_iter().filter(|(module, _, _)| !is_test(module));
        let files = files.map(|(module, path, source)| {
            let (mentions, imports) = mentions_in(&source.words, &module, &modules);
            let names = source.words.into_iter().filter(|it| is_name(&it.text));
            File {
                path,
                module,
                mentions,
                names: names.map(|it| (it.line, it.text)).collect(),
                imports,
            }
        });
        Crate {
            files: files.collect(),
        }
    }

    /// The module that has what a path names, where that is one of this crate's.
    fn owner(&self, path: &[String]) -> Option<Module> {
        let file = |module: &[String]| self.files.iter().find(|file| file.module == module);
        let mut path = path.to_vec();
        // More names than this are passed on in a circle.
        for _ in 0..8 {
            let (root, names) = path.split_first()?;
            if root != "crate" {
                return None;
            }
            let is_module = |len: &usize| file(&names[..*len]).is_some();
            let depth = (0..=names.len()).take_while(is_module).last()?;
            let module = &names[..depth];
            let passed_on = names.get(depth).and_then(|name| {
                let target = file(module)?.imports.get(name)?;
                Some([target.as_slice(), &names[depth + 1..]].concat())
            });
            match passed_on {
                Some(target) if target.first().is_some_and(|root| root == "crate") => path = target,
                _ => return Some(module.to_vec()),
            }
        }
        None
    }

    /// By folder (the module that the others are in): who names whom beside it, and where for the first time. Modules
    /// and what is inside them are one family, which may name each other as it likes.
    pub(crate) fn edges(&self) -> BTreeMap<Module, BTreeMap<(String, String), Edge>> {
        let mut folders: BTreeMap<Module, BTreeMap<(String, String), Edge>> = BTreeMap::new();
        for file in &self.files {
            for mention in &file.mentions {
                let Some(owner) = self.owner(&mention.path) else {
                    continue;
                };
                let same = file.module.iter().zip(&owner);
                let depth = same.take_while(|(left, right)| left == right).count();
                let (Some(from), Some(to)) = (file.module.get(depth), owner.get(depth)) else {
                    continue;
                };
                let folder = folders.entry(owner[..depth].to_vec()).or_default();
                let edge = folder.entry((from.clone(), to.clone()));
                edge.or_insert_with(|| Edge {
                    path: file.path.clone(),
                    line: mention.line,
                });
            }
        }
        folders
    }
}

fn module_of(path: &Path) -> Module {
    let inside = path.strip_prefix("src").unwrap().with_extension("");
    let parts = inside.iter().map(|part| part.to_str().unwrap().to_owned());
    let parts: Vec<String> = parts.collect();
    match parts.as_slice() {
        [root] if root == "lib" || root == "main" => Vec::new(),
        _ => parts,
    }
}

type Imports = HashMap<String, Vec<String>>;

/// Every path of a file, and those that `use` gives a name.
fn mentions_in(words: &[Word], module: &Module, modules: &[Module]) -> (Vec<Mention>, Imports) {
    let mut mentions = Vec::new();
    let mut imports = HashMap::new();
    let text = |at: usize| words.get(at).map_or("", |word| word.text.as_str());
    let mut at = 0;
    while at < words.len() {
        let is_use = text(at) == "use";
        let start = at + usize::from(is_use);
        // In the middle of code only what is written as a path: names alone are the `use` line's business.
        if !is_use && (text(start + 1) != "::" || !is_name(text(start))) {
            at += 1;
            continue;
        }
        let mut leaves = Vec::new();
        at = tree(words, start, &mut Vec::new(), &mut leaves).max(at + 1);
        for leaf in leaves {
            let path = absolute(&leaf.path, module, modules);
            if is_use && let Some(name) = leaf.name.filter(|name| *name != path[0]) {
                imports.insert(name, path.clone());
            }
            let line = leaf.line;
            mentions.push(Mention { path, line });
        }
    }
    (mentions, imports)
}

struct Leaf {
    path: Vec<String>,
    /// What it is called where it is used; `None` for all that is inside (`*`).
    name: Option<String>,
    line: usize,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|it: char| it.is_alphabetic() || it == '_')
}

/// Reads `a::b::{c, d::e as f}` from `at` on, and gives the place behind it.
fn tree(words: &[Word], mut at: usize, prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) -> usize {
    let text = |at: usize| words.get(at).map_or("", |word| word.text.as_str());
    let depth = prefix.len();
    loop {
        match text(at) {
            "{" => {
                at += 1;
                while !matches!(text(at), "}" | "") {
                    at = tree(words, at, prefix, leaves).max(at + 1);
                    at += usize::from(text(at) == ",");
                }
                at += 1;
                break;
            }
            "*" => {
                let (path, line) = (prefix.clone(), words[at].line);
                leaves.push(Leaf {
                    path,
                    name: None,
                    line,
                });
                at += 1;
                break;
            }
            name if is_name(name) => {
                if name != "self" || prefix.is_empty() {
                    prefix.push(name.to_owned());
                }
                let goes_on = text(at + 1) == "::"
                    && (is_name(text(at + 2)) || matches!(text(at + 2), "{" | "*"));
                if goes_on {
                    at += 2;
                    continue;
                }
                let line = words[at].line;
                at += 1;
                let mut name = prefix.last().cloned();
                if text(at) == "as" {
                    name = Some(text(at + 1).to_owned());
                    at += 2;
                }
                leaves.push(Leaf {
                    path: prefix.clone(),
                    name,
                    line,
                });
                break;
            }
            _ => break,
        }
    }
    prefix.truncate(depth);
    at
}

/// `self`, `super` and the names of modules inside stand for paths from the root.
fn absolute(path: &[String], module: &Module, modules: &[Module]) -> Vec<String> {
    let root = || "crate".to_owned();
    let Some(first) = path.first() else {
        return Vec::new();
    };
    let n_super = path.iter().take_while(|name| *name == "super").count();
    let (up, rest) = match first.as_str() {
        "super" => (n_super, &path[n_super..]),
        "self" => (0, &path[1..]),
        // A module inside this one, by its name alone.
        _ if modules.contains(&[module.as_slice(), std::slice::from_ref(first)].concat()) => {
            (0, path)
        }
        _ => return path.to_vec(),
    };
    let above = &module[..module.len().saturating_sub(up)];
    [&[root()], above, rest].concat()
}

/// A circle in each folder that has one: the modules in order, and the lines that close it.
pub(crate) fn circles(code: &Crate) -> Vec<String> {
    let mut found = Vec::new();
    for (folder, edges) in code.edges() {
        let next = |from: &str| -> Vec<&String> {
            let out = edges.keys().filter(|(start, _)| start == from);
            out.map(|(_, to)| to).collect()
        };
        let shortest = edges.keys().filter_map(|(from, to)| {
            let mut paths = vec![vec![from, to]];
            let mut seen = vec![to];
            while let Some(path) = (!paths.is_empty()).then(|| paths.remove(0)) {
                let last = path[path.len() - 1];
                if last == from {
                    return Some(path);
                }
                for to in next(last) {
                    if !seen.contains(&to) {
                        seen.push(to);
                        paths.push([path.as_slice(), &[to]].concat());
                    }
                }
            }
            None
        });
        let Some(circle) = shortest.min_by_key(Vec::len) else {
            continue;
        };
        let names: Vec<&str> = circle.iter().map(|name| name.as_str()).collect();
        let mut text = format!("{}{}", prefix(&folder), names.join(" → "));
        for pair in circle.windows(2) {
            let edge = &edges[&(pair[0].clone(), pair[1].clone())];
            text += &format!("\n    {}:{}", edge.path.display(), edge.line);
            text += &format!(" names {}", pair[1]);
        }
        found.push(text);
    }
    found
}

fn prefix(folder: &Module) -> String {
    match folder.is_empty() {
        true => String::new(),
        false => format!("in {}: ", folder.join("::")),
    }
}

mod tests {
    use super::*;

    /// Files by their path below `src`, and the circles in them.
    #[track_caller]
    fn check(files: &[(&str, &str)], expect: &[&str]) {
        let files = files.iter().map(|(path, text)| {
            let path = Path::new("src").join(path);
            (path, (*text).to_owned())
        });
        let found = circles(&Crate::read(files));
        assert_eq!(found, expect);
    }

    #[test]
    fn circles_are_found_in_groups_and_in_the_middle_of_code() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::{c,\n b::{self, X as Y}};"),
                ("b.rs", "fn f() {\n let x = g(crate::a::h::<u8>());\n}"),
            ],
            &["a → b → a\n    src/a.rs:2 names b\n    src/b.rs:2 names a"],
        );
    }

    #[test]
    fn circles_are_found_inside_folders_and_through_others() {
        check(
            &[
                ("lib.rs", "mod a;"),
                ("a.rs", "mod b; mod c; mod d; use b::X;"),
                ("a/b.rs", "use super::c::X;"),
                ("a/c.rs", "mod e;"),
                ("a/c/e.rs", "use super::super::d::X;"),
                ("a/d.rs", "use crate::a::b;"),
            ],
            &[
                "in a: b → c → d → b\n    src/a/b.rs:1 names c\n    src/a/c/e.rs:1 names d\n    src/a/d.rs:1 names b",
            ],
        );
    }

    #[test]
    fn a_name_that_is_passed_on_is_its_owners() {
        check(
            &[
                ("lib.rs", "mod a; mod b; pub use a::X;"),
                ("a.rs", "use crate::b::Y;"),
                ("b.rs", "use crate::X;"),
            ],
            &["a → b → a\n    src/a.rs:1 names b\n    src/b.rs:1 names a"],
        );
    }

    #[test]
    fn tests_families_and_one_way_are_no_circles() {
        check(
            &[
                ("lib.rs", "mod a; mod b; #[cfg(test)] mod double;"),
                ("a.rs", "mod c; use crate::b::X; use c::Y; // crate::d"),
                ("a/c.rs", "use super::Z; use crate::b;"),
                ("b.rs", "#[cfg(test)]\nmod tests { use crate::a; }"),
                ("b/d.rs", "#[cfg(test)] mod tests;"),
                ("b/d/tests.rs", "use crate::a;"),
                ("double.rs", "use crate::a;"),
            ],
            &[],
        );
    }
}
