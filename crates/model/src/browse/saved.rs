//! A rollout's calls as they are kept in a saved page: whole lists, and prompts as what is new in them.

use serde::Serialize;

use super::Reading;
use super::tokens::Part;
use crate::tokens::Tokens;
use crate::turn::Turn;

/// A prompt, written as what is new in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewPrompt {
    /// The earlier call whose prompt and sampled ids it starts with.
    pub before: Option<usize>,
    /// How many of those ids.
    pub shared: usize,
    /// The others: each id, and the call that sampled it where that is known.
    pub tokens: Vec<(Option<u32>, Option<usize>)>,
}

impl Reading {
    /// The ids of a call's prompt; `None` where there are none. What it takes from an earlier call was sampled where that
    /// one's tokens were, so stretches that were sampled in one go are taken whole or not at all.
    pub fn new_prompt(&self, index: usize) -> Option<NewPrompt> {
        let turn = self.turn(index)?;
        let prompt = turn.prompt_token_ids.as_ref()?;
        let parent = self.node(index).and_then(|node| node.parent);
        let parent = parent.map(|at| self.call_of(at));
        let known = [parent, self.before(index).any(), index.checked_sub(1)];
        let earlier = known.into_iter().flatten().filter(|call| *call < index);
        let shared = earlier.map(|call| (self.shared(prompt, call), call));
        let best = shared.filter(|(shared, _)| *shared > 0);
        // The first of those that share the most is the call that it goes on from.
        let best = best.reduce(|one, other| if other.0 > one.0 { other } else { one });
        let shared = best.map_or(0, |(shared, _)| shared);
        let rest = self.tokens(index, Part::Prompt, shared, usize::MAX)?;
        Some(NewPrompt {
            before: best.map(|(_, call)| call),
            shared,
            tokens: rest
                .tokens
                .into_iter()
                .map(|token| (token.id, token.sampled_in))
                .collect(),
        })
    }

    /// How many ids a prompt can take from the start of an earlier call's prompt and sampled ids.
    fn shared(&self, prompt: &Tokens, call: usize) -> usize {
        let earlier = &self.seen.turns[call];
        let Some(known) = &earlier.prompt_token_ids else {
            return 0;
        };
        let same = prompt.common_start(known);
        if same < known.len() {
            let cut = self.sampled_stretches(call);
            let cut = cut.filter(|(from, to)| *from < same && same < *to);
            return cut.map(|(from, _)| from).min().unwrap_or(same);
        }
        let sampled = ids_with_texts(earlier);
        let end = same + sampled.len();
        let goes_on =
            prompt.len() >= end && prompt.slice(same, end).iter().eq(sampled.iter().copied());
        if goes_on { end } else { same }
    }
}

/// The sampled ids, where a reader of the tokens gets them.
fn ids_with_texts(turn: &Turn) -> &[u32] {
    let ids = turn.completion_token_ids.as_deref().unwrap_or_default();
    let is_paired = turn.tokens.is_empty() || turn.tokens.len() == ids.len();
    if is_paired && !turn.is_failed() {
        ids
    } else {
        &[]
    }
}
