//! What runs of agents are compared by.

use serde::Serialize;

/// One run of an agent.
pub(super) struct RunMeasurement {
    /// From the start, or the submission, to the first model call at the endpoint.
    pub(super) first_call_s: f64,
    pub(super) whole_s: f64,
    /// The agent's processor time; unknown where the sandbox's is.
    pub(super) agent_cpu_s: Option<f64>,
    /// Processor time of our own process, which includes the scripted endpoint.
    pub(super) own_cpu_s: f64,
    /// Parts of the start: the sandbox's, and the agent's until its first call. Zero for the bare agent.
    pub(super) sandbox_s: f64,
    pub(super) agent_s: f64,
}

/// The medians of several runs.
#[derive(Debug, Serialize)]
pub(super) struct Medians {
    pub(super) first_call_s: f64,
    pub(super) whole_s: f64,
    pub(super) agent_cpu_s: Option<f64>,
    pub(super) own_cpu_s: f64,
}

pub(super) fn medians(runs: &[RunMeasurement]) -> Medians {
    let is_known = runs.iter().all(|run| run.agent_cpu_s.is_some());
    Medians {
        first_call_s: median(runs, |run| run.first_call_s),
        whole_s: median(runs, |run| run.whole_s),
        agent_cpu_s: is_known.then(|| median(runs, |run| run.agent_cpu_s.unwrap_or_default())),
        own_cpu_s: median(runs, |run| run.own_cpu_s),
    }
}

pub(super) fn median(runs: &[RunMeasurement], value: fn(&RunMeasurement) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
