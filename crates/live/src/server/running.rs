//! A process that became healthy: its heartbeats, its output, its end.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollcage_sandbox::ExitStatus;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Current;
use crate::client::Client;
use crate::place::ServeProcess;

/// Between two attempts to listen to a server's events.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
const LISTEN_LIMIT: Duration = Duration::from_secs(5);
/// For output that is still in the pipes after the end.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// A process whose output is drained.
pub(super) struct Spawned {
    pub(super) process: Box<dyn ServeProcess>,
    pub(super) output: JoinSet<()>,
}

impl Spawned {
    /// Ends it, with all that it started.
    pub(super) async fn end(&mut self, grace: Duration) {
        self.process.end(grace).await;
        let drained = async { while self.output.join_next().await.is_some() {} };
        // Nobody is left who could hold the pipes open, except somebody in a sandbox that lost its mark.
        let _ = timeout(LAST_OUTPUT, drained).await;
        self.output.abort_all();
    }
}

pub(super) struct Running {
    pub(super) spawned: Spawned,
    pub(super) client: Client,
    pub(super) healthy_since: Instant,
    last_sign: Arc<Mutex<Instant>>,
    /// Listens to heartbeats; ends with this.
    _listening: JoinSet<()>,
    ended: watch::Sender<Option<String>>,
}

impl Running {
    /// `current` lacks only its end.
    pub(super) fn new(spawned: Spawned, current: CurrentParts) -> (Self, Current) {
        let CurrentParts {
            port,
            connect,
            credentials,
        } = current;
        let client = Client::new(Arc::clone(&connect), Some(credentials.clone()));
        let now = Instant::now();
        let last_sign = Arc::new(Mutex::new(now));
        let mut listening = JoinSet::new();
        listening.spawn(listen(client.clone(), Arc::clone(&last_sign)));
        let (ended, receiver) = watch::channel(None);
        let current = Current {
            port,
            connect,
            credentials,
            identity: spawned.process.identity(),
            ended: receiver,
        };
        let running = Running {
            spawned,
            client,
            healthy_since: now,
            last_sign,
            _listening: listening,
            ended,
        };
        (running, current)
    }

    pub(super) fn silent_for(&self) -> Duration {
        let last = self.last_sign.lock();
        last.unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    pub(super) fn give_sign(&self) {
        touch(&self.last_sign);
    }

    /// Ends it, and tells those who wait for that.
    pub(super) async fn end(mut self, grace: Duration, how: &str) {
        self.spawned.end(grace).await;
        self.ended.send_replace(Some(how.to_owned()));
    }
}

/// A [`Current`] before its process is known to be healthy.
pub(super) struct CurrentParts {
    pub(super) port: u16,
    pub(super) connect: Arc<dyn crate::client::Connect>,
    pub(super) credentials: crate::client::Credentials,
}

fn touch(last_sign: &Mutex<Instant>) {
    *last_sign.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
}

/// Every event is a sign of life; without any other, heartbeats are sent.
async fn listen(client: Client, last_sign: Arc<Mutex<Instant>>) {
    loop {
        if let Ok(Ok(mut events)) = timeout(LISTEN_LIMIT, client.global_events()).await {
            while events.next().await.is_some() {
                touch(&last_sign);
            }
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
    }
}

pub(super) fn describe_exit(exit: io::Result<ExitStatus>) -> String {
    let status = exit.ok();
    let code = status.and_then(|status| status.code);
    let signal = status.and_then(|status| status.signal);
    match (code, signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "exit status unknown".to_owned(),
    }
}
