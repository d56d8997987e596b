//! The HTTP interface of `opencode serve`. Every request has a connection of its own: a server that hangs at its start never
//! answers on connections of that time.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rollcage_sandbox::BoxedStream;
use serde_json::Value;

/// Opens connections to one server.
#[async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self) -> io::Result<BoxedStream>;
}

/// The server's own user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl Credentials {
    /// A new password of 32 random bytes for the user `opencode`.
    pub fn generate() -> io::Result<Self> {
        todo!()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .finish_non_exhaustive()
    }
}

/// What a probe of a server found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy {
        version: Option<String>,
    },
    /// A server that refuses our password, or is no agent's server at all: somebody else's.
    Foreign,
    /// Nobody listens there.
    Refused,
    /// No answer in time.
    Silent,
}

/// Why a request failed. Its text is safe to show: no address, no password, no body.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the agent's server cannot be reached")]
    Unreachable(#[source] io::Error),
    #[error("the agent's server closed the connection")]
    Closed,
    #[error("the agent's server did not answer within {} s", .0.as_secs_f64())]
    Deadline(Duration),
    #[error("the agent's server answered {status}{}", .message.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        status: u16,
        /// The server's own error name and message, if it sent one.
        message: Option<String>,
    },
    #[error("the agent's server answered something that is not understood")]
    Format,
}

/// A session to create.
#[derive(Clone, Debug, Default)]
pub struct NewSession {
    /// Given, it spares the model call that makes one up.
    pub title: String,
    pub directory: Option<String>,
}

/// A message to a session.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    pub text: String,
    /// Provider and model; the configured one when not given.
    pub model: Option<(String, String)>,
    pub variant: Option<String>,
    pub agent: Option<String>,
}

/// One server.
#[derive(Clone)]
pub struct Client {
    connect: Arc<dyn Connect>,
    credentials: Option<Credentials>,
}

impl Client {
    pub fn new(connect: Arc<dyn Connect>, credentials: Option<Credentials>) -> Self {
        Client {
            connect,
            credentials,
        }
    }

    /// Of any server by its address, such as `http://127.0.0.1:4096`.
    pub fn of_url(
        _base_url: &str,
        _credentials: Option<Credentials>,
    ) -> Result<Self, url::ParseError> {
        todo!()
    }

    /// `/global/health`, or `/doc` of a version without it.
    pub async fn health(&self, _limit: Duration) -> Health {
        todo!()
    }

    /// One request with a JSON body and answer, for everything that has no function of its own.
    pub async fn request(
        &self,
        _method: hyper::Method,
        _path_and_query: &str,
        _body: Option<Value>,
        _limit: Duration,
    ) -> Result<Value, ClientError> {
        let _ = (&self.connect, &self.credentials);
        todo!()
    }

    pub async fn create_session(&self, _session: &NewSession) -> Result<String, ClientError> {
        todo!()
    }

    /// The whole transcript, as `[{info, parts}…]`.
    pub async fn messages(&self, _session: &str) -> Result<Vec<Value>, ClientError> {
        todo!()
    }

    /// Sends a message and waits for the end of the agent's work on it, however long that takes. Returns the last message of
    /// the answer.
    pub async fn message(&self, _session: &str, _prompt: &Prompt) -> Result<Value, ClientError> {
        todo!()
    }

    pub async fn abort(&self, _session: &str) -> Result<(), ClientError> {
        todo!()
    }

    /// Has the server read its configuration and a directory's files (AGENTS.md, `.opencode`) again at the next use.
    pub async fn dispose_instance(&self, _directory: &str) -> Result<(), ClientError> {
        todo!()
    }

    /// The server's events about one directory, from now on.
    pub async fn events(&self, _directory: Option<&str>) -> Result<Events, ClientError> {
        todo!()
    }
}

/// A stream of events; ends with the connection.
pub struct Events {}

impl Events {
    /// The next event, `{type, properties}`; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        todo!()
    }
}
