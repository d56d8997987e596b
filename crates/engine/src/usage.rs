//! What a rollout used of its sandbox and its budget, as a whole and phase by phase.

use rollcage_model::finding::{Code, Finding};
use rollcage_model::network::Phase;
use rollcage_model::record::{PhaseUsage, RolloutResult};
use rollcage_model::task::Task;
use rollcage_model::text::tail;
use rollcage_proxy::{FewerAlternatives, Session};
use rollcage_sandbox::{Limits, Sandbox, Usage};

use crate::shell::{LOG_TAIL_CHARS, seconds};

/// Adds what is known once everything of the rollout has ended.
pub(crate) fn note_usage(result: &mut RolloutResult, session: &Session, used: &Usage) {
    result.proxy_log_tail = tail(&session.log(), LOG_TAIL_CHARS);
    result.usage.memory_peak_bytes = used.memory_peak_bytes;
    result.usage.cpu_s = used.cpu_s;
    result.usage.oom_kills = used.oom_kills;
    result.budget.spent = session.spent();
    result.budget.stops = session.budget_stops();
    result.budget.stopped_by = session.calls().stopped.map(|stopped| stopped.by);
    result.timings.outage_s = seconds(session.outage());
    if let Some(FewerAlternatives { wanted, given }) = session.fewer_alternatives() {
        result.endpoint.top_logprobs_max = Some(given);
        let text = format!(
            "the endpoint gives at most {given} alternatives per token and refuses {wanted} (`top_logprobs`), so it was \
             asked for {given}; every sampled token has its logprob all the same (vLLM: --max-logprobs {wanted} gives them)"
        );
        let finding = Finding::warn(Code::FewerAlternatives, text);
        result.findings.push(finding);
    }
}

/// Reads what a sandbox used at the end of each phase.
pub(crate) struct Meter {
    memory_mib: u64,
    before: Usage,
    /// Whether the sandbox's peak of memory is that of the current phase alone.
    is_new_peak: bool,
    /// The largest of all phases.
    memory_peak_bytes: Option<u64>,
}

impl Meter {
    pub(crate) fn new(task: &Task) -> Self {
        let default = Limits::default().memory_bytes >> 20;
        Meter {
            memory_mib: task.limits.memory_mb.unwrap_or(default),
            before: Usage::default(),
            is_new_peak: true,
            memory_peak_bytes: None,
        }
    }

    /// Adds what a phase used, and begins the next one. Returns a word for errors if processes were killed for want of
    /// memory.
    pub(crate) async fn end(
        &mut self,
        phase: Phase,
        sandbox: &dyn Sandbox,
        result: &mut RolloutResult,
    ) -> Option<String> {
        let now = sandbox.usage().await;
        let before = std::mem::replace(&mut self.before, now.clone());
        let kills = now
            .oom_kills
            .map(|kills| kills.saturating_sub(before.oom_kills.unwrap_or_default()));
        let used = PhaseUsage {
            cpu_s: now
                .cpu_s
                .map(|cpu_s| (cpu_s - before.cpu_s.unwrap_or_default()).max(0.0)),
            memory_peak_bytes: now.memory_peak_bytes.filter(|_| self.is_new_peak),
            disk_used_bytes: now.disk_used_bytes,
            oom_kills: kills,
            ..PhaseUsage::default()
        };
        self.memory_peak_bytes = self.memory_peak_bytes.max(now.memory_peak_bytes);
        self.is_new_peak = sandbox.reset_memory_peak().await;
        let name = phase.as_str();
        result.usage.phases.insert(name.to_owned(), used);
        let kills = kills.filter(|kills| *kills > 0)?;
        let processes = match kills {
            1 => "1 process".to_owned(),
            kills => format!("{kills} processes"),
        };
        let text = format!(
            "out of memory: the kernel killed {processes} in the {name} phase, since {} MiB were used up, files included; \
             `limits.memory_mb` (--limits memory_mb=N) gives more",
            self.memory_mib
        );
        let finding = Finding::warn(Code::OutOfMemory, text.clone());
        result.findings.push(finding);
        Some(text)
    }

    /// Adds what is known only of the rollout as a whole, or only at its end.
    pub(crate) fn finish(&self, result: &mut RolloutResult) {
        let usage = &mut result.usage;
        usage.memory_peak_bytes = usage.memory_peak_bytes.max(self.memory_peak_bytes);
        for (name, phase) in &mut usage.phases {
            if let Some(network) = result.network.get(name) {
                phase.network_bytes_in = network.bytes_in;
                phase.network_bytes_out = network.bytes_out;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rollcage_model::network::AttemptTotals;
    use rollcage_sandbox::{Sandboxes, Spec};
    use rollcage_testkit::sandbox::{CommandBehaviour, FakeSandboxes};

    use super::*;

    fn used(cpu_s: f64, memory_peak_bytes: Option<u64>, oom_kills: u64) -> Usage {
        Usage {
            cpu_s: Some(cpu_s),
            memory_peak_bytes,
            memory_bytes: Some(3),
            disk_used_bytes: Some(7),
            oom_kills: Some(oom_kills),
        }
    }

    fn result() -> RolloutResult {
        let id = rollcage_model::id::RolloutId::generate();
        crate::result::begin_abandoned(id, Task::default())
    }

    #[tokio::test]
    async fn each_phase_has_its_own_part() {
        let sandboxes = FakeSandboxes::new(|_| CommandBehaviour::exits(0));
        let sandbox = sandboxes.start(Spec::default()).await.unwrap();
        let (mut meter, mut result) = (Meter::new(&Task::default()), result());
        sandboxes.set_usage(used(1.0, Some(900), 0));
        let starved = meter.end(Phase::Setup, &*sandbox, &mut result).await;
        assert_eq!(starved, None);
        sandboxes.set_usage(used(3.5, Some(500), 2));
        let starved = meter.end(Phase::Agent, &*sandbox, &mut result).await;
        let starved = starved.unwrap();
        assert!(
            starved.contains("2 processes in the agent phase, since 4096 MiB"),
            "{starved}"
        );
        assert_eq!(result.findings[0].code, Code::OutOfMemory);
        let totals = AttemptTotals {
            bytes_in: 5,
            ..AttemptTotals::default()
        };
        result.network.insert("agent".to_owned(), totals);
        meter.finish(&mut result);
        let expected = PhaseUsage {
            cpu_s: Some(2.5),
            memory_peak_bytes: Some(500),
            disk_used_bytes: Some(7),
            oom_kills: Some(2),
            network_bytes_in: 5,
            network_bytes_out: 0,
        };
        assert_eq!(result.usage.phases["agent"], expected);
        assert_eq!(result.usage.memory_peak_bytes, Some(900));
    }

    #[tokio::test]
    async fn a_peak_that_cannot_begin_anew_is_no_phases_own() {
        let sandboxes = FakeSandboxes::new(|_| CommandBehaviour::exits(0));
        let sandbox = sandboxes.start(Spec::default()).await.unwrap();
        let (mut meter, mut result) = (Meter::new(&Task::default()), result());
        sandboxes.set_usage(used(1.0, None, 0));
        meter.end(Phase::Setup, &*sandbox, &mut result).await;
        sandboxes.set_usage(used(1.0, Some(500), 0));
        meter.end(Phase::Agent, &*sandbox, &mut result).await;
        assert_eq!(result.usage.phases["agent"].memory_peak_bytes, None);
    }
}
