//! Records on disk: one private directory per rollout; its result is written last and atomically.
//!
//! `rollouts/ID/` holds `task.json`, `start.json`, `exchanges.rec`, the agent's logs, its artifacts, `result.json` and
//! the small `summary.json`, which lists show; `index.jsonl` repeats those of all rollouts. `running/ID` is a marker file
//! locked by the process that runs the rollout, so that a later process can tell a running rollout from one whose process
//! was killed.
//!
//! **Durability.** What was written survives the end of our process at any moment, even by SIGKILL, because it is in
//! the kernel's page cache. Against power loss the directories are synced when a record begins, and `exchanges.rec`,
//! the result and their directory when it is committed; nothing is synced per model call. So a committed rollout is
//! complete, and a running one may lose its latest exchanges to a power loss: the next start closes it with what is
//! left, and reports a torn end as a finding.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_model::transcript::Transcript;

mod beside;
mod disk;
mod index;
mod interpret;
mod record;
mod start;
mod summary;

pub use beside::StartFiles;
pub use disk::{HOLE_BYTES, is_hole, read_tail, sync_directory};
pub(crate) use disk::{private_file, write_unsynced};
pub(crate) use index::{Index, Position};
pub(crate) use interpret::interpret_at;
pub use interpret::read_exchanges;
pub use record::Record;
pub use start::StartInfo;
pub use summary::Summary;

use disk::{PARTIAL, create_marker, is_same_file, remove_partial_files, write_atomic};
use summary::warn_hidden;

/// The file of a record that holds the requests and responses of all model calls.
const EXCHANGES_FILE: &str = "exchanges.rec";
/// The directory of a record that holds what was kept of the task's `artifacts`, by path below the work directory.
pub const ARTIFACTS_DIRECTORY: &str = "artifacts";
/// The file of a record that holds what the agent changed in the work directory, for a task with `patch`.
pub const PATCH_FILE: &str = "workdir.patch";
/// The file of a record that holds every attempt to reach something outside, in lines of JSON.
pub(crate) const NETWORK_FILE: &str = "network.jsonl";
/// The suffix of a record that is being removed; the next start removes what a killed process left of one.
const REMOVED: &str = ".removed";
/// The event file written by the agent.
pub(crate) const EVENTS_FILE: &str = "agent.events";
/// The agent's standard output.
pub(crate) const STDOUT_FILE: &str = "agent.stdout.log";
/// The agent's standard error, or all that its server prints.
pub(crate) const STDERR_FILE: &str = "agent.stderr.log";
/// A served agent's own transcript.
pub(crate) const MESSAGES_FILE: &str = "messages.json";
/// The most that is read of an agent's events; of a longer file only the end is read.
pub(crate) const EVENTS_BYTES_MAX: u64 = 16 << 20;
/// The file that holds the owner's name.
const OWNER: &str = "owner";

/// The records below one `$ROLLCAGE_HOME`.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("use {path} for records")]
    Open { path: PathBuf, source: io::Error },
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} does not hold a result of this version")]
    Format {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "rollout {0} has no result: it still runs, or was killed and the next run will close it"
    )]
    Unfinished(RolloutId),
    #[error("rollout {0} still runs")]
    Running(RolloutId),
    #[error("the thread that writes records ended")]
    Thread(#[source] tokio::task::JoinError),
    #[error("no rollout `{0}`: `rollcage list` shows what there is")]
    Unknown(String),
    #[error("`{prefix}` names {count} rollouts: give more characters of the id")]
    Ambiguous { prefix: String, count: usize },
}

impl Store {
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        for path in [root.to_owned(), root.join("rollouts"), root.join("running")] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|source| StoreError::Open { path, source })?;
        }
        Ok(Store {
            root: root.to_owned(),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Finds out whether records can be written, by writing a little.
    pub fn try_write(&self) -> std::io::Result<()> {
        disk::try_write(&self.root)
    }

    /// Creates a rollout's directory and its running marker. Once this returns, the record survives power loss far
    /// enough to be closed by the next start.
    pub fn begin(
        &self,
        id: RolloutId,
        task: &Task,
        start: &StartInfo,
        owner: Option<&str>,
    ) -> Result<Record, StoreError> {
        let marker_path = self.root.join("running").join(id.to_string());
        let marker = create_marker(&marker_path).map_err(|source| StoreError::Open {
            path: marker_path.clone(),
            source,
        })?;
        if let Err(error) = self.make_directory(id, task, start, owner) {
            // The marker stays: if there is a record nevertheless, the next start closes it.
            let _ = fs::remove_dir_all(self.partial_directory(id));
            return Err(error);
        }
        Ok(Record {
            path: self.directory(id),
            marker_path,
            owner: owner.map(str::to_owned),
            index: self.index(),
            _marker: marker,
        })
    }

    /// The directory is made under another name, so that nobody sees it before it says whose it is.
    fn make_directory(
        &self,
        id: RolloutId,
        task: &Task,
        start: &StartInfo,
        owner: Option<&str>,
    ) -> Result<(), StoreError> {
        let open = |path: &Path, source| StoreError::Open {
            path: path.to_owned(),
            source,
        };
        let (partial, path) = (self.partial_directory(id), self.directory(id));
        DirBuilder::new()
            .mode(0o700)
            .create(&partial)
            .map_err(|source| open(&partial, source))?;
        if let Some(owner) = owner {
            write_atomic(&partial.join(OWNER), owner.as_bytes())?;
        }
        let text = serde_json::to_vec_pretty(task).map_err(|source| StoreError::Format {
            path: path.join("task.json"),
            source,
        })?;
        write_atomic(&partial.join("task.json"), &text)?;
        start.write(&partial)?;
        sync_directory(&partial).map_err(|source| open(&partial, source))?;
        fs::rename(&partial, &path).map_err(|source| open(&path, source))?;
        for directory in [self.root.join("rollouts"), self.root.join("running")] {
            sync_directory(&directory).map_err(|source| open(&directory, source))?;
        }
        Ok(())
    }

    /// At most `count` summaries, the newest first; unfinished rollouts have no `ended`.
    pub fn list(&self, count: usize) -> Result<Vec<Summary>, StoreError> {
        let mut ids = self.ids()?;
        ids.sort_unstable_by(|left, right| right.cmp(left));
        let summaries = ids.into_iter().filter_map(|id| self.summary(id));
        Ok(summaries.take(count).collect())
    }

    /// Finds a rollout by its id, or by a prefix or suffix of it.
    pub fn find(&self, text: &str) -> Result<RolloutId, StoreError> {
        if let Ok(id) = text.parse::<RolloutId>() {
            return if self.directory(id).is_dir() {
                Ok(id)
            } else {
                Err(StoreError::Unknown(text.to_owned()))
            };
        }
        let is_match = |id: &RolloutId| {
            let id = id.to_string();
            text.len() >= 4 && (id.starts_with(text) || id.ends_with(text))
        };
        let matching: Vec<_> = self.ids()?.into_iter().filter(is_match).collect();
        match matching.as_slice() {
            [id] => Ok(*id),
            [] => Err(StoreError::Unknown(text.to_owned())),
            several => Err(StoreError::Ambiguous {
                prefix: text.to_owned(),
                count: several.len(),
            }),
        }
    }

    pub fn result(&self, id: RolloutId) -> Result<RolloutResult, StoreError> {
        let path = self.directory(id).join("result.json");
        let text = fs::read(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StoreError::Unfinished(id),
            _ => StoreError::Read {
                path: path.clone(),
                source,
            },
        })?;
        serde_json::from_slice(&text).map_err(|source| StoreError::Format { path, source })
    }

    /// Whether a process runs the rollout: it holds its marker's lock until its end, however that comes.
    pub fn is_running(&self, id: RolloutId) -> bool {
        let marker = self.root.join("running").join(id.to_string());
        // Nobody else has a shared lock, which is given back at once.
        let Ok(marker) = File::open(marker) else {
            return false;
        };
        matches!(marker.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// The task of a rollout; `None` until the rollout has started.
    pub fn task(&self, id: RolloutId) -> Result<Option<Task>, StoreError> {
        let path = self.directory(id).join("task.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::Read { path, source }),
        };
        let task = serde_json::from_slice(&text);
        task.map(Some)
            .map_err(|source| StoreError::Format { path, source })
    }

    /// The agent's own event log, parsed again from what it wrote; if that is too long, only its end. `None` if the
    /// agent was never started.
    pub fn transcript(&self, result: &RolloutResult) -> Result<Option<Transcript>, StoreError> {
        let Some(format) = result.agent_report.format else {
            return Ok(None);
        };
        let directory = self.directory(result.rollout_id);
        let events = directory.join(EVENTS_FILE);
        let path = match events.exists() {
            true => events,
            false => directory.join(STDOUT_FILE),
        };
        let text = read_tail(&path, EVENTS_BYTES_MAX);
        let text = text.map_err(|source| StoreError::Read { path, source })?;
        let mut transcript = Transcript::read(format, &text);
        if let Some(names) = &result.agent_report.mcp_names {
            transcript.name_mcp(names);
        }
        Ok(Some(transcript))
    }

    pub fn directory(&self, id: RolloutId) -> PathBuf {
        self.root.join("rollouts").join(id.to_string())
    }

    /// Where a record is until it can be seen. Its name is no id.
    fn partial_directory(&self, id: RolloutId) -> PathBuf {
        self.directory(id).with_extension(PARTIAL)
    }

    /// Removes the record of an ended rollout.
    pub fn remove(&self, id: RolloutId) -> Result<(), StoreError> {
        let path = self.directory(id);
        if !path.is_dir() {
            return Err(StoreError::Unknown(id.to_string()));
        }
        if !path.join("result.json").exists() {
            return Err(StoreError::Unfinished(id));
        }
        // Renamed first, so that no reader sees half a record.
        let doomed = self.root.join("running").join(format!("{id}{REMOVED}"));
        let write = |source| StoreError::Write {
            path: path.clone(),
            source,
        };
        fs::rename(&path, &doomed).map_err(write)?;
        fs::remove_dir_all(&doomed).map_err(write)
    }

    /// Rollouts whose process died: the marker exists and nobody holds its lock.
    pub fn abandoned(&self) -> Result<Vec<(RolloutId, Option<Task>, Record)>, StoreError> {
        let directory = self.root.join("running");
        let read = |source| StoreError::Read {
            path: directory.clone(),
            source,
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(&directory).map_err(read)? {
            let marker_path = entry.map_err(read)?.path();
            let name = marker_path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default()
                .to_owned();
            let Ok(id) = name.parse::<RolloutId>() else {
                if name.ends_with(REMOVED) {
                    let _ = fs::remove_dir_all(&marker_path);
                }
                continue;
            };
            let Ok(marker) = File::options().write(true).open(&marker_path) else {
                continue;
            };
            if marker.try_lock().is_err() || !is_same_file(&marker, &marker_path) {
                continue;
            }
            let path = self.directory(id);
            let task = fs::read_to_string(path.join("task.json"))
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok());
            if path.join("result.json").exists() || !path.is_dir() {
                let _ = fs::remove_dir_all(self.partial_directory(id));
                let _ = fs::remove_file(&marker_path);
                continue;
            }
            let owner = match self.owner(id) {
                Ok(owner) => owner,
                // Committed without it, it would be everybody's for good. A later start may be able to read it.
                Err(error) => {
                    warn_hidden(&error);
                    continue;
                }
            };
            remove_partial_files(&path);
            found.push((
                id,
                task,
                Record {
                    owner,
                    path,
                    marker_path,
                    index: self.index(),
                    _marker: marker,
                },
            ));
        }
        Ok(found)
    }

    /// The ids of all rollouts, in no particular order.
    pub fn ids(&self) -> Result<Vec<RolloutId>, StoreError> {
        let directory = self.root.join("rollouts");
        let read = |source| StoreError::Read {
            path: directory.clone(),
            source,
        };
        let mut ids = Vec::new();
        for entry in fs::read_dir(&directory).map_err(read)? {
            let name = entry.map_err(read)?.file_name();
            ids.extend(
                name.to_str()
                    .and_then(|name| name.parse::<RolloutId>().ok()),
            );
        }
        Ok(ids)
    }

    pub(crate) fn index(&self) -> Index {
        Index::new(&self.root)
    }
}

#[cfg(test)]
mod tests;
