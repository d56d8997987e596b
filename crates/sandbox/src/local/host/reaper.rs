//! The thread that collects dead sandboxes and removes what they leave. A thread and not a task, so that
//! dropping a sandbox is enough wherever and whenever that happens.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::cgroup::Holdings;
use super::instance::Claim;
use super::slot::Slot;
use crate::Error;
use crate::local::shared::cgroup::Group;
use crate::local::shared::syscall;

/// A killed sandbox is gone in a millisecond; freeing gigabytes of its files may take seconds.
const DEATH_LIMIT: Duration = Duration::from_secs(10);
const FINISH_LIMIT: Duration = Duration::from_secs(30);

type Done = oneshot::Sender<io::Result<()>>;

enum Job {
    Bury(Body, Option<Done>),
    Finish(Done),
}

#[derive(Clone)]
pub(crate) struct Reaper {
    /// Unbounded, but there is at most one message for each sandbox that was started.
    jobs: mpsc::Sender<Job>,
}

/// What is to be removed after a sandbox. Dropping it kills the sandbox and has the rest done.
pub(crate) struct Remains {
    body: Option<Body>,
    reaper: Reaper,
}

struct Body {
    child: Option<OwnedFd>,
    group: Group,
    _slot: Slot,
}

impl Reaper {
    /// Takes over the engine's directories, to be removed last, and the launcher's thread, which must end before.
    pub(crate) fn spawn(
        state: Claim,
        groups: Holdings,
        launcher: JoinHandle<()>,
    ) -> io::Result<Reaper> {
        let (jobs, receiver) = mpsc::channel();
        let estate = Estate {
            state: Some(state),
            groups,
            launcher: Some(launcher),
            stuck: Vec::new(),
        };
        thread::Builder::new()
            .name(String::from("sandbox-reaper"))
            .spawn(move || work(&receiver, estate))?;
        Ok(Reaper { jobs })
    }

    pub(crate) fn expect_remains(&self, group: Group, slot: Slot) -> Remains {
        Remains {
            body: Some(Body {
                child: None,
                group,
                _slot: slot,
            }),
            reaper: self.clone(),
        }
    }

    pub(crate) async fn finish(&self) -> Result<(), Error> {
        let (done, finished) = oneshot::channel();
        let _ = self.jobs.send(Job::Finish(done));
        wait("clean up after sandboxes", FINISH_LIMIT, finished).await
    }
}

impl Remains {
    pub(crate) fn group(&self) -> Option<&Group> {
        self.body.as_ref().map(|body| &body.group)
    }

    /// The sandbox's first process, once it is there.
    pub(crate) fn add_child(&mut self, child: OwnedFd) {
        if let Some(body) = &mut self.body {
            body.child = Some(child);
        }
    }

    /// Kills the sandbox and waits until nothing is left of it.
    pub(crate) async fn bury(&mut self) -> Result<(), Error> {
        let (done, finished) = oneshot::channel();
        self.hand_over(Some(done));
        wait("close the sandbox", DEATH_LIMIT * 2, finished).await
    }

    fn hand_over(&mut self, done: Option<Done>) {
        let Some(body) = self.body.take() else { return };
        // Here and not in the thread, so that many sandboxes die side by side.
        if let Some(child) = &body.child {
            let _ = syscall::pidfd_kill(child.as_fd());
        }
        let _ = self.reaper.jobs.send(Job::Bury(body, done));
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        self.hand_over(None);
    }
}

async fn wait(
    operation: &'static str,
    limit: Duration,
    finished: oneshot::Receiver<io::Result<()>>,
) -> Result<(), Error> {
    let Ok(result) = tokio::time::timeout(limit, finished).await else {
        return Err(Error::Deadline { operation, limit });
    };
    let result = result.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    result.map_err(|source| Error::Engine { operation, source })
}

/// What the thread owns.
struct Estate {
    state: Option<Claim>,
    groups: Holdings,
    launcher: Option<JoinHandle<()>>,
    /// Sandboxes that did not die in time, to be tried again at the end.
    stuck: Vec<Body>,
}

/// Until the backend and all its sandboxes are gone.
fn work(jobs: &mpsc::Receiver<Job>, mut estate: Estate) {
    for job in jobs {
        match job {
            Job::Bury(body, done) => estate.bury(body, done),
            Job::Finish(done) => {
                estate.join_launcher();
                let mut waiters = vec![done];
                // What the launcher still had in hand.
                for job in jobs.try_iter() {
                    match job {
                        Job::Bury(body, done) => estate.bury(body, done),
                        Job::Finish(done) => waiters.push(done),
                    }
                }
                for done in waiters {
                    let _ = done.send(estate.dissolve());
                }
            }
        }
    }
    if let Err(error) = estate.dissolve() {
        tracing::warn!(%error, "the sandbox backend's directories could not be removed");
    }
}

impl Body {
    fn bury(&self) -> io::Result<()> {
        if let Some(child) = &self.child {
            let deadline = Instant::now() + DEATH_LIMIT;
            while !syscall::pidfd_reap(child.as_fd())? {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let mut events = [PollFd::new(child.as_fd(), PollFlags::POLLIN)];
                match poll(
                    &mut events,
                    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
                ) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        self.group.remove()
    }
}

impl Estate {
    fn bury(&mut self, body: Body, done: Option<Done>) {
        let result = body.bury();
        if let Err(error) = &result {
            tracing::warn!(%error, "a sandbox could not be removed");
            self.stuck.push(body);
        }
        // The waiter may have given up, or there was none.
        let _ = done.map(|done| done.send(result));
    }

    fn join_launcher(&mut self) {
        if let Some(launcher) = self.launcher.take() {
            let _ = launcher.join();
        }
    }

    fn dissolve(&mut self) -> io::Result<()> {
        self.join_launcher();
        let mut result = Ok(());
        for body in std::mem::take(&mut self.stuck) {
            result = result.and(body.bury());
        }
        result = result.and(self.groups.dissolve());
        if let Some(claim) = self.state.take() {
            result = result.and(fs::remove_dir_all(&claim.path));
        }
        result
    }
}
