//! The OpenEnv wire: a server that OpenEnv's own clients cannot tell from the original.
//!
//! `route` says what each path is, `session` keeps the environments, `socket` and `mcp` carry requests to `call`, which
//! calls the tools. Nothing here knows what a rollout is.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value};
use tokio_util::task::TaskTracker;

use super::access::Owner;
use super::listen::Ending;
use super::reply;
use super::tasks::Tasks;
use super::tool::Tools;
use super::websocket::handshake;

mod action;
mod call;
mod control;
mod info;
mod long;
mod mcp;
mod message;
mod problem;
mod result;
mod route;
mod rpc;
mod session;
mod socket;
mod task_api;

use long::Patience;
use route::Route;
use session::Sessions;
use socket::Dialect;

/// Whether the environment is driven from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// With /reset, /step and /state over HTTP
    #[default]
    Simulation,
    /// Without them
    Production,
}

/// How long is too long, and how much too much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For a step that names no limit of its own.
    pub(crate) step: Duration,
    /// For a session that no socket holds and no call uses.
    pub(crate) session_idle: Duration,
    pub(crate) body_bytes_max: usize,
    pub(crate) body_read: Duration,
    pub(crate) patience: Patience,
    pub(crate) ping_every: Duration,
    /// A socket that sends nothing for so long, not even pongs, is dead.
    pub(crate) silence_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            step: Duration::from_secs(900),
            session_idle: Duration::from_secs(3600),
            body_bytes_max: 32 << 20,
            body_read: Duration::from_secs(60),
            patience: Patience {
                grace: Duration::from_secs(5),
                every: Duration::from_secs(5),
            },
            ping_every: Duration::from_secs(20),
            silence_max: Duration::from_secs(45),
        }
    }
}

/// What a server is made of.
pub(crate) struct WireOptions {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sessions_max: usize,
    /// Kept at how many there are.
    pub(crate) open_sessions: Arc<AtomicUsize>,
    pub(crate) limits: Limits,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) tools: Arc<dyn Tools>,
    /// OpenAPI paths of what is served beside OpenEnv's routes.
    pub(crate) extra_paths: Map<String, Value>,
    pub(crate) ending: Ending,
}

/// The server's state.
pub(crate) struct Wire {
    name: String,
    mode: Mode,
    limits: Limits,
    tools: Arc<dyn Tools>,
    tasks: Arc<Tasks>,
    sessions: Arc<Sessions>,
    documents: info::Documents,
    ending: Ending,
    /// Sockets, and steps that outlived theirs.
    tasks_under_way: TaskTracker,
}

impl Wire {
    pub(crate) fn new(options: WireOptions) -> Self {
        let documents = info::Documents::new(&options.name, options.mode, options.extra_paths);
        Wire {
            name: options.name,
            mode: options.mode,
            limits: options.limits,
            tools: options.tools,
            tasks: options.tasks,
            sessions: Arc::new(Sessions::new(options.sessions_max, options.open_sessions)),
            documents,
            ending: options.ending,
            tasks_under_way: TaskTracker::new(),
        }
    }

    /// Destroys idle sessions until the server stops.
    pub(crate) async fn reap(&self) {
        let limit = self.limits.session_idle;
        let every = (limit / 4).clamp(Duration::from_millis(50), Duration::from_secs(60));
        let stopping = &self.ending.stopping;
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

    /// Waits for the sockets, and for the steps that outlived theirs.
    pub(crate) async fn drained(&self) {
        self.tasks_under_way.close();
        self.tasks_under_way.wait().await;
    }
}

/// Answers every request that is not for something else.
pub(crate) async fn answer(wire: Arc<Wire>, mut request: Request) -> Response {
    let owner = request.extensions_mut().remove::<Owner>();
    let Some(owner) = owner else {
        tracing::error!("a request came past the check of access");
        return reply::detail(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
    };
    let path = request.uri().path();
    let route = Route::of(path, wire.mode);
    if handshake::is_websocket(request.headers()) {
        return match route {
            Some(Route::Ws) => socket::upgrade(wire, Dialect::Environment, owner, request),
            Some(Route::Mcp) => socket::upgrade(wire, Dialect::JsonRpc, owner, request),
            _ => reply::detail(StatusCode::FORBIDDEN, "no WebSocket is served here"),
        };
    }
    let Some(route) = route.filter(|route| *route != Route::Ws) else {
        return match path.strip_suffix('/') {
            Some(shorter) if Route::of(shorter, wire.mode).is_some() => redirect(&request, shorter),
            _ => reply::not_found(),
        };
    };
    if route.method() != *request.method() {
        return reply::wrong_method(&route.method());
    }
    match route {
        Route::Health => reply::whole(StatusCode::OK, reply::JSON, r#"{"status":"healthy"}"#),
        Route::Metadata => document(&wire.documents.metadata),
        Route::Schema => document(&wire.documents.schema),
        Route::OpenApi => document(&wire.documents.openapi),
        Route::Docs | Route::Redoc => reply::html(wire.documents.page.clone()),
        Route::State => control::state(owner),
        Route::Reset => control::reset(&wire, owner, request).await,
        Route::Step => control::step(&wire, owner, request).await,
        Route::Mcp => mcp::post(wire, owner, request).await,
        Route::ListEnvironments => reply::json(StatusCode::OK, &[&wire.name]),
        Route::Tasks(env, call) => {
            let (env, call) = (env.to_owned(), call);
            task_api::answer(&wire, &env, call, request).await
        }
        Route::Ws => reply::not_found(),
    }
}

fn document(bytes: &Bytes) -> Response {
    reply::whole(StatusCode::OK, reply::JSON, bytes.clone())
}

/// To the same place without the slash at the end.
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
