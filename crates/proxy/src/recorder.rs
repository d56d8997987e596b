//! Appends the frames of a rollout's exchanges to the rollout's own file. What is not on disk was not captured, so a
//! recorder that cannot write fails the rollout.
//!
//! A frame is written to the kernel before its call continues, so that it survives the end of our process. It is not
//! synced: that would cost every call milliseconds. The file is synced once, when the record is committed.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use rollcage_model::exchange::{Encoder, Frame, Line};

#[derive(Debug)]
pub(crate) struct Recorder {
    state: Mutex<RecorderState>,
}

#[derive(Debug)]
struct RecorderState {
    file: File,
    encoder: Encoder,
    bytes: u64,
    /// The first error; every later write is refused, so that the file has no silent gap in the middle.
    broken: Option<String>,
}

impl RecorderState {
    /// Returns buffers that are not needed any more, to be freed outside of the lock.
    fn write(&mut self, frame: serde_json::Result<Frame>) -> Result<Vec<Bytes>, String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let encoded = frame.and_then(|frame| self.encoder.encode(frame));
        let written = encoded
            .map_err(std::io::Error::from)
            .and_then(|(bytes, gone)| {
                self.bytes += bytes.len() as u64;
                self.file.write_all(&bytes).map(|()| gone)
            });
        written.map_err(|error| {
            let text = format!("write the rollout's exchanges: {error}");
            self.broken = Some(text.clone());
            text
        })
    }
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        let file = File::options()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Recorder::new(file))
    }

    pub(crate) fn new(file: File) -> Self {
        let state = RecorderState {
            file,
            encoder: Encoder::default(),
            bytes: 0,
            broken: None,
        };
        Recorder {
            state: Mutex::new(state),
        }
    }

    /// Writes one frame before it returns. The error is text because it goes to the agent and into the record.
    pub(crate) fn append(&self, line: Line) -> Result<(), String> {
        let earlier = {
            let mut state = self.state();
            if let Some(broken) = &state.broken {
                return Err(broken.clone());
            }
            state.encoder.earlier(&line)
        };
        // The expensive part runs outside of the lock, since calls of one rollout are concurrent.
        let frame = earlier.frame(line);
        let gone = self.state().write(frame);
        gone.map(drop)
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Waits for the disk without holding the lock, so that calls continue.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        let file = self.state().file.try_clone()?;
        file.sync_data()
    }

    pub(crate) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rollcage_model::exchange::Request;

    #[test]
    fn a_full_disk_breaks_the_recorder_for_good() {
        let recorder = Recorder::new(File::options().append(true).open("/dev/full").unwrap());
        let line = || Line::Request(Request::default());
        assert_eq!(recorder.broken(), None);
        let problem = recorder.append(line()).unwrap_err();
        assert!(problem.contains("No space left"), "{problem}");
        assert_eq!(recorder.append(line()), Err(problem.clone()));
        assert_eq!(recorder.broken(), Some(problem));
    }
}
