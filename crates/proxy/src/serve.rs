//! Accepts connections and owns them; finds the session and the route of each request.

use std::convert::Infallible;
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

/// More at once than this is an attack on our file descriptors.
const CONNECTIONS_MAX: usize = 1024;
const HEADER_LIMIT: Duration = Duration::from_secs(30);
const UNKNOWN_KEY: &str = "unknown API key: use the key this session's agent was started with";

/// What answers a request.
pub type Handler = Arc<
    dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> + Send + Sync,
>;

/// A listener that is being served. Its connections end with it.
pub struct Serving {
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Serving {
    /// Ends every connection and takes no new one. What was under way is recorded as cut off when this returns.
    pub async fn close(&mut self) {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Serves a listener until closed.
pub fn serve(listener: Listener, handler: Handler) -> std::io::Result<Serving> {
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
    Ok(Serving { cancel, tasks })
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
            // Out of file descriptors: others may close some.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if connections.len() < CONNECTIONS_MAX
            && from.includes(peer.ip())
            && let Ok(stream) = stream.into_std()
        {
            connections.spawn_on(tcp(stream, Arc::clone(&handler)), &workers::next());
        }
    }
    connections.shutdown().await;
}

/// Serves streams on the runtime at hand and not on a worker: there is no socket that would be tied to one, and their clock
/// is that of whoever made them.
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
    // Without anybody who could make another one, those that there are may still be used.
    cancel.cancelled().await;
    connections.shutdown().await;
}

async fn tcp(stream: std::net::TcpStream, handler: Handler) {
    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else {
        return;
    };
    // Small chunks of a stream must not wait for each other.
    let _ = stream.set_nodelay(true);
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
