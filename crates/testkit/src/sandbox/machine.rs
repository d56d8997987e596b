//! The inside of a fake sandbox: its processes, files and connections.

pub(super) mod play;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollcage_sandbox::{BoxedStream, Command, Error, ExitStatus, Process, Stdin};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use self::play::{Guest, Play};
use super::files::Files;

/// As much as a pipe or a socket holds.
const BUFFER_BYTES: usize = 64 * 1024;
const CONNECTIONS_MAX: usize = 64;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub(super) struct Machine {
    id: String,
    files: Mutex<Files>,
    /// Where connections to the model go.
    entrance: mpsc::Sender<BoxedStream>,
    services: Mutex<BTreeMap<u16, mpsc::Sender<DuplexStream>>>,
    processes: Mutex<Processes>,
}

#[derive(Default)]
struct Processes {
    is_dead: bool,
    last: u64,
    running: BTreeMap<u64, Running>,
    /// Ends with the machine.
    tasks: JoinSet<()>,
}

struct Running {
    signals: mpsc::UnboundedSender<Signal>,
    /// Closes when it has ended.
    ended: watch::Receiver<()>,
}

enum Signal {
    Number(i32),
    /// The machine is lost, and nobody will know how the process ended.
    Lost,
}

impl Machine {
    pub(super) fn new(id: String) -> (Machine, mpsc::Receiver<BoxedStream>) {
        let (entrance, connections) = mpsc::channel(CONNECTIONS_MAX);
        let machine = Machine {
            id,
            files: Mutex::default(),
            entrance,
            services: Mutex::default(),
            processes: Mutex::default(),
        };
        (machine, connections)
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        let processes = self.processes.lock();
        processes.unwrap_or_else(PoisonError::into_inner)
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<u16, mpsc::Sender<DuplexStream>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gone(&self) -> Error {
        Error::Gone {
            id: self.id.clone(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.processes().is_dead
    }

    /// Everything inside ends, and nothing can be asked any more.
    pub(super) fn die(&self) {
        let mut processes = self.processes();
        processes.is_dead = true;
        for running in processes.running.values() {
            let _ = running.signals.send(Signal::Lost);
        }
    }

    pub(super) fn spawn(self: &Arc<Self>, command: Command, play: Play) -> Result<Process, Error> {
        let (program, is_stubborn) = match play {
            Play::Runs {
                program,
                is_stubborn,
            } => (program, is_stubborn),
            Play::Refused(kind) => {
                let program = command.argv.first().cloned().unwrap_or_default();
                let source = kind.into();
                return Err(Error::Exec { program, source });
            }
        };
        let (stdout, our_stdout) = duplex(BUFFER_BYTES);
        let (stderr, our_stderr) = duplex(BUFFER_BYTES);
        let (stdin, our_stdin) = match command.stdin {
            Stdin::Piped => Some(duplex(BUFFER_BYTES)).unzip(),
            Stdin::Null | Stdin::Bytes(_) => (None, None),
        };
        let guest = Guest {
            command,
            stdin,
            stdout,
            stderr,
            machine: Arc::clone(self),
        };
        let (signals, received) = mpsc::unbounded_channel();
        let (alive, ended) = watch::channel(());
        let (tell, exit) = oneshot::channel();
        let mut processes = self.processes();
        if processes.is_dead {
            return Err(self.gone());
        }
        processes.last += 1;
        let number = processes.last;
        let running = Running {
            signals: signals.clone(),
            ended,
        };
        processes.running.insert(number, running);
        let machine = Arc::clone(self);
        processes.tasks.spawn(async move {
            let end = tokio::select! {
                biased;
                end = killed(received, is_stubborn) => end,
                code = program(guest) => Some(status(Some(code), None)),
            };
            machine.processes().running.remove(&number);
            if let Some(end) = end {
                let _ = tell.send(end);
            }
            drop(alive);
        });
        drop(processes);
        let gone = self.gone();
        let exit = async move { exit.await.map_err(|_| gone) };
        let mut process = Process::new(exit, move |signal| {
            let _ = signals.send(Signal::Number(signal));
        });
        process.stdin = our_stdin.map(|stdin| Box::new(stdin) as _);
        process.stdout = Some(Box::new(our_stdout));
        process.stderr = Some(Box::new(our_stderr));
        Ok(process)
    }

    /// Ends every process and waits for it. Returns how many there were.
    pub(super) async fn kill_all(&self) -> u64 {
        let mut count = 0;
        loop {
            let next = {
                let processes = self.processes();
                let next = processes.running.values().next();
                next.map(|running| {
                    let _ = running.signals.send(Signal::Number(SIGKILL));
                    running.ended.clone()
                })
            };
            let Some(mut ended) = next else { return count };
            count += 1;
            while ended.changed().await.is_ok() {}
        }
    }

    pub(super) async fn connect_model(&self) -> io::Result<DuplexStream> {
        let (theirs, ours) = duplex(BUFFER_BYTES);
        let sent = self.entrance.send(Box::new(theirs)).await;
        sent.map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(ours)
    }

    pub(super) fn listen(&self, port: u16) -> mpsc::Receiver<DuplexStream> {
        let (sender, receiver) = mpsc::channel(CONNECTIONS_MAX);
        self.services().insert(port, sender);
        receiver
    }

    pub(super) fn connect(&self, port: u16) -> Result<BoxedStream, Error> {
        let (theirs, ours) = duplex(BUFFER_BYTES);
        let service = self.services().get(&port).cloned();
        let sent = service.and_then(|service| service.try_send(theirs).ok());
        let refused = || Error::Connect {
            port,
            source: io::ErrorKind::ConnectionRefused.into(),
        };
        sent.map(|()| Box::new(ours) as BoxedStream)
            .ok_or_else(refused)
    }

    /// For the end of the sandbox: drops every program where it stands.
    pub(super) fn abort(&self) {
        let mut processes = self.processes();
        processes.is_dead = true;
        processes.running.clear();
        processes.tasks.abort_all();
    }
}

/// Returns when a signal ends the process; without a status if nobody will ever know it.
async fn killed(
    mut signals: mpsc::UnboundedReceiver<Signal>,
    is_stubborn: bool,
) -> Option<ExitStatus> {
    while let Some(signal) = signals.recv().await {
        match signal {
            Signal::Lost => return None,
            Signal::Number(SIGTERM) if is_stubborn => {}
            Signal::Number(signal) => return Some(status(None, Some(signal))),
        }
    }
    std::future::pending().await
}

fn status(code: Option<i32>, signal: Option<i32>) -> ExitStatus {
    ExitStatus { code, signal }
}
