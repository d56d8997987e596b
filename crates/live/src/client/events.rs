//! The server's event stream.

use std::collections::VecDeque;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use rollcage_dialect::sse::Splitter;
use serde_json::Value;

use super::exchange::{Connection, refusal};
use super::{Client, ClientError, json, with_directory};

/// An event holds at most one part of a message, and the largest part is a tool's output.
const EVENT_BYTES_MAX: usize = 16 << 20;
/// The server sends a heartbeat every ten seconds; longer silence means that the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The first use of a directory starts an instance for it.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// A stream of events; ends with the connection.
pub struct Events {
    connection: Connection,
    body: Incoming,
    splitter: Splitter,
    ready: VecDeque<Value>,
}

impl Client {
    /// The server's events about one directory, from now on.
    pub async fn events(&self, directory: Option<&str>) -> Result<Events, ClientError> {
        self.open_events(&with_directory("/event", directory)).await
    }

    /// The events of all directories, each as `{directory, payload}`. Starts no instance, so heartbeats can be had from a
    /// server that does nothing else.
    pub async fn global_events(&self) -> Result<Events, ClientError> {
        self.open_events("/global/event").await
    }

    async fn open_events(&self, path: &str) -> Result<Events, ClientError> {
        let opened = async {
            let (mut connection, response) = self.send(Method::GET, path, None).await?;
            if !response.status().is_success() {
                return Err(refusal(&mut connection, response).await);
            }
            Ok(Events {
                connection,
                body: response.into_body(),
                splitter: Splitter::new(EVENT_BYTES_MAX),
                ready: VecDeque::new(),
            })
        };
        match tokio::time::timeout(OPEN_LIMIT, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(ClientError::Deadline(OPEN_LIMIT)),
        }
    }
}

impl Events {
    /// The next event, `{type, properties}`; `None` at the end, which silence for longer than the server's heartbeat, or an
    /// event beyond all measure, also is. Cancel-safe.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = self.connection.during(self.body.frame());
            let frame = tokio::time::timeout(SILENCE_MAX, frame).await.ok()??.ok()?;
            let Some(bytes) = frame.data_ref() else {
                continue;
            };
            // What is no JSON is no event of this server; it passes.
            let events = self.splitter.push(bytes).ok()?;
            let data = events.into_iter().filter_map(|event| event.data);
            self.ready
                .extend(data.filter_map(|data| json::parse(data.as_bytes())));
        }
    }
}
