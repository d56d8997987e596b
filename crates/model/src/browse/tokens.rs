//! The tokens of one model call.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;
use crate::turn::Turn;
use rollcage_dialect::EndpointDialect;
use rollcage_dialect::chat::{LikelyToken, SampledToken, read_sampled};

/// Which tokens of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// What went in: ids alone, since endpoints tell no texts of them.
    Prompt,
    /// What was sampled.
    #[default]
    Completion,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Token {
    /// Its id; null where the endpoint told none.
    pub id: Option<u32>,
    /// Its text; null where the endpoint told none. Half a character is told as the endpoint wrote it.
    pub text: Option<String>,
    /// The engine's logprob.
    pub logprob: Option<f64>,
    /// The loss mask: 1 where it is trained.
    pub mask: u8,
    /// For a token of a prompt that was sampled in an earlier call: that call.
    pub sampled_in: Option<usize>,
    /// What could have been sampled in its place, the most likely first; empty where that was not captured.
    pub alternatives: Vec<Alternative>,
}

/// A token that could have been sampled.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Alternative {
    /// Its id, where the endpoint told it.
    pub id: Option<u32>,
    /// Its text.
    pub text: String,
    /// Its logprob.
    pub logprob: Option<f64>,
}

/// A page of a call's tokens.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TokenPage {
    /// The call.
    pub turn: usize,
    /// Which of its tokens.
    pub part: Part,
    /// From `start` on.
    pub tokens: Vec<Token>,
    /// The first one's place.
    pub start: usize,
    /// How many there are.
    pub total: usize,
    /// Whether ids and logprobs are the engine's own, whole and aligned.
    pub is_exact: bool,
}

/// Where the sampled tokens of an earlier call stand in a prompt.
struct Sampled<'a> {
    call: usize,
    from: usize,
    turn: &'a Turn,
}

impl Reading {
    /// A page of a call's tokens; `None` where there is no such call.
    pub fn tokens(
        &self,
        index: usize,
        part: Part,
        start: usize,
        limit: usize,
    ) -> Option<TokenPage> {
        let turn = self.turn(index)?;
        let (tokens, total) = match part {
            Part::Prompt => self.prompt_page(index, start, limit),
            Part::Completion => self.completion_page(index, start, limit),
        };
        Some(TokenPage {
            turn: index,
            part,
            tokens,
            start,
            total,
            is_exact: turn.is_exact(),
        })
    }

    /// Whether the endpoint told what could have been sampled.
    pub(super) fn has_alternatives(&self, index: usize) -> bool {
        let tokens = self.sampled(index);
        tokens.iter().any(|token| !token.alternatives.is_empty())
    }

    /// What the answer says of each sampled token. Empty where the call failed or its endpoint tells no tokens.
    fn sampled(&self, index: usize) -> Vec<SampledToken> {
        let has_logprobs = |turn: &&Turn| {
            let is_chat = turn.endpoint_dialect == EndpointDialect::Chat;
            is_chat && !turn.is_failed() && !turn.tokens.is_empty()
        };
        let Some(_) = self.turn(index).filter(has_logprobs) else {
            return Vec::new();
        };
        let response = self
            .exchange(index)
            .and_then(|exchange| exchange.response)
            .unwrap_or_default();
        read_sampled(&response.text(), response.is_stream)
    }

    fn completion_page(&self, index: usize, start: usize, limit: usize) -> (Vec<Token>, usize) {
        let turn = &self.seen.turns[index];
        let ids = turn.completion_token_ids.as_deref().unwrap_or_default();
        let ids = if turn.is_failed() { &[] } else { ids };
        let mut sampled = self.sampled(index);
        let n_sampled = sampled.len();
        let total = match n_sampled {
            0 => ids.len(),
            count => count,
        };
        let mask = u8::from(self.is_trained(index));
        let end = start.saturating_add(limit).min(total);
        let token = |at: usize| {
            let told = sampled.get_mut(at).map(std::mem::take).unwrap_or_default();
            Token {
                // Which id belongs to which text is not known where there are more of one than of the other.
                id: ids.get(at).copied().filter(|_| ids.len() == total),
                text: told.text,
                logprob: told.logprob,
                mask,
                sampled_in: None,
                alternatives: told
                    .alternatives
                    .into_iter()
                    .map(Alternative::from)
                    .collect(),
            }
        };
        ((start..end).map(token).collect(), total)
    }

    fn prompt_page(&self, index: usize, start: usize, limit: usize) -> (Vec<Token>, usize) {
        let Some(ids) = &self.seen.turns[index].prompt_token_ids else {
            return (Vec::new(), 0);
        };
        let total = ids.len();
        let end = start.saturating_add(limit).min(total);
        let known = self.sampled_before(index, start, end);
        let mut tokens = Vec::new();
        for (at, id) in (start..end).zip(ids.slice(start, end).iter()) {
            let sampled = known.iter().find_map(|sampled| {
                let place = at.checked_sub(sampled.from)?;
                (place < sampled.len()).then(|| (sampled.call, sampled.text(place)))
            });
            let (sampled_in, text) = sampled.unzip();
            tokens.push(Token {
                id: Some(id),
                text: text.flatten().map(str::to_owned),
                logprob: None,
                mask: 0,
                sampled_in,
                alternatives: Vec::new(),
            });
        }
        (tokens, total)
    }

    /// Where earlier calls' sampled ids stand in a call's prompt.
    pub(super) fn sampled_stretches(
        &self,
        index: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let known = self.sampled_before(index, 0, usize::MAX).into_iter();
        known.map(|sampled| (sampled.from, sampled.from + sampled.len()))
    }

    /// The calls whose sampled ids stand in this range of a prompt. A parent with ids is an exact prefix, so its own
    /// prompt ends where its completion begins.
    fn sampled_before(&self, index: usize, start: usize, end: usize) -> Vec<Sampled<'_>> {
        let mut found = Vec::new();
        let mut at = self.node(index).and_then(|node| node.parent);
        while let Some(parent) = at {
            let call = self.call_of(parent);
            let turn = &self.seen.turns[call];
            let (Some(prompt), Some(ids)) = (&turn.prompt_token_ids, &turn.completion_token_ids)
            else {
                break;
            };
            let from = prompt.len();
            if from + ids.len() <= start {
                break;
            }
            if from < end {
                found.push(Sampled { call, from, turn });
            }
            at = self.seen.graph.nodes[parent].parent;
        }
        found
    }
}

impl Sampled<'_> {
    fn len(&self) -> usize {
        let ids = self.turn.completion_token_ids.as_ref();
        ids.map_or(0, Vec::len)
    }

    fn text(&self, place: usize) -> Option<&str> {
        let turn = self.turn;
        let has_texts = !turn.is_from_strings && turn.tokens.len() == self.len();
        let text = turn.tokens.get(place).filter(|_| has_texts)?;
        Some(text.as_str())
    }
}

impl From<LikelyToken> for Alternative {
    fn from(token: LikelyToken) -> Self {
        Alternative {
            id: token.id,
            text: token.text,
            logprob: token.logprob,
        }
    }
}
