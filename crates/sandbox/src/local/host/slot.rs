//! Slot numbers of live sandboxes, the lowest first: each number selects a uid range and its user namespace.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Debug, Default)]
pub(crate) struct Slots(Arc<Mutex<BTreeSet<u32>>>);

/// A slot number, released on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u32,
    slots: Slots,
}

impl Slots {
    pub(crate) fn take(&self) -> Slot {
        let mut taken = self.lock();
        let number = (0..)
            .find(|number| !taken.contains(number))
            .unwrap_or(u32::MAX);
        taken.insert(number);
        drop(taken);
        Slot {
            number,
            slots: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_taken() {
        let slots = Slots::default();
        let [first, second] = [slots.take(), slots.take()];
        assert_eq!([first.number(), second.number()], [0, 1]);
        drop(first);
        let third = slots.take();
        let fourth = slots.take();
        assert_eq!([third.number(), fourth.number()], [0, 2]);
        assert_eq!(second.number(), 1);
    }
}
