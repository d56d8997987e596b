//! What interrupts a command: Ctrl-C, SIGTERM, a lost terminal, and an output whose reader has gone.
//!
//! A missing reader is looked for and not only noticed by writing, since the next line may be minutes away. It is not
//! an error: with exit status 141 scripts that use `pipefail` and `| head` would break.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::output;
use crate::progress::Screen;

/// A signal within this time of the first one is a duplicate: `timeout` and shells signal both the process and its
/// group.
const AGAIN_AFTER: Duration = Duration::from_millis(300);

/// The signals, caught from the moment this is created, before the command announces itself.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where the signal is ignored, as under `nohup`.
    hangup: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        let is_ignored = is_ignored(SignalKind::hangup());
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match is_ignored {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }

    /// Waits for a second signal, from a user who does not want to wait any longer. SIGHUP does not count: a lost
    /// terminal is signalled more than once, by the shell and by the kernel.
    pub(crate) async fn again(&mut self) {
        let first = Instant::now();
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            if first.elapsed() >= AGAIN_AFTER {
                return;
            }
        }
    }
}

/// Whether our parent process set the signal to be ignored.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Cancels a command's work at a signal or when its output's reader has gone. A second signal ends the program at once,
/// and every sandbox with it.
pub(crate) struct StopSignal {
    cancel: CancellationToken,
    _watch: JoinSet<()>,
}

impl StopSignal {
    /// Starts watching. `words` is printed at the first signal.
    pub(crate) fn watch(screen: Screen, words: &'static str) -> std::io::Result<Self> {
        let mut signals = Signals::new()?;
        let cancel = CancellationToken::new();
        let cancelled = cancel.clone();
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            tokio::select! {
                () = signals.next() => {
                    cancelled.cancel();
                    screen.say(words);
                }
                () = output::reader_gone() => cancelled.cancel(),
            }
            signals.again().await;
            std::process::exit(130);
        });
        Ok(StopSignal {
            cancel,
            _watch: watch,
        })
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.cancel
    }
}
