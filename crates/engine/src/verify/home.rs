//! What the author of a task names of the agent's home. Other entries that begin with a dot are settings of programs, and
//! verify commands see those as they were when setup ended.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;

use rollcage_model::task::{is_test, path_inside};

use crate::plan::Plan;
use crate::upload::Upload;

/// How texts write the home directory before a path in it.
const HOMES: [&str; 5] = ["~", "$HOME", "${HOME}", "$HOME\"", "/home/user"];
/// How far back a program names the home directory before a quoted entry of it, as in `Path.home() / ".vimrc"`.
const NEAR_CHARS: usize = 24;

/// Paths below the home that verify commands, or tests, name, such as `.vimrc`.
pub(super) fn named(plan: &Plan) -> Vec<PathBuf> {
    let mut named = BTreeSet::new();
    for text in verifier_texts(plan) {
        collect(&text, &mut named);
    }
    named.into_iter().collect()
}

/// What the author wrote for the verifier.
pub(super) fn verifier_texts(plan: &Plan) -> Vec<Cow<'_, str>> {
    let task = &plan.task;
    let services = task.verify_services.iter();
    let services = services.flat_map(|service| [Some(&service.run), service.ready.as_ref()]);
    let texts = task.verify.iter().chain(services.flatten());
    let is_of_tests = |path: &String| path_inside(path).is_ok_and(|path| is_test(&path));
    let files = task.files.iter().filter(|(path, _)| is_of_tests(path));
    let texts = texts.chain(files.map(|(_, text)| text)).map(String::as_str);
    let mut texts: Vec<_> = texts.chain(task.test_script()).map(Cow::Borrowed).collect();
    for (_, upload) in plan.uploads.iter().filter(|(path, _)| is_of_tests(path)) {
        if let Upload::File { content, .. } = upload {
            texts.push(String::from_utf8_lossy(content));
        }
    }
    texts
}

fn collect(text: &str, named: &mut BTreeSet<PathBuf>) {
    for (at, _) in text.match_indices('.') {
        if !is_in_home(&text[..at]) {
            continue;
        }
        let is_of_name = |char: char| char.is_ascii_alphanumeric() || "._-+/".contains(char);
        let rest = &text[at..];
        let end = rest.find(|char| !is_of_name(char)).unwrap_or(rest.len());
        // A full stop at the end is the sentence's.
        let path = rest[..end].trim_end_matches(['/', '.']);
        let is_path =
            path.len() > 1 && path.split('/').all(|part| !["", ".", ".."].contains(&part));
        if is_path {
            named.insert(PathBuf::from(path));
        }
    }
}

/// Whether what comes next in a text is in the home directory.
fn is_in_home(before: &str) -> bool {
    if let Some(before) = before.strip_suffix('/') {
        return HOMES.iter().any(|home| before.ends_with(home));
    }
    let Some(before) = before.strip_suffix(['"', '\'']) else {
        return false;
    };
    let line = before.rsplit('\n').next().unwrap_or(before);
    let near = line.char_indices().rev().take(NEAR_CHARS).last();
    let near = near.map_or("", |(at, _)| &line[at..]);
    near.to_ascii_lowercase().contains("home")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let mut named = BTreeSet::new();
        collect(text, &mut named);
        let shown = named.iter().map(|path| path.display().to_string());
        shown.collect()
    }

    #[test]
    fn entries_of_the_home_are_found_however_they_are_written() {
        assert_eq!(names("grep -q set ~/.vimrc"), [".vimrc"]);
        assert_eq!(
            names("cat $HOME/.a ${HOME}/.b \"$HOME\"/.c"),
            [".a", ".b", ".c"]
        );
        assert_eq!(
            names("test -f /home/user/.config/nvim/init.lua"),
            [".config/nvim/init.lua"]
        );
        assert_eq!(names("(Path.home() / '.vimrc').read_text()"), [".vimrc"]);
        assert_eq!(
            names("os.path.join(os.environ['HOME'], \".ssh/config\")"),
            [".ssh/config"]
        );
        assert_eq!(names("open(os.path.expanduser('~/.bashrc'))."), [".bashrc"]);
    }

    #[test]
    fn other_dots_name_nothing() {
        for text in [
            "cat .gitignore",
            "cd ~ && ls .",
            "~/../.x",
            "python3 ~/workdir/a.py",
            "test -d ~/.",
            "x = '.vimrc'",
            "/srv/.cache",
        ] {
            assert_eq!(names(text), Vec::<String>::new(), "{text}");
        }
    }
}
