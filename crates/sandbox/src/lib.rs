//! One isolated machine per rollout. Knows nothing of agents, models or tasks.
//!
//! [`Sandboxes`] starts them, [`Sandbox`] is one of them. The embedded backend is [`local`]; other backends implement
//! the same two traits.
//!
//! Read these two traits first, then [`Spec`] and [`guest`] (what every sandbox looks like inside), then the page of
//! [`local`], which tells which of its files runs in which process. This is the only crate with `unsafe` code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

mod capabilities;
mod command;
mod content;
pub mod disk;
pub mod doctor;
mod entrance;
mod error;
mod file_stream;
mod gates;
pub mod guest;
pub mod local;
pub mod memory;
pub mod names;
mod process;
mod run;
mod snapshot;
mod spec;

pub use capabilities::{Capabilities, Isolation, NetworkPolicy};
pub use command::{Command, Stdin, User};
pub use content::{Archive, Content, Mount};
pub use entrance::{AllowedPeers, BoxedStream, Entrance, Listener, Stream};
pub use error::Error;
pub use file_stream::{FileStream, StreamedHead, StreamedKind};
pub use gates::{Gates, PORTS_MAX, PROXY_PORT};
pub use process::{ExitStatus, Input, Output, Process};
pub use run::{CommandOutcome, OutputLimit, run};
pub use snapshot::Snapshot;
pub use spec::{Limits, Spec};

/// One entry of [`Sandbox::list`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DirectoryEntry {
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

/// What stands at a path, without following links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileStatus {
    pub kind: EntryKind,
    /// The permission bits.
    pub mode: u32,
    /// How many names the file has.
    pub links: u64,
    pub bytes: u64,
}

/// Resources that a sandbox used. Fields are `None` if the kernel does not report them.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    pub memory_peak_bytes: Option<u64>,
    /// What it holds now and the kernel cannot take back, files included.
    pub memory_bytes: Option<u64>,
    pub cpu_s: Option<f64>,
    /// What its files, which live in memory, take up now; shared memory counts as files.
    pub disk_used_bytes: Option<u64>,
    /// Processes the kernel killed because the memory limit was reached.
    pub oom_kills: Option<u64>,
}

/// Starts sandboxes. Shared by all rollouts of a process.
#[async_trait]
pub trait Sandboxes: Send + Sync {
    fn capabilities(&self) -> &Capabilities;
    async fn start(&self, spec: Spec) -> Result<Box<dyn Sandbox>, Error>;
    /// Writes a snapshot to a file that only its owner can read, which appears as a whole or not at all.
    async fn save_snapshot(&self, snapshot: &Snapshot, path: &Path) -> Result<(), Error>;
    /// A snapshot of such a file. It must not be changed for as long as the snapshot is used; replacing it is fine.
    async fn load_snapshot(&self, path: &Path) -> Result<Snapshot, Error>;
    /// Checks everything that sandboxes need, one by one.
    async fn doctor(&self) -> Result<Vec<doctor::Check>, Error>;
    /// Waits until all ended sandboxes are cleaned up, and removes the backend's own resources. Sandboxes must be
    /// closed or dropped before; none can be started afterwards.
    async fn shutdown(&self) -> Result<(), Error>;
}

/// One sandbox. Dropping it kills everything inside; [`Sandbox::close`] also waits for that.
#[async_trait]
pub trait Sandbox: Send + Sync {
    fn id(&self) -> &str;
    fn isolation(&self) -> &Isolation;
    /// How programs inside reach the model. `None` without [`Spec::has_entrance`], or if it was already taken.
    fn take_entrance(&mut self) -> Option<Entrance>;
    /// How programs inside reach the world. `None` without [`Spec::intercepted_ports`], and when they were taken already.
    fn take_gates(&mut self) -> Option<Gates>;
    /// Connects to a service that listens on `127.0.0.1:port` inside.
    async fn connect(&self, port: u16) -> Result<BoxedStream, Error>;
    async fn spawn(&self, command: Command) -> Result<Process, Error>;
    /// Writes a file as `user`, creating parent directories. An existing file is replaced by a new one. Here and below,
    /// relative paths are relative to [`guest::WORKDIR`].
    async fn write_file(&self, path: &str, mode: u32, content: Vec<u8>) -> Result<(), Error>;
    /// Unpacks an uncompressed tar file of files, directories and links below `target`, an absolute path, as `user`. As
    /// with [`Sandbox::write_file`], what is there already is replaced; a directory is kept.
    async fn unpack(&self, archive: Vec<u8>, target: &str) -> Result<(), Error>;
    /// Reads a regular file as `user`; `Error::TooLarge` above `bytes_max`.
    async fn read_file(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error>;
    /// What stands at a path, as `user` sees it; `None` where there is nothing. No link is followed at its end.
    async fn stat(&self, path: &str) -> Result<Option<FileStatus>, Error>;
    /// Removes whatever stands at a path as `user`, a directory with its content; nothing there is fine. No link is
    /// followed at its end.
    async fn remove(&self, path: &str) -> Result<(), Error>;
    /// Reads files and links below `directory` as `user`, one after the other, however large they are. No link is
    /// followed; a path is relative, and one that leads out is nothing.
    async fn read_files(&self, directory: &str, paths: Vec<String>) -> Result<FileStream, Error>;
    /// Lists a tree in byte order of the paths, without following links. `depth` 1 lists only the directory itself.
    /// Beyond `entries_max` the listing is truncated; request one more to detect that.
    async fn list(
        &self,
        path: &str,
        depth: u32,
        entries_max: usize,
    ) -> Result<Vec<DirectoryEntry>, Error>;
    /// Kills every process in the sandbox, whatever its session or group; all are reaped on return. Returns how many
    /// were alive.
    async fn kill_all(&self) -> Result<u64, Error>;
    /// Mounts fresh, empty, writable directories at [`guest::VERIFIER_LOGS`], [`guest::TESTS`] and
    /// [`guest::VERIFY_HOME`], and makes [`guest::AS_AGENT`] usable, whose commands get the environment `agent`. Call it after
    /// [`Sandbox::kill_all`].
    async fn unseal(&self, agent: BTreeMap<String, String>) -> Result<(), Error>;
    /// Mounts fresh, empty, writable directories at [`guest::TESTS`] and [`guest::VERIFY_HOME`] in place of those that
    /// are there, for one more verify command. Call it after [`Sandbox::unseal`], with nothing running.
    async fn renew(&self) -> Result<(), Error>;
    /// Copies the entries of [`guest::HOME`] whose names begin with a dot to [`guest::KEPT_HOME`], as `user`. Call it
    /// before [`Sandbox::seal_setup`].
    async fn keep_home(&self) -> Result<(), Error>;
    /// Fills [`guest::VERIFY_HOME`]: links to the entries of [`guest::HOME`] without a dot, and to those that `named`
    /// lists; of the others what [`Sandbox::keep_home`] kept. Whatever the agent did to its home, something is there.
    async fn lay_home(&self, named: Vec<PathBuf>) -> Result<(), Error>;
    /// Makes [`guest::SETUP`] read-only for good. Fails while a process has a file open there for writing.
    async fn seal_setup(&self) -> Result<(), Error>;
    /// Keeps the files as they are, where [`Capabilities::snapshot`] says so. Best with nothing running.
    async fn snapshot(&self) -> Result<Snapshot, Error>;
    async fn usage(&self) -> Usage;
    /// From now on [`Sandbox::usage`] tells the peak of memory since this moment. Returns whether that is possible.
    async fn reset_memory_peak(&self) -> bool;
    async fn close(self: Box<Self>) -> Result<(), Error>;
}
