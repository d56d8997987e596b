//! One rollout's record, open for looking at: what its calls mean, and for each of them where it stands.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::Value;

use crate::exchange::{Exchange, Index};
use crate::graph::{Node, Role, echo_of};
use crate::trace::{Facts, Interpretation, interpret_record};
use crate::turn::{Shared, Turn};

/// How many earlier calls a call without an answer is compared with.
const EARLIER_MAX: usize = 64;

/// What a call takes beside what is counted, and a token beside its text.
const TURN_BYTES: usize = 4096;
const TOKEN_BYTES: usize = 24;

/// A record, read once and asked many times. Calls are named by their number, which counts from 0.
#[derive(Debug)]
pub struct Reading {
    pub(super) seen: Interpretation,
    bytes: Bytes,
    index: Index,
    /// Calls without an answer may still get one.
    is_running: bool,
    /// The calls are not shown, but what was said is.
    is_black_box: bool,
    /// By call: its node; failed ones have none.
    nodes: Vec<Option<usize>>,
    links: Vec<Before>,
    /// By call: the first one of its conversation.
    roots: Vec<usize>,
    /// By call.
    is_trained: Vec<bool>,
}

/// What a call goes on from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// By whatever link.
    pub(super) call: Option<usize>,
    /// It begins anew from a summary of this one's conversation.
    pub(super) compacts: Option<usize>,
}

impl Before {
    pub(super) fn any(self) -> Option<usize> {
        self.call.or(self.compacts)
    }
}

impl Reading {
    /// Interprets the bytes of a record, as far as they can be read.
    pub fn new(bytes: Bytes, facts: &Facts, is_running: bool) -> Self {
        // A black box hides calls from its readers, but not what agent and model said.
        let open = Facts {
            is_eval: facts.is_eval || facts.is_black_box,
            is_black_box: false,
            ..facts.clone()
        };
        let seen = interpret_record(&bytes, &open);
        let mut nodes = vec![None; seen.turns.len()];
        for (at, node) in seen.graph.nodes.iter().enumerate() {
            nodes[node.turn] = Some(at);
        }
        let mut is_trained = vec![false; seen.turns.len()];
        seen.trained().for_each(|turn| is_trained[turn] = true);
        let links = links(&seen, &nodes);
        Reading {
            index: Index::new(&bytes),
            bytes,
            is_running,
            is_black_box: facts.is_black_box,
            nodes,
            roots: roots(&links),
            links,
            is_trained,
            seen,
        }
    }

    /// What the calls mean.
    pub fn interpretation(&self) -> &Interpretation {
        &self.seen
    }

    /// How long the record was when it was read.
    pub fn record_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// About how much memory it takes: the record itself, each message once, and what each call has of its own.
    pub fn held_bytes(&self) -> usize {
        let mut known = HashSet::new();
        let turns = self.seen.turns.iter().map(|turn| {
            let shared = turn.messages.iter().chain(&turn.tools);
            let new = shared.filter(|value| known.insert(value.place()));
            let texts: usize = new.map(|value| held_by(value)).sum();
            let sampled = turn.completion_token_ids.as_ref().map_or(0, Vec::len);
            let tokens: usize = turn
                .tokens
                .iter()
                .map(|text| TOKEN_BYTES + text.len())
                .sum();
            let references = size_of_val(turn.messages.as_slice());
            TURN_BYTES + texts + references + sampled * TOKEN_BYTES + tokens
        });
        self.bytes.len() + turns.sum::<usize>()
    }

    /// How many calls are shown.
    pub fn n_turns(&self) -> usize {
        match self.is_black_box {
            true => 0,
            false => self.seen.turns.len(),
        }
    }

    /// A call's bytes; `None` for one that is not there or not shown.
    pub fn exchange(&self, turn: usize) -> Option<Exchange> {
        let number = self.turn(turn)?.exchange;
        self.index.exchange(&self.bytes, number)
    }

    /// A call that is shown.
    pub(super) fn turn(&self, turn: usize) -> Option<&Turn> {
        self.seen.turns[..self.n_turns()].get(turn)
    }

    pub(super) fn node(&self, turn: usize) -> Option<&Node> {
        let at = (*self.nodes.get(turn)?)?;
        self.seen.graph.nodes.get(at)
    }

    /// The call of a node.
    pub(super) fn call_of(&self, node: usize) -> usize {
        self.seen.graph.nodes[node].turn
    }

    pub(super) fn before(&self, turn: usize) -> Before {
        self.links[turn]
    }

    pub(super) fn root(&self, turn: usize) -> usize {
        self.roots[turn]
    }

    pub(super) fn is_trained(&self, turn: usize) -> bool {
        self.is_trained[turn]
    }

    /// Whether a call's conversation was started by another's reply.
    pub(super) fn is_subagent(&self, turn: usize) -> bool {
        let root = self.node(self.roots[turn]);
        root.is_some_and(|root| root.spawned_by.is_some())
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Waits for its answer.
    pub(super) fn is_pending(&self, turn: usize) -> bool {
        self.is_running && self.seen.turns[turn].latency_s.is_none()
    }

    pub(super) fn role(&self, turn: usize) -> &'static str {
        match self.node(turn) {
            Some(node) => node.role.as_str(),
            None if self.is_pending(turn) => "pending",
            None => "failed",
        }
    }

    pub(super) fn is_agents(&self, turn: usize) -> bool {
        self.node(turn).is_some_and(|node| node.role == Role::Agent)
    }
}

/// A value and all that it holds.
fn held_by(value: &Value) -> usize {
    let own = size_of::<Value>();
    own + match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(held_by).sum(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| own + name.len() + held_by(value);
            members.iter().map(member).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn links(seen: &Interpretation, nodes: &[Option<usize>]) -> Vec<Before> {
    let graph = &seen.graph.nodes;
    let link = |turn: usize| match nodes[turn] {
        Some(at) => Before {
            call: graph[at].before().map(|before| graph[before].turn),
            compacts: graph[at].compacts.map(|before| graph[before].turn),
        },
        None => Before {
            call: asked_after(seen, nodes, turn),
            compacts: None,
        },
    };
    (0..seen.turns.len()).map(link).collect()
}

/// The call that one without an answer goes on from, by its messages: it has no place in the graph, but a person wants to
/// see where it was asked.
fn asked_after(seen: &Interpretation, nodes: &[Option<usize>], turn: usize) -> Option<usize> {
    let asked = &seen.turns[turn];
    let earlier = (0..turn).rev().filter(|before| nodes[*before].is_some());
    let mut earlier = earlier.take(EARLIER_MAX);
    earlier.find(|before| {
        let before = &seen.turns[*before];
        before.harness_session_id == asked.harness_session_id
            && starts_with(&asked.messages, &before.messages)
            && !echo_of(before, asked).is_empty()
    })
}

/// Equal messages of a record are kept once, so their addresses tell.
fn starts_with(messages: &[Shared], start: &[Shared]) -> bool {
    let same = |(one, other): (&Shared, &Shared)| one.place() == other.place();
    messages.len() > start.len() && messages.iter().zip(start).rev().all(same)
}

fn roots(links: &[Before]) -> Vec<usize> {
    let mut roots: Vec<Option<usize>> = vec![None; links.len()];
    for turn in 0..links.len() {
        let mut path = Vec::new();
        let mut at = turn;
        let root = loop {
            if let Some(root) = roots[at] {
                break root;
            }
            path.push(at);
            match links[at].any() {
                // A damaged record must not send us round in a circle.
                Some(before) if path.len() <= links.len() => at = before,
                _ => break at,
            }
        };
        path.into_iter().for_each(|at| roots[at] = Some(root));
    }
    roots.into_iter().flatten().collect()
}
