//! What is run in a sandbox.

use std::collections::BTreeMap;

/// Which user a command runs as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum User {
    /// The unprivileged user `user`.
    #[default]
    User,
    /// Root inside the sandbox, still without capabilities outside it. Only where the engine runs as root.
    Root,
}

/// What a command reads.
#[derive(Clone, Debug, Default)]
pub enum Stdin {
    /// End of file at once. An open pipe would hang agents that read to the end.
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
