//! HTTP servers that the program offers, and how the one of `rollcage serve` is put together and ended.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) mod access;
pub(crate) mod capture;
pub(crate) mod list_agents;
pub(crate) mod listen;
pub(crate) mod openenv;
mod reply;
mod tally;
pub(crate) mod tool;
mod websocket;

use access::{Access, Policy};
use listen::Ending;
use openenv::{Limits, Mode, TaskFolder, Wire, WireOptions};
use tool::Tools;

/// What was told to stop and does not is left behind after this.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// For the hook at the end.
const AT_STOP_LIMIT: Duration = Duration::from_secs(120);

/// The parts of a server.
pub(crate) struct Assembly {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sessions_max: usize,
    pub(crate) limits: Limits,
    pub(crate) tasks: Option<TaskFolder>,
    pub(crate) policy: Policy,
    pub(crate) tools: Arc<dyn Tools>,
    /// Served beside OpenEnv's routes, behind the same check of access; finds an [`access::Owner`] in its requests.
    pub(crate) extra: Router,
    pub(crate) extra_paths: Map<String, Value>,
    /// How long running calls may go on after the server was told to stop.
    pub(crate) grace: Duration,
    /// Run when no call is left: the tools bring to an end what outlives calls.
    pub(crate) at_stop: BoxFuture<'static, ()>,
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
    if tokio::time::timeout(AT_STOP_LIMIT, assembly.at_stop)
        .await
        .is_err()
    {
        tracing::error!("the tools did not end in time");
    }
}

#[cfg(test)]
mod tests;
