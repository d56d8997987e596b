//! A path through the graph stitched together: one list of ids, in which every turn's prompt starts with all that stands
//! before it. What trainers read (`sequence`) and the capture document are both written from this.

use crate::finding::RolloutType;
use crate::graph::{Role, Sequence};
use crate::tokens::Tokens;
use crate::trace::Interpretation;
use crate::turn::Turn;

/// Where a turn's own ids stand in its row.
#[derive(Clone, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) node: usize,
    /// What the turn's prompt adds to the row.
    pub(crate) context: Tokens,
    pub(crate) sampled: &'a [u32],
    /// Set where the sampled ids may be trained on.
    pub(crate) logprobs: Option<&'a [f64]>,
}

/// The ids of a path, as far as each turn's prompt starts with the ids before it.
#[derive(Clone, Debug)]
pub(crate) struct Stitched<'a> {
    pub(crate) role: Role,
    pub(crate) spans: Vec<Span<'a>>,
}

/// How many ids of a turn stand in a row: those of its prompt, and those sampled. A completion without a prompt has no
/// place in one.
pub(crate) fn lengths(turn: &Turn) -> (usize, usize) {
    let Some(prompt) = &turn.prompt_token_ids else {
        return (0, 0);
    };
    let sampled = turn.completion_token_ids.as_ref().map_or(0, Vec::len);
    (prompt.len(), sampled)
}

/// The rows of a path. There are several where it was linked by messages and the ids are no prefix of each other.
pub(crate) fn rows<'a>(seen: &'a Interpretation, sequence: &Sequence) -> Vec<Stitched<'a>> {
    let mut rows: Vec<Stitched<'a>> = Vec::new();
    let mut before: Option<&Turn> = None;
    for &node in &sequence.nodes {
        let turn = &seen.turns[seen.graph.nodes[node].turn];
        let done = match before {
            Some(before) => continued_at(before, turn),
            // Turns without ids cannot lead a row that has some.
            None if turn.prompt_token_ids.is_some() && !rows.is_empty() => None,
            None => Some(0),
        };
        let span = span_of(seen, node, turn, done.unwrap_or(0));
        match rows.last_mut() {
            Some(row) if done.is_some() => row.spans.push(span),
            _ => rows.push(Stitched {
                role: sequence.role,
                spans: vec![span],
            }),
        }
        if turn.prompt_token_ids.is_some() {
            before = Some(turn);
        }
    }
    rows
}

/// How many ids of the prompt are the prompt and completion of the turn before; `None` when it does not start with them.
fn continued_at(before: &Turn, turn: &Turn) -> Option<usize> {
    let Some(prompt) = &turn.prompt_token_ids else {
        return Some(0);
    };
    let (n_prompt, n_sampled) = lengths(before);
    let end = n_prompt + n_sampled;
    let known = before.prompt_token_ids.as_ref()?;
    let sampled = before.completion_token_ids.as_deref().unwrap_or_default();
    let is_next = prompt.len() >= end
        && prompt.common_start(known) == n_prompt
        && prompt
            .slice(n_prompt, end)
            .iter()
            .eq(sampled.iter().copied());
    is_next.then_some(end)
}

fn span_of<'a>(seen: &Interpretation, node: usize, turn: &'a Turn, done: usize) -> Span<'a> {
    let prompt = turn.prompt_token_ids.as_ref();
    let sampled = turn.completion_token_ids.as_deref();
    let may_train = seen.rollout_type == RolloutType::Train && turn.is_exact();
    Span {
        node,
        context: prompt
            .map(|ids| ids.slice(done, ids.len()))
            .unwrap_or_default(),
        sampled: prompt.and(sampled).unwrap_or_default(),
        logprobs: turn.logprobs.as_deref().filter(|_| may_train),
    }
}

impl Stitched<'_> {
    pub(crate) fn len(&self) -> usize {
        let spans = self.spans.iter();
        spans
            .map(|span| span.context.len() + span.sampled.len())
            .sum()
    }

    /// What stands before the first sampled id.
    pub(crate) fn prompt_len(&self) -> usize {
        self.spans.first().map_or(0, |span| span.context.len())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let spans = self.spans.iter();
        spans.flat_map(|span| span.context.iter().chain(span.sampled.iter().copied()))
    }

    pub(crate) fn mask(&self) -> impl Iterator<Item = u8> + '_ {
        self.spans.iter().flat_map(|span| {
            let context = std::iter::repeat_n(0, span.context.len());
            let sampled = u8::from(span.logprobs.is_some());
            context.chain(std::iter::repeat_n(sampled, span.sampled.len()))
        })
    }

    /// 0 where nothing is trained.
    pub(crate) fn logprobs(&self) -> impl Iterator<Item = f64> + '_ {
        self.spans.iter().flat_map(|span| {
            let untrained = span.context.len()
                + if span.logprobs.is_some() {
                    0
                } else {
                    span.sampled.len()
                };
            let logprobs = span.logprobs.unwrap_or_default().iter().copied();
            std::iter::repeat_n(0.0, untrained).chain(logprobs)
        })
    }

    pub(crate) fn n_trainable(&self) -> usize {
        let spans = self.spans.iter();
        spans
            .filter_map(|span| span.logprobs.map(<[f64]>::len))
            .sum()
    }

    /// The lengths of the runs of trained ids; turns with nothing between them are one run.
    pub(crate) fn run_lengths(&self) -> Vec<usize> {
        let mut lengths = Vec::new();
        let mut run = 0;
        let mut close = |run: &mut usize| {
            if *run > 0 {
                lengths.push(std::mem::take(run));
            }
        };
        for span in &self.spans {
            if !span.context.is_empty() {
                close(&mut run);
            }
            match span.logprobs {
                Some(logprobs) => run += logprobs.len(),
                None if span.sampled.is_empty() => {}
                None => close(&mut run),
            }
        }
        close(&mut run);
        lengths
    }
}
