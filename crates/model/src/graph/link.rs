//! Finds parents. Turns come in any order: what a turn goes on from is read from the tries when it is asked for, so a
//! closer parent that comes late is found without anything being undone.

use std::collections::HashMap;

use super::identity::Identities;
use super::store::Store;
use super::tokens::Tokens;
use super::trie::{Place, Trie};
use super::{Graph, assemble};
use crate::turn::Turn;

/// The turns of one rollout by what they start with. Holds references to their ids, not copies.
#[derive(Debug, Default)]
pub struct Links {
    tokens: Trie,
    messages: Trie,
    lists: Store,
    identities: Identities,
    pub(super) entries: Vec<Entry>,
    n_pushed: usize,
}

/// What of a turn is compared.
#[derive(Debug)]
pub(super) struct Entry {
    /// Which of the pushed turns it is.
    pub(super) turn: usize,
    pub(super) exchange: u64,
    /// Without the system messages that lead them: agents re-render those.
    n_messages: usize,
    messages: Place,
    system: Place,
    /// The end of the prompt's ids, where there are any.
    prompt: Option<Place>,
    has_all_ids: bool,
}

/// What a turn goes on from, as indices of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) parent: Option<usize>,
    pub(super) retokenised: Option<usize>,
}

impl Links {
    /// Takes in a turn; a failed one is counted but is nobody's parent.
    pub fn push(&mut self, turn: &Turn) {
        let index = self.n_pushed;
        self.n_pushed += 1;
        if turn.is_failed() {
            return;
        }
        let at = self.entries.len();
        let (system, messages) = self.identities.of_messages(&turn.messages);
        let n_messages = messages.len();
        let reply = turn.message.as_ref();
        let reply: Vec<u32> = reply
            .map(|message| self.identities.of_value(&message.to_value()))
            .into_iter()
            .collect();
        let list = self.lists.keep(messages, &reply);
        let messages = self.messages.place(&list);
        if !reply.is_empty() {
            let end = self.messages.place_after(messages, &list, &reply);
            self.messages.mark(end, at);
        }
        let system = self.messages.place(&Tokens::from(system));

        let sampled = turn.completion_token_ids.as_ref();
        let prompt = turn.prompt_token_ids.as_ref().map(|ids| {
            let place = self.tokens.place(ids);
            // A turn that added nothing cannot be told from its own prompt.
            if let Some(sampled) = sampled.filter(|sampled| !sampled.is_empty()) {
                let end = self.tokens.place_after(place, ids, sampled);
                self.tokens.mark(end, at);
            }
            place
        });
        self.entries.push(Entry {
            turn: index,
            exchange: turn.exchange,
            n_messages,
            messages,
            system,
            prompt,
            has_all_ids: prompt.is_some() && sampled.is_some(),
        });
    }

    /// The graph of what was pushed so far; `turns` are the same ones in the same order.
    pub fn graph(&self, turns: &[Turn]) -> Graph {
        assemble::graph(self, turns)
    }

    /// An estimate of what is held beside the turns themselves.
    pub fn bytes(&self) -> usize {
        self.lists.bytes() + self.tokens.bytes() + self.messages.bytes()
    }

    pub(super) fn link(&self, child: usize) -> Link {
        let entry = &self.entries[child];
        // Neither kind of link ever goes from fewer messages to more, and each makes messages or tokens grow: that is
        // why there are no cycles.
        let n_messages = |other: usize| self.entries[other].n_messages;
        let exact = entry.prompt.and_then(|place| {
            self.longest(&self.tokens, place, child, |other| {
                n_messages(other) <= entry.n_messages
            })
        });
        let said = self.longest(&self.messages, entry.messages, child, |other| {
            entry.prompt.is_none() || !self.entries[other].has_all_ids
        });
        let parent = match (exact, said) {
            (Some(exact), Some(said)) if n_messages(said) > n_messages(exact) => Some(said),
            (exact, said) => exact.or(said),
        };
        let whole = self.longest(&self.messages, entry.messages, child, |_| true);
        let is_longer =
            |said: &usize| parent.is_none_or(|parent| n_messages(*said) > n_messages(parent));
        Link {
            parent,
            retokenised: whole.filter(is_longer),
        }
    }

    /// The longest one that ends on the way to `place`. Among equals the last one before `child` counts: the agent asked
    /// again and went on from what it got then.
    fn longest(
        &self,
        trie: &Trie,
        place: Place,
        child: usize,
        is_allowed: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let exchange = |at: &usize| self.entries[*at].exchange;
        trie.ends_above(place).find_map(|ends| {
            let found = || {
                let others = ends.iter().copied().filter(|&at| at != child);
                others.filter(|&at| is_allowed(at))
            };
            let before = found().filter(|at| exchange(at) < exchange(&child));
            before
                .max_by_key(|at| exchange(at))
                .or_else(|| found().min_by_key(|at| exchange(at)))
        })
    }

    /// For each entry of `order` a number that is equal for equal prompts.
    pub(super) fn prompts(&self, order: &[usize]) -> Vec<usize> {
        let mut by_ids: HashMap<Place, usize> = HashMap::new();
        let mut by_messages: HashMap<(Place, Place), usize> = HashMap::new();
        let mut without_ids: HashMap<(Place, Place), usize> = HashMap::new();
        let number = |(at, index): (usize, &usize)| {
            let entry = &self.entries[*index];
            let key = (entry.messages, entry.system);
            let first = match entry.prompt {
                Some(place) => {
                    let same = by_ids.get(&place).into_iter().chain(without_ids.get(&key));
                    let first = same.min().copied().unwrap_or(at);
                    by_ids.entry(place).or_insert(at);
                    first
                }
                None => {
                    without_ids.entry(key).or_insert(at);
                    by_messages.get(&key).copied().unwrap_or(at)
                }
            };
            by_messages.entry(key).or_insert(at);
            first
        };
        order.iter().enumerate().map(number).collect()
    }
}
