//! HTTP servers that the program offers, and how the one of `rollcage serve` is put together and ended.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) mod access;
pub(crate) mod api;
pub(crate) mod capture;
#[cfg(test)]
mod harness;
pub(crate) mod listen;
mod metrics;
pub(crate) mod openenv;
pub(crate) mod ready;
mod reply;
pub(crate) mod rollouts;
mod tally;
pub(crate) mod tasks;
pub(crate) mod tool;
pub(crate) mod tools;
mod websocket;

use access::{Access, Policy};
use listen::Ending;
use openenv::{Limits, Mode, Wire, WireOptions};
use tasks::Tasks;
use tool::Tools;

/// What was told to stop and does not is left behind after this.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// For the hook at the end.
const AT_STOP_LIMIT: Duration = Duration::from_secs(120);

/// What is left to do at the end, in the time that is left.
pub(crate) type AtStop = Box<dyn FnOnce(Duration) -> BoxFuture<'static, ()> + Send>;

/// The parts of a server.
pub(crate) struct Assembly {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sessions_max: usize,
    pub(crate) limits: Limits,
    /// Kept at how many sessions there are.
    pub(crate) open_sessions: Arc<AtomicUsize>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) policy: Policy,
    pub(crate) tools: Arc<dyn Tools>,
    /// Served beside OpenEnv's routes, behind the same check of access; finds an [`access::Owner`] in its requests.
    pub(crate) extra: Router,
    pub(crate) extra_paths: Map<String, Value>,
    /// How long running calls may go on after the server was told to stop.
    pub(crate) grace: Duration,
    /// Run when no call is left, with what is left of the grace: the tools bring to an end what outlives calls.
    pub(crate) at_stop: AtStop,
}

/// Serves until `stop` resolves, then ends in order: nothing new, the running calls, what outlives them.
pub(crate) async fn serve(
    listener: TcpListener,
    assembly: Assembly,
    stop: impl Future<Output = ()>,
) {
    let ending = Ending::default();
    let wire = Arc::new(Wire::new(WireOptions {
        name: assembly.name,
        mode: assembly.mode,
        sessions_max: assembly.sessions_max,
        open_sessions: assembly.open_sessions,
        limits: assembly.limits,
        tasks: assembly.tasks,
        tools: assembly.tools,
        extra_paths: assembly.extra_paths,
        ending: ending.clone(),
    }));
    let answering = Arc::clone(&wire);
    let access = Arc::new(Access::new(assembly.policy));
    let router = assembly
        .extra
        .fallback(move |request: Request| openenv::answer(Arc::clone(&answering), request))
        .layer(axum::middleware::from_fn_with_state(access, access::check));
    let mut tasks = JoinSet::new();
    tasks.spawn(listen::accept(listener, router, ending.clone()));
    tasks.spawn({
        let wire = Arc::clone(&wire);
        async move { wire.reap().await }
    });
    stop.await;
    let stopped = Instant::now();
    ending.stopping.cancel();
    let mut drained = Box::pin(async {
        while tasks.join_next().await.is_some() {}
        wire.drained().await;
    });
    if tokio::time::timeout(assembly.grace, &mut drained)
        .await
        .is_err()
    {
        tracing::warn!("calls were still running at the end of the grace; they are dropped");
        ending.dropping.cancel();
        if tokio::time::timeout(DROP_LIMIT, &mut drained)
            .await
            .is_err()
        {
            tracing::error!("some connections did not end");
        }
    }
    let left = assembly.grace.saturating_sub(stopped.elapsed());
    if tokio::time::timeout(left + AT_STOP_LIMIT, (assembly.at_stop)(left))
        .await
        .is_err()
    {
        tracing::error!("the tools did not end in time");
    }
}

#[cfg(test)]
mod tests;
