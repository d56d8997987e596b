//! The files of a fake sandbox: a map from absolute paths to content.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};

use rollcage_sandbox::guest::{
    AGENT_LOGS, HOME, LOGS, SETUP, TASK_DIR, TESTS, VERIFIER_LOGS, WORKDIR,
};
use rollcage_sandbox::{DirectoryEntry, EntryKind, Error, FileStatus, StreamedHead, StreamedKind};

const SEALED: [&str; 2] = [VERIFIER_LOGS, TESTS];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    content: BTreeMap<String, Vec<u8>>,
    /// Those of the files that are links, or executable.
    special: BTreeMap<String, StreamedKind>,
    is_unsealed: bool,
    is_setup_sealed: bool,
}

/// Relative paths are relative to the work directory.
fn absolute(path: &str) -> String {
    match path.strip_prefix('/') {
        Some(_) => path.trim_end_matches('/').to_owned(),
        None => format!("{WORKDIR}/{path}"),
    }
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.starts_with('/'))
}

fn error(operation: &'static str, path: &str, kind: ErrorKind) -> Error {
    Error::File {
        operation,
        path: path.to_owned(),
        source: with_errno(kind),
    }
}

/// With an errno if it has one: an error without errno means that the process was killed.
fn with_errno(kind: ErrorKind) -> std::io::Error {
    match kind {
        ErrorKind::NotFound => std::io::Error::from_raw_os_error(2),
        ErrorKind::ReadOnlyFilesystem => std::io::Error::from_raw_os_error(30),
        other => other.into(),
    }
}

impl Files {
    pub(super) fn write(&mut self, path: &str, mode: u32, content: Vec<u8>) -> Result<(), Error> {
        let kind = match mode & 0o100 {
            0 => StreamedKind::File,
            _ => StreamedKind::Program,
        };
        self.place(path, kind, content)
    }

    /// Directories of an archive are not kept: here they are where files are.
    pub(super) fn unpack(&mut self, archive: &[u8], target: &str) -> Result<(), Error> {
        let refused = |source| Error::File {
            operation: "unpack",
            path: target.to_owned(),
            source,
        };
        for entry in tar::Archive::new(archive).entries().map_err(refused)? {
            let mut entry = entry.map_err(refused)?;
            let name = entry.path().map_err(refused)?.display().to_string();
            let path = format!("{}/{name}", target.trim_end_matches('/'));
            match entry.header().entry_type() {
                tar::EntryType::Directory => {}
                tar::EntryType::Symlink => {
                    let link = entry.link_name().map_err(refused)?.unwrap_or_default();
                    let content = link.display().to_string().into_bytes();
                    self.place(&path, StreamedKind::Link, content)?;
                }
                _ => {
                    let mode = entry.header().mode().map_err(refused)?;
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content).map_err(refused)?;
                    self.write(&path, mode, content)?;
                }
            }
        }
        Ok(())
    }

    /// What [`rollcage_sandbox::FileStream`] reads.
    pub(super) fn stream(&self, directory: &str, paths: &[String]) -> Vec<u8> {
        let mut stream = Vec::new();
        for path in paths {
            let path = absolute(&format!("{}/{path}", absolute(directory)));
            let Some(content) = self.content.get(&path) else {
                stream.extend(StreamedHead::NOTHING.encode());
                continue;
            };
            let head = StreamedHead {
                kind: self.kind(&path),
                bytes: content.len() as u64,
            };
            stream.extend(head.encode());
            stream.extend(content);
        }
        stream
    }

    fn kind(&self, path: &str) -> StreamedKind {
        let special = self.special.get(path).copied();
        special.unwrap_or(StreamedKind::File)
    }

    fn place(&mut self, path: &str, kind: StreamedKind, content: Vec<u8>) -> Result<(), Error> {
        let path = absolute(path);
        let is_sealed = SEALED
            .iter()
            .any(|sealed| path == *sealed || is_below(&path, sealed));
        let is_setup = is_below(&path, SETUP);
        if is_sealed && !self.is_unsealed || is_setup && self.is_setup_sealed {
            return Err(error("write", &path, ErrorKind::ReadOnlyFilesystem));
        }
        if self.is_directory(&path) {
            return Err(error("write", &path, ErrorKind::IsADirectory));
        }
        let above = |file: &String| is_below(&path, file);
        if self.content.keys().any(above) {
            return Err(error("write", &path, ErrorKind::NotADirectory));
        }
        self.special.insert(path.clone(), kind);
        self.content.insert(path, content);
        Ok(())
    }

    pub(super) fn read(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        let path = absolute(path);
        match self.content.get(&path) {
            Some(content) if content.len() as u64 > bytes_max => {
                Err(Error::TooLarge { path, bytes_max })
            }
            Some(content) => Ok(content.clone()),
            None if self.is_directory(&path) => Err(Error::NotRegular { path }),
            None => Err(error("read", &path, ErrorKind::NotFound)),
        }
    }

    pub(super) fn stat(&self, path: &str) -> Option<FileStatus> {
        let path = absolute(path);
        let content = self.content.get(&path);
        if content.is_none() && !self.is_directory(&path) {
            return None;
        }
        let (kind, mode) = match content.map(|_| self.kind(&path)) {
            None => (EntryKind::Directory, 0o755),
            Some(StreamedKind::Link) => (EntryKind::Symlink, 0o777),
            Some(StreamedKind::Program) => (EntryKind::File, 0o755),
            Some(_) => (EntryKind::File, 0o644),
        };
        Some(FileStatus {
            kind,
            mode,
            links: 1,
            bytes: content.map_or(0, |content| content.len() as u64),
        })
    }

    /// Removes a file or a tree, if there is one.
    pub(super) fn remove(&mut self, path: &str) {
        let path = absolute(path);
        self.content
            .retain(|file, _| *file != path && !is_below(file, &path));
    }

    pub(super) fn list(
        &self,
        path: &str,
        depth: u32,
        entries_max: usize,
    ) -> Result<Vec<DirectoryEntry>, Error> {
        let path = absolute(path);
        if !self.is_directory(&path) {
            let kind = match self.content.contains_key(&path) {
                true => ErrorKind::NotADirectory,
                false => ErrorKind::NotFound,
            };
            return Err(error("list", &path, kind));
        }
        let mut found = BTreeSet::new();
        let all = self.content.keys().map(String::as_str).chain(BASE);
        for inner in all.filter_map(|file| file.strip_prefix(&path)?.strip_prefix('/')) {
            let parts: Vec<&str> = inner.split('/').collect();
            let shown = parts
                .len()
                .min(usize::try_from(depth).unwrap_or(usize::MAX));
            for count in 1..=shown {
                found.insert(parts[..count].join("/"));
            }
        }
        let entry = |inner: String| {
            let content = self.content.get(&format!("{path}/{inner}"));
            DirectoryEntry {
                kind: match content {
                    Some(_) if self.kind(&format!("{path}/{inner}")) == StreamedKind::Link => {
                        EntryKind::Symlink
                    }
                    Some(_) => EntryKind::File,
                    None => EntryKind::Directory,
                },
                bytes: content.map_or(0, |content| content.len() as u64),
                path: inner,
            }
        };
        Ok(found.into_iter().take(entries_max).map(entry).collect())
    }

    /// Empties the sealed directories and makes them writable.
    pub(super) fn unseal(&mut self) {
        for sealed in SEALED {
            self.content.retain(|file, _| !is_below(file, sealed));
        }
        self.is_unsealed = true;
    }

    /// Empties the tests.
    pub(super) fn renew(&mut self) {
        self.content.retain(|file, _| !is_below(file, TESTS));
    }

    pub(super) fn seal_setup(&mut self) {
        self.is_setup_sealed = true;
    }

    /// What a snapshot keeps.
    pub(super) fn snapshot(&self) -> Files {
        let mut kept = self.clone();
        kept.content
            .retain(|file, _| !is_below(file, LOGS) && !is_below(file, TESTS));
        kept.is_unsealed = false;
        kept.is_setup_sealed = false;
        kept
    }

    /// All files as a tar file, which [`Files::unpack`] reads.
    pub(super) fn archive(&self) -> std::io::Result<Vec<u8>> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in &self.content {
            let mut header = tar::Header::new_gnu();
            let name = path.trim_start_matches('/');
            header.set_mode(match self.kind(path) {
                StreamedKind::Program => 0o755,
                _ => 0o644,
            });
            if self.kind(path) == StreamedKind::Link {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                let target = String::from_utf8_lossy(content).into_owned();
                builder.append_link(&mut header, name, target)?;
                continue;
            }
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, content.as_slice())?;
        }
        builder.into_inner()
    }

    pub(super) fn bytes(&self) -> u64 {
        let sizes = self.content.values().map(|content| content.len() as u64);
        sizes.sum()
    }

    fn is_directory(&self, path: &str) -> bool {
        path.is_empty()
            || BASE
                .iter()
                .any(|base| *base == path || is_below(base, path))
            || self.content.keys().any(|file| is_below(file, path))
    }
}

/// Directories that exist from the start.
const BASE: [&str; 9] = [
    HOME,
    WORKDIR,
    TASK_DIR,
    LOGS,
    AGENT_LOGS,
    VERIFIER_LOGS,
    TESTS,
    "/tmp",
    "/proc",
];
