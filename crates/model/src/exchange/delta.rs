//! Delta encoding of bodies: a conversation is sent whole with every call, and comes back as token ids with every
//! answer, so a file of whole bodies would grow with the square of the rollout's length.
//!
//! A body refers to the last few of its kind. A writer drops each of them as soon as a later one contains it, so that a
//! running rollout holds one request and one answer per conversation in memory; a reader keeps them all.

use std::collections::VecDeque;

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::resume::{self, common_end, common_start};

/// How many bodies later ones may refer to. An agent and its subagents take turns in a handful of conversations.
const BODIES_MAX: usize = 8;
/// What they may hold in memory together.
const BYTES_MAX: usize = 8 << 20;
/// A shorter run costs more to describe than to repeat.
const RUN_BYTES_MIN: usize = 64;
/// What stands before the ids of a prompt, in the middle of an answer.
const ANCHOR: &[u8] = b"\"prompt_token_ids\":[";

/// A piece of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// This many bytes stand behind the line.
    New(usize),
    /// A run of the body of an earlier exchange.
    Old {
        exchange: u64,
        from: usize,
        bytes: usize,
    },
}

impl Part {
    /// How many bytes of the body it is.
    pub(super) fn len(self) -> usize {
        match self {
            Part::New(bytes) | Part::Old { bytes, .. } => bytes,
        }
    }
}

/// The last bodies of one kind. Writer and reader keep the same ones, so that each reference resolves.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    bodies: VecDeque<Stored>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Stored {
    exchange: u64,
    bytes: usize,
    /// Empty once a writer has no more use for it.
    body: Bytes,
}

impl Recent {
    /// Returns the bodies that were evicted to make room.
    pub(super) fn push(&mut self, exchange: u64, body: Bytes) -> Vec<Bytes> {
        let mut gone = Vec::new();
        let bytes = body.len();
        self.bytes += bytes;
        self.bodies.push_back(Stored {
            exchange,
            bytes,
            body,
        });
        while self.bodies.len() > BODIES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.bodies.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes;
            gone.push(oldest.body);
        }
        gone
    }

    /// For writers: returns bodies that the one made of these parts supersedes, so that only the last body of each
    /// conversation stays in memory. Readers keep them all, since another writer may refer to any.
    pub(super) fn take_outdated(&mut self, parts: &[Part]) -> Vec<Bytes> {
        let outdated = self
            .bodies
            .iter_mut()
            .filter(|stored| is_outdated(stored, parts));
        outdated
            .map(|stored| std::mem::take(&mut stored.body))
            .collect()
    }

    /// Encodes a body against the most recent one that shares nearly all of it, else against the one that shares most.
    pub(super) fn split(&self, body: &[u8]) -> Vec<Part> {
        let mut best = vec![Part::New(body.len())];
        let mut least = body.len();
        for stored in self.bodies.iter().rev() {
            if least <= body.len() / 8 {
                break;
            }
            let parts = split(body, stored.exchange, &stored.body);
            let new = new_bytes(&parts).unwrap_or(usize::MAX);
            if new < least {
                (best, least) = (parts, new);
            }
        }
        best
    }

    /// Whether every part can be resolved.
    pub(super) fn has_all(&self, parts: &[Part]) -> bool {
        parts.iter().all(|part| match part {
            Part::New(_) => true,
            Part::Old { exchange, .. } => self.find(*exchange).is_some(),
        })
    }

    /// Decodes a body; `None` when a part refers to one that is not there.
    pub(super) fn join(&self, parts: &[Part], new: &[u8]) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        let mut rest = new;
        for part in parts {
            match *part {
                Part::New(bytes) => {
                    let (run, behind) = rest.split_at_checked(bytes)?;
                    body.extend_from_slice(run);
                    rest = behind;
                }
                Part::Old {
                    exchange,
                    from,
                    bytes,
                } => {
                    let old = &self.find(exchange)?.body;
                    body.extend_from_slice(old.get(from..from.checked_add(bytes)?)?);
                }
            }
        }
        rest.is_empty().then_some(body)
    }

    fn find(&self, exchange: u64) -> Option<&Stored> {
        self.bodies
            .iter()
            .find(|stored| stored.exchange == exchange)
    }
}

/// Whether the body made of these parts has all of another that a later one could share: nearly every byte, or most of
/// them up to the end of a list that it goes on with.
fn is_outdated(stored: &Stored, parts: &[Part]) -> bool {
    const REST_BYTES_MAX: usize = 512;
    let mut runs = parts.iter().filter_map(|part| match *part {
        Part::Old {
            exchange,
            from,
            bytes,
        } if exchange == stored.exchange => Some((from, bytes)),
        Part::Old { .. } | Part::New(_) => None,
    });
    let is_continued = |(from, bytes): (usize, usize)| {
        bytes >= stored.bytes / 2 && stored.body.get(from + bytes) == Some(&b']')
    };
    let shared: usize = runs.clone().map(|(_, bytes)| bytes).sum();
    let is_contained = shared > 0 && stored.bytes.saturating_sub(shared) <= REST_BYTES_MAX;
    is_contained || runs.any(is_continued)
}

/// How many bytes stand behind the line; `None` when that is more than a file can hold.
pub(super) fn new_bytes(parts: &[Part]) -> Option<usize> {
    parts.iter().try_fold(0_usize, |sum, part| match part {
        Part::New(bytes) => sum.checked_add(*bytes),
        Part::Old { .. } => Some(sum),
    })
}

/// The new bytes themselves.
pub(super) fn write_new(parts: &[Part], body: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    for part in parts {
        match *part {
            Part::New(bytes) => {
                out.extend_from_slice(&body[at..at + bytes]);
                at += bytes;
            }
            Part::Old { bytes, .. } => at += bytes,
        }
    }
}

/// The common prefix, the common suffix, a common run behind the anchor in between, and every further run that is found.
fn split(body: &[u8], exchange: u64, old: &[u8]) -> Vec<Part> {
    let start = common_start(body, old);
    let (body_rest, old_rest) = (&body[start..], &old[start..]);
    let end = common_end(body_rest, old_rest);
    let middle = &body_rest[..body_rest.len() - end];
    let mut parts = Parts::default();
    parts.add_old(exchange, 0, start);
    let here = if middle.len() < RUN_BYTES_MIN {
        None
    } else {
        anchored(middle)
    };
    let run = here.and_then(|here| {
        let there = anchored(old)?;
        let bytes = common_start(&middle[here..], &old[there..]);
        Some((here, there, bytes))
    });
    match run {
        Some((here, there, bytes)) => {
            parts.add_new(here);
            parts.add_old(exchange, there, bytes);
            // Of an answer only the prompt's ids are like an earlier one's: the rest is not even searched.
            let ids = list_end(&middle[here + bytes..]);
            let (behind, rest) = middle[here + bytes..].split_at(ids);
            let place = there + bytes;
            let old_ids = &old[place..place + list_end(&old[place..])];
            parts.add_resumed(exchange, behind, (place, old_ids));
            parts.add_new(rest.len());
        }
        None => {
            let old_middle = &old_rest[..old_rest.len() - end];
            parts.add_resumed(exchange, middle, (start, old_middle));
        }
    }
    parts.add_old(exchange, old.len() - end, end);
    parts.list
}

#[derive(Default)]
struct Parts {
    list: Vec<Part>,
}

impl Parts {
    fn add_new(&mut self, bytes: usize) {
        match self.list.last_mut() {
            _ if bytes == 0 => {}
            Some(Part::New(before)) => *before += bytes,
            _ => self.list.push(Part::New(bytes)),
        }
    }

    /// A text whose runs stand in a stretch of the old one, which begins at `place`.
    fn add_resumed(&mut self, exchange: u64, text: &[u8], (place, old): (usize, &[u8])) {
        let mut done = 0;
        for run in resume::runs(text, old) {
            self.add_new(run.at - done);
            self.add_old(exchange, place + run.from, run.bytes);
            done = run.at + run.bytes;
        }
        self.add_new(text.len() - done);
    }

    fn add_old(&mut self, exchange: u64, from: usize, bytes: usize) {
        if bytes < RUN_BYTES_MIN {
            self.add_new(bytes);
        } else {
            self.list.push(Part::Old {
                exchange,
                from,
                bytes,
            });
        }
    }
}

/// Where the list ends that the text is in the middle of.
fn list_end(text: &[u8]) -> usize {
    memchr::memchr(b']', text).unwrap_or(text.len())
}

/// Behind the last anchor: in a stream an agent's own text may quote one before it.
fn anchored(body: &[u8]) -> Option<usize> {
    // Forwards, which is many times faster than backwards.
    let last = memmem::find_iter(body, ANCHOR).last();
    last.map(|at| at + ANCHOR.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a writer has in memory after these, and how many bytes of each were new.
    fn write(bodies: &[String]) -> (Recent, Vec<usize>) {
        let mut recent = Recent::default();
        let mut new = Vec::new();
        for (exchange, body) in bodies.iter().enumerate() {
            let parts = recent.split(body.as_bytes());
            new.push(new_bytes(&parts).unwrap());
            recent.take_outdated(&parts);
            recent.push(exchange as u64, body.clone().into());
        }
        (recent, new)
    }

    fn in_memory(recent: &Recent) -> Vec<usize> {
        let bodies = recent.bodies.iter().map(|stored| stored.body.len());
        bodies.filter(|bytes| *bytes > 0).collect()
    }

    fn asked(system: &str, messages: usize) -> String {
        let messages = format!(",{}", "m".repeat(2000)).repeat(messages);
        format!("{{\"messages\":[{system}{messages}],\"tools\":[1]}}")
    }

    #[test]
    fn of_a_conversation_only_the_last_body_is_in_memory() {
        let requests: Vec<String> = (1..6).map(|turn| asked("system", turn)).collect();
        let (recent, new) = write(&requests);
        assert_eq!(in_memory(&recent), [requests[4].len()]);
        assert!(new[1..].iter().all(|new| *new < 2200), "{new:?}");

        let answer = |turn: usize| {
            let (ids, sampled) = ("12,".repeat(turn * 3000), turn.to_string().repeat(5000));
            format!("{{\"id\":{turn},\"logprobs\":{sampled},\"prompt_token_ids\":[{ids}1]}}")
        };
        let answers: Vec<String> = (1..6).map(answer).collect();
        let (recent, new) = write(&answers);
        assert_eq!(in_memory(&recent), [answers[4].len()]);
        assert!(new[1..].iter().all(|new| *new < 15_000), "{new:?}");
    }

    #[test]
    fn a_prompt_that_is_rendered_anew_costs_what_is_new_in_it() {
        let words = |count: usize| -> String {
            (0..count)
                .map(|at| format!("{},", at * 7919 % 100_000))
                .collect()
        };
        let request = |turn: usize| {
            let clock = format!("it is {} o'clock", "x".repeat(turn % 3));
            format!(
                "{{\"messages\":[{clock}{}],\"tools\":[1]}}",
                words(2000 + turn * 50)
            )
        };
        let requests: Vec<String> = (0..9).map(request).collect();
        let (recent, new) = write(&requests);
        assert!(new[1..].iter().all(|new| *new < 1200), "{new:?}");
        assert_eq!(in_memory(&recent), [requests[8].len()]);

        let answer = |turn: usize| {
            let sampled = turn.to_string().repeat(3000);
            let ids = words(2000 + turn * 50);
            format!(
                "{{\"id\":{turn},\"logprobs\":[{sampled}],\"prompt_token_ids\":[{turn},{ids}1],\"end\":[]}}"
            )
        };
        let answers: Vec<String> = (0..9).map(answer).collect();
        let (_, new) = write(&answers);
        assert!(new[1..].iter().all(|new| *new < 4500), "{new:?}");
    }

    #[test]
    fn conversations_that_take_turns_keep_a_body_each() {
        let systems = ["a".repeat(9000), "b".repeat(9000)];
        let requests: Vec<String> = (2..12)
            .map(|turn| asked(&systems[turn % 2], turn / 2))
            .collect();
        let (recent, new) = write(&requests);
        assert_eq!(in_memory(&recent), [requests[8].len(), requests[9].len()]);
        assert!(new[2..].iter().all(|new| *new < 2200), "{new:?}");
    }
}
