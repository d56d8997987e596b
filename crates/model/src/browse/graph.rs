//! How the model calls of a rollout go on from each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;

/// A call's place in the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphNode {
    /// The call.
    pub turn: usize,
    /// Its name in findings.
    pub node_id: String,
    /// `agent`, `auxiliary`, `discarded`, `failed` or `pending`.
    pub role: String,
    /// Why the role is not the agent's.
    pub reason: Option<String>,
    /// Whether its tokens are trained.
    pub is_trained: bool,
    /// The first call of its conversation.
    pub root: usize,
    /// Whether its conversation is a subagent's.
    pub is_subagent: bool,
}

/// How a call goes on from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Its prompt starts with the other's prompt and completion.
    Continues,
    /// By its messages, but not by its tokens.
    Retokenised,
    /// The agent changed the reply before it sent it back.
    Changed,
    /// From the other's prompt, without its reply.
    LeftOut,
    /// It starts over after a summary of the other's conversation.
    Compacts,
    /// The other's reply started this one's session: a subagent.
    Spawned,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphEdge {
    /// The earlier call.
    pub from: usize,
    /// The later call.
    pub to: usize,
    /// How.
    pub link: Link,
}

/// A page of a rollout's graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GraphPage {
    /// From `start` on, in the order of the requests.
    pub nodes: Vec<GraphNode>,
    /// The links that lead to these nodes.
    pub edges: Vec<GraphEdge>,
    /// The first node's number.
    pub start: usize,
    /// How many there are.
    pub total: usize,
}

impl Reading {
    /// A page of the graph.
    pub fn graph(&self, start: usize, limit: usize) -> GraphPage {
        let total = self.n_turns();
        let shown = start.min(total)..start.saturating_add(limit).min(total);
        GraphPage {
            nodes: shown.clone().map(|turn| self.graph_node(turn)).collect(),
            edges: shown.flat_map(|turn| self.edges(turn)).collect(),
            start,
            total,
        }
    }

    fn graph_node(&self, turn: usize) -> GraphNode {
        let aside = self.node(turn).and_then(|node| node.aside);
        GraphNode {
            turn,
            node_id: self.seen.turns[turn].node_id(),
            role: self.role(turn).to_owned(),
            reason: aside.map(|aside| aside.as_str().to_owned()),
            is_trained: self.is_trained(turn),
            root: self.root(turn),
            is_subagent: self.is_subagent(turn),
        }
    }

    /// The links that lead to a call: the one that it goes on from, and what else is known.
    fn edges(&self, to: usize) -> Vec<GraphEdge> {
        let edge = |from: usize, link: Link| GraphEdge { from, to, link };
        let Some(node) = self.node(to) else {
            let before = self.before(to).call;
            return before
                .map(|from| edge(from, Link::Continues))
                .into_iter()
                .collect();
        };
        let main = match (node.changed, node.retokenised) {
            (Some(_), _) => Link::Changed,
            (None, Some(_)) => Link::Retokenised,
            (None, None) => Link::Continues,
        };
        let links = [
            (node.before(), main),
            (node.left_out, Link::LeftOut),
            (node.compacts, Link::Compacts),
            (node.spawned_by, Link::Spawned),
        ];
        let known = links
            .into_iter()
            .filter_map(|(from, link)| Some((from?, link)));
        known
            .map(|(from, link)| edge(self.call_of(from), link))
            .collect()
    }
}
