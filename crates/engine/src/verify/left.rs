//! Files that verify commands leave for the grade: which commands make one, and whether it is one as a command leaves it.

use std::collections::BTreeMap;
use std::io;

use rollcage_model::finding::Code;
use rollcage_model::task::{TEST_SCRIPT, Task};
use rollcage_model::text::chain;
use rollcage_sandbox::{EntryKind, Error, FileStatus, Sandbox};

use super::remark::Remark;
use super::{is_starved, unstarved};
use crate::upload::Upload;

/// The owner's write permission.
const OWNER_WRITES: u32 = 0o200;

/// What stands at the place of such a file.
#[derive(Debug, PartialEq)]
pub(super) enum Left {
    Nothing,
    Content(Vec<u8>),
    /// Nothing that counts.
    Useless(Remark),
}

/// Where a task names a file.
pub(super) struct Named {
    /// By command: whether it does so itself, or runs a file of the task that does.
    pub(super) by_command: Vec<bool>,
    pub(super) anywhere: bool,
}

/// Looks for a file's name in all that a task's author wrote.
pub(super) fn named(
    name: &str,
    task: &Task,
    uploads: &BTreeMap<String, Upload>,
    commands: &[&str],
) -> Named {
    let names_it = |text: &str| text.contains(name);
    let uploads = uploads.iter().filter(|(_, upload)| match upload {
        Upload::File { content, .. } => names_it(&String::from_utf8_lossy(content)),
        Upload::Link { .. } | Upload::Directory => false,
    });
    let texts = task.files.iter().filter(|(_, text)| names_it(text));
    let paths = texts
        .map(|(path, _)| path)
        .chain(uploads.map(|(path, _)| path));
    let scripts: Vec<&str> = paths
        .map(|path| path.rsplit('/').next().unwrap_or(path))
        .collect();
    let test_script = task.test_script().filter(|text| names_it(text));
    let by_command = commands.iter().map(|command| {
        names_it(command)
            || scripts.iter().any(|script| command.contains(script))
            || (*command == TEST_SCRIPT && test_script.is_some())
    });
    Named {
        by_command: by_command.collect(),
        anywhere: !scripts.is_empty() || task.author_texts().any(names_it),
    }
}

/// Takes what a command left at a path, once all of its processes are dead. `Err` means that the sandbox itself is broken.
pub(super) async fn take(sandbox: &dyn Sandbox, path: &str, bytes_max: u64) -> Result<Left, Error> {
    let status = match unstarved(|| sandbox.stat(path)).await {
        Ok(None) => return Ok(Left::Nothing),
        Ok(Some(status)) => status,
        Err(error) => return unreadable(path, error),
    };
    if let Some(why) = tampered(&status) {
        return Ok(Left::Useless(Remark {
            code: Code::RewardTampered,
            text: format!("{path} {why}"),
        }));
    }
    match unstarved(|| sandbox.read_file(path, bytes_max)).await {
        Ok(content) => Ok(Left::Content(content)),
        Err(error) => unreadable(path, error),
    }
}

fn unreadable(path: &str, error: Error) -> Result<Left, Error> {
    let code = match &error {
        // The memory is used up by files of the agent, so the agent gets the reward for that.
        error if is_starved(error) => Code::VerifierStarved,
        Error::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Left::Nothing);
        }
        Error::TooLarge { .. } | Error::NotRegular { .. } | Error::File { .. } => {
            Code::RewardUnreadable
        }
        _ => return Err(error),
    };
    Ok(Left::Useless(Remark {
        code,
        text: format!("{path} could not be read ({})", chain(&error)),
    }))
}

/// Why a file cannot be what a verifier wrote as it would.
fn tampered(status: &FileStatus) -> Option<&'static str> {
    match status.kind {
        EntryKind::Directory => Some("is a directory"),
        EntryKind::Symlink => Some("is a link"),
        EntryKind::Other => Some("is no regular file"),
        EntryKind::File if status.links != 1 => Some("has several names"),
        EntryKind::File if status.mode & OWNER_WRITES == 0 => {
            Some("cannot be written to by its owner")
        }
        EntryKind::File => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_file_of_its_owners_counts() {
        let plain = FileStatus {
            kind: EntryKind::File,
            mode: 0o644,
            links: 1,
            bytes: 2,
        };
        assert_eq!(tampered(&plain), None);
        assert_eq!(
            tampered(&FileStatus {
                mode: 0o200,
                ..plain
            }),
            None
        );
        for status in [
            FileStatus {
                mode: 0o444,
                ..plain
            },
            FileStatus { links: 2, ..plain },
            FileStatus {
                kind: EntryKind::Symlink,
                ..plain
            },
            FileStatus {
                kind: EntryKind::Directory,
                ..plain
            },
            FileStatus {
                kind: EntryKind::Other,
                ..plain
            },
        ] {
            assert!(tampered(&status).is_some(), "{status:?}");
        }
    }
}
