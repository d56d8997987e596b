//! Keeps files of the work directory with the record: whatever bytes they have, as many as the task allows.
//!
//! What the agent left may be hostile. The names come from a listing that follows no links, only regular files are read,
//! and each goes to a new file below `artifacts/` of the record.

use std::fs::DirBuilder;
use std::io::{self, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use tokio::time::timeout;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::glob::Glob;
use rollcage_model::record::{Artifact, RolloutResult};
use rollcage_model::task::{ARTIFACTS_MB, Task};
use rollcage_model::text::chain;
use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{DirectoryEntry, EntryKind, Error, FileStream, Sandbox, StreamedKind};

use crate::store::{ARTIFACTS_DIRECTORY, HOLE_BYTES, is_hole};

const DEPTH: u32 = 64;
/// The most directory entries that are looked at.
const ENTRIES_MAX: usize = 100_000;
const FILES_MAX: usize = 10_000;
/// Enough for a full gibibyte on a slow disk.
const LIMIT: Duration = Duration::from_secs(600);
const CHUNK_BYTES: usize = 256 * 1024;
/// How many of what is missing a finding names.
const NAMED_MAX: usize = 5;

/// Keeps what the task's `artifacts` match. Never fails: what is missing is a finding.
pub(crate) async fn keep(
    sandbox: &dyn Sandbox,
    task: &Task,
    record: &Path,
    result: &mut RolloutResult,
) {
    let globs = match task.artifact_globs() {
        Ok(globs) if !globs.is_empty() => globs,
        // A task is checked before it is run.
        Ok(_) | Err(_) => return,
    };
    let mut keeper = Keeper {
        target: record.join(ARTIFACTS_DIRECTORY),
        bytes_left: task.limits.artifacts_mb.unwrap_or(ARTIFACTS_MB) << 20,
        kept: Vec::new(),
        missing: Missing::default(),
    };
    let problem = match timeout(LIMIT, keeper.run(sandbox, globs)).await {
        Ok(Ok(())) => None,
        Ok(Err(problem)) => Some(problem),
        Err(_) => Some(format!("it took longer than {} s", LIMIT.as_secs())),
    };
    if let Some(text) = keeper.missing.describe(problem) {
        result
            .findings
            .push(Finding::warn(Code::ArtifactsCut, text));
    }
    result.artifacts = keeper.kept;
}

#[derive(Default)]
struct Missing {
    count: usize,
    named: Vec<String>,
}

impl Missing {
    fn add(&mut self, path: &str, why: &str) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(format!("{path} ({why})"));
        }
    }

    fn describe(&self, problem: Option<String>) -> Option<String> {
        let more = self.count - self.named.len();
        let mut named = self.named.join(", ");
        if more > 0 {
            named.push_str(&format!(" and {more} more"));
        }
        match (self.count, problem) {
            (0, None) => None,
            (0, Some(problem)) => Some(format!("artifacts are missing: {problem}")),
            (_, None) => Some(format!("not kept: {named}")),
            (_, Some(problem)) => Some(format!(
                "artifacts are missing: {problem}; not kept: {named}"
            )),
        }
    }
}

struct Keeper {
    target: PathBuf,
    bytes_left: u64,
    kept: Vec<Artifact>,
    missing: Missing,
}

impl Keeper {
    async fn run(&mut self, sandbox: &dyn Sandbox, globs: Vec<Glob>) -> Result<(), String> {
        let said = |error: Error| chain(&error);
        let listed = sandbox.list(WORKDIR, DEPTH, ENTRIES_MAX + 1).await;
        let mut entries = listed.map_err(said)?;
        let is_cut = entries.len() > ENTRIES_MAX;
        entries.truncate(ENTRIES_MAX);
        let matching = tokio::task::spawn_blocking(move || {
            entries.retain(|entry| is_wanted(entry, &globs));
            entries
        });
        let matching = matching.await.map_err(|error| error.to_string())?;
        let chosen = self.choose(matching);
        if !chosen.is_empty() {
            let stream = sandbox.read_files(WORKDIR, chosen.clone()).await;
            self.take(&mut stream.map_err(said)?, chosen).await?;
        }
        match is_cut {
            true => Err(format!(
                "the work directory has more than {ENTRIES_MAX} entries, of which the others were not looked at"
            )),
            false => Ok(()),
        }
    }

    /// What fits, by the sizes of the listing, in the order of the paths.
    fn choose(&mut self, matching: Vec<DirectoryEntry>) -> Vec<String> {
        let mut left = self.bytes_left;
        let mut chosen = Vec::new();
        for entry in matching {
            if chosen.len() == FILES_MAX {
                let why = format!("more than {FILES_MAX} files");
                self.missing.add(&entry.path, &why);
            } else if entry.bytes > left {
                let why = format!("{} bytes, over the limit artifacts_mb", entry.bytes);
                self.missing.add(&entry.path, &why);
            } else {
                left -= entry.bytes;
                chosen.push(entry.path);
            }
        }
        chosen
    }

    /// An error ends it: the sandbox or our own disk is broken.
    async fn take(&mut self, stream: &mut FileStream, paths: Vec<String>) -> Result<(), String> {
        for (index, path) in paths.iter().enumerate() {
            let taken = self.take_next(stream, path).await;
            if let Err(problem) = taken {
                for path in &paths[index..] {
                    self.missing.add(path, "not read");
                }
                return Err(problem);
            }
        }
        Ok(())
    }

    async fn take_next(&mut self, stream: &mut FileStream, path: &str) -> Result<(), String> {
        let head = stream.next().await.map_err(|error| chain(&error))?;
        match head.kind {
            StreamedKind::File | StreamedKind::Program => {}
            StreamedKind::Nothing | StreamedKind::Link => {
                self.missing.add(path, "not a file that can be read");
                return Ok(());
            }
        }
        if head.bytes > self.bytes_left {
            let why = format!("{} bytes, over the limit artifacts_mb", head.bytes);
            self.missing.add(path, &why);
            return Ok(());
        }
        let Some(target) = target_of(&self.target, path) else {
            self.missing.add(path, "no name to keep it under");
            return Ok(());
        };
        let written = self.write(stream, &target).await;
        if !matches!(written, Ok(Ok(_))) {
            // Half a file is none.
            let _ = tokio::fs::remove_file(&target).await;
        }
        match written? {
            Ok(sha256) => {
                self.bytes_left -= head.bytes;
                self.kept.push(Artifact {
                    path: path.to_owned(),
                    bytes: head.bytes,
                    sha256,
                });
                Ok(())
            }
            // A name may be too long for our own disk.
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                self.missing.add(path, &error.to_string());
                Ok(())
            }
            Err(error) => Err(format!("write {}: {error}", target.display())),
        }
    }

    /// Writes the current file of the stream, and returns its SHA-256.
    async fn write(
        &self,
        stream: &mut FileStream,
        target: &Path,
    ) -> Result<io::Result<String>, String> {
        let parent = target.parent().unwrap_or(&self.target);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        if let Err(error) = made {
            return Ok(Err(error));
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = match options.open(target).await {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        let mut digest = Sha256::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut length = 0;
        loop {
            let count = fill(stream, &mut chunk).await;
            let count = count.map_err(|error| chain(&error))?;
            if count == 0 {
                let digits = digest.finalize();
                let digits = digits.iter().map(|byte| format!("{byte:02x}"));
                let ended = end(&mut file, length).await;
                return Ok(ended.map(|()| digits.collect()));
            }
            length += count as u64;
            digest.update(&chunk[..count]);
            if let Err(error) = write_with_holes(&mut file, &chunk[..count]).await {
                return Ok(Err(error));
            }
        }
    }
}

/// Reads until the chunk is full or the file ends.
async fn fill(stream: &mut FileStream, chunk: &mut [u8]) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < chunk.len() {
        match stream.read(&mut chunk[filled..]).await? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// A file with a hole of a gibibyte would otherwise cost that much, and an agent makes one in no time.
async fn write_with_holes(file: &mut File, chunk: &[u8]) -> io::Result<()> {
    for block in chunk.chunks(HOLE_BYTES) {
        match is_hole(block) {
            true => drop(file.seek(SeekFrom::Current(block.len() as i64)).await?),
            false => file.write_all(block).await?,
        }
    }
    Ok(())
}

/// The file may end with a hole.
async fn end(file: &mut File, length: u64) -> io::Result<()> {
    file.flush().await?;
    file.set_len(length).await
}

fn is_wanted(entry: &DirectoryEntry, globs: &[Glob]) -> bool {
    entry.kind == EntryKind::File && globs.iter().any(|glob| glob.matches(&entry.path))
}

/// Where a file is kept: below `directory`, whatever its path says.
fn target_of(directory: &Path, path: &str) -> Option<PathBuf> {
    let inner = Path::new(path);
    let mut parts = inner.components();
    let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !path.is_empty()).then(|| directory.join(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_record() {
        let directory = Path::new("/record/artifacts");
        let kept = target_of(directory, "out/a.bin");
        assert_eq!(kept, Some(directory.join("out/a.bin")));
        for path in ["", "/etc/passwd", "../result.json", "out/../../x", ".."] {
            assert_eq!(target_of(directory, path), None, "{path}");
        }
    }
}
