//! Which paths of a mirror are its packages. A machine's password goes with requests for these alone, since the same host may
//! serve other things to whoever has it. What is not listed here is not read.
//!
//! Paths are compared after their percent-encoding is gone, and those that a server could read otherwise than we do (an
//! encoded slash, `..`, `//`, `;`, a backslash, an encoding within an encoding, a query) are nobody's packages.

mod search;
#[cfg(test)]
mod tests;

use percent_encoding::percent_decode_str;

pub use search::Search;

/// As long as the name of a file can be.
const NAME_BYTES_MAX: usize = 255;

/// What stands at a mirror's URL. Paths of folders end with a slash and are as they are written in the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// A simple index of Python packages: a page for each project, and the files that the page of their project names.
    Simple(String),
    /// A page with links, and the files that it names.
    Page(String),
    /// A registry of npm: the documents and the archives of packages.
    Npm(String),
    /// A sparse index of cargo, and crates where its `config.json` says.
    Cargo(String),
    /// A repository of apt: `dists`, `pool`, and the folders of suites that have no components.
    Apt { base: String, flat: Vec<String> },
    /// A list of mirrors for apt.
    File(String),
    /// Python itself, as uv installs it.
    Pythons(String),
}

/// Whether a path is a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    No,
    Yes,
    /// If the index names it on the page with this path.
    IfNamed {
        page: String,
    },
}

impl Reads {
    /// Judges the path of a request that has no query.
    pub fn reading(&self, path: &str) -> Reading {
        match self {
            Reads::Simple(base) => simple(base, path),
            Reads::Page(page) if path == page => Reading::Yes,
            Reads::Page(page) => if_named(path, page.clone()),
            Reads::Npm(base) => yes(below(base, path).is_some_and(is_npm)),
            Reads::Cargo(base) => cargo(base, path),
            Reads::Apt { base, flat } => yes(is_apt(base, flat, path)),
            Reads::File(file) => yes(path == file),
            Reads::Pythons(base) => yes(below(base, path).is_some_and(is_python)),
        }
    }

    /// Looks for a path in the page that [`Reading::IfNamed`] names; `page` is its whole URL.
    pub fn search(&self, page: &str, path: &str) -> Option<Search> {
        match self {
            Reads::Cargo(_) => Search::of_config(page, path),
            _ => Search::of_links(page, path),
        }
    }
}

fn yes(is_package: bool) -> Reading {
    match is_package {
        true => Reading::Yes,
        false => Reading::No,
    }
}

fn if_named(path: &str, page: String) -> Reading {
    match segments(path.strip_prefix('/').unwrap_or(path)) {
        Some(_) => Reading::IfNamed { page },
        None => Reading::No,
    }
}

/// What of a path is below a folder. The folder itself is compared as it is written.
fn below<'a>(base: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(base)
}

/// The parts of a path, decoded; `None` where some server could read it otherwise.
fn segments(path: &str) -> Option<Vec<String>> {
    path.split('/').map(segment).collect()
}

fn segment(written: &str) -> Option<String> {
    let text = percent_decode_str(written).decode_utf8().ok()?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~+!@".contains(letter);
    let is_name = text.chars().any(|letter| letter != '.') && text.chars().all(is_plain);
    (is_name && text.len() <= NAME_BYTES_MAX).then(|| text.into_owned())
}

fn simple(base: &str, path: &str) -> Reading {
    let Some(rest) = below(base, path) else {
        return file_of_project(base, path);
    };
    let parts = segments(rest.strip_suffix('/').unwrap_or(rest));
    match parts.as_deref() {
        _ if rest.is_empty() => Reading::Yes,
        Some([project]) if is_project(project) => match base {
            // Anything of the host may be at its root; an index there says what is its own.
            "/" => if_named(path.trim_end_matches('/'), base.to_owned()),
            _ => Reading::Yes,
        },
        Some([_, ..]) => file_of_project(base, path),
        _ => Reading::No,
    }
}

fn is_project(name: &str) -> bool {
    let is_end = |letter: Option<char>| letter.is_some_and(|it| it.is_ascii_alphanumeric());
    is_end(name.chars().next())
        && is_end(name.chars().last())
        && name
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || "-._".contains(it))
}

/// A file's name begins with its project's. The page of that project has to name it.
fn file_of_project(base: &str, path: &str) -> Reading {
    let Some(parts) = segments(path.strip_prefix('/').unwrap_or(path)) else {
        return Reading::No;
    };
    let file = parts.last().map_or("", |name| without_metadata(name));
    let project = match file.strip_suffix(".whl") {
        Some(wheel) => wheel.split_once('-').map(|(project, _)| project),
        None => file.rsplit_once('-').map(|(project, _)| project),
    };
    match project.filter(|project| is_project(project)) {
        Some(project) => Reading::IfNamed {
            page: format!("{base}{}/", normalized(project)),
        },
        None => Reading::No,
    }
}

/// An index that names a file has its metadata beside it.
fn without_metadata(name: &str) -> &str {
    name.strip_suffix(".metadata").unwrap_or(name)
}

/// The name of a project as it stands in the URL of its page.
fn normalized(project: &str) -> String {
    let parts = project.split(['-', '_', '.']);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join("-").to_ascii_lowercase()
}

fn is_npm(rest: &str) -> bool {
    // npm writes the slash behind a scope as %2f.
    let (first, behind) = rest
        .split_once('/')
        .map_or((rest, None), |(first, behind)| (first, Some(behind)));
    let first = match first.starts_with('@') {
        true => first.replacen("%2f", "/", 1).replacen("%2F", "/", 1),
        false => first.to_owned(),
    };
    let whole = behind.map_or(first.clone(), |behind| format!("{first}/{behind}"));
    let Some(parts) = segments(&whole) else {
        return false;
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let is_name =
        |name: &str| name.starts_with(|it: char| it.is_ascii_alphanumeric()) && !name.contains('@');
    let (scope, parts) = match parts.split_first() {
        Some((scope, rest)) if scope.strip_prefix('@').is_some_and(is_name) => (Some(*scope), rest),
        _ => (None, parts.as_slice()),
    };
    let is_archive = |file: &str, name: &str| {
        let behind = file.strip_prefix(name).and_then(|it| it.strip_prefix('-'));
        behind.is_some_and(|version| version.ends_with(".tgz"))
    };
    match parts {
        [name] => is_name(name),
        [name, version] => {
            let is_version = version.starts_with(|it: char| it.is_ascii_digit());
            is_name(name) && (is_version || *version == "latest")
        }
        [name, "-", file] => is_name(name) && is_archive(file, name),
        [name, "-", again, file] => {
            is_name(name) && scope == Some(*again) && is_archive(file, name)
        }
        _ => false,
    }
}

fn cargo(base: &str, path: &str) -> Reading {
    let parts = below(base, path).and_then(segments);
    let parts: Option<Vec<&str>> = parts
        .as_ref()
        .map(|parts| parts.iter().map(String::as_str).collect());
    let is_index = match parts.as_deref() {
        Some(["config.json"]) => true,
        Some(["1", name]) => name.len() == 1,
        Some(["2", name]) => name.len() == 2,
        Some(["3", first, name]) => name.len() == 3 && name.starts_with(first) && first.len() == 1,
        Some([first, second, name]) => {
            let folders = format!("{first}{second}");
            first.len() == 2 && second.len() == 2 && name.starts_with(&folders)
        }
        _ => false,
    };
    match is_index {
        true => Reading::Yes,
        false => if_named(path, format!("{base}config.json")),
    }
}

fn is_apt(base: &str, flat: &[String], path: &str) -> bool {
    let Some(rest) = below(base, path) else {
        return false;
    };
    let Some(parts) = segments(rest) else {
        return false;
    };
    let is_listed = matches!(parts[0].as_str(), "dists" | "pool") && parts.len() > 1;
    let is_flat = |suite: &String| {
        let file = rest.strip_prefix(suite.as_str()).and_then(segments);
        match file.as_deref() {
            Some([file]) => is_flat_file(file),
            _ => false,
        }
    };
    is_listed || flat.iter().any(is_flat)
}

/// A file of a repository whose packages stand beside its index.
fn is_flat_file(name: &str) -> bool {
    let indexes = ["InRelease", "Release", "Release.gpg", "Packages", "Sources"];
    let plain = [".gz", ".xz", ".bz2", ".lzma", ".zst", ".lz4"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    indexes.contains(&plain)
        || [".deb", ".dsc", ".tar"]
            .iter()
            .any(|end| plain.ends_with(end))
}

fn is_python(rest: &str) -> bool {
    let Some(parts) = segments(rest) else {
        return false;
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        [day, file] => {
            let is_day = day.len() == 8 && day.bytes().all(|digit| digit.is_ascii_digit());
            is_day && file.starts_with("cpython-")
        }
        [file] => file.starts_with("pypy"),
        _ => false,
    }
}
