//! What ends a command before its time: Ctrl-C, SIGTERM, a lost terminal, and output that nobody reads any more.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::output;
use crate::progress::Screen;

/// A signal that comes so soon after the first is not meant as a second one: `timeout` and shells send theirs to the
/// process and to its group.
const AGAIN_AFTER: Duration = Duration::from_millis(300);

/// The signals, caught from the moment this is made: before anybody can know that we are here.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Not where it is ignored, as under `nohup`.
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

    /// The next of them.
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

    /// A second one, from somebody who does not want to wait. A lost terminal is told of more than once, by the shell
    /// and by the kernel, and nobody is there to be impatient.
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

/// Whether whoever started us has the signal ignored.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Ends a command's work at a signal or when nobody reads its output any more. A second signal ends the program at once,
/// and with it every sandbox.
pub(crate) struct Stop {
    cancel: CancellationToken,
    _watch: JoinSet<()>,
}

impl Stop {
    /// From now on. `words` are said at the first signal.
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
        Ok(Stop {
            cancel,
            _watch: watch,
        })
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.cancel
    }
}
