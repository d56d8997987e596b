//! What is kept of a live agent in `live/ID`: who it is, its turns with all their replies, its saved files and its log.
//!
//! `lock` is locked for as long as a process holds the agent, so that a later process can tell an agent that runs from one
//! whose process was killed.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use rollcage_live::place::ProcessIdentity;
use rollcage_model::id::RolloutId;
use rollcage_model::live::{ErrorCode, Reply, ReplyKind};

use super::{LiveRequest, LiveState, LiveView, TurnSummary};
use crate::store::{StoreError, write_unsynced};

/// Increased when an older program could not read the file.
const VERSION: u32 = 1;
const VIEW: &str = "live.json";
const REQUEST: &str = "request.json";
const PROCESS: &str = "server.json";

/// `live.json`, which changes with every turn.
#[derive(Serialize, Deserialize)]
struct StoredView {
    version: u32,
    view: LiveView,
}

/// An agent as it is on disk.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) view: LiveView,
    /// Without secrets: these exist in memory only.
    pub(super) request: LiveRequest,
}

/// `server.json`: a server without a sandbox, to adopt it after we were killed.
#[derive(Serialize, Deserialize)]
pub(super) struct ServerProcess {
    pub(super) identity: ProcessIdentity,
    pub(super) port: u16,
    pub(super) password: String,
}

/// A line of `turns.jsonl`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TurnLine {
    Begin {
        turn_id: String,
        trace_id: String,
        session_id: Option<String>,
        text: String,
        started_at: f64,
    },
    End {
        turn_id: String,
        finished_at: f64,
        end: Reply,
    },
}

#[derive(Clone, Debug)]
pub(super) struct LiveDirectory {
    path: PathBuf,
}

impl LiveDirectory {
    fn at(root: &Path, id: &str) -> Self {
        LiveDirectory {
            path: root.join("live").join(id),
        }
    }

    pub(super) fn create(root: &Path, id: &str) -> Result<Self, StoreError> {
        let this = Self::at(root, id);
        for path in [
            root.join("live"),
            this.path.clone(),
            this.path.join("turns"),
        ] {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(&path);
            made.map_err(|source| StoreError::Open { path, source })?;
        }
        Ok(this)
    }

    /// All of them, the newest first.
    pub(super) fn all(root: &Path) -> Vec<(String, LiveDirectory)> {
        let entries = fs::read_dir(root.join("live")).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut ids: Vec<String> = names
            .filter_map(|name| name.to_str().map(str::to_owned))
            .filter(|name| name.parse::<RolloutId>().is_ok())
            .collect();
        ids.sort_unstable_by(|left, right| right.cmp(left));
        let open = |id: String| (id.clone(), Self::at(root, &id));
        ids.into_iter().map(open).collect()
    }

    pub(super) fn saved(&self) -> PathBuf {
        self.path.join("saved")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("serve.log")
    }

    /// The agent's home, for one without a sandbox.
    pub(super) fn home(&self) -> PathBuf {
        self.path.join("home")
    }

    /// Its work directory, for one without a sandbox.
    pub(super) fn workdir(&self) -> PathBuf {
        self.path.join("workdir")
    }

    /// Claims the agent for this process; `None` while another process holds it.
    pub(super) fn lock(&self) -> Result<Option<File>, StoreError> {
        let path = self.path.join("lock");
        let open = |source| StoreError::Open {
            path: path.clone(),
            source,
        };
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(open)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(open(error)),
        }
    }

    pub(super) fn read(&self) -> Option<Stored> {
        let request = fs::read(self.path.join(REQUEST)).ok()?;
        Some(Stored {
            view: self.read_view()?,
            request: serde_json::from_slice(&request).ok()?,
        })
    }

    /// `None` for an agent that was never completely started, or of a newer program.
    fn read_view(&self) -> Option<LiveView> {
        let text = fs::read(self.path.join(VIEW)).ok()?;
        let stored: StoredView = serde_json::from_slice(&text).ok()?;
        (stored.version == VERSION).then_some(stored.view)
    }

    /// What others see of it; closed first if a killed process left it open: stopped, its open turns interrupted.
    pub(super) fn settled(&self) -> Option<LiveView> {
        let is_over =
            |view: &LiveView| matches!(view.state, LiveState::Stopped | LiveState::Failed);
        let view = self.read_view()?;
        // Not locked without need, since whoever starts it takes the lock as well.
        if is_over(&view) {
            return Some(view);
        }
        let Ok(Some(_lock)) = self.lock() else {
            return Some(view);
        };
        let mut view = self.read_view()?;
        if !is_over(&view) {
            view.state = LiveState::Stopped;
            view.open_turns = 0;
            let closed = self.interrupt_turns();
            if let Err(error) = closed.and_then(|()| self.write_view(&view)) {
                let error = rollcage_model::text::chain(&error);
                tracing::warn!(error, "a live agent of a killed process is not closed");
            }
        }
        Some(view)
    }

    pub(super) fn write_view(&self, view: &LiveView) -> Result<(), StoreError> {
        let stored = StoredView {
            version: VERSION,
            view: view.clone(),
        };
        self.write_json(VIEW, &stored)
    }

    pub(super) fn write_request(&self, request: &LiveRequest) -> Result<(), StoreError> {
        self.write_json(REQUEST, request)
    }

    fn write_json(&self, name: &str, content: &impl Serialize) -> Result<(), StoreError> {
        let path = self.path.join(name);
        match serde_json::to_vec(content) {
            Ok(text) => write_unsynced(&path, &text),
            Err(source) => Err(StoreError::Format { path, source }),
        }
    }

    pub(super) fn write_process(&self, process: &ServerProcess) -> Result<(), StoreError> {
        self.write_json(PROCESS, process)
    }

    pub(super) fn read_process(&self) -> Option<ServerProcess> {
        let text = fs::read(self.path.join(PROCESS)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn forget_process(&self) {
        // Harmless if it fails: a process is known by more than its number.
        let _ = fs::remove_file(self.path.join(PROCESS));
    }

    pub(super) fn remove(&self) -> Result<(), StoreError> {
        fs::remove_dir_all(&self.path).map_err(|source| StoreError::Write {
            path: self.path.clone(),
            source,
        })
    }

    pub(super) fn begin_turn(&self, turn: &TurnSummary) -> Result<(), StoreError> {
        self.add_turn_line(&TurnLine::Begin {
            turn_id: turn.turn_id.clone(),
            trace_id: turn.trace_id.clone(),
            session_id: turn.session_id.clone(),
            text: turn.text.clone(),
            started_at: turn.started_at,
        })
    }

    pub(super) fn end_turn(&self, finished_at: f64, end: &Reply) -> Result<(), StoreError> {
        self.add_turn_line(&TurnLine::End {
            turn_id: end.turn_id.clone(),
            finished_at,
            end: end.clone(),
        })
    }

    /// The file of a turn's replies, to add to.
    pub(super) fn replies_file(&self, turn_id: &str) -> Result<File, StoreError> {
        let path = self.replies_path(turn_id);
        append(&path).map_err(|source| StoreError::Open { path, source })
    }

    /// All replies of a turn that were written so far.
    pub(super) fn replies(&self, turn_id: &str) -> Result<Vec<Reply>, StoreError> {
        read_lines(&self.replies_path(turn_id))
    }

    /// The oldest first.
    pub(super) fn turns(&self) -> Result<Vec<TurnSummary>, StoreError> {
        let mut turns: Vec<TurnSummary> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for line in read_lines(&self.path.join("turns.jsonl"))? {
            match line {
                TurnLine::Begin {
                    turn_id,
                    trace_id,
                    session_id,
                    text,
                    started_at,
                } => {
                    places.insert(turn_id.clone(), turns.len());
                    turns.push(TurnSummary {
                        turn_id,
                        trace_id,
                        session_id,
                        text,
                        started_at,
                        finished_at: None,
                        end: None,
                    });
                }
                TurnLine::End {
                    turn_id,
                    finished_at,
                    end,
                } => {
                    let place = places.get(&turn_id).and_then(|place| turns.get_mut(*place));
                    if let Some(turn) = place {
                        turn.finished_at = Some(finished_at);
                        turn.session_id = end.session_id.clone().or(turn.session_id.take());
                        turn.end = Some(end);
                    }
                }
            }
        }
        Ok(turns)
    }

    /// Ends the turns that a killed process left open.
    pub(super) fn interrupt_turns(&self) -> Result<(), StoreError> {
        for turn in self.turns()?.into_iter().filter(|turn| turn.end.is_none()) {
            let replies = self.replies(&turn.turn_id)?;
            let end = match replies.last() {
                Some(last) if last.kind.is_terminal() => last.clone(),
                last => {
                    let session_id = last.and_then(|last| last.session_id.clone());
                    let end = Reply {
                        trace_id: turn.trace_id.clone(),
                        seq: last.map_or(0, |last| last.seq) + 1,
                        turn_id: turn.turn_id.clone(),
                        session_id: session_id.or(turn.session_id),
                        kind: ReplyKind::Error {
                            code: ErrorCode::Interrupted,
                            message: "rollcage was killed while this turn was open".to_owned(),
                            retryable: true,
                        },
                    };
                    let path = self.replies_path(&turn.turn_id);
                    add_line(&path, &end)?;
                    end
                }
            };
            self.end_turn(rollcage_proxy::clock::now(), &end)?;
        }
        Ok(())
    }

    fn replies_path(&self, turn_id: &str) -> PathBuf {
        self.path.join("turns").join(format!("{turn_id}.jsonl"))
    }

    fn add_turn_line(&self, line: &TurnLine) -> Result<(), StoreError> {
        add_line(&self.path.join("turns.jsonl"), line)
    }
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(path)?;
    // What a killed process wrote of its last line stays a line of its own.
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

fn add_line(path: &Path, line: &impl Serialize) -> Result<(), StoreError> {
    let written = || -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        append(path)?.write_all(&text)
    };
    written().map_err(|source| StoreError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Lines that cannot be read are those of a process that was killed while it wrote.
fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>, StoreError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(StoreError::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    let lines = text.split(|byte| *byte == b'\n');
    let parsed = lines.filter_map(|line| serde_json::from_slice(line).ok());
    Ok(parsed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(id: &str) -> TurnSummary {
        TurnSummary {
            turn_id: id.to_owned(),
            trace_id: "trace".to_owned(),
            session_id: Some("ses_1".to_owned()),
            text: "hello".to_owned(),
            started_at: 1.0,
            finished_at: None,
            end: None,
        }
    }

    fn reply(turn_id: &str, seq: u64, kind: ReplyKind) -> Reply {
        Reply {
            trace_id: "trace".to_owned(),
            seq,
            turn_id: turn_id.to_owned(),
            session_id: Some("ses_2".to_owned()),
            kind,
        }
    }

    #[test]
    fn turns_that_a_killed_process_left_open_are_interrupted_once() {
        let root = tempfile::tempdir().unwrap();
        let directory = LiveDirectory::create(root.path(), "a").unwrap();
        let last = ReplyKind::Final {
            text: "done".to_owned(),
            usage: Default::default(),
            finish: None,
        };
        for id in ["told", "written", "waiting"] {
            directory.begin_turn(&turn(id)).unwrap();
        }
        let delta = ReplyKind::Delta {
            text: "d".to_owned(),
        };
        add_line(
            &directory.replies_path("told"),
            &reply("told", 1, delta.clone()),
        )
        .unwrap();
        // A torn line, of the moment of the kill.
        let mut torn = directory.replies_file("told").unwrap();
        torn.write_all(b"{\"trace_id\":\"tr").unwrap();
        let written = directory.replies_path("written");
        add_line(&written, &reply("written", 1, last.clone())).unwrap();
        for _ in 0..2 {
            directory.interrupt_turns().unwrap();
        }
        let turns = directory.turns().unwrap();
        let ends: Vec<_> = turns.iter().map(|turn| turn.end.clone().unwrap()).collect();
        let code = |kind: &ReplyKind| match kind {
            ReplyKind::Error { code, .. } => Some(*code),
            _ => None,
        };
        assert_eq!(
            (ends[0].seq, code(&ends[0].kind)),
            (2, Some(ErrorCode::Interrupted))
        );
        assert_eq!(ends[1].kind, last);
        assert_eq!(
            (ends[2].seq, code(&ends[2].kind)),
            (1, Some(ErrorCode::Interrupted))
        );
        assert_eq!(turns[0].session_id.as_deref(), Some("ses_2"));
        let replies = directory.replies("told").unwrap();
        assert_eq!(replies.len(), 2);
        assert_eq!(replies[0].kind, delta);
        let lines = fs::read_to_string(directory.path.join("turns.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 6);
    }

    #[test]
    fn an_agent_is_held_by_one_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let directory = LiveDirectory::create(root.path(), "a").unwrap();
        let held = directory.lock().unwrap();
        assert!(held.is_some());
        assert!(directory.lock().unwrap().is_none());
        drop(held);
        assert!(directory.lock().unwrap().is_some());
    }
}
