//! Tells a caller how far an installation is, at a bearable rate.

use std::sync::{Mutex, PoisonError};
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
    /// How many packages it has, as far as is known.
    pub packages: usize,
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

#[derive(Clone)]
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
            packages: 0,
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
        if self.is_due() || Some(bytes) == self.current.total {
            self.tell();
        }
    }

    /// Another package is known.
    pub(super) fn packages(&mut self, packages: usize) {
        self.current.packages = packages;
        if self.is_due() {
            self.tell();
        }
    }

    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= INTERVAL)
    }

    fn tell(&mut self) {
        self.last = Some(Instant::now());
        (self.on)(self.current.clone());
    }
}

/// Several downloads at once, told as one.
pub(super) struct Tally<'a> {
    state: Mutex<TallyState<'a>>,
}

struct TallyState<'a> {
    reporter: Reporter<'a>,
    /// Bytes so far and in all of each download; `None` before it begins or where the server does not say.
    downloads: Vec<(u64, Option<u64>)>,
}

impl<'a> Tally<'a> {
    pub(super) fn new(reporter: Reporter<'a>, downloads: usize) -> Self {
        let downloads = vec![(0, None); downloads];
        Self {
            state: Mutex::new(TallyState {
                reporter,
                downloads,
            }),
        }
    }

    /// Begins a download, or begins it again.
    pub(super) fn begin(&self, number: usize, total: Option<u64>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.downloads[number] = (0, total);
        let total = state.downloads.iter().map(|(_, total)| *total).sum();
        if state.reporter.current.phase == Phase::Downloading {
            state.reporter.current.total = total;
        } else {
            state.reporter.phase(Phase::Downloading, total);
        }
        state.tell();
    }

    pub(super) fn bytes(&self, number: usize, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.downloads[number].0 = bytes;
        state.tell();
    }
}

impl TallyState<'_> {
    fn tell(&mut self) {
        let bytes = self.downloads.iter().map(|(bytes, _)| bytes).sum();
        self.reporter.bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_side_by_side_are_told_as_one() {
        let told = Mutex::new(Vec::new());
        let on = |progress: Progress| {
            let mut told = told.lock().unwrap();
            told.push((progress.phase, progress.bytes, progress.total));
        };
        let reporter = Reporter::new(&on, "a", "1");
        let tally = Tally::new(reporter, 2);
        tally.begin(0, Some(10));
        tally.bytes(0, 10);
        tally.begin(1, Some(5));
        // Cut off, and begun again.
        tally.bytes(1, 4);
        tally.begin(1, Some(5));
        tally.bytes(1, 5);
        let told = told.into_inner().unwrap();
        assert_eq!(told.first(), Some(&(Phase::Downloading, 0, None)));
        assert_eq!(told.last(), Some(&(Phase::Downloading, 15, Some(15))));
    }
}
