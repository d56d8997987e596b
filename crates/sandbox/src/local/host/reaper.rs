//! The thread that reaps dead sandboxes and removes their resources. It is a thread and not a task, so that a sandbox
//! can be dropped anywhere and at any time.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::cgroup::OwnedGroups;
use super::instance::Claim;
use super::slot::Slot;
use crate::Error;
use crate::local::shared::cgroup::Group;
use crate::local::shared::syscall;

/// A killed sandbox usually ends within a millisecond; freeing gigabytes of its files may take seconds.
const DEATH_LIMIT: Duration = Duration::from_secs(10);
const FINISH_LIMIT: Duration = Duration::from_secs(30);

type DoneSender = oneshot::Sender<io::Result<()>>;

enum ReaperJob {
    Remove(SandboxResources, Option<DoneSender>),
    Finish(DoneSender),
}

#[derive(Clone)]
pub(crate) struct Reaper {
    /// Unbounded, but there is at most one message for each sandbox that was started.
    jobs: mpsc::Sender<ReaperJob>,
}

/// Owns the resources of a sandbox. Dropping it kills the sandbox and has them removed in the background.
pub(crate) struct CleanupGuard {
    resources: Option<SandboxResources>,
    reaper: Reaper,
}

struct SandboxResources {
    child: Option<OwnedFd>,
    group: Group,
    _slot: Slot,
}

impl Reaper {
    /// Takes ownership of the engine's directories, to be removed last, and of the launcher's thread, which must end
    /// before.
    pub(crate) fn spawn(
        state: Claim,
        groups: OwnedGroups,
        launcher: JoinHandle<()>,
    ) -> io::Result<Reaper> {
        let (jobs, receiver) = mpsc::channel();
        let state = ReaperState {
            state: Some(state),
            groups,
            launcher: Some(launcher),
            stuck: Vec::new(),
        };
        thread::Builder::new()
            .name(String::from("sandbox-reaper"))
            .spawn(move || work(&receiver, state))?;
        Ok(Reaper { jobs })
    }

    pub(crate) fn cleanup_guard(&self, group: Group, slot: Slot) -> CleanupGuard {
        CleanupGuard {
            resources: Some(SandboxResources {
                child: None,
                group,
                _slot: slot,
            }),
            reaper: self.clone(),
        }
    }

    pub(crate) async fn finish(&self) -> Result<(), Error> {
        let (done, finished) = oneshot::channel();
        let _ = self.jobs.send(ReaperJob::Finish(done));
        wait("clean up after sandboxes", FINISH_LIMIT, finished).await
    }
}

impl CleanupGuard {
    pub(crate) fn group(&self) -> Option<&Group> {
        self.resources.as_ref().map(|resources| &resources.group)
    }

    /// Adds the sandbox's first process.
    pub(crate) fn add_child(&mut self, child: OwnedFd) {
        if let Some(resources) = &mut self.resources {
            resources.child = Some(child);
        }
    }

    /// Kills the sandbox and waits until all its resources are removed.
    pub(crate) async fn remove(&mut self) -> Result<(), Error> {
        let (done, finished) = oneshot::channel();
        self.hand_over(Some(done));
        wait("close the sandbox", DEATH_LIMIT * 2, finished).await
    }

    fn hand_over(&mut self, done: Option<DoneSender>) {
        let Some(resources) = self.resources.take() else {
            return;
        };
        // Killed here and not in the thread, so that many sandboxes die concurrently.
        if let Some(child) = &resources.child {
            let _ = syscall::pidfd_kill(child.as_fd());
        }
        let _ = self.reaper.jobs.send(ReaperJob::Remove(resources, done));
    }
}

impl Drop for CleanupGuard {
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

/// State of the reaper's thread.
struct ReaperState {
    state: Option<Claim>,
    groups: OwnedGroups,
    launcher: Option<JoinHandle<()>>,
    /// Sandboxes that did not die in time; retried at the end.
    stuck: Vec<SandboxResources>,
}

/// Runs until the backend and all its sandboxes are gone.
fn work(jobs: &mpsc::Receiver<ReaperJob>, mut state: ReaperState) {
    for job in jobs {
        match job {
            ReaperJob::Remove(resources, done) => state.remove(resources, done),
            ReaperJob::Finish(done) => {
                state.join_launcher();
                let mut waiters = vec![done];
                // Sandboxes that the launcher was still cloning.
                for job in jobs.try_iter() {
                    match job {
                        ReaperJob::Remove(resources, done) => state.remove(resources, done),
                        ReaperJob::Finish(done) => waiters.push(done),
                    }
                }
                for done in waiters {
                    let _ = done.send(state.remove_all());
                }
            }
        }
    }
    if let Err(error) = state.remove_all() {
        tracing::warn!(%error, "the sandbox backend's directories could not be removed");
    }
}

impl SandboxResources {
    fn remove(&self) -> io::Result<()> {
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

impl ReaperState {
    fn remove(&mut self, resources: SandboxResources, done: Option<DoneSender>) {
        let result = resources.remove();
        if let Err(error) = &result {
            tracing::warn!(%error, "a sandbox could not be removed");
            self.stuck.push(resources);
        }
        // It is fine if nobody waits for the result.
        let _ = done.map(|done| done.send(result));
    }

    fn join_launcher(&mut self) {
        if let Some(launcher) = self.launcher.take() {
            let _ = launcher.join();
        }
    }

    fn remove_all(&mut self) -> io::Result<()> {
        self.join_launcher();
        let mut result = Ok(());
        for resources in std::mem::take(&mut self.stuck) {
            result = result.and(resources.remove());
        }
        result = result.and(self.groups.remove_all());
        if let Some(claim) = self.state.take() {
            result = result.and(fs::remove_dir_all(&claim.path));
        }
        result
    }
}
