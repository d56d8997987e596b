//! A server's metrics in Prometheus' text format, which is simple enough to need no library.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use rollcage_engine::metrics::DURATION_BUCKETS_S;
use rollcage_engine::{Load, WarmCounters};

use super::rollouts::backend::Backend;

/// The content type that scrapers expect.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn text(backend: &Backend) -> String {
    let sessions = backend.open_sessions.load(Ordering::Relaxed);
    render(&backend.engine.load(), sessions)
}

fn render(load: &Load, sessions: usize) -> String {
    let counters = &load.counters;
    let mut out = MetricsText::default();
    out.gauge(
        "rollcage_rollouts_running",
        "Rollouts that run now.",
        load.running,
    );
    out.gauge(
        "rollcage_rollouts_queued",
        "Rollouts that wait for a slot.",
        load.waiting,
    );
    out.gauge(
        "rollcage_open_sessions",
        "OpenEnv sessions that are open.",
        sessions,
    );
    out.head(
        "rollcage_rollouts_total",
        "counter",
        "Rollouts that ended, by how they ended.",
    );
    for (ended, count) in &counters.ended {
        let name = format!("rollcage_rollouts_total{{ended=\"{}\"}}", ended.as_str());
        out.sample(&name, *count);
    }
    out.counter(
        "rollcage_model_calls_total",
        "Model calls that were answered.",
        counters.calls,
    );
    out.counter(
        "rollcage_model_calls_failed_total",
        "Model calls that the endpoint answered with an error or not at all.",
        counters.failed_calls,
    );
    out.head("rollcage_tokens_total", "counter", "Tokens of model calls.");
    out.sample(
        "rollcage_tokens_total{kind=\"prompt\"}",
        counters.prompt_tokens,
    );
    out.sample(
        "rollcage_tokens_total{kind=\"completion\"}",
        counters.completion_tokens,
    );
    add_warm(&mut out, &load.warm);
    add_live(&mut out, load);
    out.counter(
        "rollcage_sandbox_starts_total",
        "Sandboxes that rollouts started.",
        counters.sandbox_starts,
    );
    let name = "rollcage_rollout_seconds";
    out.head(
        name,
        "histogram",
        "How long rollouts took, from their start to their record.",
    );
    let mut sum = 0;
    for (bound, count) in DURATION_BUCKETS_S.iter().zip(counters.durations) {
        sum += count;
        out.sample(&format!("{name}_bucket{{le=\"{bound}\"}}"), sum);
    }
    sum += counters.durations[DURATION_BUCKETS_S.len()];
    out.sample(&format!("{name}_bucket{{le=\"+Inf\"}}"), sum);
    out.sample(&format!("{name}_sum"), counters.seconds);
    out.sample(&format!("{name}_count"), sum);
    out.text
}

fn add_warm(out: &mut MetricsText, warm: &WarmCounters) {
    out.gauge(
        "rollcage_warm_agents_ready",
        "Sandboxes in which an agent's server stands ready.",
        warm.ready,
    );
    out.gauge(
        "rollcage_warm_agents_starting",
        "Sandboxes in which an agent's server is being started ahead.",
        warm.starting,
    );
    out.head(
        "rollcage_warm_agents_total",
        "counter",
        "Served rollouts that found an agent ready (hit) or not (miss); those ready that nobody used; failed starts.",
    );
    for (what, count) in [
        ("hit", warm.hits),
        ("miss", warm.misses),
        ("unused", warm.unused),
        ("failed", warm.failed),
    ] {
        out.sample(
            &format!("rollcage_warm_agents_total{{what=\"{what}\"}}"),
            count,
        );
    }
}

fn add_live(out: &mut MetricsText, load: &Load) {
    out.head(
        "rollcage_live_agents",
        "gauge",
        "Live agents of this process, by state.",
    );
    for (state, count) in &load.live {
        let name = format!("rollcage_live_agents{{state=\"{}\"}}", state.as_str());
        out.sample(&name, count);
    }
    out.head(
        "rollcage_live_turns_total",
        "counter",
        "Turns of live agents, by their end: final, or the code of the error.",
    );
    for (end, count) in &load.counters.live_turns {
        let name = format!("rollcage_live_turns_total{{end=\"{end}\"}}");
        out.sample(&name, count);
    }
}

#[derive(Default)]
struct MetricsText {
    text: String,
}

impl MetricsText {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.head(name, "gauge", help);
        self.sample(name, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, value);
    }
}

#[cfg(test)]
mod tests {
    use rollcage_engine::live::LiveState;
    use rollcage_engine::metrics::Counters;
    use rollcage_model::ending::Ended;

    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_ends_in_its_count() {
        let mut counters = Counters {
            ended: vec![(Ended::Completed, 3)],
            seconds: 4.5,
            live_turns: vec![("final", 4), ("budget", 1)],
            ..Counters::default()
        };
        counters.durations[0] = 1;
        counters.durations[2] = 2;
        let load = Load {
            running: 1,
            waiting: 2,
            counters,
            warm: WarmCounters {
                ready: 2,
                hits: 7,
                ..WarmCounters::default()
            },
            live: vec![(LiveState::Sleeping, 3)],
        };
        let text = render(&load, 5);
        for line in [
            "rollcage_rollouts_running 1",
            "rollcage_rollouts_queued 2",
            "rollcage_open_sessions 5",
            "rollcage_warm_agents_ready 2",
            "rollcage_warm_agents_total{what=\"hit\"} 7",
            "rollcage_live_agents{state=\"sleeping\"} 3",
            "rollcage_live_turns_total{end=\"budget\"} 1",
            "rollcage_rollouts_total{ended=\"completed\"} 3",
            "rollcage_rollout_seconds_bucket{le=\"0.5\"} 1",
            "rollcage_rollout_seconds_bucket{le=\"2.5\"} 3",
            "rollcage_rollout_seconds_bucket{le=\"+Inf\"} 3",
            "rollcage_rollout_seconds_sum 4.5",
            "rollcage_rollout_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
