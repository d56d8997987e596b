//! Bodies as what is new in them: a conversation is sent whole with every call, and comes back as token ids with every
//! answer, so a file of whole bodies would grow with the square of the rollout.

use std::collections::VecDeque;

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};

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

/// The last bodies of one kind. Writer and reader keep the same ones, so that each reference resolves.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    bodies: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Recent {
    /// Gives back what is forgotten for it.
    pub(super) fn push(&mut self, exchange: u64, body: Bytes) -> Vec<Bytes> {
        let mut gone = Vec::new();
        self.bytes += body.len();
        self.bodies.push_back((exchange, body));
        while self.bodies.len() > BODIES_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.bodies.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            gone.push(oldest);
        }
        gone
    }

    /// The body in few new bytes: the last body that shares most of it, else the one that shares the most.
    pub(super) fn split(&self, body: &[u8]) -> Vec<Part> {
        let mut best = vec![Part::New(body.len())];
        let mut least = body.len();
        for (exchange, old) in self.bodies.iter().rev() {
            if least <= body.len() / 8 {
                break;
            }
            let parts = split(body, *exchange, old);
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
            Part::Old { exchange, .. } => self.bodies.iter().any(|(known, _)| known == exchange),
        })
    }

    /// The body again; `None` when a part refers to what is not there.
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
                    let (_, old) = self.bodies.iter().find(|(known, _)| *known == exchange)?;
                    body.extend_from_slice(old.get(from..from.checked_add(bytes)?)?);
                }
            }
        }
        rest.is_empty().then_some(body)
    }
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

/// A common beginning, a common end, and a common run behind the anchor in between.
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
            parts.add_new(middle.len() - here - bytes);
        }
        None => parts.add_new(middle.len()),
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

/// Behind the last anchor: in a stream an agent's own text may quote one before it.
fn anchored(body: &[u8]) -> Option<usize> {
    // Forwards, which is many times faster than backwards.
    let last = memmem::find_iter(body, ANCHOR).last();
    last.map(|at| at + ANCHOR.len())
}

fn common_start(left: &[u8], right: &[u8]) -> usize {
    // Whole blocks compare at the speed of memory.
    const BLOCK: usize = 1024;
    let blocks = left.chunks_exact(BLOCK).zip(right.chunks_exact(BLOCK));
    let whole = blocks.take_while(|(left, right)| left == right).count() * BLOCK;
    let rest = left[whole..].iter().zip(&right[whole..]);
    whole + rest.take_while(|(left, right)| left == right).count()
}

fn common_end(left: &[u8], right: &[u8]) -> usize {
    const BLOCK: usize = 1024;
    let blocks = left.rchunks_exact(BLOCK).zip(right.rchunks_exact(BLOCK));
    let whole = blocks.take_while(|(left, right)| left == right).count() * BLOCK;
    let (left, right) = (&left[..left.len() - whole], &right[..right.len() - whole]);
    let rest = left.iter().rev().zip(right.iter().rev());
    whole + rest.take_while(|(left, right)| left == right).count()
}
