//! The links of a rollout's turns as a graph: paths, roles, and what the agent did to its own conversations.

use std::collections::HashMap;

use super::aside::{Aside, NodeFacts, end_of};
use super::link::Links;
use super::summary::{Compaction, compactions};
use super::{Graph, Node, Role, Sequence, count_children};
use crate::turn::Turn;

impl Links {
    /// The graph of what was pushed so far; `turns` are the same ones in the same order.
    pub fn graph(&self, turns: &[Turn]) -> Graph {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&at| self.entries[at].exchange);
        let mut rank = vec![0; order.len()];
        for (at, entry) in order.iter().enumerate() {
            rank[*entry] = at;
        }
        let mut graph = Graph::default();
        let mut is_continued: Vec<bool> = vec![false; order.len()];
        let mut is_fresh = Vec::new();
        for (at, entry) in order.iter().enumerate() {
            let link = self.link(*entry, turns);
            let turn = self.entries[*entry].turn;
            let node_of = |entry: Option<usize>| entry.map(|entry| rank[entry]);
            graph.nodes.push(Node {
                id: turns[turn].node_id(),
                turn,
                parent: node_of(link.parent),
                root: at,
                retokenised: node_of(link.retokenised),
                changed: node_of(link.changed),
                left_out: node_of(link.left_out),
                compacts: None,
                spawned_by: None,
                role: Role::Discarded,
                aside: None,
            });
            for before in [link.parent, link.whole, link.retokenised, link.changed] {
                node_of(before)
                    .into_iter()
                    .for_each(|at| is_continued[at] = true);
            }
            is_continued[at] |= self.is_told_of(turns, *entry);
            is_fresh.push(link.parent.is_none() && link.whole.is_none());
        }
        keep_left_out(&mut graph.nodes, turns, &is_continued);
        let asides = put_aside(
            &mut graph.nodes,
            turns,
            self.prompts(&order),
            is_continued,
            &is_fresh,
        );
        find_paths(&mut graph, &asides);
        assign_roles(&mut graph, turns, &asides);
        tag_spawned(&mut graph.nodes, turns);
        graph
    }
}

/// Clears `left_out` for replies that some other turn continues, and for those that came later.
fn keep_left_out(nodes: &mut [Node], turns: &[Turn], is_continued: &[bool]) {
    let ends: Vec<f64> = nodes.iter().map(|node| end_of(&turns[node.turn])).collect();
    for node in nodes {
        let at = turns[node.turn].at;
        node.left_out = node
            .left_out
            .filter(|before| !is_continued[*before] && ends[*before] <= at);
    }
}

/// Finds what is not the agent's work, and tags the conversations that started over from a summary.
fn put_aside(
    nodes: &mut [Node],
    turns: &[Turn],
    prompts: Vec<usize>,
    mut is_continued: Vec<bool>,
    is_fresh: &[bool],
) -> Vec<Option<Aside>> {
    let mut last_next = vec![None; nodes.len()];
    let mut has_worked_on = vec![false; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        for before in [node.parent, node.before()].into_iter().flatten() {
            last_next[before] = last_next[before].max(Some(at));
            has_worked_on[before] |= turns[node.turn].n_tools > 0;
        }
    }
    let mut is_summary = vec![false; nodes.len()];
    let found = compactions(nodes, turns, is_fresh, &has_worked_on);
    for Compaction {
        summary,
        fresh,
        working,
    } in found
    {
        nodes[fresh].compacts = Some(working);
        last_next[summary] = last_next[summary].max(Some(fresh));
        // Some agents have a summary looked over before they use it.
        let mut part = Some(summary);
        while let Some(at) = part {
            (is_summary[at], is_continued[at]) = (true, true);
            let before = nodes[at].before();
            part = before.filter(|&at| turns[nodes[at].turn].n_tools == 0 && !has_worked_on[at]);
        }
    }
    let known = NodeFacts {
        turns: nodes.iter().map(|node| &turns[node.turn]).collect(),
        nodes,
        prompts,
        is_continued,
        last_next,
        is_summary,
    };
    known.asides()
}

/// Makes a path to every leaf, and to every node at which the work ended.
fn find_paths(graph: &mut Graph, asides: &[Option<Aside>]) {
    let n_children = count_children(&graph.nodes);
    let mut n_working = vec![0; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        if let Some(parent) = node.parent.filter(|_| asides[at].is_none()) {
            n_working[parent] += 1;
        }
    }
    let is_end = |at: &usize| n_children[*at] == 0 || asides[*at].is_none() && n_working[*at] == 0;
    for end in (0..graph.nodes.len()).filter(is_end) {
        let nodes = graph.path(end);
        graph.sequences.push(Sequence {
            role: Role::Discarded,
            nodes,
        });
    }
}

fn assign_roles(graph: &mut Graph, turns: &[Turn], asides: &[Option<Aside>]) {
    let turn_of: Vec<&Turn> = graph.nodes.iter().map(|node| &turns[node.turn]).collect();
    let has_tools = |nodes: &[usize]| nodes.iter().any(|&at| turn_of[at].n_tools > 0);
    let has_tokens = |nodes: &[usize]| nodes.iter().any(|&at| turn_of[at].n_captured_tokens() > 0);
    let aside_of = |nodes: &[usize]| nodes.last().and_then(|&end| asides[end]);
    let paths = || {
        let nodes = graph
            .sequences
            .iter()
            .map(|sequence| sequence.nodes.as_slice());
        nodes.filter(|nodes| aside_of(nodes).is_none())
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
        sequence.role = match aside_of(nodes) {
            Some(Aside::AskedAgain | Aside::ThrownAway) => Role::Discarded,
            Some(Aside::Beside | Aside::Summary) => Role::Auxiliary,
            None if is_agent => Role::Agent,
            None => Role::Auxiliary,
        };
        for &at in nodes {
            graph.nodes[at].role = graph.nodes[at].role.min(sequence.role);
            graph.nodes[at].root = nodes[0];
        }
    }
    for (at, node) in graph.nodes.iter_mut().enumerate() {
        let is_agent = node.role == Role::Agent;
        node.aside = (!is_agent).then(|| asides[at].unwrap_or(Aside::Beside));
    }
}

/// Which session started a root's, as the agent's own headers say. A tag alone; no role depends on it.
fn tag_spawned(nodes: &mut [Node], turns: &[Turn]) {
    // The last nodes with tools as they were before the node in question.
    let mut working: HashMap<&str, usize> = HashMap::new();
    for (at, node) in nodes.iter_mut().enumerate() {
        let turn = &turns[node.turn];
        if node.before().is_none()
            && let Some(parent) = turn.parent_session_id.as_deref()
        {
            node.spawned_by = working.get(parent).copied();
        }
        if turn.n_tools > 0
            && let Some(session) = turn.harness_session_id.as_deref()
        {
            working.insert(session, at);
        }
    }
}
