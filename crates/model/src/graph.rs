//! Turns linked into conversations: a turn's parent is the one whose prompt and completion are the longest exact
//! prefix of the turn's own prompt.
//!
//! Tokens decide wherever both turns have them; otherwise the messages do. A second kind of link is for replies that an
//! agent continued after changing their tokens or words. The result does not depend on the order of the turns.

mod aside;
mod assemble;
mod echo;
mod identity;
mod link;
mod summary;
mod trie;

use crate::turn::Turn;

pub use aside::Aside;
pub(crate) use echo::{arguments_in, arguments_of, calls_in, echo_of, text_in};
pub use link::Links;

/// Every turn that has a completion is a node; failed ones are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// In the order of exchanges.
    pub nodes: Vec<Node>,
    /// One for each path from a root to a leaf, in the order of their leaves. Where only auxiliary calls follow a node, the
    /// path that ends at it is a sequence, too.
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
    /// The node that this one continues by its messages, when its tokens continue an earlier one or none.
    pub retokenised: Option<usize>,
    /// The node that this one continues in other words: the agent changed its reply before it sent it back.
    pub changed: Option<usize>,
    /// The node whose prompt this one repeats and continues without its reply: the agent said something instead. Only where
    /// nothing else continues that reply.
    pub left_out: Option<usize>,
    /// The last node of the conversation that this root replaces: the agent had it summarised and started over.
    pub compacts: Option<usize>,
    /// The last node of the session that says it started this root's.
    pub spawned_by: Option<usize>,
    pub role: Role,
    /// Why the role is not the agent's.
    pub aside: Option<Aside>,
}

impl Node {
    /// The node that this one continues by any kind of link.
    pub fn before(&self) -> Option<usize> {
        self.changed.or(self.retokenised).or(self.parent)
    }
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
    /// A call that is not part of the work, like one for a title or a summary.
    Auxiliary,
    /// A reply that the agent did not continue: it asked again, or dropped the reply.
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
        let mut links = Links::default();
        turns.iter().for_each(|turn| links.push(turn));
        links.graph(turns)
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
}

pub(crate) fn count_children(nodes: &[Node]) -> Vec<usize> {
    let mut counts = vec![0; nodes.len()];
    for parent in nodes.iter().filter_map(|node| node.parent) {
        counts[parent] += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
