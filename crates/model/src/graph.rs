//! Turns linked into conversations: a turn's parent is the one whose prompt and completion are the longest exact
//! prefix of the turn's own prompt.
//!
//! Tokens decide wherever both sides have them; otherwise the messages do. The order of the turns changes nothing.

mod link;

use crate::turn::Turn;
use link::Links;

/// Every turn that has a completion is a node; failed ones are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// In the order of exchanges.
    pub nodes: Vec<Node>,
    /// One for each path from a root to a leaf, in the order of their leaves.
    pub sequences: Vec<Sequence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Stable: `n` and the exchange's number.
    pub id: String,
    /// The index of the turn.
    pub turn: usize,
    /// The index of the parent node, always of an earlier point of the conversation.
    pub parent: Option<usize>,
    /// The index of the root node.
    pub root: usize,
    /// The node that this one goes on from by its messages, when its tokens go on from a shorter one or from none.
    pub retokenised: Option<usize>,
    pub role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub role: Role,
    /// Node indices from the root to the leaf.
    pub nodes: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Agent,
    /// A call beside the work, like one for a title.
    Auxiliary,
    /// A reply that the agent did not go on from, since it had asked again.
    Discarded,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Agent => "agent",
            Role::Auxiliary => "auxiliary",
            Role::Discarded => "discarded",
        }
    }
}

impl Graph {
    pub fn new(turns: &[Turn]) -> Self {
        let mut order: Vec<usize> = (0..turns.len())
            .filter(|&at| !turns[at].is_failed())
            .collect();
        order.sort_by_key(|&at| turns[at].exchange);
        let live: Vec<&Turn> = order.iter().map(|&at| &turns[at]).collect();
        let links = Links::new(&live);

        let mut graph = Graph::default();
        for (at, turn) in order.iter().enumerate() {
            graph.nodes.push(Node {
                id: turns[*turn].node_id(),
                turn: *turn,
                parent: links.parents[at],
                root: at,
                retokenised: links.retokenised[at],
                role: Role::Discarded,
            });
        }
        let discarded = discarded(&graph.nodes, &links);
        let n_children = count_children(&graph.nodes);
        for leaf in (0..graph.nodes.len()).filter(|&at| n_children[at] == 0) {
            let path = graph.path(leaf);
            graph.sequences.push(Sequence {
                role: Role::Discarded,
                nodes: path,
            });
        }
        graph.assign_roles(&live, &discarded);
        graph
    }

    /// The node of a turn; a failed turn has none.
    pub fn node_of(&self, turn: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.turn == turn)
    }

    fn path(&self, leaf: usize) -> Vec<usize> {
        let mut path: Vec<usize> =
            std::iter::successors(Some(leaf), |&at| self.nodes[at].parent).collect();
        path.reverse();
        path
    }

    fn assign_roles(&mut self, live: &[&Turn], discarded: &[bool]) {
        let has_tools = |nodes: &[usize]| nodes.iter().any(|&at| live[at].n_tools > 0);
        let has_tokens =
            |nodes: &[usize]| nodes.iter().any(|&at| live[at].n_trainable_tokens() > 0);
        let is_live = |nodes: &[usize]| nodes.last().is_some_and(|&leaf| !discarded[leaf]);
        let paths = || {
            self.sequences
                .iter()
                .map(|sequence| sequence.nodes.as_slice())
                .filter(|nodes| is_live(nodes))
        };
        let any_tools = paths().any(has_tools);
        let any_tokens = paths().any(has_tokens);

        for sequence in &mut self.sequences {
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
                self.nodes[at].role = self.nodes[at].role.min(sequence.role);
                self.nodes[at].root = nodes[0];
            }
        }
    }
}

pub(crate) fn count_children(nodes: &[Node]) -> Vec<usize> {
    let mut counts = vec![0; nodes.len()];
    for parent in nodes.iter().filter_map(|node| node.parent) {
        counts[parent] += 1;
    }
    counts
}

/// A childless node beside one that was gone on from: the same parent, or for roots the same prompt. A node whose reply
/// came back in other tokens is childless by tokens alone: the agent did go on from it.
fn discarded(nodes: &[Node], links: &Links) -> Vec<bool> {
    let n_children = count_children(nodes);
    let place = |at: usize| match nodes[at].parent {
        Some(parent) => (Some(parent), 0),
        None => (None, links.prompts[at]),
    };
    let continued: std::collections::HashSet<_> = (0..nodes.len())
        .filter(|&at| n_children[at] > 0)
        .map(place)
        .collect();
    let echoed: std::collections::HashSet<usize> =
        nodes.iter().filter_map(|node| node.retokenised).collect();
    (0..nodes.len())
        .map(|at| n_children[at] == 0 && !echoed.contains(&at) && continued.contains(&place(at)))
        .collect()
}

#[cfg(test)]
mod tests;
