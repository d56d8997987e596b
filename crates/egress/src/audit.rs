//! The audit log: one entry per attempt, and totals per phase. Byte counters are live, so open connections are
//! included.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rollcage_model::network::{Attempt, AttemptKind, AttemptTotals, AttemptVerdict};

/// Further attempts are counted but not listed.
const ENTRIES_MAX: usize = 10_000;

/// A snapshot of the audit log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Audit {
    /// In order of their start.
    pub attempts: Vec<Attempt>,
    /// Attempts beyond the limit, and repeated DNS queries.
    pub unlisted: u64,
    pub totals: BTreeMap<&'static str, AttemptTotals>,
}

/// Bytes in both directions.
#[derive(Debug, Default)]
struct Flow {
    inwards: AtomicU64,
    outwards: AtomicU64,
}

/// Counts a connection's bytes, for its own entry and for its phase.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    own: Arc<Flow>,
    phase: Arc<Flow>,
}

impl Meter {
    pub(crate) fn came(&self, bytes: usize) {
        for flow in [&self.own, &self.phase] {
            flow.inwards.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn went(&self, bytes: usize) {
        for flow in [&self.own, &self.phase] {
            flow.outwards.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

/// An attempt with its verdict, before any byte has passed.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) phase: &'static str,
    pub(crate) kind: AttemptKind,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) verdict: AttemptVerdict,
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<(Attempt, Arc<Flow>)>,
    unlisted: u64,
    phases: BTreeMap<&'static str, Phase>,
}

#[derive(Debug, Default)]
struct Phase {
    attempts: u64,
    refused: u64,
    flow: Arc<Flow>,
    /// DNS names that are in the list already, with whether they were refused.
    asked: HashSet<(String, bool)>,
}

impl Journal {
    /// Adds an attempt and returns its byte counter.
    pub(crate) fn note(&self, decided: Decided) -> Meter {
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        let is_refused = decided.verdict == AttemptVerdict::Refused;
        let is_full = inner.entries.len() >= ENTRIES_MAX;
        let phase = inner.phases.entry(decided.phase).or_default();
        phase.attempts += 1;
        phase.refused += u64::from(is_refused);
        let own = Arc::new(Flow::default());
        let meter = Meter {
            own: Arc::clone(&own),
            phase: Arc::clone(&phase.flow),
        };
        let is_new = decided.kind != AttemptKind::Dns
            || (!is_full && phase.asked.insert((decided.host.clone(), is_refused)));
        if is_full || !is_new {
            inner.unlisted += 1;
            return meter;
        }
        let attempt = Attempt {
            at: now(),
            phase: decided.phase.to_owned(),
            kind: decided.kind,
            host: decided.host,
            port: decided.port,
            verdict: decided.verdict,
            reason: decided.reason,
            bytes_in: 0,
            bytes_out: 0,
        };
        inner.entries.push((attempt, own));
        meter
    }

    pub(crate) fn audit(&self) -> Audit {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |flow: &Flow| {
            let inwards = flow.inwards.load(Ordering::Relaxed);
            (inwards, flow.outwards.load(Ordering::Relaxed))
        };
        let attempts = inner.entries.iter().map(|(attempt, flow)| {
            let (bytes_in, bytes_out) = read(flow);
            Attempt {
                bytes_in,
                bytes_out,
                ..attempt.clone()
            }
        });
        let totals = inner.phases.iter().map(|(name, phase)| {
            let (bytes_in, bytes_out) = read(&phase.flow);
            let totals = AttemptTotals {
                attempts: phase.attempts,
                refused: phase.refused,
                bytes_in,
                bytes_out,
            };
            (*name, totals)
        });
        Audit {
            attempts: attempts.collect(),
            unlisted: inner.unlisted,
            totals: totals.collect(),
        }
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(kind: AttemptKind, host: &str, verdict: AttemptVerdict) -> Decided {
        Decided {
            phase: "agent",
            kind,
            host: host.to_owned(),
            port: 443,
            verdict,
            reason: None,
        }
    }

    #[test]
    fn bytes_are_counted_while_they_flow() {
        let journal = Journal::default();
        let meter = journal.note(decided(AttemptKind::Tls, "a", AttemptVerdict::Allowed));
        meter.came(70);
        meter.went(7);
        let audit = journal.audit();
        let attempt = &audit.attempts[0];
        assert_eq!((attempt.bytes_in, attempt.bytes_out), (70, 7));
        let expect = AttemptTotals {
            attempts: 1,
            refused: 0,
            bytes_in: 70,
            bytes_out: 7,
        };
        assert_eq!(audit.totals["agent"], expect);
    }

    #[test]
    fn the_log_has_an_end_and_the_count_has_none() {
        let journal = Journal::default();
        for _ in 0..ENTRIES_MAX + 5 {
            journal.note(decided(AttemptKind::Raw, "a", AttemptVerdict::Refused));
        }
        let audit = journal.audit();
        assert_eq!((audit.attempts.len(), audit.unlisted), (ENTRIES_MAX, 5));
        assert_eq!(audit.totals["agent"].refused, (ENTRIES_MAX + 5) as u64);
    }

    #[test]
    fn a_question_is_listed_once() {
        let journal = Journal::default();
        for host in ["a", "a", "b", "a"] {
            journal.note(decided(AttemptKind::Dns, host, AttemptVerdict::Refused));
        }
        let audit = journal.audit();
        assert_eq!((audit.attempts.len(), audit.unlisted), (2, 2));
        assert_eq!(audit.totals["agent"].attempts, 4);
    }

    #[test]
    fn an_attempt_is_one_line_of_json() {
        let journal = Journal::default();
        journal.note(decided(AttemptKind::Tls, "a", AttemptVerdict::Allowed));
        let mut attempt = journal.audit().attempts.remove(0);
        attempt.at = 1.5;
        assert_eq!(
            serde_json::to_string(&attempt).unwrap(),
            r#"{"at":1.5,"phase":"agent","kind":"tls","host":"a","port":443,"verdict":"allowed","bytes_in":0,"bytes_out":0}"#
        );
    }
}
