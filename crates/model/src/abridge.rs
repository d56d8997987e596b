//! Delta encoding of lists of ids: each list is written as references into an earlier one (its parent) plus the ids that
//! are new, so that a thousand prompts that each repeat the last one take the space of what was added.
//!
//! Any edit of a prompt is found: ids appended at the end, changed at the start, removed from the middle.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::tokens::common_start;

/// The shortest run of equal ids that is encoded as a reference: a shorter one is cheaper to write out.
pub(crate) const IDS: usize = 16;
/// The same for lists in which every member is long.
pub(crate) const MEMBERS: usize = 1;

/// A stretch of a list that stands in its parent, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Repeat {
    /// Where the stretch starts in the whole list.
    pub at: usize,
    /// Where it starts in the parent's whole list.
    pub from: usize,
    /// How long it is.
    pub len: usize,
}

/// A list encoded against a parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abridged {
    /// Which of the lists that were offered; `None` when nothing is repeated.
    pub(crate) parent: Option<usize>,
    /// How many ids both start with.
    pub(crate) shared: usize,
    /// What else is repeated, in order.
    pub(crate) repeats: Vec<Repeat>,
    /// The rest, in order.
    pub(crate) new: Vec<u32>,
}

/// Encodes a list against whichever of the offered lists makes it shortest; among equals the first.
pub(crate) fn abridge<'a>(
    list: &[u32],
    offered: impl IntoIterator<Item = (usize, &'a [u32])>,
    run_min: usize,
) -> Abridged {
    let mut best = Abridged {
        new: list.to_vec(),
        ..Abridged::default()
    };
    for (parent, whole) in offered {
        let runs = runs(list, whole, run_min);
        let repeated: usize = runs.iter().map(|run| run.len).sum();
        if repeated > list.len() - best.new.len() {
            best = split(list, parent, runs);
        }
    }
    best
}

fn split(list: &[u32], parent: usize, mut runs: Vec<Repeat>) -> Abridged {
    let mut new = Vec::new();
    let mut done = 0;
    for run in &runs {
        new.extend_from_slice(&list[done..run.at]);
        done = run.at + run.len;
    }
    new.extend_from_slice(&list[done..]);
    let leads = |run: &Repeat| run.at == 0 && run.from == 0;
    let shared = match runs.first() {
        Some(run) if leads(run) => runs.remove(0).len,
        _ => 0,
    };
    Abridged {
        parent: Some(parent),
        shared,
        repeats: runs,
        new,
    }
}

/// Decodes a list; `None` when the parent is too short to be the one it was encoded against.
pub(crate) fn whole<T: Clone>(
    parent: &[T],
    shared: usize,
    repeats: &[Repeat],
    new: &[T],
) -> Option<Vec<T>> {
    let mut whole = parent.get(..shared)?.to_vec();
    let mut new = new.iter();
    for repeat in repeats {
        let gap = repeat.at.checked_sub(whole.len())?;
        whole.extend(new.by_ref().take(gap).cloned());
        let end = repeat.from.checked_add(repeat.len)?;
        whole.extend_from_slice(parent.get(repeat.from..end)?);
    }
    whole.extend(new.cloned());
    Some(whole)
}

/// The common prefix, then every run of at least `run_min` ids that occurs anywhere in the old list. Runs of twice that
/// length are never missed; shorter ones may be.
fn runs(list: &[u32], old: &[u32], run_min: usize) -> Vec<Repeat> {
    let mut runs = Vec::new();
    let len = common_start(list, old);
    if len > 0 {
        runs.push(Repeat {
            at: 0,
            from: 0,
            len,
        });
    }
    // What lies before it is in a run or known to be new, and where the old list would go on.
    let (mut settled, mut next) = (len, len);
    if list.len() < settled + run_min {
        return runs;
    }
    let mut places: HashMap<&[u32], Vec<usize>> = HashMap::new();
    for (number, block) in old.chunks_exact(run_min).enumerate() {
        places.entry(block).or_default().push(number * run_min);
    }
    let mut at = settled;
    while at + run_min <= list.len() {
        let Some(found) = places.get(&list[at..at + run_min]) else {
            at += 1;
            continue;
        };
        let ahead = found.partition_point(|place| *place < next);
        let Some(&place) = found.get(ahead).or(found.last()) else {
            break;
        };
        // A block starts at a multiple; what agrees may start before it.
        let before = list[settled..at].iter().rev();
        let before = before.zip(old[..place].iter().rev());
        let before = before.take_while(|(left, right)| left == right).count();
        let len = before + common_start(&list[at..], &old[place..]);
        let run = Repeat {
            at: at - before,
            from: place - before,
            len,
        };
        (settled, next) = (run.at + len, run.from + len);
        at = settled;
        runs.push(run);
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again(abridged: &Abridged, old: &[u32]) -> Vec<u32> {
        let parent = match abridged.parent {
            Some(_) => old,
            None => &[],
        };
        whole(parent, abridged.shared, &abridged.repeats, &abridged.new).unwrap()
    }

    #[test]
    fn only_what_is_new_is_written_wherever_the_prompt_was_changed() {
        let old: Vec<u32> = (0..1000).collect();
        // A clock at the start, a tool's answer taken out of the middle, and more at the end.
        let list = [&[7, 7][..], &old[2..400], &old[700..], &[1, 2, 3]].concat();
        let abridged = abridge(&list, [(3, old.as_slice())], IDS);
        assert_eq!((abridged.parent, abridged.shared), (Some(3), 0));
        assert_eq!(abridged.new, [7, 7, 1, 2, 3]);
        assert_eq!(abridged.repeats.len(), 2);
        assert_eq!(again(&abridged, &old), list);
    }

    #[test]
    fn the_list_that_leaves_the_least_to_write_is_the_parent() {
        let lists: Vec<Vec<u32>> = vec![(0..50).collect(), (0..80).collect(), (0..80).collect()];
        let offered = || lists.iter().map(Vec::as_slice).enumerate();
        let list: Vec<u32> = (0..100).collect();
        assert_eq!(abridge(&list, offered(), IDS).parent, Some(1));
        assert_eq!(abridge(&[9; 40], offered(), IDS).parent, None);
    }

    #[test]
    fn a_parent_that_cannot_be_the_right_one_is_no_panic() {
        let repeat = |at, from, len| [Repeat { at, from, len }];
        let parent = [1, 2, 3];
        assert_eq!(whole(&parent, 4, &[], &[]), None);
        assert_eq!(whole(&parent, 1, &repeat(0, 0, 1), &[]), None);
        assert_eq!(whole(&parent, 0, &repeat(0, 2, 2), &[]), None);
        assert_eq!(whole(&parent, 0, &repeat(0, 1, usize::MAX), &[]), None);
    }

    proptest! {
        #[test]
        fn a_list_comes_back_as_it_was(
            old in prop::collection::vec(0_u32..4, 0..80),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..30, 0_usize..5), 0..5),
            run_min in 1_usize..5,
        ) {
            let mut list = Vec::new();
            for (from, len, new) in cuts {
                let from = from.index(old.len() + 1);
                list.extend_from_slice(&old[from..(from + len).min(old.len())]);
                list.extend((0..new).map(|id| id as u32));
            }
            let abridged = abridge(&list, [(0, old.as_slice())], run_min);
            prop_assert_eq!(again(&abridged, &old), list);
        }
    }
}
