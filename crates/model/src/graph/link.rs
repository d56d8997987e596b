//! Finds parents. Turns come in any order: what a turn continues is looked up in the tries when it is needed, so a
//! closer parent that arrives late is found without undoing anything.
//!
//! A reply that the agent changed before it sent it back is found by the id of one of its calls if that identifies a
//! single reply, by its place behind its own prompt, or by its words; the match furthest into the conversation counts.
//! No link leads to a turn with more messages, so there are no cycles.

use std::collections::HashMap;

use serde_json::Value;

use super::echo::{self, Fit};
use super::identity::{Identities, canonical};
use super::trie::{Place, Trie};
use crate::tokens::{TokenStore, Tokens};
use crate::turn::Turn;
use rollcage_dialect::chat::Message;

/// A call id that more replies share than this is a counter of the model's that restarts, and identifies nothing.
const SHARERS_MAX: usize = 8;
/// How many messages a reply and the results of its calls may take up.
const NEW_MAX: usize = 256;
/// How many replies to one prompt are compared with what was sent back.
const TRIES_MAX: usize = 8;

/// The turns of one rollout, indexed by prefix. Holds references to their ids, not copies.
#[derive(Debug, Default)]
pub struct Links {
    tokens: Trie,
    messages: Trie,
    lists: TokenStore,
    identities: Identities,
    /// By call id: the turns whose replies used it.
    callers: HashMap<Box<str>, Vec<usize>>,
    /// By place in the trie: the turns whose messages end there.
    askers: HashMap<Place, Vec<usize>>,
    /// By a hash of the reply's words: the turns that gave it.
    speakers: HashMap<u64, Vec<usize>>,
    pub(super) entries: Vec<LinkedTurn>,
    n_pushed: usize,
}

/// What is kept of a turn for comparing.
#[derive(Debug)]
pub(super) struct LinkedTurn {
    /// Which of the pushed turns it is.
    pub(super) turn: usize,
    pub(super) exchange: u64,
    /// Without the leading system messages: agents re-render those.
    n_messages: usize,
    messages: Place,
    system: Place,
    /// The end of the prompt's ids, where there are any.
    prompt: Option<Place>,
    has_all_ids: bool,
}

/// What a turn continues, as indices of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) parent: Option<usize>,
    pub(super) retokenised: Option<usize>,
    pub(super) changed: Option<usize>,
    /// Whose messages this turn repeats without the reply to them.
    pub(super) left_out: Option<usize>,
    /// Whose messages and reply this turn's messages start with.
    pub(super) whole: Option<usize>,
}

impl Links {
    /// Adds a turn; a failed one is counted but is never a parent.
    pub fn push(&mut self, turn: &Turn) {
        let index = self.n_pushed;
        self.n_pushed += 1;
        let (system, messages) = self.identities.of_messages(&turn.messages);
        if turn.is_failed() {
            return;
        }
        let at = self.entries.len();
        let n_messages = messages.len();
        let message = turn.message.as_ref().map(Message::to_value);
        let reply: Vec<u32> = message
            .iter()
            .map(|message| self.identities.of_value(message))
            .collect();
        let list = self.lists.keep(messages, &reply);
        let messages = self.messages.place(&list);
        if !reply.is_empty() {
            let end = self.messages.place_after(messages, &list, &reply);
            self.messages.mark(end, at);
        }
        if n_messages > 0 {
            self.askers.entry(messages).or_default().push(at);
        }
        self.know_reply(turn, at, n_messages, message.as_ref());
        let system = self.messages.place(&Tokens::from(system));

        let sampled = turn.completion_token_ids.as_ref();
        let prompt = turn.prompt_token_ids.as_ref().map(|ids| {
            let place = self.tokens.place(ids);
            // A turn that sampled nothing cannot be distinguished from its own prompt.
            if let Some(sampled) = sampled.filter(|sampled| !sampled.is_empty()) {
                let end = self.tokens.place_after(place, ids, sampled);
                self.tokens.mark(end, at);
            }
            place
        });
        self.entries.push(LinkedTurn {
            turn: index,
            exchange: turn.exchange,
            n_messages,
            messages,
            system,
            prompt,
            has_all_ids: prompt.is_some() && sampled.is_some(),
        });
    }

    /// What the reply may be known by in a later request.
    fn know_reply(&mut self, turn: &Turn, at: usize, n_messages: usize, message: Option<&Value>) {
        let words = message.and_then(|message| echo::hash_of_words(n_messages, message));
        if let Some(words) = words {
            self.speakers.entry(words).or_default().push(at);
        }
        for id in call_ids(turn) {
            self.callers.entry(id.into()).or_default().push(at);
        }
    }

    /// An estimate of what is held beside the turns themselves.
    pub fn bytes(&self) -> usize {
        let listed = |entry: usize| size_of::<(u64, Vec<usize>)>() + entry * size_of::<usize>();
        let callers = self.callers.values().map(|them| listed(them.len()));
        let askers = self.askers.values().map(|them| listed(them.len()));
        let speakers = self.speakers.values().map(|them| listed(them.len()));
        let others: usize = callers.chain(askers).chain(speakers).sum();
        self.lists.bytes() + self.tokens.bytes() + self.messages.bytes() + others
    }

    pub(super) fn link(&self, child: usize, turns: &[Turn]) -> Link {
        let entry = &self.entries[child];
        // Every kind of link adds messages or tokens, and none goes from fewer messages to more: so there are no cycles.
        let n_messages = |other: usize| self.entries[other].n_messages;
        let exact = entry.prompt.and_then(|place| {
            self.longest(turns, &self.tokens, place, child, |other| {
                n_messages(other) <= entry.n_messages
            })
        });
        let said = self.longest(turns, &self.messages, entry.messages, child, |other| {
            entry.prompt.is_none() || !self.entries[other].has_all_ids
        });
        let parent = match (exact, said) {
            (Some(exact), Some(said)) if n_messages(said) > n_messages(exact) => Some(said),
            (exact, said) => exact.or(said),
        };
        let whole = self.longest(turns, &self.messages, entry.messages, child, |_| true);
        let is_longer =
            |said: &usize| parent.is_none_or(|parent| n_messages(*said) > n_messages(parent));
        let mut link = Link {
            parent,
            retokenised: whole.filter(is_longer),
            whole,
            ..Link::default()
        };
        let reached = parent.into_iter().chain(whole).map(n_messages).max();
        let by_id = self.by_call_id(turns, child, reached);
        let reached = reached.max(by_id.map(n_messages));
        let (by_place, left_out) = self.by_place(turns, child, reached);
        link.left_out = left_out;
        let reached = reached.max(by_place.map(n_messages));
        let by_words = self.by_words(turns, child, reached);
        if let Some(before) = by_words.or(by_place).or(by_id) {
            let (before_turn, turn) = (self.turn(turns, before), self.turn(turns, child));
            (link.retokenised, link.changed) = match is_as_it_was(before_turn, turn) {
                true => (Some(before), None),
                false => (None, Some(before)),
            };
        }
        link
    }

    /// The last reply that the messages after the first `reached` ones refer to by the id of one of its calls.
    fn by_call_id(&self, turns: &[Turn], child: usize, reached: Option<usize>) -> Option<usize> {
        let messages = &self.turn(turns, child).messages;
        let first = echo::n_leading(messages) + reached.map_or(0, |reached| reached + 1);
        let new = messages.get(first..).unwrap_or_default().iter().rev();
        let new = new.take(NEW_MAX);
        let is_later = |at: &usize| {
            let entry = &self.entries[*at];
            entry.exchange < self.entries[child].exchange
                && entry.n_messages < self.entries[child].n_messages
                && reached.is_none_or(|reached| entry.n_messages > reached)
        };
        new.flat_map(|message| echo::ids_in(message))
            .find_map(|id| self.caller(turns, child, id).filter(is_later))
    }

    /// The turn whose reply used a call id: the only one, the only one of the session, or of several answers to one prompt
    /// the one that matches.
    fn caller(&self, turns: &[Turn], child: usize, id: &str) -> Option<usize> {
        let callers = self.callers.get(id)?;
        if callers.len() > SHARERS_MAX {
            return None;
        }
        let own = |at: &usize| self.is_same_session(turns, *at, child);
        let own: Vec<usize> = callers.iter().copied().filter(own).collect();
        match (callers.as_slice(), own.as_slice()) {
            ([only], _) | (_, [only]) => Some(*only),
            (_, tries @ [first, ..]) => {
                let is_same =
                    |at: &usize| self.entries[*at].messages == self.entries[*first].messages;
                let is_one_prompt = tries.iter().all(is_same);
                is_one_prompt
                    .then(|| self.fitting(turns, child, tries, Fit::Place))
                    .flatten()
            }
            _ => None,
        }
    }

    /// The reply that stands behind its own prompt in the messages of `child`, however it was changed; and a reply
    /// that should stand there and does not.
    fn by_place(
        &self,
        turns: &[Turn],
        child: usize,
        reached: Option<usize>,
    ) -> (Option<usize>, Option<usize>) {
        let entry = &self.entries[child];
        let messages = &self.turn(turns, child).messages;
        let n_leading = messages.len() - entry.n_messages;
        let mut left_out = None;
        for place in self.messages.way_up(entry.messages) {
            let Some(askers) = self.askers.get(&place) else {
                continue;
            };
            let n_said = askers
                .first()
                .map_or(0, |first| self.entries[*first].n_messages);
            if reached.is_some_and(|reached| n_said <= reached) {
                break;
            }
            // The same prompt is an answer to nothing, and a last message by the assistant is one to be finished.
            let next = match &messages[n_leading + n_said..] {
                [] => continue,
                [next] if echo::is_assistant(next) => continue,
                [next, ..] => next,
            };
            if !echo::is_assistant(next) {
                left_out = left_out.or_else(|| self.latest(turns, child, askers).next());
            } else if let Some(before) = self.fitting(turns, child, askers, Fit::Place) {
                return (Some(before), left_out);
            }
        }
        (None, left_out)
    }

    /// The reply that the last of the assistant's messages repeats at the place where it was given, in a conversation
    /// with the same beginning: some agents write their reminders behind the last message alone, so that no prompt
    /// starts with an earlier one.
    fn by_words(&self, turns: &[Turn], child: usize, reached: Option<usize>) -> Option<usize> {
        let messages = &self.turn(turns, child).messages;
        let n_leading = echo::n_leading(messages);
        let place = messages.iter().rposition(|it| echo::is_assistant(it))?;
        let n_said = place.checked_sub(n_leading)?;
        if n_said == 0 || reached.is_some_and(|reached| n_said <= reached) {
            return None;
        }
        let speakers = self
            .speakers
            .get(&echo::hash_of_words(n_said, &messages[place])?)?;
        let begun = messages.get(n_leading)?;
        let is_it = |at: &usize| {
            let other = &self.turn(turns, *at).messages;
            let first = other.get(echo::n_leading(other));
            self.entries[*at].n_messages == n_said
                && first.is_some_and(|first| is_same_start(first, begun, n_said))
        };
        let speakers: Vec<usize> = speakers.iter().copied().filter(is_it).collect();
        self.fitting(turns, child, &speakers, Fit::Words)
    }

    /// The earlier replies to one prompt, those of `child`'s own session where there are any; the last first.
    fn latest(
        &self,
        turns: &[Turn],
        child: usize,
        askers: &[usize],
    ) -> impl Iterator<Item = usize> + use<> {
        let exchange = |at: usize| self.entries[at].exchange;
        let before = askers.iter().copied();
        let mut before: Vec<usize> = before
            .filter(|at| exchange(*at) < exchange(child))
            .collect();
        let is_own = |at: &usize| self.is_same_session(turns, *at, child);
        if before.iter().any(is_own) {
            before.retain(is_own);
        }
        before.sort_by_key(|at| std::cmp::Reverse(exchange(*at)));
        before.into_iter()
    }

    /// Of the replies to one prompt the one that the messages of `child` hold at its place, or the last one when there
    /// is nothing to tell them apart by.
    fn fitting(&self, turns: &[Turn], child: usize, askers: &[usize], least: Fit) -> Option<usize> {
        let messages = &self.turn(turns, child).messages;
        let fit = |at: usize| {
            let before = self.turn(turns, at);
            let echo = echo::echo_of(before, self.turn(turns, child));
            let echo: Vec<&Value> = echo.iter().map(|at| &*messages[*at]).collect();
            let reply = before.message.as_ref();
            reply.map_or(Fit::No, |reply| echo::fit(reply, &echo))
        };
        let tries = self.latest(turns, child, askers).take(TRIES_MAX);
        let tries = tries
            .map(|at| (fit(at), at))
            .filter(|(fit, _)| *fit >= least);
        let best = tries.max_by_key(|(fit, at)| (*fit, self.entries[*at].exchange));
        best.map(|(_, at)| at)
    }

    fn turn<'a>(&self, turns: &'a [Turn], entry: usize) -> &'a Turn {
        &turns[self.entries[entry].turn]
    }

    fn is_same_session(&self, turns: &[Turn], one: usize, other: usize) -> bool {
        let session = |entry: usize| &self.turn(turns, entry).harness_session_id;
        session(one) == session(other)
    }

    /// Whether some request mentions a call that only this entry made, even one that was never answered.
    pub(super) fn is_told_of(&self, turns: &[Turn], entry: usize) -> bool {
        call_ids(self.turn(turns, entry)).any(|id| {
            let is_only = self
                .callers
                .get(id)
                .is_some_and(|callers| callers.len() == 1);
            is_only && self.identities.is_told(id)
        })
    }

    /// The longest entry that ends on the way to `place`. Among equals those of the same session come before others, then
    /// the last one before `child`: the agent asked again and continued with what it got then.
    fn longest(
        &self,
        turns: &[Turn],
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
            let is_own = |at: &usize| self.is_same_session(turns, *at, child);
            let before = found().filter(|at| exchange(at) < exchange(&child));
            before
                .max_by_key(|at| (is_own(at), exchange(at)))
                .or_else(|| found().min_by_key(|at| (!is_own(at), exchange(at))))
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

fn call_ids(turn: &Turn) -> impl Iterator<Item = &str> {
    let calls = turn.message.iter().flat_map(|message| &message.tool_calls);
    let ids = calls.filter_map(|call| call.id.as_deref());
    ids.filter(|id| !id.is_empty())
}

/// Whether two conversations start with the same message. If it is also the last one, it may have reminders appended.
fn is_same_start(one: &Value, other: &Value, n_said: usize) -> bool {
    let (first, second) = (echo::text_in(one), echo::text_in(other));
    let is_longer = first.starts_with(&second) || second.starts_with(&first);
    let is_alone = n_said == 1 && !first.is_empty() && !second.is_empty();
    one["role"] == other["role"] && (first == second || is_alone && is_longer)
}

/// Whether the reply came back unchanged, so that something before it was changed.
fn is_as_it_was(before: &Turn, turn: &Turn) -> bool {
    let Some(reply) = &before.message else {
        return false;
    };
    match echo::echo_of(before, turn).as_slice() {
        [at] => canonical(&turn.messages[*at]) == canonical(&reply.to_value()),
        _ => false,
    }
}
