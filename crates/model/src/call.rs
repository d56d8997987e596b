//! Every model call of a rollout with all that is known of it, each written as what is new in it.
//!
//! A call repeats the conversation so far. Its prompt, its messages and its tools refer to an earlier call for what they
//! have in common with it.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::abridge::{self, Abridged, IDS, MEMBERS, Repeat, abridge};
use crate::finding::Code;
use crate::graph::Node;
use crate::tokens::Tokens;
use crate::trace::Interpretation;
use crate::turn::{Exactness, Shared, Turn};
use rollcage_dialect::chat::{Message, Usage};

/// One model call. One that failed has no place in the graph, and the role `failed`.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Call {
    /// Counts the rollout's calls from 0; `parent` in `prompt` and `messages` means these numbers.
    pub turn: usize,
    /// The call's name in findings and rows.
    pub node_id: String,
    /// `agent`, `auxiliary` (beside the work, like a title), `discarded` (not gone on from) or `failed`.
    pub role: String,
    /// Why the role is not the agent's: `beside`, `summary`, `asked_again` or `thrown_away`.
    pub reason: Option<String>,
    /// The call that this one goes on from.
    pub parent_id: Option<String>,
    /// The first call of its conversation.
    pub root_id: Option<String>,
    /// The call that it goes on from by its messages, where its tokens do not.
    pub retokenised_from: Option<String>,
    /// The call whose reply the agent changed before it sent it back.
    pub changed_from: Option<String>,
    /// The call whose reply the agent left out, though it goes on from the same prompt.
    pub left_out: Option<String>,
    /// The last call of the conversation that this one takes the place of, after a summary.
    pub compacts: Option<String>,
    /// The call that started this one's session, for a subagent's first.
    pub spawned_by: Option<String>,
    /// As the endpoint calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Unix seconds, when the request came.
    pub at: f64,
    /// Null when no answer was stored.
    pub latency_s: Option<f64>,
    /// The ids of the prompt; null where the endpoint told none.
    pub prompt: Option<Prompt>,
    /// The ids that were sampled.
    pub completion_token_ids: Option<Vec<u32>>,
    /// The engine's logprobs of the completion; null where they are not whole.
    pub logprobs: Option<Vec<f64>>,
    /// Why the ids and logprobs are not to be trained on; null where they are exact.
    pub not_exact: Option<Code>,
    /// What the agent sent, in the words of chat completions.
    pub messages: Messages,
    /// The tools that it offered; null also where they are those of `tools_from`.
    #[schemars(with = "Value")]
    pub tools: Option<Shared>,
    /// The earlier call that offered the same tools.
    pub tools_from: Option<usize>,
    /// The reply.
    pub message: Option<Value>,
    /// As the endpoint gave it.
    pub finish_reason: Option<String>,
    /// As the endpoint counted.
    pub usage: Option<Usage>,
    /// The endpoint's HTTP status.
    pub upstream_status: Option<u16>,
    /// What it answered instead of a completion.
    pub upstream_error: Option<Value>,
    /// What the agent says of its own sessions.
    pub harness_session_id: Option<String>,
    /// The session that the agent says started its own.
    pub parent_session_id: Option<String>,
    /// As the endpoint was asked.
    pub sampling_params: Map<String, Value>,
    /// As the agent had asked.
    pub requested_sampling_params: Map<String, Value>,
}

/// A prompt's ids: those of the parent's prompt and completion up to `shared`, then `ids`, with each of `repeats` put in
/// at its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Prompt {
    /// The number of an earlier call; null when nothing is repeated.
    pub parent: Option<usize>,
    /// How many ids it takes from the start of the parent's.
    pub shared: usize,
    /// What else it takes from the parent.
    pub repeats: Vec<Repeat>,
    /// The ids that are new, in order.
    pub ids: Vec<u32>,
    /// How long the whole prompt is.
    pub n_ids: usize,
}

/// A request's messages, put together in the same way of the parent's messages and `new`.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Messages {
    /// The number of an earlier call; null when nothing is repeated.
    pub parent: Option<usize>,
    /// How many messages it takes from the start of the parent's.
    pub shared: usize,
    /// What else it takes from the parent.
    pub repeats: Vec<Repeat>,
    /// The messages that are new, in order.
    #[schemars(with = "Vec<Value>")]
    pub new: Vec<Shared>,
}

/// Every call, in the order of the requests.
pub fn calls(seen: &Interpretation) -> impl Iterator<Item = Call> + '_ {
    let mut writer = Writer::new(seen);
    (0..seen.turns.len()).map(move |turn| writer.call(turn))
}

/// A call's prompt put together; `None` where it has none or the calls are not those of one rollout, from the first on.
pub fn whole_prompt(calls: &[Call], turn: usize) -> Option<Vec<u32>> {
    let mut line = vec![calls.get(turn)?];
    while let Some(parent) = line.last()?.prompt.as_ref()?.parent {
        let child = line.last()?.turn;
        line.push(calls.get(parent).filter(|_| parent < child)?);
    }
    let mut before: Vec<u32> = Vec::new();
    for (at, call) in line.iter().enumerate().rev() {
        let prompt = call.prompt.as_ref()?;
        before = abridge::whole(&before, prompt.shared, &prompt.repeats, &prompt.ids)?;
        if at > 0 {
            before.extend(call.completion_token_ids.iter().flatten());
        }
    }
    Some(before)
}

/// A call's messages put together.
pub fn whole_messages(calls: &[Call], turn: usize) -> Option<Vec<Shared>> {
    let mut line = vec![calls.get(turn)?];
    while let Some(parent) = line.last()?.messages.parent {
        let child = line.last()?.turn;
        line.push(calls.get(parent).filter(|_| parent < child)?);
    }
    let mut whole: Vec<Shared> = Vec::new();
    for call in line.iter().rev() {
        let Messages {
            shared,
            repeats,
            new,
            ..
        } = &call.messages;
        whole = abridge::whole(&whole, *shared, repeats, new)?;
    }
    Some(whole)
}

struct Writer<'a> {
    seen: &'a Interpretation,
    /// By turn: its node.
    nodes: Vec<Option<usize>>,
    /// A number for each message there is, by its place in memory.
    numbers: HashMap<usize, u32>,
    /// By the place in memory: the first call that offered these tools.
    tools: HashMap<usize, usize>,
}

impl<'a> Writer<'a> {
    fn new(seen: &'a Interpretation) -> Self {
        let mut nodes = vec![None; seen.turns.len()];
        for (at, node) in seen.graph.nodes.iter().enumerate() {
            nodes[node.turn] = Some(at);
        }
        Writer {
            seen,
            nodes,
            numbers: HashMap::new(),
            tools: HashMap::new(),
        }
    }

    fn call(&mut self, index: usize) -> Call {
        let seen = self.seen;
        let turn = &seen.turns[index];
        let nodes = &seen.graph.nodes;
        let node = self.nodes[index].map(|at| &nodes[at]);
        let id = |at: usize| nodes[at].id.clone();
        let of = |pick: fn(&Node) -> Option<usize>| node.and_then(pick).map(id);
        let earlier = self.earlier(index);
        let messages = self.messages(turn, &earlier);
        let tools_from = turn.tools.as_ref().and_then(|tools| {
            let first = *self.tools.entry(tools.place()).or_insert(index);
            (first != index).then_some(first)
        });
        Call {
            turn: index,
            node_id: turn.node_id(),
            role: node.map_or("failed", |node| node.role.as_str()).to_owned(),
            reason: node
                .and_then(|node| node.aside)
                .map(|aside| aside.as_str().to_owned()),
            parent_id: of(|node| node.parent),
            root_id: of(|node| Some(node.root)),
            retokenised_from: of(|node| node.retokenised),
            changed_from: of(|node| node.changed),
            left_out: of(|node| node.left_out),
            compacts: of(|node| node.compacts),
            spawned_by: of(|node| node.spawned_by),
            model: turn.model.clone(),
            at: turn.at,
            latency_s: turn.latency_s,
            prompt: self.prompt(turn, &earlier),
            completion_token_ids: turn.completion_token_ids.clone(),
            logprobs: turn.logprobs.clone(),
            not_exact: match turn.exactness {
                Exactness::Exact => None,
                Exactness::NotExact(code) => Some(code),
            },
            messages,
            tools: turn.tools.clone().filter(|_| tools_from.is_none()),
            tools_from,
            message: turn.message.as_ref().map(Message::to_value),
            finish_reason: turn.finish_reason.clone(),
            usage: turn.usage,
            upstream_status: turn.upstream_status,
            upstream_error: turn.upstream_error.clone(),
            harness_session_id: turn.harness_session_id.clone(),
            parent_session_id: turn.parent_session_id.clone(),
            sampling_params: turn.sampling.clone(),
            requested_sampling_params: turn.requested_sampling.clone(),
        }
    }

    /// Calls that this one may repeat, those it goes on from first.
    fn earlier(&self, index: usize) -> Vec<usize> {
        let nodes = &self.seen.graph.nodes;
        let node = self.nodes[index].map(|at| &nodes[at]);
        let links = node.map_or([None; 3], |node| {
            [node.changed, node.retokenised, node.parent]
        });
        let links = links.into_iter().flatten().map(|at| nodes[at].turn);
        let mut turns: Vec<usize> = Vec::new();
        for turn in links.chain(index.checked_sub(1)) {
            // The order of arrival decides nothing in the graph, but a reader has only what came before.
            if turn < index && !turns.contains(&turn) {
                turns.push(turn);
            }
        }
        turns
    }

    fn prompt(&self, turn: &Turn, earlier: &[usize]) -> Option<Prompt> {
        let ids = turn.prompt_token_ids.as_ref()?.to_vec();
        let whole = |turn: &usize| {
            let before = &self.seen.turns[*turn];
            let mut ids = before.prompt_token_ids.as_ref()?.to_vec();
            ids.extend(before.completion_token_ids.iter().flatten());
            Some((*turn, ids))
        };
        let earlier: Vec<(usize, Vec<u32>)> = earlier.iter().filter_map(whole).collect();
        let offered = earlier.iter().map(|(turn, ids)| (*turn, ids.as_slice()));
        let Abridged {
            parent,
            shared,
            repeats,
            new,
        } = abridge(&ids, offered, IDS);
        Some(Prompt {
            parent,
            shared,
            repeats,
            ids: new,
            n_ids: turn.prompt_token_ids.as_ref().map_or(0, Tokens::len),
        })
    }

    fn messages(&mut self, turn: &Turn, earlier: &[usize]) -> Messages {
        let list = self.numbers_of(&turn.messages);
        let seen = self.seen;
        let earlier: Vec<(usize, Vec<u32>)> = earlier
            .iter()
            .map(|at| (*at, self.numbers_of(&seen.turns[*at].messages)))
            .collect();
        let offered = earlier.iter().map(|(turn, list)| (*turn, list.as_slice()));
        let abridged = abridge(&list, offered, MEMBERS);
        // What is in no stretch is new, in the order of the request.
        let mut new = Vec::new();
        let mut done = abridged.shared;
        for repeat in &abridged.repeats {
            new.extend_from_slice(&turn.messages[done..repeat.at]);
            done = repeat.at + repeat.len;
        }
        new.extend_from_slice(&turn.messages[done..]);
        Messages {
            parent: abridged.parent,
            shared: abridged.shared,
            repeats: abridged.repeats,
            new,
        }
    }

    fn numbers_of(&mut self, messages: &[Shared]) -> Vec<u32> {
        let numbers = &mut self.numbers;
        let number = |message: &Shared| {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            *numbers.entry(message.place()).or_insert(next)
        };
        messages.iter().map(number).collect()
    }
}
