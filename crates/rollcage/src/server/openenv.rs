//! The OpenEnv protocol: a server that OpenEnv's own clients cannot distinguish from the original.
//!
//! `route` parses paths, `session` holds the environments, `socket` and `mcp` pass requests to `call`, which calls the
//! tools. Nothing here knows what a rollout is.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use super::access::Owner;
use super::listen::Shutdown;
use super::reply;
use super::tasks::Tasks;
use super::tool::Tools;
use super::websocket::handshake;

mod action;
mod call;
mod control;
mod describe;
mod info;
mod long_answer;
mod mcp;
mod message;
mod problem;
mod result;
mod route;
mod rpc;
mod schema;
mod session;
mod socket;
mod task_api;
mod web;

#[cfg(test)]
pub(crate) use describe::extended as openapi;
use long_answer::KeepAlive;
use route::Route;
use session::Sessions;
use socket::SocketProtocol;

/// Which routes control the environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// With /reset, /step and /state over HTTP
    #[default]
    Simulation,
    /// Without them
    Production,
}

/// Limits of time and size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For a step without a limit of its own.
    pub(crate) step: Duration,
    /// For a session that no socket holds and no call uses.
    pub(crate) session_idle: Duration,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_read: Duration,
    pub(crate) keep_alive: KeepAlive,
    pub(crate) ping_every: Duration,
    /// A socket that sends nothing for this long, not even pongs, is dead.
    pub(crate) silence_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            step: Duration::from_secs(900),
            session_idle: Duration::from_secs(3600),
            body_bytes_max: 32 << 20,
            body_read: Duration::from_secs(60),
            keep_alive: KeepAlive {
                grace: Duration::from_secs(5),
                every: Duration::from_secs(5),
            },
            ping_every: Duration::from_secs(20),
            silence_max: Duration::from_secs(45),
        }
    }
}

/// The options of an OpenEnv server.
pub(crate) struct OpenEnvOptions {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sessions_max: usize,
    /// The number of open sessions, updated by the server.
    pub(crate) open_sessions: Arc<AtomicUsize>,
    pub(crate) limits: Limits,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) tools: Arc<dyn Tools>,
    /// The routes that are served in addition to OpenEnv's as an OpenAPI document, to which those are added.
    pub(crate) document: Value,
    /// Whether there is a page for people, and with it the routes that the original has for its own.
    pub(crate) has_page: bool,
    pub(crate) shutdown: Shutdown,
}

/// The state of an OpenEnv server.
pub(crate) struct OpenEnvServer {
    name: String,
    mode: Mode,
    has_page: bool,
    limits: Limits,
    tools: Arc<dyn Tools>,
    tasks: Arc<Tasks>,
    sessions: Arc<Sessions>,
    page_sessions: web::PageSessions,
    documents: info::Documents,
    shutdown: Shutdown,
    /// Sockets, and steps that outlived their socket.
    tasks_under_way: TaskTracker,
}

impl OpenEnvServer {
    pub(crate) fn new(options: OpenEnvOptions) -> Self {
        let documents = info::Documents::new(&options.name, options.mode, options.document);
        OpenEnvServer {
            name: options.name,
            mode: options.mode,
            has_page: options.has_page,
            limits: options.limits,
            tools: options.tools,
            tasks: options.tasks,
            sessions: Arc::new(Sessions::new(options.sessions_max, options.open_sessions)),
            page_sessions: web::PageSessions::default(),
            documents,
            shutdown: options.shutdown,
            tasks_under_way: TaskTracker::new(),
        }
    }

    /// Destroys idle sessions until the server stops.
    pub(crate) async fn reap(&self) {
        let limit = self.limits.session_idle;
        let every = (limit / 4).clamp(Duration::from_millis(50), Duration::from_secs(60));
        let stopping = &self.shutdown.stopping;
        while stopping
            .run_until_cancelled(tokio::time::sleep(every))
            .await
            .is_some()
        {
            let reaped = self.sessions.reap(Instant::now(), limit);
            if reaped > 0 {
                tracing::info!(reaped, "closed idle sessions");
            }
        }
    }

    /// Waits for the sockets, and for steps that outlived their socket.
    pub(crate) async fn drained(&self) {
        self.tasks_under_way.close();
        self.tasks_under_way.wait().await;
    }
}

/// Answers every request that no other route handles.
pub(crate) async fn answer(server: Arc<OpenEnvServer>, mut request: Request) -> Response {
    let owner = request.extensions_mut().remove::<Owner>();
    let Some(owner) = owner else {
        tracing::error!("a request came past the check of access");
        return reply::detail(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
    };
    let path = request.uri().path();
    let route = Route::of(path, server.mode).filter(|route| server.has_page || !route.is_of_page());
    if handshake::is_websocket(request.headers()) {
        return match route {
            Some(Route::Ws) => socket::upgrade(server, SocketProtocol::Environment, owner, request),
            Some(Route::Mcp) => socket::upgrade(server, SocketProtocol::JsonRpc, owner, request),
            _ => reply::detail(StatusCode::FORBIDDEN, "no WebSocket is served here"),
        };
    }
    let Some(route) = route.filter(|route| *route != Route::Ws) else {
        return match path.strip_suffix('/') {
            Some(shorter) if Route::of(shorter, server.mode).is_some() => {
                redirect(&request, shorter)
            }
            _ => reply::not_found(),
        };
    };
    if route.method() != *request.method() {
        return reply::wrong_method(&route.method());
    }
    match route {
        Route::Health => reply::whole(StatusCode::OK, reply::JSON, r#"{"status":"healthy"}"#),
        Route::Metadata => document(&server.documents.metadata),
        Route::Schema => document(&server.documents.schema),
        Route::OpenApi => document(&server.documents.openapi),
        Route::State => control::state(owner),
        Route::Web(call) => web::answer(&server, call, owner, request).await,
        Route::Reset => control::reset(&server, owner, request).await,
        Route::Step => control::step(&server, owner, request).await,
        Route::Mcp => mcp::post(server, owner, request).await,
        Route::ListEnvironments => reply::json(StatusCode::OK, &[&server.name]),
        Route::Tasks(env, call) => {
            let (env, call) = (env.to_owned(), call);
            task_api::answer(&server, &env, call, request).await
        }
        Route::Ws => reply::not_found(),
    }
}

fn document(bytes: &Bytes) -> Response {
    reply::whole(StatusCode::OK, reply::JSON, bytes.clone())
}

/// Redirects to the same path without the trailing slash.
fn redirect(request: &Request, path: &str) -> Response {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let query = request.uri().query().map(|query| format!("?{query}"));
    let query = query.unwrap_or_default();
    let location = match host {
        Some(host) => format!("http://{host}{path}{query}"),
        None => format!("{path}{query}"),
    };
    let Ok(location) = location.parse() else {
        return reply::not_found();
    };
    let mut response = Response::default();
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, location);
    response
}
