//! A supervisor's connections: those of this user's own programs.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Bounds our descriptors.
const CONNECTIONS_MAX: usize = 256;
/// For the head of a request, and for the next one on a connection.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// For answers that are under way when the agent has been stopped.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How a supervisor ends.
#[derive(Clone, Default)]
pub(super) struct Ends {
    /// The agent was stopped.
    pub(super) stopped: CancellationToken,
    /// Nothing new is accepted.
    pub(super) closing: CancellationToken,
}

pub(super) async fn serve(listener: UnixListener, router: Router, ends: Ends) {
    let mut connections = JoinSet::new();
    while let Some(accepted) = ends.closing.run_until_cancelled(listener.accept()).await {
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                connections.spawn(connection(stream, router.clone(), ends.closing.clone()));
            }
            Ok(_) => tracing::warn!("too many connections; this one is closed"),
            Err(error) => {
                // Probably out of file descriptors: wait for some to be closed.
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_LIMIT, drained).await.is_err() {
        tracing::warn!("some connections did not end");
    }
}

async fn connection(stream: UnixStream, router: Router, closing: CancellationToken) {
    let service = TowerToHyperService::new(router);
    let answer =
        service_fn(move |request: hyper::Request<Incoming>| service.call(request.map(Body::new)));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = closing.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended badly");
    }
}
