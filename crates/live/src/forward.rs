//! An authenticated address on loopback that leads to a server in a sandbox.
//!
//! A request takes as long as its caller waits for it: an agent's answer may take an hour. When the caller goes away, the
//! connection to the server is closed too.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1 as outgoing;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1 as incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use rollcage_sandbox::BoxedStream;
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Connect, Credentials};

/// More wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
const HEADER_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Of the connection, not of the request.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

type AnyBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// The server behind a forwarder, right now.
pub trait ForwardTarget: Send + Sync {
    /// `None` while it does not run.
    fn target(&self) -> Option<(Arc<dyn Connect>, Credentials)>;
}

/// A listening forwarder. Dropping it ends its connections.
pub struct Forwarder {
    address: SocketAddr,
    /// Accepts, and owns the connections.
    accepting: JoinSet<()>,
}

impl Forwarder {
    /// Listens on a free port of loopback. Requests need `outer`; they are passed on with the server's own credentials, bodies
    /// and event streams as they come. `target` is asked for each request, since the server may have been started anew.
    pub async fn start(target: Arc<dyn ForwardTarget>, outer: Credentials) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let gate = Arc::new(Gate { target, outer });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, gate));
        Ok(Forwarder { address, accepting })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Afterwards nobody listens; open connections are cut.
    pub async fn close(&mut self) {
        self.accepting.shutdown().await;
    }
}

async fn accept(listener: TcpListener, gate: Arc<Gate>) {
    let mut connections = JoinSet::new();
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = Arc::clone(&free).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let gate = Arc::clone(&gate);
                connections.spawn(async move {
                    serve(stream, gate).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, gate: Arc<Gate>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(gate.answer(request).await) }
    });
    // A broken connection is its caller's business.
    let _ = incoming::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

struct Gate {
    target: Arc<dyn ForwardTarget>,
    outer: Credentials,
}

impl Gate {
    async fn answer(&self, request: Request<Incoming>) -> Response<AnyBody> {
        if !self.is_authorized(request.headers()) {
            let mut refused = Response::new(whole(Bytes::new()));
            *refused.status_mut() = StatusCode::UNAUTHORIZED;
            let ask = HeaderValue::from_static("Basic realm=\"live agent\"");
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            return refused;
        }
        let Some((connect, credentials)) = self.target.target() else {
            let text = "the agent's server does not run now: the next turn starts it";
            return failure(StatusCode::SERVICE_UNAVAILABLE, text);
        };
        match pass_on(request, &*connect, &credentials).await {
            Ok(response) => response,
            Err(text) => failure(StatusCode::BAD_GATEWAY, text),
        }
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let expect = self.outer.header();
        let expect = expect.strip_prefix("Basic ").unwrap_or(&expect);
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok()?.split_once(' '));
        given.is_some_and(|(scheme, token)| {
            let is_same: bool = token.trim().as_bytes().ct_eq(expect.as_bytes()).into();
            scheme.eq_ignore_ascii_case("basic") && is_same
        })
    }
}

/// On a connection of its own, which ends with the answer. The error is safe to show.
async fn pass_on(
    request: Request<Incoming>,
    connect: &dyn Connect,
    credentials: &Credentials,
) -> Result<Response<AnyBody>, &'static str> {
    const UNREACHABLE: &str = "the agent's server cannot be reached";
    let (mut parts, body) = request.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    // A whole URL in the first line is for proxies.
    parts.uri = match parts.uri.path_and_query() {
        Some(path) => Uri::from(path.clone()),
        None => Uri::from_static("/"),
    };
    let mut own = HeaderValue::from_str(&credentials.header()).map_err(|_| UNREACHABLE)?;
    own.set_sensitive(true);
    parts.headers.insert(header::AUTHORIZATION, own);
    let close = HeaderValue::from_static("close");
    parts.headers.insert(header::CONNECTION, close);
    let stream = timeout(CONNECT_LIMIT, connect.connect()).await;
    let stream = stream.ok().and_then(Result::ok).ok_or(UNREACHABLE)?;
    let opened = outgoing::handshake(TokioIo::new(stream)).await;
    let (mut sender, driver) = opened.map_err(|_| UNREACHABLE)?;
    let mut driver = Driver(Some(Box::pin(driver)));
    let mut answer = std::pin::pin!(sender.send_request(Request::from_parts(parts, body)));
    let answer = std::future::poll_fn(|cx| {
        driver.poll(cx);
        answer.as_mut().poll(cx)
    });
    let answer = answer.await;
    let answer = answer.map_err(|_| "the agent's server closed the connection")?;
    let (mut parts, body) = answer.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    let body = Relayed { driver, body }.boxed_unsync();
    Ok(Response::from_parts(parts, body))
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Further ones, by name.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

fn whole(bytes: Bytes) -> AnyBody {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn failure(status: StatusCode, text: &str) -> Response<AnyBody> {
    let body = serde_json::json!({"error": {"message": text}}).to_string();
    let mut response = Response::new(whole(Bytes::from(body)));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

type Connection = outgoing::Connection<TokioIo<BoxedStream>, Incoming>;

/// Works on the connection to the server whenever its answer is asked for, so that no task outlives the request.
struct Driver(Option<Pin<Box<Connection>>>);

impl Driver {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(cx).is_ready()
        {
            // Its failure is also that of whatever waits for it.
            self.0 = None;
        }
    }
}

/// The body of an answer, with the connection that it comes from.
struct Relayed {
    driver: Driver,
    body: Incoming,
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        this.driver.poll(cx);
        Pin::new(&mut this.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
