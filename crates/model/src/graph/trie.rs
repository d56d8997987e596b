//! A compressed prefix tree of lists of ids. Edges refer to the lists they came from, so the tree copies no ids, and what
//! is found in it is exact.

use std::collections::HashMap;

use crate::tokens::Tokens;

/// The place of a list's end.
pub(super) type Place = usize;

/// The empty list ends here.
const TOP: Place = 0;

#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// Where known lists end, by their address: a list that continues one of them is followed from there, not from the
    /// root. The list is held so that its address is not used again.
    known: HashMap<usize, (Tokens, Vec<(usize, Place)>)>,
}

#[derive(Debug, Default)]
struct Node {
    /// The ids between the parent node and this one.
    edge: Tokens,
    above: Place,
    below: HashMap<u32, Place>,
    /// The lists that end here, in the order of arrival.
    ends: Vec<usize>,
}

impl Default for Trie {
    fn default() -> Self {
        Trie {
            nodes: vec![Node::default()],
            known: HashMap::new(),
        }
    }
}

impl Trie {
    /// The place where `list` ends.
    pub(super) fn place(&mut self, list: &Tokens) -> Place {
        let (from, done) = self.start_of(list);
        let place = self.place_from(from, &list.slice(done, list.len()));
        self.know(list, place);
        place
    }

    /// The place where `more` ends when it is appended to the list that ends at `from`.
    pub(super) fn place_after(&mut self, from: Place, list: &Tokens, more: &[u32]) -> Place {
        let more = Tokens::from(more.to_vec());
        let place = self.place_from(from, &more);
        // A store keeps both as one, and that is what the next list goes on from.
        let whole = list.whole();
        if whole.len() == list.len() + more.len() && whole.slice(list.len(), whole.len()) == more {
            self.know(&whole, place);
        }
        place
    }

    fn know(&mut self, list: &Tokens, place: Place) {
        if let Some(memory) = list.memory() {
            let known = self.known.entry(memory);
            let (_, ends) = known.or_insert_with(|| (list.clone(), Vec::new()));
            ends.push((list.len(), place));
        }
    }

    /// The furthest known place on the way to the list's end, and how much of the list lies before it.
    fn start_of(&self, list: &Tokens) -> (Place, usize) {
        let known = list.start().and_then(|(memory, len)| {
            let (_, ends) = self.known.get(&memory)?;
            let reached = ends.iter().filter(|(end, _)| *end <= len);
            reached.max_by_key(|(end, _)| *end)
        });
        known.map_or((TOP, 0), |(end, place)| (*place, *end))
    }

    fn place_from(&mut self, from: Place, list: &Tokens) -> Place {
        let mut cursor = list.cursor();
        let (mut at, mut done) = (from, 0);
        while let Some(first) = cursor.peek() {
            let Some(&next) = self.nodes[at].below.get(&first) else {
                return self.add(at, first, list.slice(done, list.len()));
            };
            let edge = &self.nodes[next].edge;
            let common = cursor.pass_common(edge);
            at = if common < edge.len() {
                self.split(next, common)
            } else {
                next
            };
            done += common;
        }
        at
    }

    pub(super) fn mark(&mut self, place: Place, who: usize) {
        self.nodes[place].ends.push(who);
    }

    /// The lists that end between `place` and the root, the longest first; those of one place together.
    pub(super) fn ends_above(&self, place: Place) -> impl Iterator<Item = &[usize]> + '_ {
        self.way_up(place)
            .map(|at| self.nodes[at].ends.as_slice())
            .filter(|ends| !ends.is_empty())
    }

    /// The places from `place` to the root, both included.
    pub(super) fn way_up(&self, place: Place) -> impl Iterator<Item = Place> + '_ {
        let above = |at: &Place| (*at != TOP).then(|| self.nodes[*at].above);
        std::iter::successors(Some(place), above)
    }

    /// An estimate of what the tree holds beside the lists it refers to.
    pub(super) fn bytes(&self) -> usize {
        let node = |node: &Node| {
            let below = node.below.capacity() * size_of::<(u32, Place)>();
            size_of::<Node>() + below + node.ends.capacity() * size_of::<usize>()
        };
        let known = self.known.capacity() * size_of::<(usize, (Tokens, Vec<(usize, Place)>))>()
            + self.known.len() * 4 * size_of::<(usize, Place)>();
        self.nodes.iter().map(node).sum::<usize>() + known
    }

    fn add(&mut self, above: Place, first: u32, edge: Tokens) -> Place {
        let place = self.nodes.len();
        self.nodes.push(Node {
            edge,
            above,
            ..Node::default()
        });
        self.nodes[above].below.insert(first, place);
        place
    }

    /// A new node in the middle of the edge to `place`, which keeps its own place.
    fn split(&mut self, place: Place, at: usize) -> Place {
        let edge = self.nodes[place].edge.clone();
        let above = self.nodes[place].above;
        let (head, tail) = (edge.slice(0, at), edge.slice(at, edge.len()));
        let (Some(first), Some(second)) = (head.first(), tail.first()) else {
            return place;
        };
        let middle = self.add(above, first, head);
        let node = &mut self.nodes[place];
        (node.edge, node.above) = (tail, middle);
        self.nodes[middle].below.insert(second, place);
        middle
    }
}
