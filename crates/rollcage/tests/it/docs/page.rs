//! The pages of the documentation: their fenced blocks, with what the comments before a block say of it.

use std::path::{Path, PathBuf};

/// What a comment directly before a block says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// `<!-- not run: REASON -->`: needs what a test does not have.
    NotRun(String),
    /// `<!-- server: PORT -->`: a server that later blocks of the page call at that port.
    Server(u16),
    /// `<!-- file: NAME -->`: a file that later blocks use.
    File(String),
    /// `<!-- run -->` and `<!-- test -->`: run by `.ci/run`.
    ByCi,
}

impl Marker {
    fn read(comment: &str) -> Option<Marker> {
        if ["run", "test"].contains(&comment) {
            return Some(Marker::ByCi);
        }
        let (name, value) = comment.split_once(": ")?;
        match name {
            "not run" => Some(Marker::NotRun(value.to_owned())),
            "server" => value.parse().ok().map(Marker::Server),
            "file" => Some(Marker::File(value.to_owned())),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) marker: Option<Marker>,
    pub(crate) text: String,
    /// Of the opening fence, counted from 1.
    pub(crate) line: usize,
}

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    /// Everything outside of blocks.
    pub(crate) prose: String,
    pub(crate) blocks: Vec<Block>,
}

impl Page {
    pub(crate) fn read(path: PathBuf) -> Page {
        let text = std::fs::read_to_string(&path).unwrap();
        let (prose, blocks) = split(&text);
        Page {
            path,
            prose,
            blocks,
        }
    }

    pub(crate) fn name(&self) -> String {
        let root = root().canonicalize().unwrap();
        let path = self.path.canonicalize().unwrap();
        path.strip_prefix(root).unwrap().display().to_string()
    }

    /// Inline code: what stands between two backticks on one line.
    pub(crate) fn spans(&self) -> impl Iterator<Item = &str> {
        let lines = self.prose.lines();
        lines.flat_map(|line| line.split('`').skip(1).step_by(2))
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// `README.md` and the pages of `docs`, in order.
pub(crate) fn pages() -> Vec<Page> {
    let entries = std::fs::read_dir(root().join("docs")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "md"));
    paths.push(root().join("README.md"));
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

fn split(text: &str) -> (String, Vec<Block>) {
    let mut prose = String::new();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut comments: Vec<&str> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open.as_mut()) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                let marker = comments.drain(..).find_map(Marker::read);
                open = Some(Block {
                    language: language.to_owned(),
                    marker,
                    text: String::new(),
                    line: index + 1,
                });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {
                let comment = line.strip_prefix("<!-- ");
                match comment.and_then(|line| line.strip_suffix(" -->")) {
                    Some(comment) => comments.push(comment),
                    None => comments.clear(),
                }
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    assert!(open.is_none(), "a block is not closed");
    (prose, blocks)
}
