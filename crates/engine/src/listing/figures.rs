//! Figures over many rollouts: rewards, pass@k, tokens, cost. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rollcage_model::browse::figures::{Dimension, FiguresPage, GroupFigures, PassAtK};
use rollcage_model::browse::rollout::{RolloutRow, Status, Verdict};
use rollcage_model::id::RolloutId;

use crate::store::Summary;

/// Rewards are counted by tenths.
const REWARD_BINS: usize = 10;

/// Figures of all rollouts and of those that have the same values in these dimensions, the newest first.
pub(crate) fn figures(
    matching: &[Arc<Summary>],
    by: &[Dimension],
    start: usize,
    limit: usize,
) -> FiguresPage {
    let mut all = Totals::default();
    let mut groups: HashMap<Vec<&str>, Totals> = HashMap::new();
    for summary in matching {
        let row = &summary.row;
        all.add(row);
        let key: Vec<_> = by.iter().map(|dimension| value(row, *dimension)).collect();
        groups.entry(key).or_default().add(row);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|(left_key, left), (right_key, right)| {
        let newest = right.figures.latest_at.total_cmp(&left.figures.latest_at);
        newest.then_with(|| left_key.cmp(right_key))
    });
    let total = groups.len();
    let groups = groups.into_iter().skip(start).take(limit);
    FiguresPage {
        all: all.figures(BTreeMap::new()),
        groups: groups
            .map(|(values, totals)| {
                let names = by.iter().map(|dimension| name(*dimension).to_owned());
                let values = values.into_iter().map(str::to_owned);
                totals.figures(names.zip(values).collect())
            })
            .collect(),
        start,
        total,
    }
}

fn name(dimension: Dimension) -> &'static str {
    match dimension {
        Dimension::Task => "task",
        Dimension::Agent => "agent",
        Dimension::Model => "model",
        Dimension::Group => "group",
    }
}

fn value(row: &RolloutRow, dimension: Dimension) -> &str {
    match dimension {
        Dimension::Task => &row.task_id,
        Dimension::Agent => &row.agent,
        Dimension::Model => &row.model,
        Dimension::Group => &row.group,
    }
}

/// Figures while they are added up.
#[derive(Default)]
struct Totals<'a> {
    figures: GroupFigures,
    rewards: [usize; REWARD_BINS],
    reward_sum: f64,
    wall_sum: f64,
    /// Of each task the valid tries, and those that passed.
    tries: HashMap<TaskKey<'a>, (usize, usize)>,
}

/// What rollouts of the same task have in common. A task without a name is known by its group, since the rollouts of a group
/// were asked for together; outside of a group nothing tells that two rollouts had the same task.
#[derive(PartialEq, Eq, Hash)]
enum TaskKey<'a> {
    Name(&'a str),
    Group(&'a str),
    Rollout(RolloutId),
}

impl<'a> TaskKey<'a> {
    fn of(row: &'a RolloutRow) -> Self {
        match (row.task_id.as_str(), row.group.as_str()) {
            ("", "") => TaskKey::Rollout(row.rollout_id),
            ("", group) => TaskKey::Group(group),
            (name, _) => TaskKey::Name(name),
        }
    }
}

impl<'a> Totals<'a> {
    fn add(&mut self, row: &'a RolloutRow) {
        let figures = &mut self.figures;
        figures.rollouts += 1;
        figures.calls += row.calls;
        figures.prompt_tokens += row.prompt_tokens;
        figures.completion_tokens += row.completion_tokens;
        figures.trainable_tokens += row.trainable_tokens;
        figures.cost_usd += row.cost_usd;
        figures.latest_at = figures.latest_at.max(row.started_at);
        let (tries, passes) = self.tries.entry(TaskKey::of(row)).or_default();
        if row.status == Status::Ended {
            figures.ended += 1;
            self.wall_sum += row.wall_s;
        }
        match row.verdict {
            Verdict::Pass => figures.passed += 1,
            Verdict::Partial => figures.partial += 1,
            Verdict::Fail => figures.failed += 1,
            Verdict::Invalid | Verdict::Open => return,
        }
        figures.valid += 1;
        *tries += 1;
        *passes += usize::from(row.verdict == Verdict::Pass);
        let reward = row.reward.unwrap_or_default();
        self.reward_sum += reward;
        // Rewards outside of 0 to 1 are counted at its ends.
        let bin = (reward * REWARD_BINS as f64).clamp(0.0, REWARD_BINS as f64 - 1.0);
        self.rewards[bin as usize] += 1;
    }

    fn figures(self, key: BTreeMap<String, String>) -> GroupFigures {
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        GroupFigures {
            key,
            mean_reward: mean(self.reward_sum, self.figures.valid),
            mean_wall_s: mean(self.wall_sum, self.figures.ended),
            rewards: self.rewards.to_vec(),
            tasks: self.tries.len(),
            pass_at_k: pass_at_k(self.tries.values().copied()),
            ..self.figures
        }
    }
}

/// For k = 1, 2, 4 and so on, up to the most tries of a task.
fn pass_at_k(tries: impl Iterator<Item = (usize, usize)> + Clone) -> Vec<PassAtK> {
    let most = tries.clone().map(|(tries, _)| tries).max().unwrap_or(0);
    let powers = std::iter::successors(Some(1_usize), |k| k.checked_mul(2));
    powers
        .take_while(|k| *k <= most)
        .map(|k| {
            let enough = tries.clone().filter(|(tries, _)| *tries >= k);
            let chances: Vec<_> = enough
                .map(|(tries, passes)| chance(tries, passes, k))
                .collect();
            PassAtK {
                k,
                value: chances.iter().sum::<f64>() / chances.len() as f64,
                tasks: chances.len(),
            }
        })
        .collect()
}

/// The chance that one of `k` of these tries, picked at random, passed: 1 - C(n - c, k) / C(n, k), as a product that
/// does not overflow.
fn chance(tries: usize, passes: usize, k: usize) -> f64 {
    let failures = tries - passes;
    if failures < k {
        return 1.0;
    }
    let none = (failures + 1..=tries).map(|n| 1.0 - k as f64 / n as f64);
    1.0 - none.product::<f64>()
}

#[cfg(test)]
mod tests;
