//! The index over the records: `index.jsonl` in the home, one line for each ended rollout with what lists show of it, so
//! that a list of many rollouts reads one file.
//!
//! It is only a cache of summaries that never change. Which rollouts there are is told by the directory of records; a
//! record that has no line is read and gets one, and a line without a record is ignored. So the file may be deleted at any
//! time, and a line that is torn, of another version or written twice does no harm. Several processes append to it, each
//! with one write under the file's lock; whoever replaces it writes the new file first and renames it under the same lock.
//! Nobody waits long for the lock: what cannot be written is left out.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use rollcage_model::browse::rollout::RolloutRow;

use super::disk::is_same_file;
use super::{StoreError, Summary};

/// Of the lines. Others are ignored, so that their records are read again.
const VERSION: u32 = 1;
/// Of the program.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");
const NAME: &str = "index.jsonl";
/// Who writes holds the lock for milliseconds. What is not written in this time is read from its record.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two tries.
const LOCK_RETRY: Duration = Duration::from_millis(2);
/// While it is replaced.
const PARTIAL: &str = "index.partial";

/// A line as it is read. Not flattened, which would take several times as long to parse.
#[derive(Deserialize)]
struct Line {
    version: u32,
    owner: Option<String>,
    #[serde(default)]
    unreadable_by: Option<String>,
    row: RolloutRow,
}

#[derive(Serialize)]
struct LineOf<'a> {
    version: u32,
    owner: Option<&'a str>,
    /// The version of the program that could not read the result. Others try it themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable_by: Option<&'static str>,
    row: &'a RolloutRow,
}

/// The index of one home.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    path: PathBuf,
}

/// How far a reader has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    inode: u64,
    bytes: u64,
}

impl Position {
    /// Whether this is in another file than the one where a reader was, or in one that was cut.
    pub(crate) fn is_elsewhere(self, reader: Position) -> bool {
        let is_cut = self.inode == reader.inode && self.bytes < reader.bytes;
        reader != Position::default() && (self.inode != reader.inode || is_cut)
    }
}

/// What a reader finds beyond its position.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Appended {
    /// In order; of several with the same id the last one counts.
    pub(crate) summaries: Vec<Summary>,
    /// Lines, also those that are no summaries of this version.
    pub(crate) lines: usize,
    /// The file is another one than before, and was read from its start.
    pub(crate) is_new: bool,
}

impl Index {
    pub(crate) fn new(home: &Path) -> Self {
        Index {
            path: home.join(NAME),
        }
    }

    /// Adds lines with one write.
    pub(crate) fn append<'a>(
        &self,
        summaries: impl IntoIterator<Item = &'a Summary>,
    ) -> Result<(), StoreError> {
        let text = render(summaries, &self.path)?;
        let append = || -> io::Result<()> {
            let mut file = self.lock()?;
            let bytes = file.seek(SeekFrom::End(0))?;
            let mut whole = Vec::new();
            if bytes > 0 {
                // The machine may have lost power in the middle of a line.
                let mut last = [0];
                file.seek(SeekFrom::Start(bytes - 1))?;
                file.read_exact(&mut last)?;
                whole.extend((last != *b"\n").then_some(b'\n'));
            }
            whole.extend(text);
            file.write_all(&whole)
        };
        append().map_err(|source| self.failed(source))
    }

    /// Where the file ends now.
    pub(crate) fn end(&self) -> Position {
        fs::metadata(&self.path)
            .map(|metadata| Position {
                inode: metadata.ino(),
                bytes: metadata.len(),
            })
            .unwrap_or_default()
    }

    /// Reads the whole lines beyond a position, and moves it behind them. A missing file is an empty one.
    pub(crate) fn read_on(&self, position: &mut Position) -> Result<Appended, StoreError> {
        let mut appended = Appended::default();
        let mut text = Vec::new();
        let mut read = || -> io::Result<()> {
            let mut file = match File::open(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    appended.is_new = *position != Position::default();
                    *position = Position::default();
                    return Ok(());
                }
                file => file?,
            };
            let metadata = file.metadata()?;
            let end = Position {
                inode: metadata.ino(),
                bytes: metadata.len(),
            };
            appended.is_new = end.is_elsewhere(*position);
            if appended.is_new || *position == Position::default() {
                *position = Position { bytes: 0, ..end };
            }
            file.seek(SeekFrom::Start(position.bytes))?;
            file.read_to_end(&mut text).map(drop)
        };
        read().map_err(|source| StoreError::Read {
            path: self.path.clone(),
            source,
        })?;
        // What follows the last line feed is still being written.
        let whole = text.iter().rposition(|byte| *byte == b'\n');
        text.truncate(whole.map_or(0, |last| last + 1));
        position.bytes += text.len() as u64;
        for line in text.split(|byte| *byte == b'\n') {
            appended.lines += usize::from(!line.is_empty());
            appended.summaries.extend(parse(line));
        }
        Ok(appended)
    }

    /// Replaces the file by these lines, and puts the position behind them.
    pub(crate) fn replace<'a>(
        &self,
        summaries: impl IntoIterator<Item = &'a Summary>,
        position: &mut Position,
    ) -> Result<(), StoreError> {
        let text = render(summaries, &self.path)?;
        let replace = || -> io::Result<Position> {
            let _locked = self.lock()?;
            let partial = self.path.with_file_name(PARTIAL);
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&partial)?;
            file.write_all(&text)?;
            fs::rename(&partial, &self.path)?;
            Ok(Position {
                inode: file.metadata()?.ino(),
                bytes: text.len() as u64,
            })
        };
        *position = replace().map_err(|source| self.failed(source))?;
        Ok(())
    }

    /// The file, locked; made if it is missing. Whoever holds the lock may have been stopped, and then this gives up.
    fn lock(&self) -> io::Result<File> {
        let deadline = Instant::now() + LOCK_WAIT_MAX;
        loop {
            let file = File::options()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&self.path)?;
            match file.try_lock() {
                // It may have been replaced before it was locked.
                Ok(()) if is_same_file(&file, &self.path) => return Ok(file),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_RETRY),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if Instant::now() >= deadline {
                let text = "another process keeps it locked";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::Write {
            path: self.path.clone(),
            source,
        }
    }
}

fn render<'a>(
    summaries: impl IntoIterator<Item = &'a Summary>,
    path: &Path,
) -> Result<Vec<u8>, StoreError> {
    let mut text = Vec::new();
    for summary in summaries {
        let line = LineOf {
            version: VERSION,
            owner: summary.owner.as_deref(),
            unreadable_by: summary.is_unreadable().then_some(PROGRAM),
            row: &summary.row,
        };
        let written = serde_json::to_writer(&mut text, &line);
        written.map_err(|source| StoreError::Format {
            path: path.to_owned(),
            source,
        })?;
        text.push(b'\n');
    }
    Ok(text)
}

fn parse(line: &[u8]) -> Option<Summary> {
    let Line {
        version,
        owner,
        unreadable_by,
        row,
    } = serde_json::from_slice(line).ok()?;
    let is_ours = unreadable_by.is_none_or(|program| program == PROGRAM);
    (version == VERSION && is_ours).then_some(Summary { row, owner })
}

#[cfg(test)]
mod tests;
