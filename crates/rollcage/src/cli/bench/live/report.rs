//! What `rollcage bench live` found.

use std::io::Write;

use serde::Serialize;

use super::growth::{Growth, Sample, chosen};
use crate::text;

/// Problems that are shown.
const SHOWN_MAX: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) agent: String,
    pub(super) version: String,
    pub(super) agents: usize,
    pub(super) turns: usize,
    /// Replies of all turns, each of which came once.
    pub(super) replies: u64,
    pub(super) turns_per_s: f64,
    pub(super) turn_median_s: f64,
    pub(super) turn_p95_s: f64,
    /// With the scripted endpoint's.
    pub(super) own_cpu_s_per_turn: f64,
    /// How often an agent's server was started anew.
    pub(super) restarts: u64,
    /// The most that one agent's sandbox held.
    pub(super) agent_memory_bytes: Option<u64>,
    pub(super) memory: Option<Growth>,
    pub(super) descriptors: Option<Growth>,
    pub(super) samples: Vec<Sample>,
    /// Turns whose replies were not as they should be.
    pub(super) problems: Vec<String>,
}

impl Report {
    pub(super) fn is_good(&self) -> bool {
        let is_flat = |growth: &Option<Growth>| growth.as_ref().is_some_and(Growth::is_flat);
        self.problems.is_empty() && is_flat(&self.memory) && is_flat(&self.descriptors)
    }

    pub(super) fn show(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{} {}: {} turns over {} live agents, {} replies",
            self.agent,
            self.version,
            text::count(self.turns as u64),
            self.agents,
            text::count(self.replies)
        )?;
        writeln!(
            out,
            "  a turn                     median {}, 95th percentile {}; {:.1} turns/s",
            text::duration(self.turn_median_s),
            text::duration(self.turn_p95_s),
            self.turns_per_s
        )?;
        writeln!(
            out,
            "  our own processor time     {:.1} ms a turn (with the scripted endpoint's)",
            self.own_cpu_s_per_turn * 1000.0
        )?;
        let memory = self
            .agent_memory_bytes
            .map_or("unknown".into(), text::bytes);
        writeln!(
            out,
            "  the agents                 {} restarts, the largest sandbox {memory}",
            self.restarts
        )?;
        self.show_growth(out)?;
        for problem in self.problems.iter().take(SHOWN_MAX) {
            writeln!(out, "  {}", text::line(problem, 300))?;
        }
        match self.problems.len() {
            0 => writeln!(out, "  every reply came exactly once, every text is whole"),
            count => writeln!(out, "  {count} turns were not as they should be"),
        }
    }

    fn show_growth(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "  after turns    our resident memory    descriptors")?;
        for sample in chosen(&self.samples) {
            writeln!(
                out,
                "  {:>11}    {:>19}    {:>11}",
                text::count(sample.turns as u64),
                text::bytes(sample.resident_bytes),
                sample.descriptors
            )?;
        }
        if let Some(growth) = &self.memory {
            writeln!(
                out,
                "  memory         {:+.2} MiB per 100 turns after two fifths; at most {} ({})",
                growth.per_100_turns / f64::from(1 << 20),
                text::bytes(growth.largest),
                verdict(growth, text::bytes)
            )?;
        }
        if let Some(growth) = &self.descriptors {
            writeln!(
                out,
                "  descriptors    {:+.1} per 100 turns after two fifths; at most {} ({})",
                growth.per_100_turns,
                growth.largest,
                verdict(growth, |count| count.to_string())
            )?;
        }
        Ok(())
    }
}

fn verdict(growth: &Growth, shown: fn(u64) -> String) -> String {
    let limit = shown(growth.limit);
    match growth.is_flat() {
        true => format!("flat: under {limit}"),
        false => format!("it GROWS: the limit is {limit}"),
    }
}
