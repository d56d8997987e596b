//! Tells a caller how far an installation is, at a bearable rate.

use std::time::{Duration, Instant};

/// Twenty messages a second look smooth and cost nothing.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// What an installation is doing now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub agent: String,
    /// As asked for until it is resolved.
    pub version: String,
    pub phase: Phase,
    pub bytes: u64,
    pub total: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Asking the registry.
    Resolving,
    /// Another process is installing the same version.
    Waiting,
    Downloading,
    Unpacking,
    Done,
}

/// Where progress goes.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Send + Sync);

pub(super) struct Reporter<'a> {
    on: OnProgress<'a>,
    current: Progress,
    last: Option<Instant>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(on: OnProgress<'a>, agent: &str, version: &str) -> Self {
        let current = Progress {
            agent: agent.to_owned(),
            version: version.to_owned(),
            phase: Phase::Resolving,
            bytes: 0,
            total: None,
        };
        Self {
            on,
            current,
            last: None,
        }
    }

    /// Begins a phase, which is always told.
    pub(super) fn phase(&mut self, phase: Phase, total: Option<u64>) {
        self.current.phase = phase;
        self.current.bytes = 0;
        self.current.total = total;
        self.tell();
    }

    /// Moves within a phase, which is told now and then and at its end.
    pub(super) fn bytes(&mut self, bytes: u64) {
        self.current.bytes = bytes;
        let is_due = self.last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if is_due || Some(bytes) == self.current.total {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.last = Some(Instant::now());
        (self.on)(self.current.clone());
    }
}
