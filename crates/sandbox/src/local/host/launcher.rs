//! The thread that talks to the zygote, one request at a time. A zygote that died is replaced at the next.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{ReceiveTimeout, SendTimeout};
use nix::sys::time::{TimeVal, TimeValLike};
use tokio::sync::{mpsc, oneshot};

use super::failure::start_error;
use super::reaper::Remains;
use crate::Error;
use crate::doctor::Check;
use crate::local::shared::wire::{self, Place, Setup, ZygoteReply, ZygoteRequest};

/// The zygote answers in about a millisecond; its doctor in a few hundred.
const ANSWER_S_MAX: i64 = 20;
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// How to set up the backend.
#[derive(Clone, Debug)]
pub struct Options {
    /// A program whose `main` calls [`crate::local::zygote_main`] when started with `args`.
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Private to us. Holds a directory for each running engine, and is swept of those of dead ones.
    pub state_dir: PathBuf,
}

impl Options {
    /// The running program itself as the zygote, started with the single argument `__zygote`.
    pub fn new(state_dir: PathBuf) -> Options {
        Options {
            program: PathBuf::from("/proc/self/exe"),
            args: vec![String::from("__zygote")],
            state_dir,
        }
    }
}

enum Job {
    Clone(Box<Order>),
    Doctor {
        reply: oneshot::Sender<Result<Vec<Check>, Error>>,
    },
    Check {
        reply: std::sync::mpsc::Sender<Result<(), Error>>,
    },
}

/// A sandbox to be cloned. Its process is in the remains that come back, and further news come on its
/// control socket.
pub(crate) struct Order {
    pub(crate) place: Place,
    pub(crate) control: OwnedFd,
    pub(crate) remains: Remains,
    pub(crate) reply: oneshot::Sender<Result<Remains, Error>>,
}

pub(crate) struct Launcher {
    /// `None` after [`Launcher::stop`]. Unbounded, but there is at most one job for each caller that waits
    /// for a sandbox, and some for spares.
    jobs: Mutex<Option<mpsc::UnboundedSender<Job>>>,
}

impl Launcher {
    pub(crate) fn spawn(options: Options, setup: Setup) -> io::Result<(Launcher, JoinHandle<()>)> {
        let (jobs, mut receiver) = mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name(String::from("sandbox-launcher"))
            .spawn(move || {
                let mut desk = Desk {
                    options,
                    setup,
                    zygote: None,
                };
                while let Some(job) = receiver.blocking_recv() {
                    desk.take(job);
                }
                desk.dismiss();
            })?;
        Ok((
            Launcher {
                jobs: Mutex::new(Some(jobs)),
            },
            thread,
        ))
    }

    /// Starts the zygote, to find out early that it cannot be. Blocks.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (reply, answer) = std::sync::mpsc::channel();
        self.send(Job::Check { reply })?;
        answer.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Has a sandbox cloned, soon.
    pub(crate) fn order(&self, order: Order) -> Result<(), Error> {
        self.send(Job::Clone(Box::new(order)))
    }

    pub(crate) async fn doctor(&self) -> Result<Vec<Check>, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Doctor { reply })?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Lets the zygote go.
    pub(crate) fn stop(&self) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    fn send(&self, job: Job) -> Result<(), Error> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed send drops the job, and with it the remains it carries.
        let sent = jobs.as_ref().map(|jobs| jobs.send(job));
        sent.and_then(Result::ok).ok_or_else(stopped)
    }
}

pub(crate) fn stopped() -> Error {
    Error::Engine {
        operation: "use the sandbox backend",
        source: io::ErrorKind::NotConnected.into(),
    }
}

struct Desk {
    options: Options,
    setup: Setup,
    zygote: Option<(Child, OwnedFd)>,
}

impl Desk {
    fn take(&mut self, job: Job) {
        // Callers that are gone do not want an answer; remains that come back are dropped, which cleans up.
        match job {
            Job::Clone(order) => {
                let Order {
                    place,
                    control,
                    remains,
                    reply,
                } = *order;
                if !reply.is_closed() {
                    let _ = reply.send(self.clone_init(place, control, remains));
                }
            }
            Job::Doctor { reply } => {
                let _ = reply.send(self.doctor());
            }
            Job::Check { reply } => {
                let _ = reply.send(self.zygote().map(drop).map_err(asking));
            }
        }
    }

    fn clone_init(
        &mut self,
        place: Place,
        control: OwnedFd,
        mut remains: Remains,
    ) -> Result<Remains, Error> {
        let (reply, descriptors) = self
            .exchange(&ZygoteRequest::Clone(place), Some(control))
            .map_err(asking)?;
        if let Some(child) = descriptors.into_iter().next() {
            remains.add_child(child);
        }
        match reply {
            ZygoteReply::Cloned => Ok(remains),
            ZygoteReply::Failed(failure) => Err(start_error(&failure)),
            ZygoteReply::Checks(_) => Err(asking(io::ErrorKind::InvalidData.into())),
        }
    }

    fn doctor(&mut self) -> Result<Vec<Check>, Error> {
        match self
            .exchange(&ZygoteRequest::Doctor, None)
            .map_err(asking)?
            .0
        {
            ZygoteReply::Checks(checks) => Ok(checks),
            ZygoteReply::Cloned | ZygoteReply::Failed(_) => {
                Err(asking(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    /// Asks and waits for the answer. A zygote that does not give one is of no more use.
    fn exchange(
        &mut self,
        request: &ZygoteRequest,
        control: Option<OwnedFd>,
    ) -> io::Result<(ZygoteReply, Vec<OwnedFd>)> {
        let descriptors: Vec<_> = control.iter().map(AsFd::as_fd).collect();
        let sent = self
            .zygote()
            .and_then(|socket| wire::send(socket.as_fd(), request, &descriptors));
        if sent.is_err() {
            // It died since the last request; nothing was delivered, so a new one can be asked.
            self.dismiss();
            wire::send(self.zygote()?.as_fd(), request, &descriptors)?;
        }
        let answer = wire::receive(self.zygote()?.as_fd());
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                self.dismiss();
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Err(error) => {
                self.dismiss();
                Err(error)
            }
        }
    }

    fn zygote(&mut self) -> io::Result<&OwnedFd> {
        let running = match self.zygote.take() {
            Some(running) => running,
            None => self.spawn()?,
        };
        Ok(&self.zygote.insert(running).1)
    }

    fn spawn(&self) -> io::Result<(Child, OwnedFd)> {
        let (ours, theirs) = wire::pair()?;
        let limit = TimeVal::seconds(ANSWER_S_MAX);
        setsockopt(&ours, ReceiveTimeout, &limit)?;
        setsockopt(&ours, SendTimeout, &limit)?;
        // No pre_exec, so std uses posix_spawn, which does not copy our page tables.
        let child = Command::new(&self.options.program)
            .args(&self.options.args)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        wire::send(
            ours.as_fd(),
            &ZygoteRequest::Configure(self.setup.clone()),
            &[],
        )?;
        Ok((child, ours))
    }

    /// Hangs up, which ends the zygote, and collects it.
    fn dismiss(&mut self) {
        let Some((mut child, socket)) = self.zygote.take() else {
            return;
        };
        drop(socket);
        let tries = 200;
        for _ in 0..tries {
            match child.try_wait() {
                Ok(None) => thread::sleep(EXIT_LIMIT / tries),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn asking(source: io::Error) -> Error {
    Error::Engine {
        operation: "ask the sandbox zygote",
        source,
    }
}
