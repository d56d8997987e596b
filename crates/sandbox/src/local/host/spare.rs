//! Spares: sandboxes cloned in advance. Moving a process into a cgroup takes up to ten milliseconds after a quiet
//! period, and most of a sandbox's namespaces and mounts are the same for all. So there are always some sandboxes that
//! are prepared so far and wait for their specification.
//!
//! A start takes the oldest spare, or waits for a new clone if there is none, and refills the spares once its own
//! sandbox is ready. None are made before the first start.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::cgroup::EnforcedLimits;
use super::channel::Channel;
use super::failure::start_error;
use super::launcher::{CloneRequest, Launcher, stopped};
use super::reaper::{CleanupGuard, Reaper};
use super::slot::Slots;
use super::start;
use crate::local::shared::cgroup::Cgroups;
use crate::local::shared::wire::{self, CloneParameters, StartReply};
use crate::{Error, Spec};

/// The number of idle spares, at 0.6 MB each. One is enough for sequential starts; two gave a sixth more starts per
/// second with four at a time on two cores.
const SPARES: usize = 2;

pub(crate) struct Spares {
    pub(crate) launcher: Launcher,
    pub(crate) reaper: Reaper,
    cgroups: Cgroups,
    slots: Slots,
    serial: AtomicU64,
    queue: Mutex<SpareQueue>,
}

/// A sandbox that is cloned or being cloned. Dropping it ends it.
pub(crate) struct Spare {
    /// The engine's end of its control socket.
    control: OwnedFd,
    cloned: oneshot::Receiver<Result<CleanupGuard, Error>>,
}

struct SpareQueue {
    /// Oldest first.
    spares: VecDeque<Spare>,
    mounts: MountWatcher,
}

impl Spares {
    pub(crate) fn new(launcher: Launcher, reaper: Reaper, cgroups: Cgroups) -> Spares {
        Spares {
            launcher,
            reaper,
            cgroups,
            slots: Slots::default(),
            serial: AtomicU64::new(0),
            queue: Mutex::new(SpareQueue {
                spares: VecDeque::new(),
                mounts: MountWatcher::open(),
            }),
        }
    }

    pub(crate) fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// The oldest spare.
    pub(crate) fn take(&self) -> Option<Spare> {
        let mut queue = self.lock();
        // Spares have a copy of the host's mounts, and would not find a layer on a disk mounted since.
        if queue.mounts.changed() {
            queue.spares.clear();
        }
        queue.spares.pop_front()
    }

    /// Requests the missing spares. Not done when one is taken, because that would slow down its start.
    pub(crate) fn refill(&self) {
        let mut queue = self.lock();
        while queue.spares.len() < SPARES {
            match self.request_clone() {
                Ok(spare) => queue.spares.push_back(spare),
                // If the error persists, the next start reports it.
                Err(_) => break,
            }
        }
    }

    /// Ends all spares.
    pub(crate) fn clear(&self) {
        self.lock().spares.clear();
    }

    /// Requests one more clone.
    pub(crate) fn request_clone(&self) -> Result<Spare, Error> {
        let slot = self.slots.take();
        let parameters = CloneParameters {
            group: self.serial.fetch_add(1, Ordering::Relaxed).to_string(),
            slot: slot.number(),
        };
        let (control, theirs) = wire::pair().map_err(|source| Error::Engine {
            operation: "open a sandbox's control socket",
            source,
        })?;
        let (reply, cloned) = oneshot::channel();
        let cleanup = self
            .reaper
            .cleanup_guard(self.cgroups.group(&parameters.group), slot);
        self.launcher.request_clone(CloneRequest {
            parameters,
            control: theirs,
            cleanup,
            reply,
        })?;
        Ok(Spare { control, cloned })
    }

    fn lock(&self) -> MutexGuard<'_, SpareQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sandbox that was sent its specification and is being completed.
pub(crate) struct AssignedSandbox {
    pub(crate) channel: Channel,
    pub(crate) cleanup: CleanupGuard,
    pub(crate) enforced: EnforcedLimits,
}

impl Spare {
    /// Waits for its process, limits it, and sends it its specification.
    pub(crate) async fn assign(self, spec: &Spec) -> Result<AssignedSandbox, Error> {
        let cleanup = self.cloned.await.unwrap_or_else(|_| Err(stopped()))?;
        let engine = |source| Error::Engine {
            operation: "reach a new sandbox",
            source,
        };
        let channel = Channel::new(self.control).map_err(engine)?;
        let group = cleanup.group().ok_or_else(stopped)?;
        let enforced = group.limit(&spec.limits);
        let (start, archives) = start::message(spec, enforced)?;
        let archives: Vec<_> = archives.iter().map(AsFd::as_fd).collect();
        let Err(error) = channel.send(&start, &archives).await else {
            return Ok(AssignedSandbox {
                channel,
                cleanup,
                enforced,
            });
        };
        // It has already ended, and may have reported why.
        Err(match channel.receive().await {
            Ok(Some((StartReply::Failed(failure), _))) => start_error(&failure),
            _ => engine(error),
        })
    }
}

/// Detects changes of the host's mounts.
struct MountWatcher(Option<File>);

impl MountWatcher {
    fn open() -> MountWatcher {
        let watcher = MountWatcher(File::open("/proc/self/mountinfo").ok());
        // The first poll may report a change.
        watcher.changed();
        watcher
    }

    /// Whether the mounts changed since the last call.
    fn changed(&self) -> bool {
        let Some(watcher) = &self.0 else { return false };
        let mut events = [PollFd::new(watcher.as_fd(), PollFlags::POLLPRI)];
        poll(&mut events, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}
