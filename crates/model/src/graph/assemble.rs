//! The links of a rollout's turns as a graph: paths, roles, and what the agent did to its own conversations.

use std::collections::{HashMap, HashSet};

use super::link::Links;
use super::{Graph, Node, Role, Sequence, count_children};
use crate::turn::Turn;

pub(super) fn graph(links: &Links, turns: &[Turn]) -> Graph {
    let mut order: Vec<usize> = (0..links.entries.len()).collect();
    order.sort_by_key(|&at| links.entries[at].exchange);
    let mut rank = vec![0; order.len()];
    for (at, entry) in order.iter().enumerate() {
        rank[*entry] = at;
    }
    let mut graph = Graph::default();
    for (at, entry) in order.iter().enumerate() {
        let link = links.link(*entry);
        let turn = links.entries[*entry].turn;
        graph.nodes.push(Node {
            id: turns[turn].node_id(),
            turn,
            parent: link.parent.map(|parent| rank[parent]),
            root: at,
            retokenised: link.retokenised.map(|before| rank[before]),
            compacts: None,
            spawned_by: None,
            role: Role::Discarded,
        });
    }
    let discarded = discarded(&graph.nodes, &links.prompts(&order));
    let n_children = count_children(&graph.nodes);
    for leaf in (0..graph.nodes.len()).filter(|&at| n_children[at] == 0) {
        let nodes = graph.path(leaf);
        graph.sequences.push(Sequence {
            role: Role::Discarded,
            nodes,
        });
    }
    assign_roles(&mut graph, turns, &discarded);
    tag_sessions(&mut graph, turns);
    graph
}

fn assign_roles(graph: &mut Graph, turns: &[Turn], discarded: &[bool]) {
    let turn_of: Vec<&Turn> = graph.nodes.iter().map(|node| &turns[node.turn]).collect();
    let has_tools = |nodes: &[usize]| nodes.iter().any(|&at| turn_of[at].n_tools > 0);
    let has_tokens = |nodes: &[usize]| nodes.iter().any(|&at| turn_of[at].n_captured_tokens() > 0);
    let is_live = |nodes: &[usize]| nodes.last().is_some_and(|&leaf| !discarded[leaf]);
    let paths = || {
        let nodes = graph
            .sequences
            .iter()
            .map(|sequence| sequence.nodes.as_slice());
        nodes.filter(|nodes| is_live(nodes))
    };
    let any_tools = paths().any(has_tools);
    let any_tokens = paths().any(has_tokens);

    for sequence in &mut graph.sequences {
        let nodes = sequence.nodes.as_slice();
        // Without any token captured there is nothing to tell the paths apart by.
        let is_agent = if any_tools {
            has_tools(nodes)
        } else {
            has_tokens(nodes) || !any_tokens
        };
        sequence.role = match (is_live(nodes), is_agent) {
            (false, _) => Role::Discarded,
            (true, true) => Role::Agent,
            (true, false) => Role::Auxiliary,
        };
        for &at in nodes {
            graph.nodes[at].role = graph.nodes[at].role.min(sequence.role);
            graph.nodes[at].root = nodes[0];
        }
    }
}

/// A childless node beside one that was gone on from: the same parent, or for roots the same prompt. A node whose reply
/// came back in other tokens is childless by tokens alone: the agent did go on from it.
fn discarded(nodes: &[Node], prompts: &[usize]) -> Vec<bool> {
    let n_children = count_children(nodes);
    let place = |at: usize| match nodes[at].parent {
        Some(parent) => (Some(parent), 0),
        None => (None, prompts[at]),
    };
    let continued: HashSet<_> = (0..nodes.len())
        .filter(|&at| n_children[at] > 0)
        .map(place)
        .collect();
    let echoed: HashSet<usize> = nodes.iter().filter_map(|node| node.retokenised).collect();
    (0..nodes.len())
        .map(|at| n_children[at] == 0 && !echoed.contains(&at) && continued.contains(&place(at)))
        .collect()
}

/// What the agent's own session ids tell of roots: subagents, and conversations begun anew from a summary. Tags alone;
/// no role depends on them, since an agent may say what it likes.
fn tag_sessions(graph: &mut Graph, turns: &[Turn]) {
    /// The last nodes of a session as they were before the node in question.
    #[derive(Default)]
    struct Seen {
        working: Option<usize>,
        summary: Option<usize>,
    }
    let mut sessions: HashMap<Option<&str>, Seen> = HashMap::new();
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let turn = &turns[node.turn];
        let is_fresh = node.parent.is_none() && node.retokenised.is_none();
        let session = turn.harness_session_id.as_deref();
        if is_fresh && let Some(parent) = turn.parent_session_id.as_deref() {
            let spawner = sessions.get(&Some(parent));
            graph.nodes[at].spawned_by = spawner.and_then(|seen| seen.working);
        }
        let seen = sessions.entry(session).or_default();
        if is_fresh
            && turn.n_tools > 0
            && let (Some(working), Some(summary)) = (seen.working, seen.summary)
            && repeats(turn, &turns[graph.nodes[summary].turn])
        {
            graph.nodes[at].compacts = Some(working);
        }
        if turn.n_tools > 0 {
            *seen = Seen {
                working: Some(at),
                summary: None,
            };
        } else {
            seen.summary = Some(at);
        }
    }
}

/// Whether one of the messages holds what was answered to the summary's request.
fn repeats(turn: &Turn, summary: &Turn) -> bool {
    let reply = summary.message.as_ref();
    let reply = reply.and_then(|message| message.content.as_deref());
    let Some(reply) = reply.map(str::trim).filter(|text| !text.is_empty()) else {
        return false;
    };
    turn.messages
        .iter()
        .any(|message| match &message["content"] {
            serde_json::Value::String(text) => text.contains(reply),
            serde_json::Value::Array(parts) => parts
                .iter()
                .filter_map(|part| part["text"].as_str())
                .any(|text| text.contains(reply)),
            _ => false,
        })
}
