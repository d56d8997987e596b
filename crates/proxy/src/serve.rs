//! Accepts and owns connections, and finds the session and the route of each request.
//!
//! It uses hyper directly, without a web framework: a connection can be broken in the middle of a stream, which is how
//! an agent has to learn of a broken answer, and every connection is a task that we own and end.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rollcage_sandbox::{AllowedPeers, BoxedStream, Listener, Stream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use rollcage_dialect::inbound;

use crate::answer::{self as answers, Body};
use crate::question::refuse;
use crate::sessions::Sessions;
use crate::{call, mcp, workers};

/// Bounds our open file descriptors against a hostile agent.
const CONNECTIONS_MAX: usize = 1024;
const HEADER_LIMIT: Duration = Duration::from_secs(30);
const UNKNOWN_KEY: &str = "unknown API key: use the key this session's agent was started with";

/// Where a request comes from: in the extensions of each that comes over TCP.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// Answers one request.
pub type Handler = Arc<
    dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> + Send + Sync,
>;

/// A running server. Dropping it ends its connections.
pub struct ServerHandle {
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl ServerHandle {
    /// Ends every connection and accepts no new one. When this returns, calls in progress are recorded as broken off.
    pub async fn close(&mut self) {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Serves a listener until closed.
pub fn serve(listener: Listener, handler: Handler) -> std::io::Result<ServerHandle> {
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    match listener {
        Listener::Tcp { listener, from } => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tasks.spawn(accept(listener, from, handler, cancel.clone()));
        }
        Listener::Streams(streams) => {
            tasks.spawn(accept_streams(streams, handler, cancel.clone()));
        }
    }
    Ok(ServerHandle { cancel, tasks })
}

async fn accept(
    listener: tokio::net::TcpListener,
    from: AllowedPeers,
    handler: Handler,
    cancel: CancellationToken,
) {
    let mut connections = JoinSet::new();
    while let Some(accepted) = cancel.run_until_cancelled(listener.accept()).await {
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = accepted else {
            // Probably out of file descriptors: wait for some to be closed.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if connections.len() < CONNECTIONS_MAX
            && from.includes(peer.ip())
            && let Ok(stream) = stream.into_std()
        {
            let handler = Arc::clone(&handler);
            connections.spawn_on(tcp(stream, peer.ip(), handler), &workers::next());
        }
    }
    connections.shutdown().await;
}

/// Serves in-memory streams on the current runtime instead of a worker: there is no socket that is bound to a runtime,
/// and tests with paused time need everything on theirs.
async fn accept_streams(
    mut streams: mpsc::Receiver<BoxedStream>,
    handler: Handler,
    cancel: CancellationToken,
) {
    let mut connections = JoinSet::new();
    while let Some(Some(stream)) = cancel.run_until_cancelled(streams.recv()).await {
        while connections.try_join_next().is_some() {}
        if connections.len() < CONNECTIONS_MAX {
            connections.spawn(connection(stream, Arc::clone(&handler)));
        }
    }
    // The sender is gone, so no new stream will come; the open ones may still be used.
    cancel.cancelled().await;
    connections.shutdown().await;
}

async fn tcp(stream: std::net::TcpStream, peer: IpAddr, handler: Handler) {
    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else {
        return;
    };
    // Small chunks of a stream must be sent at once.
    let _ = stream.set_nodelay(true);
    let handler: Handler = Arc::new(move |mut request| {
        request.extensions_mut().insert(PeerAddress(peer));
        handler(request)
    });
    connection(stream, handler).await;
}

async fn connection(stream: impl Stream, handler: Handler) {
    let service = service_fn(move |request| {
        let answered = handler(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an agent's connection ended badly");
    }
}

/// Answers one request of an agent.
pub async fn answer(sessions: &Sessions, request: Request<Incoming>) -> Response<Body> {
    let is_look = matches!(*request.method(), Method::GET | Method::HEAD);
    let path = request.uri().path();
    if is_look && matches!(path, "/" | "/health" | "/healthz" | "/api/hello") {
        return answers::whole(StatusCode::OK, answers::JSON, r#"{"status":"ok"}"#);
    }
    let route = inbound::route(&request);
    let session = || inbound::key(&request, route.as_ref()).and_then(|key| sessions.find(key));
    if mcp::name_in(path).is_some() {
        return match session() {
            Some(session) => Box::pin(mcp::answer(session, request)).await,
            None => mcp::refuse(StatusCode::UNAUTHORIZED, UNKNOWN_KEY),
        };
    }
    let session = session();
    let Some(route) = route else {
        let message = format!("{} {path} is not served here", request.method());
        return answers::error(StatusCode::NOT_FOUND, "not_found_error", &message);
    };
    let Some(session) = session else {
        return refuse(&route, StatusCode::UNAUTHORIZED, UNKNOWN_KEY);
    };
    Box::pin(call::answer(session, route, request)).await
}

#[cfg(test)]
#[path = "serve/tests.rs"]
mod tests;
