//! Rust sources as these tests read them: without comments, texts and tests, and split into words.

use std::path::{Path, PathBuf};

/// Where a crate lies, by the name of its folder.
pub(crate) fn crate_folder(name: &str) -> PathBuf {
    crates().join(name)
}

pub(crate) fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

pub(crate) fn crate_names() -> Vec<String> {
    let folders = std::fs::read_dir(crates()).unwrap().flatten();
    let folders = folders.filter(|entry| entry.path().join("Cargo.toml").is_file());
    let mut names: Vec<String> = folders
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 5, "{names:?}");
    names
}

/// Every Rust file below a folder, in order.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A name, `::`, or another character that is no blank, with the number of its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The words of a source, and the modules that it declares for tests alone.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) words: Vec<Word>,
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn read(text: &str) -> Self {
        let mut source = Source {
            words: words_of(&without_texts(text)),
            test_modules: Vec::new(),
        };
        source.take_out_tests();
        source
    }

    fn take_out_tests(&mut self) {
        const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
        let mut kept = Vec::new();
        let mut rest = self.words.as_slice();
        while let Some(word) = rest.first() {
            let is_marked = rest.len() >= MARK.len()
                && rest.iter().zip(MARK).all(|(word, mark)| word.text == mark);
            if !is_marked {
                kept.push(word.clone());
                rest = &rest[1..];
                continue;
            }
            let item = &rest[MARK.len()..];
            let end = end_of_item(item);
            let item_words: Vec<&str> = item[..end].iter().map(|it| it.text.as_str()).collect();
            let module = item_words.iter().position(|word| *word == "mod");
            if let (Some(at), Some(&";")) = (module, item_words.last()) {
                self.test_modules.push(item_words[at + 1].to_owned());
            }
            rest = &item[end..];
        }
        self.words = kept;
    }
}

/// How many words an item has: up to its semicolon, or to the end of its block.
fn end_of_item(words: &[Word]) -> usize {
    let mut depth = 0usize;
    for (at, word) in words.iter().enumerate() {
        match word.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && word.text == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    words.len()
}

fn words_of(code: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_name = |it: char| it.is_alphanumeric() || it == '_';
            let len = if is_name(first) {
                rest.find(|it| !is_name(it)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            words.push(Word {
                text: rest[..len].to_owned(),
                line,
            });
            rest = rest[len..].trim_start();
        }
    }
    words
}

/// The same text with blanks for comments and for what is quoted; lines stay where they are.
fn without_texts(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = quoted_len(rest, code.chars().last());
        if len == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let blanks = |it: char| if it == '\n' { '\n' } else { ' ' };
            code.extend(rest[..len].chars().map(blanks));
            rest = &rest[len..];
        }
    }
    code
}

/// The length of the comment or the literal that the text starts with, or 0.
fn quoted_len(text: &str, before: Option<char>) -> usize {
    let until = |end: &str, from: usize| {
        let found = text[from..].find(end);
        found.map_or(text.len(), |at| from + at + end.len())
    };
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return until("*/", 2);
    }
    if text.starts_with('"') {
        return string_len(text);
    }
    let is_in_name = before.is_some_and(|it| it.is_alphanumeric() || it == '_');
    if let Some(raw) = text.strip_prefix('r').filter(|_| !is_in_name) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), 2 + hashes);
        }
    }
    // A character, and not a lifetime: those have no quote behind them.
    if let Some(inner) = text.strip_prefix('\'') {
        let mut chars = inner.chars();
        return match chars.next() {
            Some('\\') => 2 + inner[1..].find('\'').map_or(0, |at| at.max(1) + 1),
            Some(it) if chars.next() == Some('\'') => 2 + it.len_utf8(),
            _ => 0,
        };
    }
    0
}

fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, it) in text.char_indices().skip(1) {
        match it {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

#[test]
fn comments_texts_and_tests_are_no_code() {
    let text = r##"
//! crate::comment
fn a<'a>(b: &'a str) { "crate::text \" still"; r#"crate::raw""#; b'\''; '\u{1F}'; '"'; c /* crate::no */ }
#[cfg(test)]
mod tests;
#[cfg(test)]
#[expect(dead_code)]
mod inline { fn no() { crate::no() } }
fn d() {}
"##;
    let source = Source::read(text);
    let words: Vec<&str> = source.words.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(
        words.join(" "),
        "fn a < ' a > ( b : & ' a str ) { ; ; b ; ; ; c } fn d ( ) { }"
    );
    assert_eq!(source.test_modules, ["tests"]);
    assert_eq!(source.words.last().unwrap().line, 9);
}
