//! What the agent changed in the work directory, as a patch.
//!
//! Nothing of it runs where the agent is. The work directory is streamed out twice, after setup and when the agent is dead,
//! into a repository of ours beside the record, which the agent can neither see nor change. Its files are data there: git
//! never has a work tree, so it reads no attributes, filters, hooks or configuration of the agent's, and directories named
//! `.git` are left out.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_model::text::{chain, tail};
use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{EntryKind, Sandbox, StreamedKind};

use crate::store::{PATCH_FILE, private_file};

/// Removed with the rollout's other unfinished files.
const REPOSITORY: &str = "workdir.git.partial";
const DEPTH: u32 = 64;
const ENTRIES_MAX: usize = 100_000;
/// For the work directory; what is larger is better kept by `artifacts`.
const TREE_BYTES_MAX: u64 = 1 << 30;
const PATCH_BYTES_MAX: u64 = 256 << 20;
/// For each of the two states, and for the patch.
const LIMIT: Duration = Duration::from_secs(300);
const CHUNK_BYTES: usize = 256 * 1024;

/// The state of a work directory after setup.
pub(crate) struct Baseline {
    git: Git,
}

/// Takes the state after setup, if the task wants a patch. What goes wrong is a finding.
pub(crate) async fn baseline(
    sandbox: &dyn Sandbox,
    task: &Task,
    record: &Path,
    result: &mut RolloutResult,
) -> Option<Baseline> {
    if !task.patch {
        return None;
    }
    let git = Git {
        directory: record.join(REPOSITORY),
    };
    let taken = limited(async {
        git.run(&["init", "--quiet", "--bare", "--template=", "."])
            .await?;
        git.import(sandbox, "before").await
    });
    match taken.await {
        Ok(_) => Some(Baseline { git }),
        Err(problem) => {
            note(result, &problem);
            None
        }
    }
}

/// Writes the patch, when everything of the agent is dead.
pub(crate) async fn write(
    baseline: Option<Baseline>,
    sandbox: &dyn Sandbox,
    record: &Path,
    result: &mut RolloutResult,
) {
    let Some(Baseline { git }) = baseline else {
        return;
    };
    let target = record.join(PATCH_FILE);
    let written = limited(async {
        let unread = git.import(sandbox, "after").await?;
        let bytes = git.diff(&target).await?;
        Ok((unread, bytes))
    });
    match written.await {
        Ok((unread, bytes)) => {
            result.patch_bytes = Some(bytes);
            if let Some(first) = unread.first() {
                let count = unread.len();
                note(
                    result,
                    &format!("{count} files cannot be read and seem removed, such as {first}"),
                );
            }
        }
        Err(problem) => {
            // Half a patch is none.
            let _ = tokio::fs::remove_file(&target).await;
            note(result, &problem);
        }
    }
    let _ = tokio::fs::remove_dir_all(&git.directory).await;
}

fn note(result: &mut RolloutResult, problem: &str) {
    let text = format!("the patch of the work directory: {problem}");
    let finding = Finding::warn(Code::PatchIncomplete, text);
    result.findings.push(finding);
}

async fn limited<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let done = timeout(LIMIT, Box::pin(work)).await;
    done.unwrap_or_else(|_| Err(format!("it took longer than {} s", LIMIT.as_secs())))
}

/// A bare repository of ours.
struct Git {
    directory: PathBuf,
}

impl Git {
    fn start(&self, arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Result<Child, String> {
        let made = std::fs::create_dir_all(&self.directory);
        made.map_err(|error| format!("make {}: {error}", self.directory.display()))?;
        let mut command = Command::new("git");
        command
            .args(["-c", "core.attributesFile=/dev/null"])
            .args(["-c", "core.hooksPath=/dev/null"])
            .args(["-c", "core.bigFileThreshold=16m"])
            // Names that mean something on other systems alone.
            .args([
                "-c",
                "core.protectHFS=false",
                "-c",
                "core.protectNTFS=false",
            ])
            // The commits are on other branches, so that this one has no attributes to read.
            .args(["-c", "init.defaultBranch=none"])
            .args(arguments)
            .current_dir(&self.directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_DIR", &self.directory)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .stdin(stdin)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "there is no git on this machine".to_owned(),
            _ => format!("run git: {error}"),
        })
    }

    async fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let child = self.start(arguments, Stdio::null(), Stdio::null())?;
        end(child).await
    }

    /// Commits the work directory as it is to a branch. Returns the paths of files that cannot be read.
    async fn import(&self, sandbox: &dyn Sandbox, branch: &str) -> Result<Vec<String>, String> {
        let paths = paths(sandbox).await?;
        let arguments = ["fast-import", "--quiet", "--done"];
        let mut child = self.start(&arguments, Stdio::piped(), Stdio::null())?;
        let Some(stdin) = child.stdin.take() else {
            return Err("git has no input".to_owned());
        };
        let mut output = BufWriter::with_capacity(CHUNK_BYTES, stdin);
        match feed(&mut output, sandbox, branch, paths).await {
            Ok(unread) => {
                drop(output);
                end(child).await?;
                Ok(unread)
            }
            Err(Fed::Sandbox(problem)) => Err(problem),
            // Its own words say more than a closed pipe.
            Err(Fed::Git(error)) => {
                drop(output);
                end(child).await?;
                Err(format!("git broke off: {error}"))
            }
        }
    }

    async fn diff(&self, target: &Path) -> Result<u64, String> {
        let mut child = self.start(
            &[
                "diff-tree",
                "-r",
                "-p",
                "--binary",
                "--full-index",
                "--no-ext-diff",
                "--no-textconv",
                "--no-renames",
                "--no-color",
                "refs/heads/before",
                "refs/heads/after",
            ],
            Stdio::null(),
            Stdio::piped(),
        )?;
        let stdout = child.stdout.take().ok_or("git has no output")?;
        let said = |error: std::io::Error| format!("write {}: {error}", target.display());
        let file = private_file(target).map_err(said)?;
        let mut file = tokio::fs::File::from_std(file);
        let mut stdout = stdout.take(PATCH_BYTES_MAX + 1);
        let bytes = tokio::io::copy(&mut stdout, &mut file)
            .await
            .map_err(said)?;
        file.flush().await.map_err(said)?;
        if bytes > PATCH_BYTES_MAX {
            return Err(format!("it is larger than {PATCH_BYTES_MAX} bytes"));
        }
        end(child).await.map(|()| bytes)
    }
}

async fn end(mut child: Child) -> Result<(), String> {
    let mut words = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.take(64 * 1024).read_to_string(&mut words).await;
    }
    let status = child.wait().await.map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("git: {status}: {}", tail(words.trim(), 500))),
    }
}

/// The files and links of the work directory, without what belongs to repositories.
async fn paths(sandbox: &dyn Sandbox) -> Result<Vec<String>, String> {
    let entries = sandbox.list(WORKDIR, DEPTH, ENTRIES_MAX + 1).await;
    let mut entries = entries.map_err(|error| chain(&error))?;
    if entries.len() > ENTRIES_MAX {
        return Err(format!(
            "the work directory has more than {ENTRIES_MAX} entries"
        ));
    }
    entries.retain(|entry| {
        let mut names = entry.path.split('/');
        matches!(entry.kind, EntryKind::File | EntryKind::Symlink)
            && !names.any(|name| name.eq_ignore_ascii_case(".git"))
    });
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if bytes > TREE_BYTES_MAX {
        return Err(format!(
            "the work directory has {bytes} bytes, more than {TREE_BYTES_MAX}"
        ));
    }
    Ok(entries.into_iter().map(|entry| entry.path).collect())
}

/// Why feeding git ended early.
enum Fed {
    Sandbox(String),
    Git(std::io::Error),
}

async fn feed(
    output: &mut BufWriter<ChildStdin>,
    sandbox: &dyn Sandbox,
    branch: &str,
    paths: Vec<String>,
) -> Result<Vec<String>, Fed> {
    let sandboxed = |error: rollcage_sandbox::Error| Fed::Sandbox(chain(&error));
    let head = format!("commit refs/heads/{branch}\ncommitter rollcage <> 0 +0000\ndata 0\n");
    output.write_all(head.as_bytes()).await.map_err(Fed::Git)?;
    let stream = sandbox.read_files(WORKDIR, paths.clone()).await;
    let mut stream = stream.map_err(sandboxed)?;
    let (mut unread, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
    let mut left = TREE_BYTES_MAX;
    for path in paths {
        let head = stream.next().await.map_err(sandboxed)?;
        let mode = match head.kind {
            StreamedKind::File => "100644",
            StreamedKind::Program => "100755",
            StreamedKind::Link => "120000",
            StreamedKind::Nothing => {
                unread.push(path);
                continue;
            }
        };
        // The listing said less; what is inside is not to be believed.
        left = left
            .checked_sub(head.bytes)
            .ok_or_else(|| Fed::Sandbox(format!("more than {TREE_BYTES_MAX} bytes")))?;
        let line = format!("M {mode} inline {}\ndata {}\n", quoted(&path), head.bytes);
        output.write_all(line.as_bytes()).await.map_err(Fed::Git)?;
        loop {
            match stream.read(&mut chunk).await.map_err(sandboxed)? {
                0 => break,
                count => output.write_all(&chunk[..count]).await.map_err(Fed::Git)?,
            }
        }
        output.write_all(b"\n").await.map_err(Fed::Git)?;
    }
    output.write_all(b"done\n").await.map_err(Fed::Git)?;
    output.flush().await.map_err(Fed::Git)?;
    Ok(unread)
}

/// A path as git reads it in a stream: no byte of it can end its line.
fn quoted(path: &str) -> String {
    let mut text = String::from("\"");
    for character in path.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\n' => text.push_str("\\n"),
            character => text.push(character),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_end_its_line() {
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("a\"\\\nM x"), "\"a\\\"\\\\\\nM x\"");
    }
}
