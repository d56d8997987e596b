//! An agent's output: the beginning goes to a file, the end stays in memory, and excess in between is counted and
//! dropped.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use rollcage_sandbox::Output;
use tokio::io::AsyncReadExt;

/// The limit on disk per stream; a verbose agent writes some megabytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Large enough for the last event lines of any agent.
const TAIL_BYTES: usize = 256 << 10;

/// One output stream.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    tail: VecDeque<u8>,
    bytes: u64,
}

impl Log {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        Ok(Log {
            file: crate::store::private_file(path)?,
            tail: VecDeque::new(),
            bytes: 0,
        })
    }

    /// Reads to the end. Cancel-safe: what was read is kept.
    pub(crate) async fn fill_from(&mut self, mut stream: Output) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count) = stream.read(&mut buffer).await {
            if count == 0 {
                break;
            }
            self.push(&buffer[..count]);
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = FILE_BYTES_MAX.saturating_sub(self.bytes);
        let kept = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        // On a full disk only this log is lost, not the rollout; the exchanges are what must not be lost.
        let _ = self.file.write_all(&bytes[..kept]);
        self.bytes += bytes.len() as u64;
        self.tail
            .extend(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
    }

    /// Notes how much was dropped and appends the end of the stream to the file. Returns the end of the stream.
    pub(crate) fn finish(&mut self) -> String {
        let (front, back) = self.tail.as_slices();
        let tail = [front, back].concat();
        if self.bytes > FILE_BYTES_MAX {
            let dropped = (self.bytes - FILE_BYTES_MAX).saturating_sub(tail.len() as u64);
            let _ = write!(self.file, "\n[rollcage: {dropped} bytes not kept]\n");
            let kept = usize::try_from(self.bytes - FILE_BYTES_MAX)
                .unwrap_or(usize::MAX)
                .min(tail.len());
            let _ = self.file.write_all(&tail[tail.len() - kept..]);
        }
        String::from_utf8_lossy(&tail).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_keeps_its_beginning_and_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::create(&path).unwrap();
        log.push(b"first");
        for _ in 0..400 {
            log.push(&[b'x'; 64 << 10]);
        }
        log.push(b"last");
        assert!(log.finish().ends_with("xlast"));
        let file = std::fs::read(&path).unwrap();
        assert!(file.starts_with(b"first") && file.ends_with(b"xlast"));
        assert!(file.len() < (17 << 20), "{}", file.len());
    }
}
