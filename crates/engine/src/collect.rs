//! Collects small text files from the work directory, within the limits of OpenEnv's original.

use std::collections::BTreeMap;

use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{EntryKind, Error, Sandbox};

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::RolloutResult;
use rollcage_model::text::chain;

const DEPTH: u32 = 2;
const FILES_MAX: usize = 32;
/// The most directory entries that are looked at: a work directory may hold a million files.
const ENTRIES_MAX: usize = 4096;
const FILE_BYTES_MAX: u64 = 64 * 1024;
const FILE_CHARS_MAX: usize = 8000;

#[derive(Debug, Default)]
struct Collected {
    /// By absolute path.
    files: BTreeMap<String, String>,
    /// The paths of files that are not text or too large.
    extra: Vec<String>,
    /// Why collecting stopped early, if it did.
    problem: Option<String>,
}

/// Never fails, whatever the agent left in its work directory.
pub(crate) async fn collect(sandbox: &dyn Sandbox, result: &mut RolloutResult) {
    let collected = collect_texts(sandbox).await;
    result.files = collected.files;
    result.files_extra = collected.extra;
    // The grade is final by now, whatever state the agent left its files in.
    let finding = |problem| Finding::info(Code::FilesNotCollected, problem);
    result.findings.extend(collected.problem.map(finding));
}

async fn collect_texts(sandbox: &dyn Sandbox) -> Collected {
    let mut collected = Collected::default();
    let entries = match sandbox.list(WORKDIR, DEPTH, ENTRIES_MAX).await {
        Ok(entries) => entries,
        Err(error) => {
            collected.problem = Some(chain(&error));
            return collected;
        }
    };
    for entry in entries
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::File)
    {
        if collected.files.len() == FILES_MAX {
            break;
        }
        let path = format!("{WORKDIR}/{}", entry.path);
        if entry.bytes >= FILE_BYTES_MAX {
            collected.extra.push(path);
            continue;
        }
        let content = sandbox.read_file(&path, FILE_BYTES_MAX).await;
        match content.map(String::from_utf8) {
            Ok(Ok(text)) => {
                collected
                    .files
                    .insert(path, text.chars().take(FILE_CHARS_MAX).collect());
            }
            Ok(Err(_))
            | Err(Error::NotRegular { .. } | Error::TooLarge { .. } | Error::File { .. }) => {
                collected.extra.push(path);
            }
            // The sandbox is broken, so the next file would fail too.
            Err(error) => {
                collected.problem = Some(chain(&error));
                break;
            }
        }
        collected.extra.truncate(FILES_MAX);
    }
    collected
}
