//! Appends a rollout's exchanges to its own file, a line each. What is not on disk was not captured, so a recorder that
//! cannot write fails the rollout.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use rollcage_model::exchange::Line;

#[derive(Debug)]
pub(crate) struct Recorder {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// The first error; everything after it is refused, so that the file has no silent hole in the middle.
    broken: Option<String>,
}

impl Recorder {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        let file = File::options()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Recorder {
            state: Mutex::new(State { file, broken: None }),
        })
    }

    /// Writes one line before it returns. The error is text because it is told to the agent and put in the record.
    pub(crate) fn append(&self, line: &Line) -> Result<(), String> {
        let mut bytes =
            serde_json::to_vec(line).map_err(|error| format!("encode an exchange: {error}"))?;
        bytes.push(b'\n');
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(broken) = &state.broken {
            return Err(broken.clone());
        }
        if let Err(error) = state.file.write_all(&bytes) {
            let text = format!("write the rollout's exchanges: {error}");
            state.broken = Some(text.clone());
            return Err(text);
        }
        Ok(())
    }

    pub(crate) fn broken(&self) -> Option<String> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .broken
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rollcage_model::exchange::{Request, VERSION};

    #[test]
    fn a_full_disk_breaks_the_recorder_for_good() {
        let file = File::options().append(true).open("/dev/full").unwrap();
        let recorder = Recorder {
            state: Mutex::new(State { file, broken: None }),
        };
        let line = Line::Request(Request {
            version: VERSION,
            exchange: 1,
            at: 0.0,
            path: String::new(),
            headers: Default::default(),
            body: String::new(),
            set: Default::default(),
            removed: Vec::new(),
        });
        assert_eq!(recorder.broken(), None);
        let problem = recorder.append(&line).unwrap_err();
        assert!(problem.contains("No space left"), "{problem}");
        assert_eq!(recorder.append(&line), Err(problem.clone()));
        assert_eq!(recorder.broken(), Some(problem));
    }
}
