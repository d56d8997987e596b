//! Collects small text files from the work directory, within the limits of OpenEnv's original: at the end for the result,
//! and after setup, so that readers see what the agent changed.

use std::collections::BTreeMap;
use std::path::Path;

use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{DirectoryEntry, EntryKind, Error, FileStream, Sandbox, StreamedKind};

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::RolloutResult;
use rollcage_model::task::absolute;
use rollcage_model::text::chain;

use crate::plan::Plan;
use crate::store::StartFiles;

const DEPTH: u32 = 2;
/// Of texts, and of other files.
pub const FILES_MAX: usize = 32;
/// The most directory entries that are looked at: a work directory may hold a million files.
const ENTRIES_MAX: usize = 4096;
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Of a text; the rest is cut off.
pub const FILE_CHARS_MAX: usize = 8000;

#[derive(Debug, Default)]
struct Collected {
    /// By absolute path.
    files: BTreeMap<String, String>,
    /// The paths of files that are not text or too large.
    extra: Vec<String>,
    /// There is more in the directory than was looked at.
    is_cut: bool,
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
    let cut = || {
        format!(
            "the work directory holds more than {ENTRIES_MAX} files and directories, and the rest was not looked at"
        )
    };
    let problem = collected.problem.or_else(|| collected.is_cut.then(cut));
    result.findings.extend(problem.map(finding));
}

/// Keeps what setup left with the record. It is for readers alone, so a failure ends nothing.
pub(crate) async fn keep_start(sandbox: &dyn Sandbox, plan: &Plan, record: &Path) {
    let start = match texts_of_task(plan) {
        Some(start) => start,
        None => {
            let collected = collect_texts(sandbox).await;
            if let Some(problem) = collected.problem {
                tracing::debug!(problem, "what setup left is not kept");
                return;
            }
            StartFiles {
                files: collected.files,
                files_extra: collected.extra,
                is_cut: collected.is_cut,
            }
        }
    };
    let record = record.to_owned();
    let written = tokio::task::spawn_blocking(move || start.write(&record));
    if !matches!(written.await, Ok(Ok(()))) {
        tracing::debug!("what setup left cannot be written");
    }
}

/// What the work directory holds where only the task's own texts were put there, nothing of the host was mounted and nothing
/// ran. Trainers start such tasks by the thousand, and asking the sandbox takes as long as starting it.
fn texts_of_task(plan: &Plan) -> Option<StartFiles> {
    let task = &plan.task;
    let is_run = !task.setup.is_empty() || !task.services.is_empty();
    if is_run || !plan.uploads.is_empty() || !plan.mounts.is_empty() {
        return None;
    }
    let mut start = StartFiles::default();
    let texts = task.files.iter();
    let texts: BTreeMap<String, &String> =
        texts.map(|(path, text)| (absolute(path), text)).collect();
    for (path, text) in texts {
        let below = path
            .strip_prefix(WORKDIR)
            .and_then(|it| it.strip_prefix('/'));
        if below.is_none_or(|below| below.split('/').count() > DEPTH as usize) {
            continue;
        }
        if start.files.len() == FILES_MAX {
            break;
        }
        if text.len() as u64 >= FILE_BYTES_MAX {
            start.files_extra.push(path);
            start.files_extra.truncate(FILES_MAX);
            continue;
        }
        start.files.insert(path, cut(text));
    }
    Some(start)
}

fn cut(text: &str) -> String {
    text.chars().take(FILE_CHARS_MAX).collect()
}

async fn collect_texts(sandbox: &dyn Sandbox) -> Collected {
    let mut collected = Collected::default();
    if let Err(error) = read_texts(sandbox, &mut collected).await {
        collected.problem = Some(chain(&error));
    }
    collected
}

/// Two requests, however many files there are.
async fn read_texts(sandbox: &dyn Sandbox, collected: &mut Collected) -> Result<(), Error> {
    // One more, so that it shows where there are more.
    let mut entries = sandbox.list(WORKDIR, DEPTH, ENTRIES_MAX + 1).await?;
    collected.is_cut = entries.len() > ENTRIES_MAX;
    entries.retain(|entry| entry.kind == EntryKind::File);
    let is_small = |entry: &&DirectoryEntry| entry.bytes < FILE_BYTES_MAX;
    let small = entries.iter().filter(is_small);
    let small: Vec<String> = small.map(|entry| entry.path.clone()).collect();
    if small.is_empty() {
        let paths = entries.iter().map(|entry| absolute(&entry.path));
        collected.extra = paths.take(FILES_MAX).collect();
        return Ok(());
    }
    let mut stream = sandbox.read_files(WORKDIR, small).await?;
    for entry in &entries {
        if collected.files.len() == FILES_MAX {
            break;
        }
        let text = match is_small(&entry) {
            true => read_text(&mut stream).await?,
            false => None,
        };
        let path = absolute(&entry.path);
        match text {
            Some(text) => {
                collected.files.insert(path, text);
            }
            None if collected.extra.len() < FILES_MAX => collected.extra.push(path),
            None => {}
        }
    }
    Ok(())
}

/// The next file, if it is a small text.
async fn read_text(stream: &mut FileStream) -> Result<Option<String>, Error> {
    let head = stream.next().await?;
    let is_file = matches!(head.kind, StreamedKind::File | StreamedKind::Program);
    // It may have grown since it was listed.
    if !is_file || head.bytes >= FILE_BYTES_MAX {
        return Ok(None);
    }
    let mut content = vec![0; usize::try_from(head.bytes).unwrap_or_default()];
    let mut count = 0;
    while count < content.len() {
        match stream.read(&mut content[count..]).await? {
            0 => break,
            more => count += more,
        }
    }
    content.truncate(count);
    let text = String::from_utf8(content).ok();
    Ok(text.map(|text| cut(&text)))
}
