//! The thread that talks to the zygote, one request at a time. A dead zygote is replaced at the next request.

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
use super::reaper::CleanupGuard;
use crate::Error;
use crate::doctor::Check;
use crate::local::shared::wire::{self, CloneParameters, Setup, ZygoteReply, ZygoteRequest};

/// The zygote replies in about a millisecond; to `Doctor` in a few hundred.
const ANSWER_S_MAX: i64 = 20;
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Options {
    /// A program whose `main` calls [`crate::local::zygote_main`] when started with `args`.
    pub program: PathBuf,
    pub args: Vec<String>,
    /// A private directory. Holds one directory per running engine; those of dead engines are removed.
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

enum LauncherJob {
    Clone(Box<CloneRequest>),
    Doctor {
        reply: oneshot::Sender<Result<Vec<Check>, Error>>,
    },
    Check {
        reply: std::sync::mpsc::Sender<Result<(), Error>>,
    },
}

/// A sandbox to be cloned. Its process is added to the cleanup guard that is sent back; everything else is reported on
/// its control socket.
pub(crate) struct CloneRequest {
    pub(crate) parameters: CloneParameters,
    pub(crate) control: OwnedFd,
    pub(crate) cleanup: CleanupGuard,
    pub(crate) reply: oneshot::Sender<Result<CleanupGuard, Error>>,
}

pub(crate) struct Launcher {
    /// `None` after [`Launcher::stop`]. Unbounded, but there is at most one job for each caller that waits for a
    /// sandbox, and a few for spares.
    jobs: Mutex<Option<mpsc::UnboundedSender<LauncherJob>>>,
}

impl Launcher {
    pub(crate) fn spawn(options: Options, setup: Setup) -> io::Result<(Launcher, JoinHandle<()>)> {
        let (jobs, mut receiver) = mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name(String::from("sandbox-launcher"))
            .spawn(move || {
                let mut client = ZygoteClient {
                    options,
                    setup,
                    zygote: None,
                };
                while let Some(job) = receiver.blocking_recv() {
                    client.take(job);
                }
                client.stop_zygote();
            })?;
        Ok((
            Launcher {
                jobs: Mutex::new(Some(jobs)),
            },
            thread,
        ))
    }

    /// Starts the zygote, to find out early if that fails. Blocks.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (reply, answer) = std::sync::mpsc::channel();
        self.send(LauncherJob::Check { reply })?;
        answer.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Requests a clone of a sandbox.
    pub(crate) fn request_clone(&self, request: CloneRequest) -> Result<(), Error> {
        self.send(LauncherJob::Clone(Box::new(request)))
    }

    pub(crate) async fn doctor(&self) -> Result<Vec<Check>, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(LauncherJob::Doctor { reply })?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Stops the zygote.
    pub(crate) fn stop(&self) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    fn send(&self, job: LauncherJob) -> Result<(), Error> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed send drops the job with its cleanup guard.
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

struct ZygoteClient {
    options: Options,
    setup: Setup,
    zygote: Option<(Child, OwnedFd)>,
}

impl ZygoteClient {
    fn take(&mut self, job: LauncherJob) {
        // A caller may be gone; a guard that cannot be returned is dropped, which cleans up.
        match job {
            LauncherJob::Clone(request) => {
                let CloneRequest {
                    parameters,
                    control,
                    cleanup,
                    reply,
                } = *request;
                if !reply.is_closed() {
                    let _ = reply.send(self.clone_init(parameters, control, cleanup));
                }
            }
            LauncherJob::Doctor { reply } => {
                let _ = reply.send(self.doctor());
            }
            LauncherJob::Check { reply } => {
                let _ = reply.send(self.zygote().map(drop).map_err(zygote_error));
            }
        }
    }

    fn clone_init(
        &mut self,
        parameters: CloneParameters,
        control: OwnedFd,
        mut cleanup: CleanupGuard,
    ) -> Result<CleanupGuard, Error> {
        let (reply, descriptors) = self
            .exchange(&ZygoteRequest::Clone(parameters), Some(control))
            .map_err(zygote_error)?;
        if let Some(child) = descriptors.into_iter().next() {
            cleanup.add_child(child);
        }
        match reply {
            ZygoteReply::Cloned => Ok(cleanup),
            ZygoteReply::Failed(failure) => Err(start_error(&failure)),
            ZygoteReply::Checks(_) => Err(zygote_error(io::ErrorKind::InvalidData.into())),
        }
    }

    fn doctor(&mut self) -> Result<Vec<Check>, Error> {
        match self
            .exchange(&ZygoteRequest::Doctor, None)
            .map_err(zygote_error)?
            .0
        {
            ZygoteReply::Checks(checks) => Ok(checks),
            ZygoteReply::Cloned | ZygoteReply::Failed(_) => {
                Err(zygote_error(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    /// Sends a request and waits for the reply. A zygote that does not reply is stopped.
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
            // It died since the last request; nothing was delivered, so a new one can take the request.
            self.stop_zygote();
            wire::send(self.zygote()?.as_fd(), request, &descriptors)?;
        }
        let answer = wire::receive(self.zygote()?.as_fd());
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                self.stop_zygote();
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Err(error) => {
                self.stop_zygote();
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

    /// Closes the socket, which ends the zygote, and reaps it.
    fn stop_zygote(&mut self) {
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

fn zygote_error(source: io::Error) -> Error {
    Error::Engine {
        operation: "ask the sandbox zygote",
        source,
    }
}
