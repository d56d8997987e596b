//! One isolated machine per rollout. Knows nothing of agents, models or tasks.
//!
//! [`Sandboxes`] starts them, [`Sandbox`] is one of them. The embedded backend is [`local`];
//! other backends implement the same two traits.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;

use async_trait::async_trait;

pub mod disk;
pub mod doctor;
mod error;
pub mod guest;
pub mod local;
mod process;
mod run;

pub use error::Error;
pub use process::{ExitStatus, Input, Output, Process};
pub use run::{Finished, OutputLimit, run};

/// What a sandbox is made of.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Names the sandbox and its host: letters, digits and dashes, at most 63.
    pub id: String,
    pub limits: Limits,
    /// Directory trees laid over the base, uppermost first, e.g. an agent's pre-baked home. What the
    /// sandbox's user shall own belongs to uid 1000 outside, or to whoever runs the engine if that is not root.
    pub layers: Vec<PathBuf>,
    /// Host directories or files shown read-only inside.
    pub mounts: Vec<Mount>,
    /// A listening socket is opened on `127.0.0.1:port` inside for each and handed to us.
    pub ports: Vec<u16>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    /// Absolute path inside; created if it is not there.
    pub target: PathBuf,
}

/// What a sandbox may use at most.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// Includes what is written to the sandbox's file system, which lives in memory.
    pub memory_bytes: u64,
    pub pids: u64,
    /// A hard quota; `None` shares the machine fairly, which is faster for agents that use threads.
    pub cpus: Option<f64>,
    pub disk_bytes: u64,
    /// The largest single file.
    pub file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const GIB: u64 = 1 << 30;
        Limits {
            memory_bytes: 4 * GIB,
            pids: 1024,
            cpus: None,
            disk_bytes: 2 * GIB,
            file_bytes: GIB,
        }
    }
}

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
    /// Empty means [`guest::WORKDIR`].
    pub cwd: String,
    pub user: User,
    pub stdin: Stdin,
}

/// One entry of [`Sandbox::list`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entry {
    /// Relative to the listed directory.
    pub path: String,
    pub kind: EntryKind,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// How strong the walls are here, for the record.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Isolation {
    /// `container` (root, own uid range) or `userns` (ordinary user).
    pub tier: String,
    /// `cgroup-v1`, `cgroup-v2` or `rlimits`, per limited thing.
    pub memory: String,
    pub pids: String,
    pub cpu: String,
}

/// What a sandbox used. Fields are `None` where the kernel does not tell.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    pub memory_peak_bytes: Option<u64>,
    pub cpu_s: Option<f64>,
    /// Processes the kernel killed because the memory limit was reached.
    pub oom_kills: Option<u64>,
}

/// Starts sandboxes. Shared by all rollouts of a process.
#[async_trait]
pub trait Sandboxes: Send + Sync {
    async fn start(&self, spec: Spec) -> Result<Box<dyn Sandbox>, Error>;
}

/// One sandbox. Dropping it kills everything inside; [`Sandbox::close`] also waits for that.
#[async_trait]
pub trait Sandbox: Send + Sync {
    fn id(&self) -> &str;
    fn isolation(&self) -> &Isolation;
    /// The sockets asked for in [`Spec::ports`], in that order; empty when already taken.
    fn take_listeners(&mut self) -> Vec<TcpListener>;
    async fn spawn(&self, command: Command) -> Result<Process, Error>;
    /// Writes a file as `user`, creating parent directories. An existing file is replaced by a new one.
    /// Here and below, relative paths count from [`guest::WORKDIR`].
    async fn write_file(&self, path: &str, mode: u32, content: Vec<u8>) -> Result<(), Error>;
    /// Reads a regular file as `user`; `Error::TooLarge` above `bytes_max`.
    async fn read_file(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error>;
    /// Lists a tree in byte order of the paths, without following links. `depth` 1 is the directory itself.
    /// Beyond `entries_max` the listing is cut short; to find out, ask for one more.
    async fn list(&self, path: &str, depth: u32, entries_max: usize) -> Result<Vec<Entry>, Error>;
    /// Ends every process in the sandbox, whatever its session or group; all are reaped on return. The answer is how
    /// many there were to end.
    async fn kill_all(&self) -> Result<u64, Error>;
    /// Puts fresh, empty, writable directories at [`guest::VERIFIER_LOGS`] and [`guest::TESTS`]. Call it after [`Sandbox::kill_all`].
    async fn unseal(&self) -> Result<(), Error>;
    async fn usage(&self) -> Usage;
    async fn close(self: Box<Self>) -> Result<(), Error>;
}
