//! The inside of a fake sandbox: its processes, files and connections.

pub(super) mod behaviour;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollcage_sandbox::{BoxedStream, Command, Error, ExitStatus, Process, Stdin};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use self::behaviour::{CommandBehaviour, Guest};
use super::files::Files;

/// The capacity of a pipe or socket.
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
    running: BTreeMap<u64, RunningProcess>,
    /// Aborted with the machine.
    tasks: JoinSet<()>,
}

struct RunningProcess {
    signals: mpsc::UnboundedSender<Signal>,
    /// Closes when the process has ended.
    ended: watch::Receiver<()>,
}

enum Signal {
    Number(i32),
    /// The machine died; the exit status is never reported.
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

    /// Kills everything inside; all further operations fail.
    pub(super) fn die(&self) {
        let mut processes = self.processes();
        processes.is_dead = true;
        for running in processes.running.values() {
            let _ = running.signals.send(Signal::Lost);
        }
    }

    pub(super) fn spawn(
        self: &Arc<Self>,
        command: Command,
        behaviour: CommandBehaviour,
    ) -> Result<Process, Error> {
        let (program, is_stubborn) = match behaviour {
            CommandBehaviour::Runs {
                program,
                is_stubborn,
            } => (program, is_stubborn),
            CommandBehaviour::Refused(kind) => {
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
        let running = RunningProcess {
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

    /// Kills every process and waits for its end. Returns the number of processes.
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

    /// Drops all programs at once, at the end of the sandbox.
    pub(super) fn abort(&self) {
        let mut processes = self.processes();
        processes.is_dead = true;
        processes.running.clear();
        processes.tasks.abort_all();
    }
}

/// Returns when a signal ends the process; `None` if its status is never reported.
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
