//! Reports the progress of an installation, at a limited rate.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Twenty reports a second look smooth and cost little.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// The current state of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallStatus {
    pub agent: String,
    /// As requested, until a tag is resolved.
    pub version: String,
    pub phase: InstallPhase,
    pub bytes: u64,
    pub total: Option<u64>,
    /// The number of packages known so far.
    pub packages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallPhase {
    /// Querying the registry.
    Resolving,
    /// Another process is installing the same version.
    Waiting,
    Downloading,
    Unpacking,
    Done,
}

/// The callback for progress reports.
pub type OnProgress<'a> = &'a (dyn Fn(InstallStatus) + Send + Sync);

#[derive(Clone)]
pub(super) struct ProgressReporter<'a> {
    on: OnProgress<'a>,
    current: InstallStatus,
    last: Option<Instant>,
}

impl<'a> ProgressReporter<'a> {
    pub(super) fn new(on: OnProgress<'a>, agent: &str, version: &str) -> Self {
        let current = InstallStatus {
            agent: agent.to_owned(),
            version: version.to_owned(),
            phase: InstallPhase::Resolving,
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

    /// Begins a phase, which is always reported.
    pub(super) fn phase(&mut self, phase: InstallPhase, total: Option<u64>) {
        self.current.phase = phase;
        self.current.bytes = 0;
        self.current.total = total;
        self.report();
    }

    /// Progress within a phase, reported at intervals and at its end.
    pub(super) fn bytes(&mut self, bytes: u64) {
        self.current.bytes = bytes;
        if self.is_due() || Some(bytes) == self.current.total {
            self.report();
        }
    }

    /// Updates the number of known packages.
    pub(super) fn packages(&mut self, packages: usize) {
        self.current.packages = packages;
        if self.is_due() {
            self.report();
        }
    }

    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= INTERVAL)
    }

    fn report(&mut self) {
        self.last = Some(Instant::now());
        (self.on)(self.current.clone());
    }
}

/// Concurrent downloads, reported as one.
pub(super) struct DownloadProgress<'a> {
    state: Mutex<DownloadProgressState<'a>>,
}

struct DownloadProgressState<'a> {
    reporter: ProgressReporter<'a>,
    /// Received and total bytes of each download; the total is `None` before it begins or if the server does not send
    /// it.
    downloads: Vec<(u64, Option<u64>)>,
}

impl<'a> DownloadProgress<'a> {
    pub(super) fn new(reporter: ProgressReporter<'a>, downloads: usize) -> Self {
        let downloads = vec![(0, None); downloads];
        Self {
            state: Mutex::new(DownloadProgressState {
                reporter,
                downloads,
            }),
        }
    }

    /// Begins or restarts a download.
    pub(super) fn begin(&self, number: usize, total: Option<u64>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.downloads[number] = (0, total);
        let total = state.downloads.iter().map(|(_, total)| *total).sum();
        if state.reporter.current.phase == InstallPhase::Downloading {
            state.reporter.current.total = total;
        } else {
            state.reporter.phase(InstallPhase::Downloading, total);
        }
        state.report();
    }

    pub(super) fn bytes(&self, number: usize, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.downloads[number].0 = bytes;
        state.report();
    }
}

impl DownloadProgressState<'_> {
    fn report(&mut self) {
        let bytes = self.downloads.iter().map(|(bytes, _)| bytes).sum();
        self.reporter.bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_downloads_are_reported_as_one() {
        let reports = Mutex::new(Vec::new());
        let on = |progress: InstallStatus| {
            let mut reports = reports.lock().unwrap();
            reports.push((progress.phase, progress.bytes, progress.total));
        };
        let reporter = ProgressReporter::new(&on, "a", "1");
        let progress = DownloadProgress::new(reporter, 2);
        progress.begin(0, Some(10));
        progress.bytes(0, 10);
        progress.begin(1, Some(5));
        // Interrupted and restarted.
        progress.bytes(1, 4);
        progress.begin(1, Some(5));
        progress.bytes(1, 5);
        let reports = reports.into_inner().unwrap();
        assert_eq!(reports.first(), Some(&(InstallPhase::Downloading, 0, None)));
        assert_eq!(
            reports.last(),
            Some(&(InstallPhase::Downloading, 15, Some(15)))
        );
    }
}
