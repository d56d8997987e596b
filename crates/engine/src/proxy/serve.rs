//! Accepts connections from one sandbox and owns them until the rollout ends.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::answer::{self, Body};
use super::{Session, forward};

/// An agent opens a handful; more than this is an attack on our file descriptors.
const CONNECTIONS_MAX: usize = 256;
const HEADER_LIMIT: Duration = Duration::from_secs(30);

/// A proxy that is being served. Its connections end with it.
pub(crate) struct Serving {
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Serving {
    /// Ends every connection. What was under way is recorded as cut off when this returns.
    pub(crate) async fn close(mut self) {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Serves the sandbox's listeners.
pub(crate) fn serve(
    listeners: Vec<TcpListener>,
    session: Arc<Session>,
) -> std::io::Result<Serving> {
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tasks.spawn(accept(listener, Arc::clone(&session), cancel.clone()));
    }
    Ok(Serving { cancel, tasks })
}

async fn accept(
    listener: tokio::net::TcpListener,
    session: Arc<Session>,
    cancel: CancellationToken,
) {
    let mut connections = JoinSet::new();
    while let Some(accepted) = cancel.run_until_cancelled(listener.accept()).await {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors: others may close some.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if connections.len() < CONNECTIONS_MAX {
            connections.spawn(connection(stream, Arc::clone(&session)));
        }
    }
    connections.shutdown().await;
}

async fn connection(stream: tokio::net::TcpStream, session: Arc<Session>) {
    // Small chunks of a stream must not wait for each other.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let session = Arc::clone(&session);
        async move { Ok::<_, Infallible>(route(session, request).await) }
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

async fn route(session: Arc<Session>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    if matches!(*request.method(), Method::GET | Method::HEAD)
        && matches!(path, "/" | "/health" | "/healthz")
    {
        return answer::whole(StatusCode::OK, answer::JSON, r#"{"status":"ok"}"#);
    }
    if !is_authorised(&session, &request) {
        let message = "unknown API key: use the key this rollout's agent was started with";
        return answer::error(StatusCode::UNAUTHORIZED, "authentication_error", message);
    }
    match (request.method(), path) {
        (&Method::POST, "/v1/chat/completions") => forward::chat(session, request).await,
        (&Method::GET, "/v1/models") => answer::models(&session.endpoint.model),
        (method, path) => {
            let message = format!("{method} {path} is not served here");
            answer::error(StatusCode::NOT_FOUND, "not_found_error", &message)
        }
    }
}

fn is_authorised(session: &Session, request: &Request<Incoming>) -> bool {
    let header = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    header
        .and_then(|value| value.strip_prefix("Bearer "))
        .is_some_and(|key| session.is_key(key.trim()))
}
