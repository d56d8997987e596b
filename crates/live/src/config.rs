//! OpenCode's configuration file.

use std::io;
use std::path::{Path, PathBuf};

/// The model, as the configuration file names it.
#[derive(Clone)]
pub struct Provider {
    /// The provider's name in model names, as in `rollcage/MODEL`.
    pub name: String,
    pub base_url: String,
    pub key: String,
    /// One or more model names, verbatim; the first is the default.
    pub models: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("a live agent needs at least one model")]
    NoModel,
}

/// The text of `opencode.json`.
pub fn config_text(_provider: &Provider) -> Result<String, ConfigError> {
    todo!()
}

/// Writes `<home>/.config/opencode/opencode.json`: the directory 0700, the file 0600 from its first byte, replaced atomically.
/// Returns its path.
pub fn write_config(_home: &Path, _provider: &Provider) -> Result<PathBuf, ConfigError> {
    todo!()
}
