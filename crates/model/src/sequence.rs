//! Rows for training: stitched ids, with every sampled token trained exactly once.
//!
//! A row is a path of the graph as far as its ids go on from each other. What it has in common with an earlier row, its
//! parent, is not written again: it refers to that row, and the shared part is trained there, so masks cover new ids
//! only. A row refers to any stretch of its parent and not only to its start. Otherwise the rows of an agent that
//! changes its prompt near the start, to show the time for example, would grow with the square of the conversation.

use serde::{Deserialize, Serialize};

use crate::abridge::{self, IDS, Repeat, abridge};
use crate::finding::RolloutType;
use crate::graph::{Aside, Node, Role};
use crate::stitch::{self, Span};
use crate::tokens::Tokens;
use crate::trace::Interpretation;
use crate::turn::Turn;

/// One row. Its whole ids are those of the parent up to `shared`, then `ids`, with each of `repeats` put in at its
/// place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Row {
    /// Counts the rollout's rows from 0.
    pub row: usize,
    /// The earlier row that this one shares ids with; null for one that stands alone.
    pub parent: Option<usize>,
    /// How many ids it takes from the start of the parent's whole ids.
    pub shared: usize,
    /// What else it takes from the parent, where the agent changed its prompt before the end. Usually empty.
    pub repeats: Vec<Repeat>,
    /// The ids that are new in this row, in order.
    pub ids: Vec<u32>,
    /// Over `ids`: 1 where the token was sampled and is trained in this row. What is shared or repeated is not.
    pub loss_mask: Vec<u8>,
    /// Over `ids`: the engine's logprobs where the mask is 1, and 0 elsewhere.
    pub logprobs: Vec<f64>,
    /// How long the whole row is.
    pub n_ids: usize,
    /// How many ones the mask has.
    pub n_trainable: usize,
    /// Whose work it is: `agent`, or `auxiliary` and `discarded` where those were asked for.
    pub role: String,
    /// The model calls that are new in this row, in order.
    pub turns: Vec<RowTurn>,
}

/// Where a model call's completion stands in its row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RowTurn {
    /// As in findings and in `turns`.
    pub node_id: String,
    /// The place of the first sampled id in the whole row: the length of the call's prompt.
    pub start: usize,
    /// How many ids were sampled.
    pub len: usize,
    /// False for a call that is context alone, since it is not exact; a finding says why.
    pub is_trained: bool,
}

/// A row put together.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeRow {
    pub ids: Vec<u32>,
    pub loss_mask: Vec<u8>,
    pub logprobs: Vec<f64>,
}

/// Which calls are trained beside the agent's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trained {
    /// Those beside the work: summaries, titles.
    pub auxiliary: bool,
    /// Those that were asked for again and not gone on from, like a tool call that the token limit cut. What was sampled there
    /// is as exact as anything, and without it a policy never learns what its agent cannot use.
    pub asked_again: bool,
}

impl Trained {
    fn includes(self, node: &Node) -> bool {
        self.auxiliary && node.role == Role::Auxiliary
            || self.asked_again && node.aside == Some(Aside::AskedAgain)
    }
}

/// Every row of a rollout, the earliest path first. A rollout that is not for training has none.
pub fn rows(seen: &Interpretation) -> Vec<Row> {
    rows_of(seen, Trained::default())
}

/// The same with a choice. The rows of the agent are the same ones either way, and come first.
pub fn rows_of(seen: &Interpretation, trained: Trained) -> Vec<Row> {
    let mut builder = Builder {
        seen,
        is_trained: vec![false; seen.turns.len()],
        holders: vec![None; seen.graph.nodes.len()],
        ends: Vec::new(),
        rows: Vec::new(),
    };
    for turn in seen.trained() {
        builder.is_trained[turn] = true;
    }
    if seen.rollout_type == RolloutType::Train {
        let nodes = seen.graph.nodes.iter();
        for node in nodes.filter(|node| trained.includes(node)) {
            builder.is_trained[node.turn] = seen.turns[node.turn].is_exact();
        }
    }
    let mut paths: Vec<_> = seen.graph.sequences.iter().collect();
    // A path that was not gone on from must not cut one that was in two.
    paths.sort_by_key(|path| (path.role, &path.nodes));
    for row in paths.into_iter().flat_map(|path| stitch::rows(seen, path)) {
        builder.add(&row.spans);
    }
    builder.rows
}

/// Puts a row together; `None` when the rows are not those of one rollout, from the first on.
pub fn whole(rows: &[Row], row: usize) -> Option<WholeRow> {
    let mut line = vec![rows.get(row)?];
    while let Some(parent) = line.last().and_then(|row| row.parent) {
        // Parents come first, so this comes to an end.
        let child = line.last().map(|row| row.row)?;
        line.push(rows.get(parent).filter(|_| parent < child)?);
    }
    let mut ids: Vec<u32> = Vec::new();
    for row in line.iter().rev() {
        ids = abridge::whole(&ids, row.shared, &row.repeats, &row.ids)?;
    }
    let row = line.first()?;
    Some(WholeRow {
        loss_mask: beside(row, &row.loss_mask, ids.len())?,
        logprobs: beside(row, &row.logprobs, ids.len())?,
        ids,
    })
}

/// What goes with the new ids, over the whole row: nothing of what is shared or repeated is trained.
fn beside<T: Clone + Default>(row: &Row, new: &[T], n_ids: usize) -> Option<Vec<T>> {
    let nothing = vec![T::default(); n_ids];
    let repeats = row
        .repeats
        .iter()
        .map(|repeat| Repeat { from: 0, ..*repeat });
    let repeats: Vec<Repeat> = repeats.collect();
    abridge::whole(&nothing, row.shared, &repeats, new)
}

struct Builder<'a> {
    seen: &'a Interpretation,
    /// By turn.
    is_trained: Vec<bool>,
    /// By node: the row that has it.
    holders: Vec<Option<usize>>,
    /// By row: the node whose prompt and completion are its whole ids.
    ends: Vec<usize>,
    rows: Vec<Row>,
}

impl Builder<'_> {
    fn turn(&self, node: usize) -> &Turn {
        &self.seen.turns[self.seen.graph.nodes[node].turn]
    }

    fn trains(&self, span: &Span<'_>) -> bool {
        self.is_trained[self.seen.graph.nodes[span.node].turn]
    }

    /// One row as far as it has something to train that no earlier row has.
    fn add(&mut self, spans: &[Span<'_>]) {
        let has_ids = |span: &&Span<'_>| self.turn(span.node).prompt_token_ids.is_some();
        let is_new = |span: &&Span<'_>| self.holders[span.node].is_none();
        let is_needed =
            |span: &&Span<'_>| self.trains(span) && is_new(span) && !span.sampled.is_empty();
        let spans: Vec<&Span<'_>> = spans.iter().filter(has_ids).collect();
        let Some(last) = spans.iter().rposition(is_needed) else {
            return;
        };
        // Nodes that an earlier row has lead the path: paths part and never meet again.
        let own = spans.iter().position(is_new).unwrap_or(last);
        let before = own.checked_sub(1).map(|at| spans[at].node);
        let number = self.rows.len();
        let row = self.row(number, before, &spans[own..=last]);
        for span in &spans[own..=last] {
            self.holders[span.node] = Some(number);
        }
        self.ends.push(spans[last].node);
        self.rows.push(row);
    }

    fn row(&self, number: usize, before: Option<usize>, spans: &[&Span<'_>]) -> Row {
        let first = spans[0].node;
        let prompt = self.turn(first).prompt_token_ids.as_ref();
        let prompt = prompt.map(Tokens::to_vec).unwrap_or_default();
        let offered = self.offered(before, first);
        let offered = offered.iter().map(|(row, ids)| (*row, ids.as_slice()));
        // Only of the prompt: what this row's own calls sampled stands in it, however much it is like other ids.
        let lead = abridge(&prompt, offered, IDS);
        let mut row = Row {
            row: number,
            parent: lead.parent,
            shared: lead.shared,
            repeats: lead.repeats,
            loss_mask: vec![0; lead.new.len()],
            logprobs: vec![0.0; lead.new.len()],
            ids: lead.new,
            n_ids: prompt.len(),
            n_trainable: 0,
            role: self.seen.graph.nodes[first].role.as_str().to_owned(),
            turns: Vec::new(),
        };
        for (at, span) in spans.iter().enumerate() {
            if at > 0 {
                row.add_context(&span.context);
            }
            let logprobs = span.logprobs.filter(|_| self.trains(span));
            row.add_sampled(self.turn(span.node).node_id(), span.sampled, logprobs);
        }
        row
    }

    /// The earlier rows that a row may share something with, and their whole ids: the one its path parted from, those
    /// of the calls it goes on from, and the last one.
    fn offered(&self, before: Option<usize>, first: usize) -> Vec<(usize, Vec<u32>)> {
        let node = &self.seen.graph.nodes[first];
        let nodes = [before, node.parent, node.changed, node.retokenised];
        let holders = nodes.iter().filter_map(|node| self.holders[(*node)?]);
        let mut rows: Vec<usize> = holders.chain(self.rows.len().checked_sub(1)).collect();
        let mut known = std::collections::HashSet::new();
        rows.retain(|row| known.insert(*row));
        rows.into_iter()
            .map(|row| (row, whole_of(self.turn(self.ends[row]))))
            .collect()
    }
}

fn whole_of(turn: &Turn) -> Vec<u32> {
    let prompt = turn.prompt_token_ids.as_ref();
    let mut ids = prompt.map(Tokens::to_vec).unwrap_or_default();
    ids.extend(turn.completion_token_ids.iter().flatten());
    ids
}

impl Row {
    fn add_context(&mut self, ids: &Tokens) {
        self.ids.extend(ids.iter());
        self.n_ids += ids.len();
        self.loss_mask.resize(self.ids.len(), 0);
        self.logprobs.resize(self.ids.len(), 0.0);
    }

    fn add_sampled(&mut self, node_id: String, ids: &[u32], logprobs: Option<&[f64]>) {
        self.turns.push(RowTurn {
            node_id,
            start: self.n_ids,
            len: ids.len(),
            is_trained: logprobs.is_some(),
        });
        self.ids.extend_from_slice(ids);
        self.n_ids += ids.len();
        if let Some(logprobs) = logprobs {
            self.n_trainable += ids.len();
            self.loss_mask.resize(self.ids.len(), 1);
            self.logprobs.extend_from_slice(logprobs);
        }
        self.loss_mask.resize(self.ids.len(), 0);
        self.logprobs.resize(self.ids.len(), 0.0);
    }
}

#[cfg(test)]
mod tests;
