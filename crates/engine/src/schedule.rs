//! Which rollout runs next: a queue and its slots, as a pure data structure. It starts nothing and waits for nothing.

use std::collections::{HashMap, VecDeque};

use rollcage_model::id::RolloutId;

use crate::limits::EngineLimits;

/// Why rollouts were not accepted.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueueError {
    #[error("the queue is full ({waiting} rollouts wait, {max} may): try again later")]
    Full { waiting: usize, max: usize },
    #[error("the server is shutting down")]
    Closed,
}

/// The waiting rollouts, and those that hold a slot.
#[derive(Debug)]
pub(crate) struct Schedule {
    limits: EngineLimits,
    is_closed: bool,
    queue: VecDeque<(RolloutId, String)>,
    /// The owner of each rollout that holds a slot.
    running: HashMap<RolloutId, String>,
}

impl Schedule {
    pub(crate) fn new(limits: EngineLimits) -> Self {
        Schedule {
            limits: EngineLimits {
                slots: limits.slots.max(1),
                owner_slots: limits.owner_slots.max(1),
                ..limits
            },
            is_closed: false,
            queue: VecDeque::new(),
            running: HashMap::new(),
        }
    }

    /// Appends all of them to the queue, or none. Rollouts that fit into free slots do not count against the queue's
    /// limit.
    pub(crate) fn add(&mut self, owner: &str, ids: &[RolloutId]) -> Result<(), QueueError> {
        if self.is_closed {
            return Err(QueueError::Closed);
        }
        let free = self.limits.slots.saturating_sub(self.running.len());
        let room = self.limits.queue_max.saturating_add(free);
        if self.queue.len() + ids.len() > room {
            return Err(QueueError::Full {
                waiting: self.queue.len(),
                max: self.limits.queue_max,
            });
        }
        let added = ids.iter().map(|id| (*id, owner.to_owned()));
        self.queue.extend(added);
        Ok(())
    }

    /// Gives a slot to the first in the queue whose owner may have one more.
    pub(crate) fn start_next(&mut self) -> Option<RolloutId> {
        if self.running.len() >= self.limits.slots {
            return None;
        }
        let held = |owner: &str| self.running.values().filter(|of| *of == owner).count();
        let may_run = |(_, owner): &(RolloutId, String)| held(owner) < self.limits.owner_slots;
        let index = self.queue.iter().position(may_run)?;
        let (id, owner) = self.queue.remove(index)?;
        self.running.insert(id, owner);
        Some(id)
    }

    /// Removes a rollout from the queue; false when it is not in it.
    pub(crate) fn withdraw(&mut self, id: RolloutId) -> bool {
        let index = self.queue.iter().position(|(waiting, _)| *waiting == id);
        index.and_then(|index| self.queue.remove(index)).is_some()
    }

    /// Frees the slot of a rollout, if it holds one.
    pub(crate) fn release(&mut self, id: RolloutId) {
        self.running.remove(&id);
    }

    /// Accepts nothing more. Returns the waiting rollouts, which stay in the queue.
    pub(crate) fn close(&mut self) -> Vec<RolloutId> {
        self.is_closed = true;
        self.queue.iter().map(|(id, _)| *id).collect()
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests;
