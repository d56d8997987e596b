//! One server process, kept running.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Client, Credentials, Health};
use crate::place::Place;

/// How a server is started and watched.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// `{port}` stands for the port.
    pub argv: Vec<String>,
    /// Without the server's password, which is added.
    pub env: BTreeMap<String, String>,
    /// Empty means the place's own work directory.
    pub cwd: String,
    /// 0 takes a free one.
    pub port: u16,
    pub credentials: Credentials,
    /// How long a start may take.
    pub deadline: Duration,
    /// The pause between two probes.
    pub poll: Duration,
    /// `serve.log`; everything that the server prints goes there, and it rotates.
    pub log: PathBuf,
}

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the agent's server was not healthy within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("port {0} is taken by another program")]
    PortTaken(u16),
    #[error("the agent's server ended at its start ({how}){}", .said.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    Ended { how: String, said: Option<String> },
    #[error("start the agent's server")]
    Spawn(#[source] std::io::Error),
    #[error(
        "the agent's server ended {0} times in a row and is not started again before {1} s have passed"
    )]
    BackOff(u32, u64),
    #[error("the live agent is stopped")]
    Stopped,
}

/// A server process in a place.
pub struct LiveServer {
    _place: Arc<dyn Place>,
    _options: ServerOptions,
}

impl LiveServer {
    pub fn new(place: Arc<dyn Place>, options: ServerOptions) -> Arc<Self> {
        Arc::new(LiveServer {
            _place: place,
            _options: options,
        })
    }

    /// Healthy: nothing is done. Starting: waits for it. Unhealthy or dead: ends what is left and starts exactly one anew.
    /// Returns whether a process was started by this call.
    pub async fn ensure_running(&self) -> Result<bool, StartError> {
        todo!()
    }

    /// Probes once.
    pub async fn health(&self) -> Health {
        todo!()
    }

    /// Whether its process is alive, without asking it.
    pub fn is_running(&self) -> bool {
        todo!()
    }

    /// Where it listens inside its place, once it runs.
    pub fn base_url(&self) -> Option<String> {
        todo!()
    }

    /// A client of the running process.
    pub fn client(&self) -> Option<Client> {
        todo!()
    }

    /// Returns once the process that runs now has ended, with how it did.
    pub async fn ended(&self) -> String {
        todo!()
    }

    /// While this lives, a slow server is not taken for a hung one.
    pub fn turn_in_progress(&self) -> TurnGuard {
        todo!()
    }

    /// Ends an unhealthy or dead process with all that it started; true if there was one.
    pub async fn reap(&self) -> bool {
        todo!()
    }

    /// Terminates, waits, kills the whole tree, closes the log. It can be started again.
    pub async fn stop(&self) {
        todo!()
    }
}

/// See [`LiveServer::turn_in_progress`].
pub struct TurnGuard {}
