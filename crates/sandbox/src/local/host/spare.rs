//! Sandboxes cloned ahead of need. Moving a process into a cgroup makes it wait for up to ten milliseconds
//! after a quiet period, and most of a sandbox's namespaces and mounts are the same for all. So there are
//! always some that have come so far and wait to be told what they are for.
//!
//! A start takes the oldest, or if there is none waits for one to be cloned, and has the missing ones made
//! when its own sandbox is ready. None is made before the first start.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use super::cgroup::Limited;
use super::channel::Channel;
use super::failure::start_error;
use super::launcher::{Launcher, Order, stopped};
use super::reaper::{Reaper, Remains};
use super::slot::Slots;
use super::start;
use crate::local::shared::cgroup::Cgroups;
use crate::local::shared::wire::{self, Place, Ready};
use crate::{Error, Spec};

/// How many wait while nothing is started, at 0.6 MB each. One serves as well for starts that come one by
/// one; two gave a sixth more of them per second with four at a time on two cores.
const SPARES: usize = 2;

pub(crate) struct Spares {
    pub(crate) launcher: Launcher,
    pub(crate) reaper: Reaper,
    cgroups: Cgroups,
    slots: Slots,
    serial: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// A sandbox that was ordered. Dropping it ends it.
pub(crate) struct Spare {
    /// The engine's end of its control socket.
    control: OwnedFd,
    cloned: oneshot::Receiver<Result<Remains, Error>>,
}

struct Waiting {
    /// Oldest first.
    spares: VecDeque<Spare>,
    mounts: MountTable,
}

impl Spares {
    pub(crate) fn new(launcher: Launcher, reaper: Reaper, cgroups: Cgroups) -> Spares {
        Spares {
            launcher,
            reaper,
            cgroups,
            slots: Slots::default(),
            serial: AtomicU64::new(0),
            waiting: Mutex::new(Waiting {
                spares: VecDeque::new(),
                mounts: MountTable::open(),
            }),
        }
    }

    pub(crate) fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// The oldest spare.
    pub(crate) fn take(&self) -> Option<Spare> {
        let mut waiting = self.lock();
        // They have a copy of the host's mounts, and would not find a layer on a disk mounted since.
        if waiting.mounts.changed() {
            waiting.spares.clear();
        }
        waiting.spares.pop_front()
    }

    /// Orders what is missing. Not done on taking one, whose own start it would slow down.
    pub(crate) fn refill(&self) {
        let mut waiting = self.lock();
        while waiting.spares.len() < SPARES {
            match self.order() {
                Ok(spare) => waiting.spares.push_back(spare),
                // The next start will meet the error, if it lasts.
                Err(_) => break,
            }
        }
    }

    /// Ends all that wait.
    pub(crate) fn clear(&self) {
        self.lock().spares.clear();
    }

    /// Has one more sandbox cloned.
    pub(crate) fn order(&self) -> Result<Spare, Error> {
        let slot = self.slots.take();
        let place = Place {
            group: self.serial.fetch_add(1, Ordering::Relaxed).to_string(),
            slot: slot.number(),
        };
        let (control, theirs) = wire::pair().map_err(|source| Error::Engine {
            operation: "open a sandbox's control socket",
            source,
        })?;
        let (reply, cloned) = oneshot::channel();
        let remains = self
            .reaper
            .expect_remains(self.cgroups.group(&place.group), slot);
        self.launcher.order(Order {
            place,
            control: theirs,
            remains,
            reply,
        })?;
        Ok(Spare { control, cloned })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sandbox on its way.
pub(crate) struct Told {
    pub(crate) channel: Channel,
    pub(crate) remains: Remains,
    pub(crate) limited: Limited,
}

impl Spare {
    /// Waits until its process is there, limits it, and tells it what it is to be.
    pub(crate) async fn tell(self, spec: &Spec) -> Result<Told, Error> {
        let remains = self.cloned.await.unwrap_or_else(|_| Err(stopped()))?;
        let engine = |source| Error::Engine {
            operation: "reach a new sandbox",
            source,
        };
        let channel = Channel::new(self.control).map_err(engine)?;
        let group = remains.group().ok_or_else(stopped)?;
        let limited = group.limit(&spec.limits);
        let (start, archives) = start::message(spec, limited)?;
        let archives: Vec<_> = archives.iter().map(AsFd::as_fd).collect();
        let Err(error) = channel.send(&start, &archives).await else {
            return Ok(Told {
                channel,
                remains,
                limited,
            });
        };
        // It has ended already, perhaps with a word why.
        Err(match channel.receive().await {
            Ok(Some((Ready::Failed(failure), _))) => start_error(&failure),
            _ => engine(error),
        })
    }
}

/// Tells whether mounts of the host came or went.
struct MountTable(Option<File>);

impl MountTable {
    fn open() -> MountTable {
        let table = MountTable(File::open("/proc/self/mountinfo").ok());
        // The first time may count as a change.
        table.changed();
        table
    }

    /// Since it was last asked.
    fn changed(&self) -> bool {
        let Some(table) = &self.0 else { return false };
        let mut events = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        poll(&mut events, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}
