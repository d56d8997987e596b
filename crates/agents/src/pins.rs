//! The user's own pins: pinned lists in the data directory, which beat those that built-in agents come with. A pin is a
//! file that is replaced at once, so that whoever reads it in the meantime has the old one or the new one, and what runs
//! keeps the version that it has.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Agent, AgentError, BUILT_IN, Manifest};

/// The folder of all pins.
#[derive(Clone, Debug)]
pub struct Pins {
    folder: PathBuf,
}

/// A pin that does not hold yet; gone when dropped.
#[derive(Debug)]
pub struct NewPin {
    file: tempfile::NamedTempFile,
    path: PathBuf,
    agent: String,
}

impl Pins {
    pub fn new(folder: PathBuf) -> Self {
        Pins { folder }
    }

    /// The file of an agent's pin.
    pub fn path(&self, agent: &str) -> PathBuf {
        self.folder.join(format!("{agent}.lock"))
    }

    /// Whether the user has pinned an agent.
    pub fn has(&self, agent: &str) -> bool {
        self.path(agent).is_file()
    }

    /// Makes a built-in agent follow its pin, if there is one.
    pub(crate) fn apply(&self, manifest: Manifest) -> Result<Manifest, AgentError> {
        match self.path(manifest.name()) {
            path if path.is_file() => pinned(manifest, &path),
            _ => Ok(manifest),
        }
    }

    /// Writes a pinned list that is not followed yet.
    pub fn begin(&self, agent: &str, list: &str) -> io::Result<NewPin> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(list.as_bytes())?;
        file.as_file().sync_all()?;
        Ok(NewPin {
            file,
            path: self.path(agent),
            agent: agent.to_owned(),
        })
    }

    /// Forgets a pin; `false` if there was none.
    pub fn forget(&self, agent: &str) -> io::Result<bool> {
        match std::fs::remove_file(self.path(agent)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl NewPin {
    /// The built-in agent as it would be with this pin.
    pub fn agent(&self) -> Result<Arc<dyn Agent>, AgentError> {
        let manifest = built_in()
            .into_iter()
            .find(|manifest| manifest.name() == self.agent);
        let manifest = manifest.ok_or_else(|| AgentError::Unknown {
            name: self.agent.clone(),
            known: crate::able(&|_| true),
        })?;
        Ok(Arc::new(pinned(manifest, self.file.path())?))
    }

    /// From now on this pin holds.
    pub fn keep(self) -> io::Result<()> {
        let kept = self.file.persist(&self.path);
        kept.map(drop).map_err(|error| error.error)
    }
}

/// The manifests that come with the program.
pub(crate) fn built_in() -> Vec<Manifest> {
    let read = |(text, list)| match Manifest::built_in(text, list) {
        Ok(manifest) => Some(manifest),
        Err(error) => {
            // Unreachable in practice: a test loads them all.
            tracing::error!(%error, "a built-in agent is unreadable");
            None
        }
    };
    BUILT_IN.into_iter().filter_map(read).collect()
}

fn pinned(mut manifest: Manifest, list: &Path) -> Result<Manifest, AgentError> {
    manifest.pin_to(list).map_err(|source| AgentError::Pin {
        path: list.display().to_string(),
        agent: manifest.name().to_owned(),
        source,
    })?;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{all_in, find_in};

    const LIST: &str = "format = 1\nagent = \"codex\"\nversion = \"9.9.9\"\n";

    #[test]
    fn a_pin_holds_once_it_is_kept_and_until_it_is_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let own = home.path().join("agents");
        let pins = Pins::new(home.path().join("pins"));
        let version = || {
            let (agent, _) = find_in(&own, &pins, "codex").unwrap();
            agent.source().default_version.clone()
        };
        let ours = version();
        let new = pins.begin("codex", LIST).unwrap();
        assert_eq!(new.agent().unwrap().source().default_version, "9.9.9");
        assert_eq!(version(), ours, "it is not kept yet");
        drop(new);
        assert!(!pins.has("codex"));
        pins.begin("codex", LIST).unwrap().keep().unwrap();
        assert_eq!((version().as_str(), pins.has("codex")), ("9.9.9", true));

        // An agent of the user's own by that name has its own version.
        std::fs::create_dir(&own).unwrap();
        let text = "name = \"codex\"\nversion = \"1\"\ncommand = [\"/bin/true\"]\n";
        std::fs::write(own.join("codex.toml"), text).unwrap();
        assert_eq!(version(), "1");
        std::fs::remove_file(own.join("codex.toml")).unwrap();

        assert!(pins.forget("codex").unwrap());
        assert!(!pins.forget("codex").unwrap());
        assert_eq!(version(), ours);
    }

    #[test]
    fn a_pin_that_is_none_is_named() {
        let home = tempfile::tempdir().unwrap();
        let pins = Pins::new(home.path().join("pins"));
        for list in ["nonsense", &LIST.replace("codex", "claude")] {
            pins.begin("codex", list).unwrap().keep().unwrap();
            let error = all_in(home.path(), &pins).err().unwrap().to_string();
            assert!(
                error.contains("rollcage agent update --reset codex"),
                "{error}"
            );
        }
    }
}
