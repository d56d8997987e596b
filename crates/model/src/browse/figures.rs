//! Figures of one rollout, and of many.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reading;
use crate::finding::{Code, Finding};
use crate::record::RolloutResult;

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
    /// What they have in common: a value for each dimension that was asked for. An empty `task` is no task: it stands for
    /// all that have no name, and `tasks` tells how many those are.
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
    /// Tasks among them. Without a name, a group counts as one, and so does a rollout without a group.
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

impl Reading {
    /// What can be counted of the calls, with the findings of the result where there is one. Of calls that are not shown
    /// there are sums alone.
    pub fn figures(&self, result: Option<&RolloutResult>) -> RolloutFigures {
        let usage = &self.seen.usage;
        let mut figures = RolloutFigures {
            turns: self.seen.turns.len(),
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            trainable_tokens: self.seen.n_trainable_tokens,
            findings: self.findings(result),
            ..RolloutFigures::default()
        };
        let shown = 0..self.n_turns();
        let (mut sum, mut count) = (0.0, 0_usize);
        for index in shown.clone() {
            let turn = &self.seen.turns[index];
            *figures
                .roles
                .entry(self.role(index).to_owned())
                .or_default() += 1;
            if let Some(reason) = &turn.finish_reason {
                *figures.finish_reasons.entry(reason.clone()).or_default() += 1;
            }
            for call in turn.message.iter().flat_map(|message| &message.tool_calls) {
                *figures.tools.entry(call.name.clone()).or_default() += 1;
            }
            let is_first = self.root(index) == index;
            figures.subagents += usize::from(is_first && self.is_subagent(index));
            let logprobs = turn.logprobs.as_deref().unwrap_or_default();
            sum += logprobs.iter().sum::<f64>();
            count += logprobs.len();
        }
        figures.mean_logprob = (count > 0).then(|| sum / count as f64);
        self.count_links(&mut figures);
        let latencies = shown.filter_map(|turn| self.seen.turns[turn].latency_s);
        let mut latencies: Vec<f64> = latencies.collect();
        latencies.sort_by(f64::total_cmp);
        figures.latency_median_s = latencies.get(latencies.len() / 2).copied();
        figures.latency_max_s = latencies.last().copied();
        figures
    }

    /// While a rollout runs, a call without an answer is no hole, and neither is a record that is being written.
    fn findings(&self, result: Option<&RolloutResult>) -> Vec<Finding> {
        if let Some(result) = result {
            return self.seen.complete(result).findings.clone();
        }
        let pending = (0..self.seen.turns.len()).filter(|turn| self.is_pending(*turn));
        let pending: Vec<String> = pending
            .map(|turn| format!("{}:", self.seen.turns[turn].node_id()))
            .collect();
        let is_due = |finding: &&Finding| match finding.code {
            Code::NoTurns | Code::CaptureIngestFailed => !self.is_running(),
            Code::UpstreamError => !pending.iter().any(|node| finding.text.starts_with(node)),
            _ => true,
        };
        self.seen.findings.iter().filter(is_due).cloned().collect()
    }

    /// Forks, and the agent's calls whose replies were of use.
    fn count_links(&self, figures: &mut RolloutFigures) {
        let mut n_next = vec![0_usize; self.n_turns()];
        let mut is_left_out = vec![false; self.n_turns()];
        for turn in 0..self.n_turns() {
            let Some(node) = self.node(turn) else {
                continue;
            };
            if let Some(before) = node.before() {
                n_next[self.call_of(before)] += 1;
            }
            if let Some(before) = node.left_out {
                is_left_out[self.call_of(before)] = true;
            }
        }
        figures.forks = n_next.iter().filter(|count| **count > 1).count();
        let is_productive = |turn: &usize| {
            let message = self.seen.turns[*turn].message.as_ref();
            let is_end = !is_left_out[*turn] && message.is_some_and(|reply| !reply.is_empty());
            self.is_agents(*turn) && (n_next[*turn] > 0 || is_end)
        };
        figures.productive_turns = (0..self.n_turns()).filter(is_productive).count();
    }
}
