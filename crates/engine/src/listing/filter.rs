//! Which rollouts are listed, in which order, and which page of them. Pure.

use std::cmp::Ordering;
use std::sync::Arc;

use rollcage_model::browse::rollout::{RolloutPage, RolloutRow, Status, Verdict};
use rollcage_model::ending::Ended;
use rollcage_model::id::RolloutId;

use crate::store::Summary;

/// Which rollouts; all conditions hold together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    pub task: Option<String>,
    pub agent: Option<String>,
    pub model: Option<String>,
    pub group: Option<String>,
    pub status: Option<Status>,
    pub verdict: Option<Verdict>,
    pub ended: Option<EndedFilter>,
    /// Names and values.
    pub labels: Vec<(String, String)>,
    /// A part of the id, task, agent, model, group, a label or the error, whatever its case.
    pub text: Option<String>,
    /// Unix seconds; started at or after.
    pub since: Option<f64>,
    /// Unix seconds; started before.
    pub until: Option<f64>,
}

/// A condition on a rollout's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedFilter {
    /// Has not ended.
    Not,
    As(Ended),
}

/// A page of a list, and its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// By id, the newest first, when there is none.
    pub sort: Option<(SortKey, Order)>,
    pub place: Place,
    pub limit: usize,
}

/// Where a page starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the newest.
    Start,
    /// After this rollout; for lists by id.
    After(RolloutId),
    /// After so many.
    Offset(usize),
}

/// What a list is sorted by. Rollouts without a value come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    StartedAt,
    Reward,
    WallS,
    Calls,
    Tokens,
    Cost,
    Task,
    Agent,
    Model,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

impl SortKey {
    pub const ALL: [SortKey; 9] = [
        SortKey::StartedAt,
        SortKey::Reward,
        SortKey::WallS,
        SortKey::Calls,
        SortKey::Tokens,
        SortKey::Cost,
        SortKey::Task,
        SortKey::Agent,
        SortKey::Model,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            SortKey::StartedAt => "started_at",
            SortKey::Reward => "reward",
            SortKey::WallS => "wall_s",
            SortKey::Calls => "calls",
            SortKey::Tokens => "tokens",
            SortKey::Cost => "cost",
            SortKey::Task => "task",
            SortKey::Agent => "agent",
            SortKey::Model => "model",
        }
    }

    fn compare(self, left: &RolloutRow, right: &RolloutRow, order: Order) -> Ordering {
        let tokens = |row: &RolloutRow| row.prompt_tokens + row.completion_tokens;
        let ascending = match self {
            SortKey::StartedAt => left.started_at.total_cmp(&right.started_at),
            SortKey::Reward => match (left.reward, right.reward) {
                (Some(left), Some(right)) => left.total_cmp(&right),
                // Last in both orders.
                (left, right) => return left.is_none().cmp(&right.is_none()),
            },
            SortKey::WallS => left.wall_s.total_cmp(&right.wall_s),
            SortKey::Calls => left.calls.cmp(&right.calls),
            SortKey::Tokens => tokens(left).cmp(&tokens(right)),
            SortKey::Cost => left.cost_usd.total_cmp(&right.cost_usd),
            SortKey::Task => left.task_id.cmp(&right.task_id),
            SortKey::Agent => left.agent.cmp(&right.agent),
            SortKey::Model => left.model.cmp(&right.model),
        };
        match order {
            Order::Ascending => ascending,
            Order::Descending => ascending.reverse(),
        }
    }
}

impl Filter {
    /// Those of the rollouts that match, in the same order.
    pub(crate) fn select(&self, mut summaries: Vec<Arc<Summary>>) -> Vec<Arc<Summary>> {
        let text = self.text.as_deref().map(str::to_lowercase);
        summaries.retain(|summary| self.matches(&summary.row, text.as_deref()));
        summaries
    }

    fn matches(&self, row: &RolloutRow, text: Option<&str>) -> bool {
        let is_same = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        let has_ended = match self.ended {
            None => true,
            Some(EndedFilter::Not) => row.status != Status::Ended,
            Some(EndedFilter::As(ended)) => row.ended == Some(ended),
        };
        let mut labels = self.labels.iter();
        has_ended
            && is_same(&self.task, &row.task_id)
            && is_same(&self.agent, &row.agent)
            && is_same(&self.model, &row.model)
            && is_same(&self.group, &row.group)
            && self.status.is_none_or(|status| row.status == status)
            && self.verdict.is_none_or(|verdict| row.verdict == verdict)
            && labels.all(|(name, value)| row.labels.get(name) == Some(value))
            && self.since.is_none_or(|since| row.started_at >= since)
            && self.until.is_none_or(|until| row.started_at < until)
            && text.is_none_or(|text| has_text(row, text))
    }
}

/// Whether a row has this text, which is in lower case.
fn has_text(row: &RolloutRow, text: &str) -> bool {
    let is_in = |value: &str| value.to_lowercase().contains(text);
    is_in(&row.task_id)
        || is_in(&row.agent)
        || is_in(&row.model)
        || is_in(&row.group)
        || row.error.as_deref().is_some_and(is_in)
        || row
            .labels
            .iter()
            .any(|(name, value)| is_in(&format!("{name}={value}")))
        || row.rollout_id.to_string().contains(text)
}

/// One page of what matches, which is sorted by id, the newest first.
pub(crate) fn page(mut matching: Vec<Arc<Summary>>, window: &Window) -> RolloutPage {
    let total = matching.len();
    if let Some((key, order)) = window.sort {
        // Stable: among equals the newest comes first.
        matching.sort_by(|left, right| key.compare(&left.row, &right.row, order));
    }
    let start = match window.place {
        Place::Start => 0,
        Place::Offset(offset) => offset,
        Place::After(id) => matching.partition_point(|summary| summary.row.rollout_id >= id),
    };
    let mut rest = matching.into_iter().skip(start);
    let rows: Vec<_> = rest
        .by_ref()
        .take(window.limit)
        .map(|summary| summary.row.clone())
        .collect();
    let has_cursor = window.sort.is_none() && !matches!(window.place, Place::Offset(_));
    let next = rows.last().map(|row| row.rollout_id);
    RolloutPage {
        next_cursor: next.filter(|_| has_cursor && rest.next().is_some()),
        rollouts: rows,
        total,
    }
}
