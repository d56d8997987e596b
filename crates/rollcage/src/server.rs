//! The program's HTTP servers, and how the server of `rollcage serve` is assembled and shut down.
//!
//! A request passes `listen` (connections) and `access` (who may call, and as whom). Then `api` answers `/v1` and
//! `/metrics`, `ready` answers `/ready`, `web` the page at `/web/`, and `openenv` everything else: over HTTP, `/mcp`, or `/ws` with the frames of
//! `websocket`. `openenv` calls the `tools` through the interface in `tool`. Below `api` and `tools` are `rollouts`
//! (requests in, views out), `live` (the same for live agents) and `tasks` (the folder of task files). `capture` is a server of its own, `rollcage proxy`.
//!
//! `api` and `openenv` do not know each other; `openenv` knows nothing about rollouts, the tools nothing about sockets,
//! and nothing here uses `cli`.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use rollcage_model::network::address::Block;

pub(crate) mod access;
pub(crate) mod api;
pub(crate) mod capture;
mod client_limit;
#[cfg(test)]
mod harness;
pub(crate) mod listen;
pub(crate) mod live;
mod metrics;
pub(crate) mod openenv;
pub(crate) mod prefix;
pub(crate) mod ready;
mod reply;
pub(crate) mod rollouts;
pub(crate) mod tasks;
pub(crate) mod tool;
pub(crate) mod tools;
pub(crate) mod web;
mod websocket;

use access::{Access, AccessPolicy, WebOrigin};
use listen::Shutdown;
use openenv::{Limits, Mode, OpenEnvOptions, OpenEnvServer};
use prefix::PathPrefix;
use tasks::Tasks;
use tool::Tools;
use web::{Page, PageOptions};

/// For connections to end after their calls were dropped.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// For the shutdown hook, in addition to the rest of the grace period.
const ON_SHUTDOWN_LIMIT: Duration = Duration::from_secs(120);

/// Ends what outlives calls, within the given rest of the grace period.
pub(crate) type ShutdownHook = Box<dyn FnOnce(Duration) -> BoxFuture<'static, ()> + Send>;

/// The parts of a server.
pub(crate) struct ServerOptions {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sessions_max: usize,
    pub(crate) limits: Limits,
    /// The number of open sessions, updated by the server.
    pub(crate) open_sessions: Arc<AtomicUsize>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) policy: AccessPolicy,
    /// Pages of these origins may use the server beside its own.
    pub(crate) origins: Vec<WebOrigin>,
    /// The proxies whose `X-Forwarded-For` counts.
    pub(crate) proxies: Vec<Block>,
    pub(crate) tools: Arc<dyn Tools>,
    /// The page for people; `None` serves none.
    pub(crate) page: Option<PageOptions>,
    /// What a proxy may leave before every path.
    pub(crate) path_prefix: Option<PathPrefix>,
    /// Additional routes behind the same access check; their requests carry an [`access::Owner`].
    pub(crate) extra: Router,
    /// These routes as an OpenAPI document, to which OpenEnv's are added.
    pub(crate) document: Value,
    /// How long running calls may continue after the server was told to stop.
    pub(crate) grace: Duration,
    /// Called when no call is left.
    pub(crate) on_shutdown: ShutdownHook,
}

/// Serves until `stop` resolves, then shuts down in order: accepts nothing new, waits for running calls, ends what
/// outlives them.
pub(crate) async fn serve(
    listener: TcpListener,
    options: ServerOptions,
    stop: impl Future<Output = ()>,
) {
    let shutdown = Shutdown::default();
    let server = Arc::new(OpenEnvServer::new(OpenEnvOptions {
        name: options.name,
        mode: options.mode,
        sessions_max: options.sessions_max,
        open_sessions: options.open_sessions,
        limits: options.limits,
        tasks: options.tasks,
        tools: options.tools,
        document: options.document,
        has_page: options.page.is_some(),
        shutdown: shutdown.clone(),
    }));
    let access = Access::new(options.policy, options.page.is_some());
    let access = Arc::new(access.with_web(options.origins, options.proxies));
    let page = options.page.as_ref().map(Page::new).map(Arc::new);
    let rest = OtherRoutes {
        page,
        openenv: Arc::clone(&server),
    };
    let router = options
        .extra
        .merge(api::session_routes(Arc::clone(&access)))
        .fallback(move |request: Request| rest.clone().answer(request))
        .layer(axum::middleware::from_fn_with_state(access, access::check))
        .layer(axum::middleware::from_fn(reply::protect));
    let router = match options.path_prefix {
        None => router,
        Some(prefix) => prefix.around(router),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(listen::accept(listener, router, shutdown.clone()));
    tasks.spawn({
        let server = Arc::clone(&server);
        async move { server.reap().await }
    });
    stop.await;
    let stopped = Instant::now();
    shutdown.stopping.cancel();
    let mut drained = Box::pin(async {
        while tasks.join_next().await.is_some() {}
        server.drained().await;
    });
    if tokio::time::timeout(options.grace, &mut drained)
        .await
        .is_err()
    {
        tracing::warn!("calls were still running at the end of the grace; they are dropped");
        shutdown.dropping.cancel();
        if tokio::time::timeout(DROP_LIMIT, &mut drained)
            .await
            .is_err()
        {
            tracing::error!("some connections did not end");
        }
    }
    let left = options.grace.saturating_sub(stopped.elapsed());
    if tokio::time::timeout(left + ON_SHUTDOWN_LIMIT, (options.on_shutdown)(left))
        .await
        .is_err()
    {
        tracing::error!("the tools did not end in time");
    }
}

/// What no other route handles.
#[derive(Clone)]
struct OtherRoutes {
    page: Option<Arc<Page>>,
    openenv: Arc<OpenEnvServer>,
}

impl OtherRoutes {
    async fn answer(self, request: Request) -> Response {
        let request = match &self.page {
            None => request,
            Some(page) => match page.answer(request).await {
                Ok(response) => return response,
                Err(request) => request,
            },
        };
        openenv::answer(self.openenv, request).await
    }
}

#[cfg(test)]
mod tests;
