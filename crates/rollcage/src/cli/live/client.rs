//! The REST API of whoever owns live agents: a supervisor at its socket, or a server.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use rollcage_dialect::sse::Splitter;
use rollcage_model::live::{ErrorCode, Reply, ReplyKind};
use rollcage_proxy::outbound;
use rollcage_proxy::secret::Secret;

use super::directory::AgentDirectory;
use crate::UsageError;

/// For short calls; a stream is limited by its keep-alives instead.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// One reply: the output of a tool may be long.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// Why a call failed, as the API tells it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct ApiFailure {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

#[derive(Clone)]
pub(super) struct Api {
    client: reqwest::Client,
    base_url: String,
    token: Option<Secret>,
    /// Keeps the short path to a socket valid.
    _directory: Option<Arc<OwnedFd>>,
}

impl Api {
    pub(super) fn at_socket(agent: &AgentDirectory) -> anyhow::Result<Self> {
        let (socket, directory) = agent.short_socket().context("find the agent's socket")?;
        Ok(Api {
            client: outbound::socket_client(&socket).context("make a client")?,
            base_url: "http://localhost".to_owned(),
            token: None,
            _directory: Some(Arc::new(directory)),
        })
    }

    pub(super) fn at_server(url: &str, token: Option<Secret>) -> anyhow::Result<Self> {
        let base_url = url.trim_end_matches('/').to_owned();
        let is_web = base_url.starts_with("http://") || base_url.starts_with("https://");
        if !is_web {
            let text = format!("--server {url}: say http://HOST:PORT or https://HOST");
            return Err(UsageError(text).into());
        }
        Ok(Api {
            client: outbound::client(&base_url).context("make a client")?,
            base_url,
            token,
            _directory: None,
        })
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let response = self.send(Method::GET, path, None, Wait::Short).await?;
        json(response).await
    }

    pub(super) async fn get_text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(Method::GET, path, None, Wait::Short).await?;
        response.text().await.context("read the answer")
    }

    pub(super) async fn post(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let response = self.send(Method::POST, path, body, Wait::Short).await?;
        json(response).await
    }

    /// Like [`Api::post`], for an answer without a body.
    pub(super) async fn post_empty(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        self.send(Method::POST, path, Some(body), Wait::Short)
            .await?;
        Ok(())
    }

    /// Like [`Api::post`], for a start, which takes as long as setup commands do.
    pub(super) async fn post_slow(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let response = self.send(Method::POST, path, body, Wait::Long).await?;
        json(response).await
    }

    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.send(Method::DELETE, path, None, Wait::Short).await?;
        Ok(())
    }

    /// Queues a turn and follows its replies.
    pub(super) async fn turn(&self, id: &str, input: &Value) -> anyhow::Result<Replies> {
        let path = format!("/v1/live/{id}/turns");
        let response = self
            .send(Method::POST, &path, Some(input), Wait::Stream)
            .await?;
        let location = response.headers().get(reqwest::header::LOCATION);
        let path = location.and_then(|value| value.to_str().ok());
        let path = path.context("the answer names no turn")?.to_owned();
        let turn_id = path.rsplit('/').next().unwrap_or_default().to_owned();
        let bytes = response.bytes_stream();
        let bytes = bytes.map(|chunk| chunk.map(|chunk| chunk.to_vec()).map_err(Into::into));
        Ok(Replies {
            path,
            last: Reply {
                trace_id: input["trace_id"].as_str().unwrap_or(&turn_id).to_owned(),
                seq: 0,
                turn_id,
                session_id: None,
                kind: lost(),
            },
            bytes: bytes.boxed(),
            splitter: Splitter::new(EVENT_BYTES_MAX),
            waiting: Vec::new().into(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        wait: Wait,
    ) -> anyhow::Result<Response> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.base_url));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        if let Some(body) = body {
            let json = reqwest::header::HeaderValue::from_static("application/json");
            request = request
                .header(reqwest::header::CONTENT_TYPE, json)
                .body(body.to_string());
        }
        request = match wait {
            Wait::Short => request.timeout(CALL_LIMIT),
            // The client's own limit on silence holds.
            Wait::Long => request,
            Wait::Stream => request.header(reqwest::header::ACCEPT, "text/event-stream"),
        };
        let response = request.send().await.map_err(without_url);
        let response = response.context("ask whoever has the live agent")?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(failure(response).await),
        }
    }
}

enum Wait {
    Short,
    Long,
    Stream,
}

/// A socket's URL says nothing, and a server's may hold a password.
fn without_url(error: reqwest::Error) -> reqwest::Error {
    error.without_url()
}

async fn json(response: Response) -> anyhow::Result<Value> {
    let body = response.bytes().await.map_err(without_url);
    let body = body.context("read the answer")?;
    serde_json::from_slice(&body).context("the answer is not JSON")
}

/// What is wrong with the request is the user's mistake, anything else is not.
async fn failure(response: Response) -> anyhow::Error {
    let status = response.status();
    let body = response.bytes().await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let said = body["error"]["message"].as_str();
    let said = said.or(body["detail"].as_str());
    let message = said.map_or_else(|| format!("the answer is {status}"), str::to_owned);
    let failure = ApiFailure { status, message };
    match status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        true => anyhow::Error::new(UsageError(failure.message)),
        false => failure.into(),
    }
}

/// The replies of one turn, to the terminal one.
pub(super) struct Replies {
    /// The turn's own path.
    path: String,
    /// What ends the turn here if the connection ends first, numbered like the last reply that came.
    last: Reply,
    bytes: BoxStream<'static, anyhow::Result<Vec<u8>>>,
    splitter: Splitter,
    waiting: std::collections::VecDeque<Reply>,
}

impl Replies {
    pub(super) fn turn_path(&self) -> &str {
        &self.path
    }

    /// The next reply. A stream that ends before the terminal one is ended by one of ours.
    pub(super) async fn next(&mut self) -> anyhow::Result<Reply> {
        loop {
            if let Some(reply) = self.waiting.pop_front() {
                self.last.seq = reply.seq;
                self.last.session_id.clone_from(&reply.session_id);
                return Ok(reply);
            }
            let Some(Ok(chunk)) = self.bytes.next().await else {
                self.last.seq += 1;
                return Ok(self.last.clone());
            };
            for event in self.splitter.push(&chunk)? {
                if let Some(data) = event.data {
                    let reply = serde_json::from_str(&data).context("read a reply")?;
                    self.waiting.push_back(reply);
                }
            }
        }
    }
}

fn lost() -> ReplyKind {
    ReplyKind::Error {
        code: ErrorCode::Interrupted,
        message: "the connection ended before the turn: whoever has the agent was ended, or is out of reach".to_owned(),
        retryable: true,
    }
}
