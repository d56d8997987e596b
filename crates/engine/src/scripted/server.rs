//! The scripted endpoint on a socket: routes, keys, and closing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{self, Head};
use super::log::{Log, Served};
use super::request;
use super::{Script, completion, player, template};

const BODY_BYTES_MAX: usize = 64 << 20;
/// How long open answers may take to finish once the endpoint is asked to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How to start the endpoint.
#[derive(Debug, Default)]
pub struct Options {
    /// 0 takes a free one.
    pub port: u16,
    /// Played for every key that was not added, and for requests without one.
    pub default_script: Option<Script>,
    /// Gets a copy of every answer.
    pub log: Option<Arc<Log>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptedError {
    #[error(
        "port {0} on 127.0.0.1 is in use: stop the program that has it, or choose another port (0 takes a free one)"
    )]
    PortInUse(u16),
    #[error("listen on 127.0.0.1 port {port}")]
    Listen { port: u16, source: io::Error },
    #[error("read random bytes for a key from /dev/urandom")]
    Key(#[source] io::Error),
}

/// A running scripted endpoint. Dropping it stops it without waiting; [`Scripted::close`] waits.
#[derive(Debug)]
pub struct Scripted {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
    listening: AbortHandle,
}

/// A script's key for the time of one rollout.
#[derive(Debug)]
pub struct Lease {
    key: String,
    shared: Arc<Shared>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.forget(&self.key);
    }
}

#[derive(Debug)]
struct Shared {
    scripts: RwLock<HashMap<String, Arc<Script>>>,
    default_script: Option<Arc<Script>>,
    log: Option<Arc<Log>>,
}

impl Scripted {
    /// Listens on 127.0.0.1 and serves until closed or dropped.
    pub async fn start(options: Options) -> Result<Scripted, ScriptedError> {
        let port = options.port;
        let listen_error = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ScriptedError::PortInUse(port),
            _ => ScriptedError::Listen { port, source },
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let shared = Arc::new(Shared {
            scripts: RwLock::default(),
            default_script: options.default_script.map(Arc::new),
            log: options.log,
        });
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        // Otherwise the small writes of a stream wait for acknowledgements that the other side delays.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "no TCP_NODELAY on a scripted connection");
            }
        });
        let serving = axum::serve(listener, router(Arc::clone(&shared)))
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        let task = tasks.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the scripted endpoint stopped");
            }
        });
        tasks.close();
        Ok(Scripted {
            address,
            shared,
            stop,
            tasks,
            listening: task.abort_handle(),
        })
    }

    /// What an OpenAI client takes as its base URL.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Takes a script and returns the API key that plays it.
    pub fn add(&self, script: Script) -> Result<String, ScriptedError> {
        let key = random_key().map_err(ScriptedError::Key)?;
        let mut scripts = self
            .shared
            .scripts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        scripts.insert(key.clone(), Arc::new(script));
        Ok(key)
    }

    /// Keeps a key for as long as the answer lives, then forgets it.
    pub fn lease(&self, key: &str) -> Lease {
        Lease {
            key: key.to_owned(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Forgets a key; answers that are under way go on.
    pub fn remove(&self, key: &str) {
        self.shared.forget(key);
    }

    /// Stops listening and waits for open answers, but not for ever.
    pub async fn close(&self) {
        self.stop.cancel();
        if tokio::time::timeout(CLOSE_LIMIT, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("the scripted endpoint still had open answers when it closed");
            self.listening.abort();
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    fn forget(&self, key: &str) {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        scripts.remove(key);
    }

    fn script(&self, headers: &HeaderMap) -> Option<(String, Arc<Script>)> {
        let key = bearer(headers).unwrap_or_default();
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        let script = scripts.get(key).or(self.default_script.as_ref())?;
        Some((key.to_owned(), Arc::clone(script)))
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat).fallback(not_found))
        .route("/v1/models", get(models).fallback(not_found))
        .route("/health", get(StatusCode::OK).fallback(not_found))
        .fallback(not_found)
        .with_state(shared)
}

async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let Some((key, script)) = shared.script(request.headers()) else {
        return unauthorized();
    };
    let body = match to_bytes(request.into_body(), BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => {
            let message = format!("the body cannot be read or is over 64 MiB: {error}");
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &message);
        }
    };
    answer(&shared, key, &script, &body)
}

/// Everything between a request's body and its answer; nothing here waits.
fn answer(shared: &Shared, key: String, script: &Script, body: &[u8]) -> Response {
    let request = match request::parse(body) {
        Ok(request) => request,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let reply = match player::next(&request, script) {
        Ok(reply) => reply,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let wants = request.wants();
    let prompt_ids = template::prompt(&request);
    let completion = completion::complete(prompt_ids, reply, request.tokens_max());
    if let Some(log) = &shared.log {
        log.push(Served {
            key,
            request: String::from_utf8_lossy(body).into_owned(),
            prompt_ids: completion.prompt_ids.clone(),
            sampled_ids: completion.tokens.iter().map(|token| token.id).collect(),
            logprobs: completion.logprobs.clone(),
            finish_reason: completion.finish.name(),
            is_stream: wants.stream,
        });
    }
    let head = Head {
        id: format!("chatcmpl-{}", uuid::Uuid::now_v7().simple()),
        created: now_s(),
        model: script.model.clone(),
    };
    if !wants.stream {
        return json_response(StatusCode::OK, &answer::whole(&completion, &head, wants));
    }
    let events = answer::events(completion, head, wants).map(Ok::<_, Infallible>);
    let body = Body::from_stream(futures::stream::iter(events));
    respond(StatusCode::OK, "text/event-stream; charset=utf-8", body)
}

async fn models(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let Some((_, script)) = shared.script(&headers) else {
        return unauthorized();
    };
    let model = json!({
        "id": script.model,
        "object": "model",
        "created": now_s(),
        "owned_by": "rollcage",
        "root": script.model,
        "parent": null,
        "max_model_len": null,
    });
    json_response(StatusCode::OK, &json!({"object": "list", "data": [model]}))
}

async fn not_found(request: Request) -> Response {
    let message = format!("there is no {} {}", request.method(), request.uri().path());
    refuse(StatusCode::NOT_FOUND, &message)
}

fn unauthorized() -> Response {
    let message = "unknown API key: this endpoint has no script for it";
    refuse(StatusCode::UNAUTHORIZED, message)
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "AuthenticationError",
        StatusCode::NOT_FOUND => "NotFoundError",
        _ => "BadRequestError",
    };
    let error = json!({"message": message, "type": kind, "param": null, "code": status.as_u16()});
    json_response(status, &json!({"error": error}))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    respond(status, "application/json", Body::from(body.to_string()))
}

fn respond(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn random_key() -> io::Result<String> {
    let mut bytes = [0; 24];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sk-scripted-{digits}"))
}
