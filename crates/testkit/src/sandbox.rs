//! An in-memory sandbox behind the same traits as real ones. A function of the test determines what commands do, files
//! are a map, connections never leave the process, and all waits use tokio's clock, so that tests can pause it.
//!
//! Content in a sandbox's spec is not unpacked; [`FakeSandboxes::specs`] returns it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rollcage_sandbox::doctor::{Check, Status};
use rollcage_sandbox::{
    BoxedStream, Capabilities, Command, DirectoryEntry, Entrance, Error, FileStatus, FileStream,
    Gates, Isolation, Listener, NetworkPolicy, Process, Sandbox, Sandboxes, Snapshot, Spec, Usage,
};
use tokio::sync::mpsc;

mod fault;
mod files;
mod machine;

pub use fault::{Fault, Operation};
pub use machine::behaviour::{CommandBehaviour, Guest, shell_text};

use fault::Faults;
use files::Files;
use machine::Machine;

const KIND: &str = "fake";
/// The model's base URL, as programs inside see it.
pub const BASE_URL: &str = "http://127.0.0.1:7000";

type CommandScript = Box<dyn Fn(&Command) -> CommandBehaviour + Send + Sync>;

/// Starts fake sandboxes. Clones share all state.
#[derive(Clone)]
pub struct FakeSandboxes {
    shared: Arc<Shared>,
}

struct Shared {
    capabilities: Capabilities,
    script: CommandScript,
    faults: Faults,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    operations: Vec<String>,
    specs: Vec<Spec>,
    usage: Usage,
    /// Started, and neither closed nor dropped.
    machines: Vec<Arc<Machine>>,
    is_shut_down: bool,
}

impl FakeSandboxes {
    /// `script` determines what each command does.
    pub fn new(
        script: impl Fn(&Command) -> CommandBehaviour + Send + Sync + 'static,
    ) -> FakeSandboxes {
        let by = || KIND.to_owned();
        let capabilities = Capabilities {
            kind: by(),
            root_inside: true,
            host_trees: true,
            snapshot: true,
            network: vec![NetworkPolicy::EntranceOnly],
            isolation: Isolation {
                tier: by(),
                memory: by(),
                pids: by(),
                cpu: by(),
            },
        };
        FakeSandboxes {
            shared: Arc::new(Shared {
                capabilities,
                script: Box::new(script),
                faults: Faults::default(),
                state: Mutex::default(),
            }),
        }
    }

    /// Makes the operation fail from now on, in every sandbox.
    pub fn fault(&self, operation: Operation, fault: Fault) {
        self.shared.faults.set(operation, fault, false);
    }

    /// Makes the operation fail once.
    pub fn fault_once(&self, operation: Operation, fault: Fault) {
        self.shared.faults.set(operation, fault, true);
    }

    pub fn clear_fault(&self, operation: Operation) {
        self.shared.faults.clear(operation);
    }

    /// Kills all existing sandboxes, with all their processes.
    pub fn lose_all(&self) {
        for machine in &self.shared.state().machines {
            machine.die();
        }
    }

    /// All operations on all sandboxes so far, in order: `start ID`, `spawn WORDS`, `write PATH`…
    pub fn operations(&self) -> Vec<String> {
        self.shared.state().operations.clone()
    }

    /// The spec of each sandbox.
    pub fn specs(&self) -> Vec<Spec> {
        self.shared.state().specs.clone()
    }

    /// The ids of sandboxes that were neither closed nor dropped.
    pub fn alive(&self) -> Vec<String> {
        let state = self.shared.state();
        let ids = state.machines.iter().map(|machine| machine.id().to_owned());
        ids.collect()
    }

    pub fn is_shut_down(&self) -> bool {
        self.shared.state().is_shut_down
    }

    /// Sets the usage that sandboxes report.
    pub fn set_usage(&self, usage: Usage) {
        self.shared.state().usage = usage;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, operation: &str, what: &str) {
        let line = format!("{operation} {what}");
        self.state().operations.push(line.trim_end().to_owned());
    }

    fn forget(&self, machine: &Arc<Machine>) -> bool {
        let machines = &mut self.state().machines;
        let before = machines.len();
        machines.retain(|other| !Arc::ptr_eq(other, machine));
        machines.len() < before
    }
}

#[async_trait]
impl Sandboxes for FakeSandboxes {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn start(&self, spec: Spec) -> Result<Box<dyn Sandbox>, Error> {
        self.shared.note("start", &spec.id);
        let gone = || Error::Gone {
            id: spec.id.clone(),
        };
        if self.shared.faults.apply(Operation::Start).await? {
            return Err(gone());
        }
        if self.is_shut_down() {
            return Err(Error::Engine {
                operation: "use the sandbox backend",
                source: io::ErrorKind::NotConnected.into(),
            });
        }
        let (machine, connections) = Machine::new(spec.id.clone());
        let machine = Arc::new(machine);
        if let Some(snapshot) = &spec.snapshot {
            let files = snapshot.state::<Files>().ok_or_else(|| Error::Invalid {
                what: format!("a snapshot of {} sandboxes", snapshot.kind()),
            })?;
            *machine.files() = files.clone();
        }
        let entrance = spec.has_entrance.then_some(connections);
        let intercepted_ports = spec.intercepted_ports.clone();
        let mut state = self.shared.state();
        state.machines.push(Arc::clone(&machine));
        state.specs.push(spec);
        drop(state);
        Ok(Box::new(FakeSandbox {
            shared: Arc::clone(&self.shared),
            machine,
            entrance,
            intercepted_ports,
        }))
    }

    async fn save_snapshot(&self, snapshot: &Snapshot, path: &Path) -> Result<(), Error> {
        self.shared.note("save_snapshot", "");
        self.shared.faults.apply(Operation::SaveSnapshot).await?;
        let files = snapshot.state::<Files>().ok_or_else(|| Error::Invalid {
            what: format!("a snapshot of {} sandboxes", snapshot.kind()),
        })?;
        let saved = files
            .archive()
            .and_then(|bytes| std::fs::write(path, bytes));
        saved.map_err(|source| Error::Engine {
            operation: "save a snapshot",
            source,
        })
    }

    async fn load_snapshot(&self, path: &Path) -> Result<Snapshot, Error> {
        self.shared.note("load_snapshot", "");
        self.shared.faults.apply(Operation::LoadSnapshot).await?;
        let archive = std::fs::read(path).map_err(|source| Error::Engine {
            operation: "load a snapshot",
            source,
        })?;
        let mut files = Files::default();
        files.unpack(&archive, "/")?;
        Ok(Snapshot::new(KIND, files.bytes(), files))
    }

    async fn doctor(&self) -> Result<Vec<Check>, Error> {
        self.shared.note("doctor", "");
        self.shared.faults.apply(Operation::Doctor).await?;
        Ok(vec![Check {
            name: "fake".to_owned(),
            status: Status::Ok,
            detail: "works".to_owned(),
            fix: None,
        }])
    }

    async fn shutdown(&self) -> Result<(), Error> {
        self.shared.note("shutdown", "");
        self.shared.faults.apply(Operation::Shutdown).await?;
        self.shared.state().is_shut_down = true;
        Ok(())
    }
}

/// One sandbox in memory.
struct FakeSandbox {
    shared: Arc<Shared>,
    machine: Arc<Machine>,
    entrance: Option<mpsc::Receiver<BoxedStream>>,
    intercepted_ports: Option<Vec<u16>>,
}

impl FakeSandbox {
    /// Records an operation, and applies its fault.
    async fn record(&self, operation: Operation, what: &str) -> Result<(), Error> {
        self.shared.note(operation.name(), what);
        if self.shared.faults.apply(operation).await? {
            self.machine.die();
        }
        match self.machine.is_dead() {
            true => Err(self.machine.gone()),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> &str {
        self.machine.id()
    }

    fn isolation(&self) -> &Isolation {
        &self.shared.capabilities.isolation
    }

    fn take_entrance(&mut self) -> Option<Entrance> {
        let connections = self.entrance.take()?;
        Some(Entrance::Listener {
            listener: Listener::Streams(connections),
            base_url: BASE_URL.to_owned(),
        })
    }

    /// Sockets of this machine, at any free ports: nothing inside connects to them by itself.
    fn take_gates(&mut self) -> Option<Gates> {
        let ports = self.intercepted_ports.take()?;
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        Some(Gates {
            proxy: listen()?,
            intercepted: ports.iter().filter_map(|_| listen()).collect(),
            dns: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?,
        })
    }

    async fn connect(&self, port: u16) -> Result<BoxedStream, Error> {
        self.record(Operation::Connect, &port.to_string()).await?;
        self.machine.connect(port)
    }

    async fn spawn(&self, command: Command) -> Result<Process, Error> {
        self.record(Operation::Spawn, &command.argv.join(" "))
            .await?;
        let behaviour = (self.shared.script)(&command);
        self.machine.spawn(command, behaviour)
    }

    async fn write_file(&self, path: &str, mode: u32, content: Vec<u8>) -> Result<(), Error> {
        self.record(Operation::Write, path).await?;
        self.machine.files().write(path, mode, content)
    }

    async fn unpack(&self, archive: Vec<u8>, target: &str) -> Result<(), Error> {
        self.record(Operation::Unpack, target).await?;
        self.machine.files().unpack(&archive, target)
    }

    async fn read_files(&self, directory: &str, paths: Vec<String>) -> Result<FileStream, Error> {
        self.record(Operation::ReadFiles, directory).await?;
        let stream = self.machine.files().stream(directory, &paths);
        let gone = self.machine.gone();
        let output = Box::new(io::Cursor::new(stream));
        Ok(FileStream::new(output, async move { Err(gone) }))
    }

    async fn read_file(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Error> {
        self.record(Operation::Read, path).await?;
        self.machine.files().read(path, bytes_max)
    }

    async fn stat(&self, path: &str) -> Result<Option<FileStatus>, Error> {
        self.record(Operation::Stat, path).await?;
        Ok(self.machine.files().stat(path))
    }

    async fn remove(&self, path: &str) -> Result<(), Error> {
        self.record(Operation::Remove, path).await?;
        self.machine.files().remove(path);
        Ok(())
    }

    async fn list(
        &self,
        path: &str,
        depth: u32,
        entries_max: usize,
    ) -> Result<Vec<DirectoryEntry>, Error> {
        self.record(Operation::List, path).await?;
        self.machine.files().list(path, depth, entries_max)
    }

    async fn kill_all(&self) -> Result<u64, Error> {
        self.record(Operation::KillAll, "").await?;
        Ok(self.machine.kill_all().await)
    }

    /// There is no `as-agent` where commands are words of our own.
    async fn unseal(&self, _agent: BTreeMap<String, String>) -> Result<(), Error> {
        self.record(Operation::Unseal, "").await?;
        self.machine.files().unseal();
        Ok(())
    }

    async fn renew(&self) -> Result<(), Error> {
        self.record(Operation::Renew, "").await?;
        self.machine.files().renew();
        Ok(())
    }

    /// There are no settings in a home that is only a map.
    async fn keep_home(&self) -> Result<(), Error> {
        self.record(Operation::KeepHome, "").await
    }

    async fn lay_home(&self, named: Vec<PathBuf>) -> Result<(), Error> {
        let named: Vec<_> = named
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        self.record(Operation::LayHome, &named.join(" ")).await
    }

    async fn seal_setup(&self) -> Result<(), Error> {
        self.record(Operation::SealSetup, "").await?;
        self.machine.files().seal_setup();
        Ok(())
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        self.record(Operation::Snapshot, "").await?;
        let snapshot = self.machine.files().snapshot();
        Ok(Snapshot::new(KIND, snapshot.bytes(), snapshot))
    }

    async fn usage(&self) -> Usage {
        self.shared.state().usage.clone()
    }

    async fn reset_memory_peak(&self) -> bool {
        let peak = &mut self.shared.state().usage.memory_peak_bytes;
        let is_possible = peak.is_some();
        *peak = peak.map(|_| 0);
        is_possible
    }

    async fn close(self: Box<Self>) -> Result<(), Error> {
        self.shared.note("close", self.machine.id());
        self.shared.forget(&self.machine);
        self.shared.faults.apply(Operation::Close).await.map(drop)
    }
}

impl Drop for FakeSandbox {
    fn drop(&mut self) {
        if self.shared.forget(&self.machine) {
            self.shared.note("drop", self.machine.id());
        }
        self.machine.abort();
    }
}

#[cfg(test)]
mod tests;
