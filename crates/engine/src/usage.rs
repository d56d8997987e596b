//! What a rollout used of its sandbox and its budget.

use rollcage_model::record::RolloutResult;
use rollcage_model::text::tail;
use rollcage_proxy::Session;
use rollcage_sandbox::Usage;

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
}
