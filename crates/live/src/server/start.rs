//! The start of a process: from the choice of a port to the first healthy answer, or to nothing left.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::running::{CurrentParts, Running, Spawned, describe_exit};
use super::{Current, PROBE_LIMIT, PortOfPlace, ServerOptions, Shared, StartError, probe_limit};
use crate::client::{Client, Connect, Health};
use crate::log::{SharedLog, drain};
use crate::place::{Place, ServeCommand};

/// Ports that are tried where any will do.
const PORTS_MAX: u32 = 5;
/// A server at its start has nothing to lose.
const GRACE: Duration = Duration::from_millis(500);
/// Of what a server that ended at its start had printed.
const SAID_LINES: usize = 6;
const SAID_CHARACTERS_MAX: usize = 600;

pub(super) struct Start<'a> {
    pub(super) place: &'a Arc<dyn Place>,
    pub(super) options: &'a ServerOptions,
    pub(super) log: &'a SharedLog,
    pub(super) shared: &'a Shared,
    /// Requests to stop before this start was asked for.
    pub(super) stops: u64,
}

impl Start<'_> {
    /// One healthy process, or none.
    pub(super) async fn run(&self) -> Result<(Running, Current), StartError> {
        let deadline = Instant::now() + self.options.deadline;
        let mut attempt = 0;
        loop {
            let port = match self.options.port {
                0 => self.place.free_port(attempt).map_err(StartError::Spawn)?,
                port => port,
            };
            attempt += 1;
            match self.on_port(port, deadline).await {
                Err(StartError::PortTaken(_)) if self.options.port == 0 && attempt < PORTS_MAX => {}
                result => return result,
            }
        }
    }

    async fn on_port(
        &self,
        port: u16,
        deadline: Instant,
    ) -> Result<(Running, Current), StartError> {
        let connect: Arc<dyn Connect> = Arc::new(PortOfPlace {
            place: Arc::clone(self.place),
            port,
        });
        // Nothing of ours runs, so whoever listens is somebody else.
        if is_listened_on(&*connect).await {
            return Err(StartError::PortTaken(port));
        }
        let mut spawned = self.spawn(port).await.map_err(StartError::Spawn)?;
        let credentials = self.options.credentials.clone();
        let client = Client::new(Arc::clone(&connect), Some(credentials.clone()));
        let healthy = tokio::select! {
            biased;
            () = self.shared.stopped_after(self.stops) => Err(StartError::Stopped),
            exit = spawned.process.wait() => match is_listened_on(&*connect).await {
                true => Err(StartError::PortTaken(port)),
                false => Err(StartError::Ended { how: describe_exit(exit), said: None }),
            },
            healthy = self.probe(&client, port, deadline) => healthy,
        };
        match healthy {
            Ok(()) => {
                let parts = CurrentParts {
                    port,
                    connect,
                    credentials,
                };
                Ok(Running::new(spawned, parts))
            }
            Err(error) => {
                spawned.end(GRACE).await;
                Err(self.with_last_words(error))
            }
        }
    }

    async fn spawn(&self, port: u16) -> std::io::Result<Spawned> {
        let options = self.options;
        let port = port.to_string();
        let argv = options
            .argv
            .iter()
            .map(|part| part.replace("{port}", &port));
        let mut env = options.env.clone();
        let credentials = options.credentials.clone();
        env.insert("OPENCODE_SERVER_USERNAME".to_owned(), credentials.username);
        env.insert("OPENCODE_SERVER_PASSWORD".to_owned(), credentials.password);
        let command = ServeCommand {
            argv: argv.collect(),
            env,
            cwd: options.cwd.clone(),
        };
        let mut process = self.place.spawn(command).await?;
        let (stdout, stderr) = process.take_output();
        let mut output = JoinSet::new();
        output.spawn(drain(stdout, Arc::clone(self.log)));
        output.spawn(drain(stderr, Arc::clone(self.log)));
        Ok(Spawned { process, output })
    }

    async fn probe(&self, client: &Client, port: u16, deadline: Instant) -> Result<(), StartError> {
        let mut unanswered = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StartError::Timeout(self.options.deadline));
            }
            match client.health(probe_limit(unanswered).min(left)).await {
                Health::Healthy { .. } => return Ok(()),
                Health::Foreign => return Err(StartError::PortTaken(port)),
                Health::Refused => {}
                Health::Silent => unanswered += 1,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            tokio::time::sleep(self.options.poll.min(left)).await;
        }
    }

    fn with_last_words(&self, error: StartError) -> StartError {
        let StartError::Ended { how, said: None } = error else {
            return error;
        };
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let said = log.last_lines(SAID_LINES);
        let said = said.replace(&self.options.credentials.password, "[password]");
        let said: String = said.chars().take(SAID_CHARACTERS_MAX).collect();
        let said = (!said.is_empty()).then_some(said);
        StartError::Ended { how, said }
    }
}

async fn is_listened_on(connect: &dyn Connect) -> bool {
    matches!(timeout(PROBE_LIMIT, connect.connect()).await, Ok(Ok(_)))
}
