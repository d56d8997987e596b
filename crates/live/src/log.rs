//! What a server prints, on disk: `serve.log`, which only its owner can read, and which rotates.
//!
//! Output is always read, whatever happens to the disk: a server that cannot print any more would stand still.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use rollcage_sandbox::Output;
use tokio::io::AsyncReadExt;

/// A file that is longer becomes an old one.
pub const BYTES_MAX: u64 = 8 << 20;
/// `serve.log.1` is newer than `serve.log.2`.
pub const OLD_FILES: u32 = 2;
const CHUNK_BYTES: usize = 16 << 10;
/// Kept in memory for error messages.
const TAIL_BYTES: usize = 4 << 10;

/// One log and its old files.
pub(crate) struct RotatingLog {
    path: PathBuf,
    bytes_max: u64,
    /// None when it could not be opened; the next write tries again.
    file: Option<File>,
    bytes: u64,
    /// Bytes that could not be written since the last that could.
    lost: u64,
    tail: VecDeque<u8>,
}

/// Shared by the streams of one server.
pub(crate) type SharedLog = Arc<Mutex<RotatingLog>>;

impl RotatingLog {
    pub(crate) fn new(path: PathBuf, bytes_max: u64) -> Self {
        RotatingLog {
            path,
            bytes_max,
            file: None,
            bytes: 0,
            lost: 0,
            tail: VecDeque::new(),
        }
    }

    pub(crate) fn shared(path: PathBuf) -> SharedLog {
        Arc::new(Mutex::new(Self::new(path, BYTES_MAX)))
    }

    /// Never fails: what cannot be written is counted, and the log says so once it can be written again.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        self.tail.extend(kept);
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        if self.try_write(bytes).is_err() {
            self.lost += bytes.len() as u64;
            // A file that was removed or is on a broken disk may be opened anew.
            self.file = None;
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open()?;
        if self.bytes > 0 && self.bytes + bytes.len() as u64 > self.bytes_max {
            self.rotate();
            self.open()?;
        }
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if self.lost > 0 {
            let note = format!("\n[{} bytes could not be written here]\n", self.lost);
            file.write_all(note.as_bytes())?;
            self.bytes += note.len() as u64;
            self.lost = 0;
        }
        file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits())
                .open(&self.path)?;
            // It may have been there with wider rights.
            file.set_permissions(Permissions::from_mode(0o600))?;
            self.bytes = file.metadata()?.len();
            self.file = Some(file);
        }
        Ok(())
    }

    /// The oldest file gives way, which also makes room on a full disk.
    fn rotate(&mut self) {
        self.file = None;
        for number in (1..=OLD_FILES).rev() {
            let newer = old_path(&self.path, number - 1);
            // A missing one is fine; one that cannot be moved is appended to.
            let _ = std::fs::rename(newer, old_path(&self.path, number));
        }
    }

    /// Moves the file, if it was written; its old ones stay. A file that cannot be moved is left where it is.
    pub(crate) fn move_to(&mut self, path: PathBuf) {
        if std::fs::rename(&self.path, &path).is_err() {
            self.file = None;
        }
        self.path = path;
    }

    /// The next write opens it again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// The last lines that were printed, however the disk is.
    pub(crate) fn last_lines(&self, lines_max: usize) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().map(str::trim_end);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(lines_max)..].join("\n")
    }
}

fn old_path(path: &Path, number: u32) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }
    }
}

/// Copies a stream to the log until it ends. At most one chunk of it is in memory.
pub(crate) async fn drain(stream: Option<Output>, log: SharedLog) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let log = Arc::clone(&log);
        let write = move || {
            let mut locked = log.lock().unwrap_or_else(PoisonError::into_inner);
            locked.write(&buffer[..count]);
            drop(locked);
            buffer
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(same) => buffer = same,
            Err(_) => buffer = vec![0; CHUNK_BYTES],
        }
    }
}

/// The end of a log, at most so many bytes, from the newest old file too where the current one is shorter.
pub fn read_tail(path: &Path, bytes_max: usize) -> io::Result<String> {
    let mut tail = read_end(path, bytes_max as u64)?;
    if tail.len() < bytes_max {
        let left = (bytes_max - tail.len()) as u64;
        if let Ok(mut older) = read_end(&old_path(path, 1), left) {
            older.append(&mut tail);
            tail = older;
        }
    }
    Ok(String::from_utf8_lossy(&tail).into_owned())
}

fn read_end(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
