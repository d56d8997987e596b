//! Puts the files of a task into its sandbox: a few of them one by one, many of them in archives.

use std::time::{SystemTime, UNIX_EPOCH};

use tar::{Builder, EntryType, Header};

use rollcage_sandbox::{Error, Sandbox};

use crate::upload::Upload;

/// More than this many paths go in archives: a process for each would take longer than all of them.
const SINGLE_MAX: usize = 8;
/// The content of one archive; a larger file goes alone. It bounds what is held in memory twice.
const ARCHIVE_BYTES_MAX: usize = 16 << 20;

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed<'a> {
    File {
        content: &'a [u8],
        is_executable: bool,
    },
    Link(&'a str),
    Directory,
}

/// A file of a task, by its absolute path in the sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TaskFile<'a> {
    pub(crate) path: String,
    pub(crate) placed: Placed<'a>,
}

impl<'a> TaskFile<'a> {
    pub(crate) fn text(path: impl Into<String>, text: &'a str) -> TaskFile<'a> {
        TaskFile {
            path: path.into(),
            placed: Placed::File {
                content: text.as_bytes(),
                is_executable: false,
            },
        }
    }
}

impl<'a> From<&'a Upload> for Placed<'a> {
    fn from(upload: &'a Upload) -> Placed<'a> {
        match upload {
            Upload::File {
                content,
                is_executable,
            } => Placed::File {
                content,
                is_executable: *is_executable,
            },
            Upload::Link { target } => Placed::Link(target),
            Upload::Directory => Placed::Directory,
        }
    }
}

/// One operation on the sandbox, which may be tried again.
pub(crate) enum Placement<'a> {
    Single {
        path: String,
        mode: u32,
        content: &'a [u8],
    },
    Archive(Vec<u8>),
}

impl Placement<'_> {
    pub(crate) async fn run(&self, sandbox: &dyn Sandbox) -> Result<(), Error> {
        match self {
            Placement::Single {
                path,
                mode,
                content,
            } => sandbox.write_file(path, *mode, content.to_vec()).await,
            Placement::Archive(archive) => sandbox.unpack(archive.clone(), "/").await,
        }
    }
}

/// The operations that put files in, made one by one. `mode` is that of a file that is not executable by itself.
pub(crate) fn placements(
    files: Vec<TaskFile<'_>>,
    mode: u32,
) -> impl Iterator<Item = Result<Placement<'_>, Error>> {
    let is_plain = |file: &TaskFile<'_>| matches!(file.placed, Placed::File { .. });
    let is_few = files.len() <= SINGLE_MAX && files.iter().all(is_plain);
    let mut files = files.into_iter().peekable();
    let modified = SystemTime::now().duration_since(UNIX_EPOCH);
    let modified = modified.map_or(0, |since| since.as_secs());
    std::iter::from_fn(move || {
        let mut archive: Option<(Builder<Vec<u8>>, usize)> = None;
        while let Some(next) = files.peek() {
            let bytes = match next.placed {
                Placed::File { content, .. } => content.len(),
                Placed::Link(_) | Placed::Directory => 0,
            };
            let is_single = is_few || bytes > ARCHIVE_BYTES_MAX;
            let is_full = archive
                .as_ref()
                .is_some_and(|(_, held)| held + bytes > ARCHIVE_BYTES_MAX);
            if archive.is_some() && (is_single || is_full) {
                break;
            }
            let TaskFile { path, placed } = files.next()?;
            match placed {
                Placed::File {
                    content,
                    is_executable,
                } if is_single => {
                    return Some(Ok(Placement::Single {
                        mode: mode_of(is_executable, mode),
                        path,
                        content,
                    }));
                }
                placed => {
                    let (builder, held) =
                        archive.get_or_insert_with(|| (Builder::new(Vec::new()), 0));
                    *held += bytes;
                    if let Err(source) = add(builder, &path, placed, mode, modified) {
                        return Some(Err(unpackable(path, source)));
                    }
                }
            }
        }
        let (builder, _) = archive?;
        let archive = builder.into_inner();
        Some(match archive {
            Ok(archive) => Ok(Placement::Archive(archive)),
            Err(source) => Err(unpackable("an archive".to_owned(), source)),
        })
    })
}

fn unpackable(path: String, source: std::io::Error) -> Error {
    Error::File {
        operation: "pack",
        path,
        source,
    }
}

fn mode_of(is_executable: bool, mode: u32) -> u32 {
    if is_executable { 0o755 } else { mode }
}

fn add(
    archive: &mut Builder<Vec<u8>>,
    path: &str,
    placed: Placed<'_>,
    mode: u32,
    modified: u64,
) -> std::io::Result<()> {
    let path = path.trim_start_matches('/');
    let mut header = Header::new_gnu();
    header.set_mtime(modified);
    header.set_size(0);
    match placed {
        Placed::File {
            content,
            is_executable,
        } => {
            header.set_entry_type(EntryType::Regular);
            header.set_mode(mode_of(is_executable, mode));
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content)
        }
        Placed::Link(target) => {
            header.set_entry_type(EntryType::Symlink);
            header.set_mode(0o777);
            archive.append_link(&mut header, path, target)
        }
        Placed::Directory => {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o755);
            archive.append_data(&mut header, path, std::io::empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(files: Vec<TaskFile<'_>>) -> Vec<String> {
        let shown = |placement: Result<Placement<'_>, Error>| match placement.unwrap() {
            Placement::Single { path, mode, .. } => format!("{path} {mode:o}"),
            Placement::Archive(archive) => {
                let mut archive = tar::Archive::new(archive.as_slice());
                let entries = archive.entries().unwrap();
                let name = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
                    let entry = entry.unwrap();
                    let path = entry.path().unwrap().display().to_string();
                    format!("{path} {:o}", entry.header().mode().unwrap())
                };
                entries.map(name).collect::<Vec<_>>().join(", ")
            }
        };
        placements(files, 0o644).map(shown).collect()
    }

    fn file(path: &str, content: &'static [u8]) -> TaskFile<'static> {
        TaskFile {
            path: path.to_owned(),
            placed: Placed::File {
                content,
                is_executable: path.ends_with("run"),
            },
        }
    }

    #[test]
    fn few_files_go_alone_and_a_tree_in_one_archive() {
        assert_eq!(
            shown(vec![file("/a", b"1"), file("/run", b"")]),
            ["/a 644", "/run 755"]
        );
        let link = TaskFile {
            path: "/b/link".to_owned(),
            placed: Placed::Link("x"),
        };
        let empty = TaskFile {
            path: "/b/empty".to_owned(),
            placed: Placed::Directory,
        };
        assert_eq!(
            shown(vec![file("/a", b"1"), link, empty, file("/b/run", b"")]),
            ["a 644, b/link 777, b/empty 755, b/run 755"]
        );
    }

    #[test]
    fn archives_are_bounded_and_a_large_file_goes_alone() {
        static LARGE: [u8; ARCHIVE_BYTES_MAX + 1] = [0; ARCHIVE_BYTES_MAX + 1];
        let half = &LARGE[..ARCHIVE_BYTES_MAX / 2];
        let mut files: Vec<_> = ["/a", "/b", "/c"].map(|path| file(path, half)).into();
        files.insert(1, file("/large", &LARGE));
        files.push(TaskFile {
            path: "/d".to_owned(),
            placed: Placed::Directory,
        });
        assert_eq!(shown(files), ["a 644", "/large 644", "b 644, c 644, d 755"]);
    }
}
