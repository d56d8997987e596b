//! Counts rollouts by what they have. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use rollcage_model::browse::rollout::{Facet, Facets};

use crate::store::Summary;

/// The most values of one kind; nobody picks from more.
const VALUES_MAX: usize = 1000;

/// Counts rollouts, which are sorted by their age, the newest first.
pub(crate) fn facets(matching: &[Arc<Summary>]) -> Facets {
    let mut counted = Facets {
        total: matching.len(),
        ..Facets::default()
    };
    let mut tasks = Values::default();
    let mut agents = Values::default();
    let mut models = Values::default();
    let mut groups = Values::default();
    for Summary { row, .. } in matching.iter().map(|summary| &**summary) {
        count(&mut counted.status, row.status);
        count(&mut counted.verdict, row.verdict);
        if let Some(ended) = row.ended {
            count(&mut counted.ended, ended);
        }
        tasks.count(&row.task_id);
        agents.count(&row.agent);
        models.count(&row.model);
        groups.count(&row.group);
    }
    Facets {
        tasks: tasks.most_frequent(),
        agents: agents.most_frequent(),
        models: models.most_frequent(),
        groups: groups.first(),
        ..counted
    }
}

/// Counts a value under its name in JSON.
fn count(counts: &mut BTreeMap<String, usize>, value: impl Serialize) {
    if let Ok(serde_json::Value::String(name)) = serde_json::to_value(value) {
        *counts.entry(name).or_default() += 1;
    }
}

/// How often there is each value, in the order of their first occurrence.
#[derive(Default)]
struct Values<'a> {
    counts: Vec<(&'a str, usize)>,
    places: HashMap<&'a str, usize>,
}

impl<'a> Values<'a> {
    /// An empty value is none.
    fn count(&mut self, value: &'a str) {
        if value.is_empty() {
            return;
        }
        let place = *self.places.entry(value).or_insert_with(|| {
            self.counts.push((value, 0));
            self.counts.len() - 1
        });
        self.counts[place].1 += 1;
    }

    fn most_frequent(mut self) -> Vec<Facet> {
        self.counts.sort_by_key(|(_, count)| Reverse(*count));
        self.first()
    }

    fn first(self) -> Vec<Facet> {
        let facet = |(value, count): (&str, usize)| Facet {
            value: value.to_owned(),
            count,
        };
        self.counts
            .into_iter()
            .take(VALUES_MAX)
            .map(facet)
            .collect()
    }
}
