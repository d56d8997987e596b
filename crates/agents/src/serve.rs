//! How an agent is kept running as a server, as described by `[serve]` in a manifest.

use serde::Deserialize;

use super::error::ManifestError;
use super::fill;

/// The placeholder for the server's port, which is known only when the server starts.
const PORT: &str = "port";

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServeText {
    /// The command of the server, with `{port}`. Options of a task add to it what they add to the agent's own command.
    pub(super) command: Vec<String>,
    /// The provider of the rollout's model in the agent's configuration. Named with each message, it holds whatever a
    /// configuration in the work directory says.
    pub(super) provider: Option<String>,
    /// Variables that the server itself gets from Rollcage, such as its password: a task may not set them.
    #[serde(default)]
    pub(super) kept: Vec<String>,
}

impl ServeText {
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        if self.command.is_empty() {
            return Err(ManifestError::NoServeCommand);
        }
        let names = || self.command.iter().flat_map(|text| fill::names(text));
        if names().any(|name| name == "key") {
            return Err(ManifestError::KeyInCommand);
        }
        let unknown = self.command.iter().flat_map(|text| fill::unknown(text));
        if let Some(name) = unknown.into_iter().find(|name| *name != PORT) {
            return Err(ManifestError::Placeholder {
                placeholder: format!("{{{name}}}"),
                place: "`serve.command`".to_owned(),
            });
        }
        match names().any(|name| name == PORT) {
            true => Ok(()),
            false => Err(ManifestError::NoPort),
        }
    }
}
