//! The owner of a server's process: does what callers ask for, one thing after the other, and notices its end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::running::{CurrentParts, Running, Spawned, describe_exit};
use super::start::Start;
use super::{Current, PROBE_LIMIT, PortOfPlace, ServerOptions, Shared, StartError, probe_limit};
use crate::client::Health;
use crate::log::SharedLog;
use crate::place::{Place, ServeProcess};

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// A server that does not answer will hardly listen to SIGTERM.
const HUNG_GRACE: Duration = Duration::from_millis(500);
/// So many probes in a row without an answer.
const FAILURES_MAX: u32 = 3;
const BACK_OFF_MAX_S: u64 = 60;
/// Who was healthy for so long starts from the beginning with its back-off.
const STEADY: Duration = Duration::from_secs(60);

pub(super) enum Command {
    Ensure {
        /// Requests to stop until then.
        stops: u64,
        reply: oneshot::Sender<Result<bool, StartError>>,
    },
    Adopt {
        process: Box<dyn ServeProcess>,
        port: u16,
        reply: oneshot::Sender<bool>,
    },
    Reap {
        reply: oneshot::Sender<bool>,
    },
    Stop {
        reply: oneshot::Sender<()>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

pub(super) struct Keeper {
    place: Arc<dyn Place>,
    options: ServerOptions,
    shared: Arc<Shared>,
    log: SharedLog,
    running: Option<Running>,
    /// A process ended by itself, and nobody asked to reap it since.
    has_died: bool,
    /// Ends and failed starts in a row.
    failures: u32,
    not_before: Instant,
}

/// What a look at the process found.
enum Found {
    /// Healthy, or slow for a reason.
    Usable,
    Hung,
    Ended(String),
}

impl Keeper {
    pub(super) fn new(
        place: Arc<dyn Place>,
        options: ServerOptions,
        shared: Arc<Shared>,
        log: SharedLog,
    ) -> Self {
        Keeper {
            place,
            shared,
            log,
            options,
            running: None,
            has_died: false,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut next = None;
        loop {
            let command = match next.take() {
                Some(command) => command,
                None => tokio::select! {
                    biased;
                    how = exit_of(&mut self.running) => {
                        self.bury(how).await;
                        continue;
                    }
                    command = commands.recv() => match command {
                        Some(command) => command,
                        None => return,
                    },
                },
            };
            match command {
                Command::Ensure { stops, reply } => {
                    let result = self.ensure(stops).await;
                    next = share(&result, stops, &mut commands);
                    let _ = reply.send(result);
                }
                Command::Adopt {
                    process,
                    port,
                    reply,
                } => {
                    let _ = reply.send(self.adopt(process, port).await);
                }
                Command::Reap { reply } => {
                    let _ = reply.send(self.reap().await);
                }
                Command::Stop { reply } => {
                    self.stop().await;
                    let _ = reply.send(());
                }
                Command::Close { reply } => {
                    self.stop().await;
                    // Whoever asks from now on learns that nobody is here any more.
                    drop(commands);
                    drop(self);
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    async fn ensure(&mut self, stops: u64) -> Result<bool, StartError> {
        if self.shared.stops() != stops {
            return Err(StartError::Stopped);
        }
        match self.look(stops).await? {
            Some(Found::Usable) => return Ok(false),
            Some(Found::Hung) => self.end_hung().await,
            Some(Found::Ended(how)) => self.bury(how).await,
            None => {}
        }
        self.back_off(stops).await?;
        let start = Start {
            place: &self.place,
            options: &self.options,
            log: &self.log,
            shared: &self.shared,
            stops,
        };
        match start.run().await {
            Ok(started) => {
                self.install(started);
                Ok(true)
            }
            Err(error) => {
                // A stop is no failure, and back-off does not free a port.
                if !matches!(error, StartError::Stopped | StartError::PortTaken(_)) {
                    self.count_failure();
                }
                Err(error)
            }
        }
    }

    fn install(&mut self, (running, current): (Running, Current)) {
        self.running = Some(running);
        self.has_died = false;
        *self.shared.current() = Some(current);
    }

    async fn adopt(&mut self, process: Box<dyn ServeProcess>, port: u16) -> bool {
        let parts = CurrentParts {
            port,
            connect: Arc::new(PortOfPlace {
                place: Arc::clone(&self.place),
                port,
            }),
            credentials: self.options.credentials.clone(),
        };
        let output = JoinSet::new();
        let mut spawned = Spawned { process, output };
        if self.running.is_none() {
            let (running, current) = Running::new(spawned, parts);
            for _ in 0..FAILURES_MAX {
                if let Health::Healthy { .. } = running.client.health(PROBE_LIMIT).await {
                    self.install((running, current));
                    return true;
                }
                tokio::time::sleep(self.options.poll.min(PROBE_LIMIT)).await;
            }
            running.end(GRACE, "it was not healthy").await;
        } else {
            spawned.end(GRACE).await;
        }
        false
    }

    /// `None` when there is no process. Takes [`ServerOptions::silence_max`] at most, unless somebody asks to stop.
    async fn look(&mut self, stops: u64) -> Result<Option<Found>, StartError> {
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        let begun = Instant::now();
        let mut failures = 0;
        loop {
            let health = tokio::select! {
                biased;
                () = self.shared.stopped_after(stops) => return Err(StartError::Stopped),
                exit = running.spawned.process.wait() => {
                    return Ok(Some(Found::Ended(describe_exit(exit))));
                }
                health = running.client.health(probe_limit(failures)) => health,
            };
            if let Health::Healthy { .. } = health {
                running.give_sign();
                return Ok(Some(Found::Usable));
            }
            failures += 1;
            if failures >= FAILURES_MAX {
                let is_busy = self.shared.turns.load(Ordering::Acquire) > 0;
                let silent_for = running.silent_for();
                // A heartbeat while we looked: it lives, however slowly.
                if is_busy || silent_for < begun.elapsed() {
                    return Ok(Some(Found::Usable));
                }
                if silent_for >= self.options.silence_max {
                    return Ok(Some(Found::Hung));
                }
            }
            tokio::time::sleep(self.options.poll).await;
        }
    }

    /// Waits as long as a start may take, and says so if that is not enough.
    async fn back_off(&mut self, stops: u64) -> Result<(), StartError> {
        let wait = self.not_before.saturating_duration_since(Instant::now());
        if wait > self.options.deadline {
            let wait_s = wait.as_secs_f64().ceil() as u64;
            return Err(StartError::BackOff(self.failures, wait_s));
        }
        tokio::select! {
            biased;
            () = self.shared.stopped_after(stops) => Err(StartError::Stopped),
            () = tokio::time::sleep(wait) => Ok(()),
        }
    }

    fn count_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let wait = Duration::from_secs(back_off_s(self.failures));
        self.not_before = Instant::now() + wait;
    }

    /// Of a process that ended by itself.
    async fn bury(&mut self, how: String) {
        tracing::warn!(how, "an agent's server ended");
        self.end_failed(Duration::ZERO, &how).await;
        self.has_died = true;
    }

    async fn end_hung(&mut self) {
        tracing::warn!("an agent's server does not answer and is ended");
        self.end_failed(HUNG_GRACE, "it did not answer any more")
            .await;
    }

    async fn end_failed(&mut self, grace: Duration, how: &str) {
        let Some(running) = self.running.take() else {
            return;
        };
        if running.healthy_since.elapsed() >= STEADY {
            self.failures = 0;
        }
        self.count_failure();
        *self.shared.current() = None;
        running.end(grace, how).await;
    }

    async fn reap(&mut self) -> bool {
        match self.look(self.shared.stops()).await {
            Ok(Some(Found::Hung)) => self.end_hung().await,
            Ok(Some(Found::Ended(how))) => self.bury(how).await,
            Ok(Some(Found::Usable)) | Err(_) => return false,
            Ok(None) if !self.has_died => return false,
            Ok(None) => {}
        }
        self.has_died = false;
        true
    }

    async fn stop(&mut self) {
        *self.shared.current() = None;
        if let Some(running) = self.running.take() {
            running.end(GRACE, "it was stopped").await;
        }
        self.has_died = false;
        self.failures = 0;
        self.not_before = Instant::now();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.close();
    }
}

/// 0, 1, 2, 4 … seconds after the first, second, third … failure in a row.
fn back_off_s(failures: u32) -> u64 {
    match failures {
        0 | 1 => 0,
        _ => 2_u64.saturating_pow(failures - 2).min(BACK_OFF_MAX_S),
    }
}

/// Of the process that runs; never, if there is none. Cancel-safe.
async fn exit_of(running: &mut Option<Running>) -> String {
    match running {
        Some(running) => describe_exit(running.spawned.process.wait().await),
        None => std::future::pending().await,
    }
}

/// Gives the result of a start to all who asked for it meanwhile; returns the first who asked for something else.
fn share(
    result: &Result<bool, StartError>,
    stops: u64,
    commands: &mut mpsc::Receiver<Command>,
) -> Option<Command> {
    while let Ok(command) = commands.try_recv() {
        match command {
            Command::Ensure {
                stops: theirs,
                reply,
            } if theirs == stops => {
                let _ = reply.send(match result {
                    Ok(_) => Ok(false),
                    Err(error) => Err(error.copy()),
                });
            }
            other => return Some(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        let waits: Vec<u64> = (0..12).map(back_off_s).collect();
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(back_off_s(u32::MAX), 60);
    }
}
