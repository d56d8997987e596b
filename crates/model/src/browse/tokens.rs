//! The tokens of one model call.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
