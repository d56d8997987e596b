//! The HTTP interface of `opencode serve`. Every request has a connection of its own: a server that hangs at its start never
//! answers on connections of that time.
//!
//! Reading order: this file has the routes, `exchange` one request on one connection, `events` the event stream, `health` what
//! a probe makes of an answer, `address` servers that are known by a URL, `json` how much an answer may hold, `safe` the texts that may be
//! shown.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use hyper::Method;
use rollcage_model::live::Answer;
use rollcage_sandbox::BoxedStream;
use serde_json::{Value, json};

mod address;
mod events;
mod exchange;
mod health;
mod json;
pub(crate) mod safe;
#[cfg(test)]
mod tests;

pub use address::AddressError;
pub use events::Events;
pub use health::Health;

/// The first use of a directory starts an instance for it, which takes seconds on a busy machine.
const CREATE_LIMIT: Duration = Duration::from_secs(60);
/// A long transcript is tens of megabytes.
const MESSAGES_LIMIT: Duration = Duration::from_secs(60);
const SHORT_LIMIT: Duration = Duration::from_secs(10);
/// Waiting for longer does not help: a healthy server answers within milliseconds.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// The server's own ids have 30.
const ID_BYTES_MAX: usize = 128;
/// As long as a path can be.
const DIRECTORY_BYTES_MAX: usize = 4096;

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
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::from)?;
        Ok(Credentials {
            username: "opencode".to_owned(),
            password: BASE64_URL_SAFE_NO_PAD.encode(bytes),
        })
    }

    /// The value of the `authorization` header.
    pub(crate) fn header(&self) -> String {
        let pair = format!("{}:{}", self.username, self.password);
        format!("Basic {}", BASE64_STANDARD.encode(pair))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .finish_non_exhaustive()
    }
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

/// A session that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    pub id: String,
    /// Where the server works for it; events, permission requests and questions are kept by directory.
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
    /// The `host` header.
    host: String,
    /// Stands before every path; empty, or begins with a slash and does not end with one.
    prefix: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    pub fn new(connect: Arc<dyn Connect>, credentials: Option<Credentials>) -> Self {
        Client {
            connect,
            credentials,
            host: "127.0.0.1".to_owned(),
            prefix: String::new(),
        }
    }

    /// One request with a JSON body and answer, for everything that has no function of its own. An empty answer is null.
    pub async fn request(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<Value>,
        limit: Duration,
    ) -> Result<Value, ClientError> {
        let answer = self.exchange(method, path_and_query, body);
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::Deadline(limit)),
        }
    }

    /// Returns the new session's id.
    pub async fn create_session(&self, session: &NewSession) -> Result<String, ClientError> {
        Ok(self.open_session(session).await?.id)
    }

    /// As [`Client::create_session`], with all that is known of it.
    pub async fn open_session(&self, session: &NewSession) -> Result<SessionInfo, ClientError> {
        let path = with_directory("/session", session.directory.as_deref());
        let body = if session.title.is_empty() {
            json!({})
        } else {
            json!({ "title": session.title })
        };
        session_info(&self.post(&path, Some(body), CREATE_LIMIT).await?)
    }

    pub async fn session(&self, session: &str) -> Result<SessionInfo, ClientError> {
        let path = format!("/session/{}", segment(session));
        session_info(&self.get(&path, CREATE_LIMIT).await?)
    }

    /// The ids of the sessions that subagents of this one have.
    pub async fn children(&self, session: &str) -> Result<Vec<String>, ClientError> {
        let path = format!("/session/{}/children", segment(session));
        let children = array(self.get(&path, SHORT_LIMIT).await?)?;
        let ids = children.iter().filter_map(|child| child["id"].as_str());
        Ok(ids.filter(|id| is_id(id)).map(str::to_owned).collect())
    }

    /// The whole transcript, as `[{info, parts}…]`.
    pub async fn messages(&self, session: &str) -> Result<Vec<Value>, ClientError> {
        let path = format!("/session/{}/message", segment(session));
        array(self.get(&path, MESSAGES_LIMIT).await?)
    }

    /// The newest messages of the transcript, the oldest of them first.
    pub async fn latest_messages(
        &self,
        session: &str,
        count: usize,
    ) -> Result<Vec<Value>, ClientError> {
        let path = format!("/session/{}/message?limit={count}", segment(session));
        array(self.get(&path, MESSAGES_LIMIT).await?)
    }

    /// Whether the agent works on the session, or waits to try a model call again.
    pub async fn is_busy(
        &self,
        session: &str,
        directory: Option<&str>,
    ) -> Result<bool, ClientError> {
        let path = with_directory("/session/status", directory);
        let statuses = self.get(&path, SHORT_LIMIT).await?;
        let status = statuses.as_object().ok_or(ClientError::Format)?;
        Ok(status
            .get(session)
            .is_some_and(|status| status["type"] != "idle"))
    }

    /// Sends a message and waits for the end of the agent's work on it, however long that takes. Returns the last message of
    /// the answer. Dropped, it closes its connection, and the agent goes on.
    pub async fn message(&self, session: &str, prompt: &Prompt) -> Result<Value, ClientError> {
        let path = format!("/session/{}/message", segment(session));
        self.exchange(Method::POST, &path, Some(message_body(prompt)))
            .await
    }

    pub async fn abort(&self, session: &str) -> Result<(), ClientError> {
        let path = format!("/session/{}/abort", segment(session));
        self.post(&path, None, ABORT_LIMIT).await.map(drop)
    }

    /// Removes a session with its messages.
    pub async fn delete_session(&self, session: &str) -> Result<(), ClientError> {
        let path = format!("/session/{}", segment(session));
        let deleted = self.request(Method::DELETE, &path, None, SHORT_LIMIT);
        deleted.await.map(drop)
    }

    /// Has the server read its configuration and a directory's files (AGENTS.md, `.opencode`) again at the next use.
    pub async fn dispose_instance(&self, directory: &str) -> Result<(), ClientError> {
        let path = with_directory("/instance/dispose", Some(directory));
        self.post(&path, None, CREATE_LIMIT).await.map(drop)
    }

    /// The permission requests of a directory that nobody has answered.
    pub async fn permissions(&self, directory: Option<&str>) -> Result<Vec<Value>, ClientError> {
        let path = with_directory("/permission", directory);
        array(self.get(&path, SHORT_LIMIT).await?)
    }

    /// The questions of a directory that nobody has answered.
    pub async fn questions(&self, directory: Option<&str>) -> Result<Vec<Value>, ClientError> {
        let path = with_directory("/question", directory);
        array(self.get(&path, SHORT_LIMIT).await?)
    }

    /// Answers a permission request. Words in place of a permission refuse it, and the agent is told them.
    pub async fn answer_permission(
        &self,
        id: &str,
        directory: Option<&str>,
        answer: &Answer,
    ) -> Result<(), ClientError> {
        let refuse = |message: &str| json!({ "reply": "reject", "message": message });
        let body = match answer {
            Answer::Once => json!({ "reply": "once" }),
            Answer::Always => json!({ "reply": "always" }),
            Answer::Reject { message: None } => json!({ "reply": "reject" }),
            Answer::Reject {
                message: Some(message),
            } => refuse(message),
            Answer::Choose { answers } => refuse(&answers.concat().join(", ")),
        };
        let path = format!("/permission/{}/reply", segment(id));
        let path = with_directory(&path, directory);
        self.post(&path, Some(body), SHORT_LIMIT).await.map(drop)
    }

    /// Answers a question. Whatever has no words in it rejects it.
    pub async fn answer_question(
        &self,
        id: &str,
        directory: Option<&str>,
        answer: &Answer,
    ) -> Result<(), ClientError> {
        let (verb, body) = match answer {
            Answer::Choose { answers } => ("reply", Some(json!({ "answers": answers }))),
            Answer::Once | Answer::Always | Answer::Reject { .. } => ("reject", None),
        };
        let path = with_directory(&format!("/question/{}/{verb}", segment(id)), directory);
        self.post(&path, body, SHORT_LIMIT).await.map(drop)
    }

    async fn get(&self, path: &str, limit: Duration) -> Result<Value, ClientError> {
        self.request(Method::GET, path, None, limit).await
    }

    async fn post(
        &self,
        path: &str,
        body: Option<Value>,
        limit: Duration,
    ) -> Result<Value, ClientError> {
        self.request(Method::POST, path, body, limit).await
    }
}

fn message_body(prompt: &Prompt) -> Value {
    let mut body = json!({ "parts": [{ "type": "text", "text": prompt.text }] });
    if let Some((provider, model)) = &prompt.model {
        body["model"] = json!({ "providerID": provider, "modelID": model });
    }
    if let Some(variant) = &prompt.variant {
        body["variant"] = json!(variant);
    }
    if let Some(agent) = &prompt.agent {
        body["agent"] = json!(agent);
    }
    body
}

fn session_info(session: &Value) -> Result<SessionInfo, ClientError> {
    let id = session["id"].as_str().filter(|id| is_id(id));
    let directory = session["directory"].as_str();
    if directory.is_some_and(|directory| directory.len() > DIRECTORY_BYTES_MAX) {
        return Err(ClientError::Format);
    }
    Ok(SessionInfo {
        id: id.ok_or(ClientError::Format)?.to_owned(),
        directory: directory.map(str::to_owned),
    })
}

fn array(value: Value) -> Result<Vec<Value>, ClientError> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(ClientError::Format),
    }
}

/// Whether this may be an id of the server's. It stands in paths and in every reply, and an agent that replaces its server
/// chooses it.
pub(crate) fn is_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(is_plain)
}

/// An id as one part of a path, whatever a caller put into it.
fn segment(id: &str) -> String {
    url::form_urlencoded::byte_serialize(id.as_bytes()).collect()
}

fn with_directory(path: &str, directory: Option<&str>) -> String {
    match directory {
        Some(directory) => format!("{path}?directory={}", segment(directory)),
        None => path.to_owned(),
    }
}
