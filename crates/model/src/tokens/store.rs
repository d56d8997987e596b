//! Makes lists of ids that share memory with recent ones. A prompt repeats the last one with more at its end, and agents
//! that render it afresh change a few ids in its middle: both are found by comparing with the last few lists.

use std::collections::VecDeque;

use super::{Piece, Tokens, common_start};

/// How many lists a new one is compared with. An agent and its subagents take turns in a handful of conversations.
const RECENT_MAX: usize = 4;
/// A shorter run costs more to refer to than to repeat; also what must agree to take two places for the same.
const RUN_MIN: usize = 16;
/// How far from a difference the lists are searched for the place where they agree again, at first and at last.
const SEARCH: [usize; 2] = [32, 256];
/// A list that differs in more places is a different one.
const PIECES_MAX: usize = 64;

#[derive(Default)]
pub struct TokenStore {
    /// The last lists as they are, the newest at the back.
    recent: VecDeque<(Tokens, Vec<u32>)>,
    bytes: usize,
}

impl std::fmt::Debug for TokenStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TokenStore").finish_non_exhaustive()
    }
}

impl TokenStore {
    /// Stores `ids` with `follows` appended, and returns the list of `ids` alone. The next list usually starts with both,
    /// and then adds neither.
    pub fn keep(&mut self, mut ids: Vec<u32>, follows: &[u32]) -> Tokens {
        let len = ids.len();
        ids.extend_from_slice(follows);
        if ids.is_empty() {
            return Tokens::default();
        }
        let mut best: Option<(usize, usize, Vec<Run>)> = None;
        for (at, (_, old)) in self.recent.iter().enumerate().rev() {
            let runs = compare(&ids, old);
            let new = runs.iter().map(Run::new_len).sum();
            if best.as_ref().is_none_or(|(least, _, _)| new < *least) {
                best = Some((new, at, runs));
            }
            if new <= ids.len() / 8 {
                break;
            }
        }
        let whole = match best {
            Some((new, at, runs)) if new < ids.len() => {
                let old = &self.recent[at].0;
                Tokens::of_pieces(runs.iter().map(|run| run.piece(&ids, old)).collect())
            }
            _ => Tokens::from(ids.clone()),
        };
        self.bytes += whole.new_bytes();
        let list = whole.slice(0, len);
        self.recent.push_back((whole, ids));
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        list
    }

    /// What all lists hold together, without the copies kept for comparing.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A range of a list: new, or equal to a range of an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    New { from: usize, to: usize },
    Old { from: usize, to: usize },
}

impl Run {
    fn new_len(&self) -> usize {
        match self {
            Run::New { from, to } => to - from,
            Run::Old { .. } => 0,
        }
    }

    fn piece(&self, ids: &[u32], old: &Tokens) -> Piece {
        match *self {
            Run::New { from, to } => Piece::New(ids[from..to].into()),
            Run::Old { from, to } => Piece::Old(old.slice(from, to)),
        }
    }
}

/// Splits a list into runs; in order they are exactly the list.
fn compare(ids: &[u32], old: &[u32]) -> Vec<Run> {
    let mut runs = Vec::new();
    let (mut here, mut there) = (0, 0);
    // Where the new ids start that are not yet in a run.
    let mut pending = 0;
    while here < ids.len() && runs.len() < PIECES_MAX {
        let same = common_start(&ids[here..], &old[there..]);
        if same >= RUN_MIN {
            if pending < here {
                runs.push(Run::New {
                    from: pending,
                    to: here,
                });
            }
            runs.push(Run::Old {
                from: there,
                to: there + same,
            });
            pending = here + same;
        }
        (here, there) = (here + same, there + same);
        let found = SEARCH
            .iter()
            .find_map(|reach| resume(&ids[here..], &old[there..], *reach));
        let Some((skipped, left_out)) = found else {
            break;
        };
        (here, there) = (here + skipped, there + left_out);
    }
    if pending < ids.len() {
        runs.push(Run::New {
            from: pending,
            to: ids.len(),
        });
    }
    runs
}

/// The nearest positions from which both agree again: how many ids to skip in each.
fn resume(ids: &[u32], old: &[u32], reach: usize) -> Option<(usize, usize)> {
    let last = |list: &[u32]| list.len().checked_sub(RUN_MIN);
    let (last_here, last_there) = (last(ids)?.min(reach), last(old)?.min(reach));
    (1..=last_here + last_there).find_map(|skips| {
        let first = skips.saturating_sub(last_there);
        (first..=skips.min(last_here))
            .map(|here| (here, skips - here))
            .find(|(here, there)| {
                ids[*here] == old[*there]
                    && ids[*here..here + RUN_MIN] == old[*there..there + RUN_MIN]
            })
    })
}
