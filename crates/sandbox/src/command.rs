//! Commands to run in a sandbox.

use std::collections::BTreeMap;

/// Which user a command runs as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum User {
    /// The unprivileged user `user`.
    #[default]
    User,
    /// Root inside the sandbox, without capabilities outside it. Only available if the engine runs as root.
    Root,
}

/// The standard input of a command.
#[derive(Clone, Debug, Default)]
pub enum Stdin {
    /// Immediate end of file. An open pipe would hang agents that read to the end.
    #[default]
    Null,
    Bytes(Vec<u8>),
    Piped,
}

/// A command to start. The environment is exactly `env`, nothing is inherited.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// `argv[0]` is looked up in `env`'s `PATH` when it has no slash.
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Empty means [`crate::guest::WORKDIR`].
    pub cwd: String,
    pub user: User,
    pub stdin: Stdin,
}
