//! Rollouts in a list.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ending::Ended;
use crate::event::Phase;
use crate::finding::{CaptureLevel, RolloutType};
use crate::id::RolloutId;
use crate::task::AgentDriver;

/// From this reward on a rollout has passed: rewards are sums of floating-point numbers.
pub const PASS_REWARD: f64 = 0.999;

/// Whether a rollout waits, runs or is over.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It waits for a slot.
    Queued,
    /// It runs, here or in another process of this machine.
    Running,
    /// It has its result.
    Ended,
}

/// What a reward comes to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A valid reward of 0.999 or more.
    Pass,
    /// A valid reward above 0.
    Partial,
    /// A valid reward of 0 or less.
    Fail,
    /// Ended without a reward that says something about agent and model.
    Invalid,
    /// Not ended.
    Open,
}

impl Verdict {
    /// Of an ended rollout.
    pub fn of(reward: Option<f64>, is_valid: bool) -> Self {
        match reward {
            Some(reward) if is_valid && reward >= PASS_REWARD => Verdict::Pass,
            Some(reward) if is_valid && reward > 0.0 => Verdict::Partial,
            Some(_) if is_valid => Verdict::Fail,
            _ => Verdict::Invalid,
        }
    }
}

/// One rollout in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutRow {
    /// Names the rollout.
    pub rollout_id: RolloutId,
    /// Whether it waits, runs or is over.
    pub status: Status,
    /// What it does now; null where it does not run here.
    pub phase: Option<Phase>,
    /// How it ended; null until then, and where its result cannot be read.
    pub ended: Option<Ended>,
    /// What its reward comes to.
    pub verdict: Verdict,
    /// What the verify commands gave.
    pub reward: Option<f64>,
    /// Whether the reward says something about agent and model.
    pub reward_valid: bool,
    /// The task's name.
    pub task_id: String,
    /// What rollouts that were asked for together have in common.
    pub group: String,
    /// What whoever asked for it wants to find it by.
    pub labels: BTreeMap<String, String>,
    /// The agent's name.
    pub agent: String,
    /// How the agent is run.
    pub driver: AgentDriver,
    /// The model that is asked.
    pub model: String,
    /// The endpoint's kind.
    pub endpoint: String,
    /// Model calls so far.
    pub calls: u64,
    /// Tokens of all prompts so far.
    pub prompt_tokens: u64,
    /// Sampled tokens so far.
    pub completion_tokens: u64,
    /// Tokens with a loss mask of 1; 0 until it has ended.
    pub trainable_tokens: u64,
    /// US dollars; 0 where the price is not known.
    pub cost_usd: f64,
    /// Seconds so far, or from start to end.
    pub wall_s: f64,
    /// Unix seconds; when it was queued, while it waits.
    pub started_at: f64,
    /// What went wrong, in a sentence.
    pub error: Option<String>,
    /// What it may be used for; null until it has ended.
    pub rollout_type: Option<RolloutType>,
    /// How much could be captured; null until it has ended.
    pub capture_level: Option<CaptureLevel>,
    /// A served agent that waits for a message.
    pub idle: bool,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutPage {
    /// The newest first, unless another order was asked for.
    pub rollouts: Vec<RolloutRow>,
    /// How many match on all pages.
    pub total: usize,
    /// Give it as `cursor` for the next page; null on the last, and where `offset` or another order was asked for.
    pub next_cursor: Option<RolloutId>,
}

/// How many rollouts match, by what they have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Facets {
    /// All that match.
    pub total: usize,
    /// By `queued`, `running` and `ended`.
    pub status: BTreeMap<String, usize>,
    /// By verdict.
    pub verdict: BTreeMap<String, usize>,
    /// By how they ended.
    pub ended: BTreeMap<String, usize>,
    /// By task; the most frequent first, as in the following.
    pub tasks: Vec<Facet>,
    /// By agent.
    pub agents: Vec<Facet>,
    /// By model.
    pub models: Vec<Facet>,
    /// By group; the newest first.
    pub groups: Vec<Facet>,
}

/// A value and how many have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Facet {
    /// The value.
    pub value: String,
    /// How many have it.
    pub count: usize,
}
