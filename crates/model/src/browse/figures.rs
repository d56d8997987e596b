//! Figures of one rollout, and of many.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::finding::Finding;

/// What can be counted of one rollout's calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct RolloutFigures {
    /// Model calls.
    pub turns: usize,
    /// Those of the agent whose reply it went on from, or that end a conversation.
    pub productive_turns: usize,
    /// By role: `agent`, `auxiliary`, `discarded`, `failed`, `pending`.
    pub roles: BTreeMap<String, usize>,
    /// Conversations of subagents.
    pub subagents: usize,
    /// Calls that more than one other goes on from.
    pub forks: usize,
    /// Over all calls.
    pub prompt_tokens: u64,
    /// Over all calls.
    pub completion_tokens: u64,
    /// Those of the prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Tokens with a loss mask of 1.
    pub trainable_tokens: u64,
    /// Over all sampled tokens with a logprob.
    pub mean_logprob: Option<f64>,
    /// How many calls ended for which reason.
    pub finish_reasons: BTreeMap<String, usize>,
    /// How often each tool was called.
    pub tools: BTreeMap<String, usize>,
    /// Seconds until an answer was there: half of the calls were faster.
    pub latency_median_s: Option<f64>,
    /// The slowest.
    pub latency_max_s: Option<f64>,
    /// What a reader must know.
    pub findings: Vec<Finding>,
}

/// What rollouts are put together by.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// The task's name.
    Task,
    /// The agent's name.
    Agent,
    /// The model.
    Model,
    /// Those that were asked for together.
    Group,
}

/// Figures of the rollouts that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupFigures {
    /// What they have in common: a value for each dimension that was asked for.
    pub key: BTreeMap<String, String>,
    /// All of them.
    pub rollouts: usize,
    /// Those that have ended.
    pub ended: usize,
    /// Those whose reward says something about agent and model; the following are of these.
    pub valid: usize,
    /// Reward 0.999 or more.
    pub passed: usize,
    /// Above 0.
    pub partial: usize,
    /// 0 or less.
    pub failed: usize,
    /// Null where none is valid.
    pub mean_reward: Option<f64>,
    /// How many rewards lie in each tenth from 0 to 1; the last one includes 1.
    pub rewards: Vec<usize>,
    /// For each task the chance that one of k tries passes, unbiased, and the mean over the tasks that have k valid tries.
    pub pass_at_k: Vec<PassAtK>,
    /// Tasks among them.
    pub tasks: usize,
    /// Over all of them, as in the following.
    pub calls: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Sampled tokens.
    pub completion_tokens: u64,
    /// Tokens with a loss mask of 1.
    pub trainable_tokens: u64,
    /// US dollars; 0 where the price is not known.
    pub cost_usd: f64,
    /// Of those that have ended.
    pub mean_wall_s: Option<f64>,
    /// Unix seconds, when the newest started.
    pub latest_at: f64,
}

/// The chance that one of k tries passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PassAtK {
    /// Tries.
    pub k: usize,
    /// From 0 to 1.
    pub value: f64,
    /// Over how many tasks.
    pub tasks: usize,
}

/// A page of figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FiguresPage {
    /// Of everything that matches.
    pub all: GroupFigures,
    /// One for each combination of values, the newest first.
    pub groups: Vec<GroupFigures>,
    /// The first one's place.
    pub start: usize,
    /// How many combinations there are.
    pub total: usize,
}
