//! Plain HTTP. Each request is parsed, checked and serialised again, so that what was checked is what the server gets.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, PROXY_AUTHORIZATION, SET_COOKIE};
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use rollcage_mirrors::Reading;
use rollcage_model::network::{Addresses, AttemptKind, Host, Target};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::credential::Credential;
use crate::headers;
use crate::outside::{Form, Unreachable};
use crate::socket::Socket;
use crate::state::Connection;

/// For asking an index whether it names a file.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// Of a page of an index; the longest of public ones have some ten megabytes.
const PAGE_BYTES_MAX: usize = 64 << 20;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Where the requests of a connection are forwarded to.
#[derive(Debug)]
pub(crate) enum Scope {
    /// The proxy listener: each request names its own target.
    Proxy,
    /// A connection to one target.
    One {
        target: Target,
        addresses: Addresses,
        /// An established connection to it, for the first request.
        ready: Option<Socket>,
    },
}

/// What a connection continues with after HTTP.
#[derive(Debug)]
pub(crate) enum Next {
    /// CONNECT was answered with 200.
    Tunnel {
        client: OnUpgrade,
        outside: Socket,
        target: Target,
        addresses: Addresses,
    },
    /// The server accepted a WebSocket upgrade.
    WebSocket {
        client: OnUpgrade,
        outside: OnUpgrade,
    },
}

/// An upstream connection that is kept for the next request.
struct Open {
    target: Target,
    form: Form,
    sender: SendRequest<Body>,
}

struct Requests {
    connection: Connection,
    /// `None` for a proxy.
    only: Option<(Target, Addresses)>,
    open: Mutex<Option<Open>>,
    ready: Mutex<Option<Socket>>,
    next: Mutex<Option<Next>>,
    /// Tasks of the upstream connections; aborted on drop.
    drivers: Mutex<JoinSet<()>>,
}

/// Serves requests until the client closes or the protocol changes.
pub(crate) async fn serve(connection: Connection, client: Socket, scope: Scope) -> Option<Next> {
    let limits = connection.state.limits;
    let (only, ready) = match scope {
        Scope::Proxy => (None, None),
        Scope::One {
            target,
            addresses,
            ready,
        } => (Some((target, addresses)), ready),
    };
    let requests = Arc::new(Requests {
        connection,
        only,
        open: Mutex::default(),
        ready: Mutex::new(ready),
        next: Mutex::default(),
        drivers: Mutex::default(),
    });
    let service = service_fn(|request| {
        let requests = Arc::clone(&requests);
        async move { Ok::<_, Infallible>(Box::pin(requests.answer(request)).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.opening)
        .max_buf_size(limits.header_bytes)
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a sandbox's connection ended badly");
    }
    let next = take(&requests.next);
    if let Some(Next::WebSocket { .. }) = &next {
        // Aborted drivers could not hand their connection over.
        let mut drivers = std::mem::take(&mut *lock(&requests.drivers));
        while drivers.join_next().await.is_some() {}
    }
    next
}

/// The client's socket, with the bytes that hyper had read ahead.
pub(crate) fn socket_of(upgraded: Upgraded) -> Option<Socket> {
    let parts = upgraded.downcast::<TokioIo<Socket>>().ok()?;
    let mut socket = parts.io.into_inner();
    socket.unread(&parts.read_buf);
    Some(socket)
}

impl Requests {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        // The response would show the credentials that are added to requests.
        if request.method() == Method::TRACE {
            return text(StatusCode::METHOD_NOT_ALLOWED, "TRACE is not passed on\n");
        }
        match &self.only {
            Some((target, addresses)) => {
                let is_connect = request.method() == Method::CONNECT;
                let url = request.uri().authority().filter(|_| !is_connect);
                if is_connect {
                    let reason = "a CONNECT inside a connection to one host";
                    return self.misdirected(target, reason);
                }
                match headers::check_host(request.headers(), url, target) {
                    Ok(()) => self.forward(request, target.clone(), *addresses).await,
                    Err(error) => self.misdirected(target, error),
                }
            }
            None if request.method() == Method::CONNECT => self.tunnel(request).await,
            None => self.proxied(request).await,
        }
    }

    fn misdirected(&self, target: &Target, reason: impl ToString) -> Response<Body> {
        let reason = reason.to_string();
        self.connection.refused(AttemptKind::Http, target, &reason);
        let words = format!("a request on a connection to {target} is refused: {reason}\n");
        text(StatusCode::FORBIDDEN, words)
    }

    /// A request in absolute form.
    async fn proxied(&self, request: Request<Incoming>) -> Response<Body> {
        let uri = request.uri();
        let is_http = uri.scheme_str() == Some("http");
        let authority = uri.authority().filter(|_| is_http);
        let target = authority.and_then(|it| self.target(it.host(), it.port_u16(), 80));
        let Some(target) = target else {
            let words = "this is an HTTP proxy: it takes CONNECT HOST:PORT, and requests for http://HOST/… URLs\n";
            return text(StatusCode::BAD_REQUEST, words);
        };
        match self.connection.verdict(&target) {
            Ok(addresses) => self.forward(request, target, addresses).await,
            Err(refusal) => {
                self.connection.refused(AttemptKind::Http, &target, refusal);
                let words = self.connection.explain(&target, refusal);
                text(StatusCode::FORBIDDEN, words)
            }
        }
    }

    async fn tunnel(&self, mut request: Request<Incoming>) -> Response<Body> {
        let authority = request.uri().authority();
        let port = authority.and_then(|it| it.port_u16());
        let target = authority.and_then(|it| self.target(it.host(), Some(port?), 443));
        let Some(target) = target else {
            let words = "CONNECT needs HOST:PORT\n";
            return text(StatusCode::BAD_REQUEST, words);
        };
        let addresses = match self.connection.verdict(&target) {
            Ok(addresses) => addresses,
            Err(refusal) => {
                let kind = AttemptKind::Connect;
                self.connection.refused(kind, &target, refusal);
                let words = self.connection.explain(&target, refusal);
                return text(StatusCode::FORBIDDEN, words);
            }
        };
        match self
            .connection
            .state
            .outside
            .tunnel(&target, &self.connection.allowed_addresses(addresses))
            .await
        {
            Ok(outside) => {
                *lock(&self.next) = Some(Next::Tunnel {
                    client: hyper::upgrade::on(&mut request),
                    outside,
                    target,
                    addresses,
                });
                // Without a body: the tunnel begins right behind the head.
                Response::new(empty())
            }
            Err(error) => self.unreachable(AttemptKind::Connect, &target, &error),
        }
    }

    /// The target of a URL; a synthetic address is replaced by its name.
    fn target(&self, host: &str, port: Option<u16>, usual: u16) -> Option<Target> {
        let port = port.unwrap_or(usual);
        match Host::parse(host)? {
            Host::Ip(address) => self.connection.state.target((address, port).into()),
            host @ Host::Name(_) => Some(Target { host, port }),
        }
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        target: Target,
        addresses: Addresses,
    ) -> Response<Body> {
        let upgrade =
            headers::wants_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
        headers::strip_request(request.headers_mut());
        if upgrade.is_some() {
            headers::websocket(request.headers_mut());
        }
        if let Some(host) = headers::host_value(&target) {
            request.headers_mut().insert(HOST, host);
        }
        let credential = match upgrade {
            Some(_) => None,
            None => self.credential(&request, &target, addresses).await,
        };
        if let Some(credential) = credential {
            credential.add(request.headers_mut());
        }
        let request = request.map(BodyExt::boxed_unsync);
        match self.send(request, &target, addresses).await {
            Ok(mut response) => {
                if credential.is_some() {
                    // A server's word for who we are would be as good as the password.
                    response.headers_mut().remove(SET_COOKIE);
                }
                self.pass_back(response, upgrade)
            }
            Err(Failure::Unreachable(error)) => {
                self.unreachable(AttemptKind::Http, &target, &error)
            }
            Err(Failure::Broken(error)) => {
                let words = format!("{target} did not answer as HTTP servers do: {error}\n");
                text(StatusCode::BAD_GATEWAY, words)
            }
        }
    }

    /// The machine's credential for a request, if it reads a package.
    async fn credential<B: hyper::body::Body>(
        &self,
        request: &Request<B>,
        target: &Target,
        addresses: Addresses,
    ) -> Option<&Credential> {
        for credential in &self.connection.state.outside.credentials {
            let path = request.uri().path();
            let is_read = match credential.reading(target, request) {
                Reading::No => false,
                Reading::Yes => true,
                Reading::IfNamed { page } => {
                    let asking = self.is_named(credential, &page, path, addresses);
                    timeout(ASK_LIMIT, asking).await.unwrap_or(false)
                }
            };
            if is_read {
                return Some(credential);
            }
        }
        None
    }

    /// Asks a mirror's index whether it names a file of its host.
    async fn is_named(
        &self,
        credential: &Credential,
        page: &str,
        path: &str,
        addresses: Addresses,
    ) -> bool {
        let target = credential.target();
        let state = &self.connection.state;
        let _turn = state.asking.acquire().await;
        if state.is_named(&target, path) {
            return true;
        }
        let (Some(mut search), Some(request)) =
            (credential.search(page, path), credential.question(page))
        else {
            return false;
        };
        let request = request.map(|()| empty());
        let Ok(response) = self.send(request, &target, addresses).await else {
            return false;
        };
        if response.status() != StatusCode::OK {
            return false;
        }
        let mut body = Limited::new(response.into_body(), PAGE_BYTES_MAX);
        while let Some(Ok(frame)) = body.frame().await {
            if frame.data_ref().is_some_and(|piece| search.push(piece)) {
                state.note_named(&target, path);
                return true;
            }
        }
        false
    }

    fn pass_back(
        &self,
        mut response: Response<Incoming>,
        upgrade: Option<OnUpgrade>,
    ) -> Response<Body> {
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        match (is_switch, upgrade) {
            (true, None) => {
                let words = "the server changed the protocol without being asked\n";
                return text(StatusCode::BAD_GATEWAY, words);
            }
            (true, Some(client)) => {
                let outside = hyper::upgrade::on(&mut response);
                headers::strip(response.headers_mut());
                headers::websocket(response.headers_mut());
                *lock(&self.next) = Some(Next::WebSocket { client, outside });
            }
            (false, _) => headers::strip(response.headers_mut()),
        }
        response.map(BodyExt::boxed_unsync)
    }

    fn unreachable(
        &self,
        kind: AttemptKind,
        target: &Target,
        error: &Unreachable,
    ) -> Response<Body> {
        self.connection.unreachable(kind, target, error);
        let status = match error {
            error if error.is_refusal() => StatusCode::FORBIDDEN,
            Unreachable::TooSlow => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        text(status, format!("{target} cannot be reached: {error}\n"))
    }

    /// Sends on the connection of the previous request if it is to the same target and still usable.
    async fn send(
        &self,
        mut request: Request<Body>,
        target: &Target,
        addresses: Addresses,
    ) -> Result<Response<Incoming>, Failure> {
        let uri = request.uri().clone();
        let last = take(&self.open).filter(|open| open.target == *target);
        if let Some(mut open) = last
            && open.sender.ready().await.is_ok()
        {
            address(&mut request, &uri, target, &open.form);
            match open.sender.try_send_request(request).await {
                Ok(response) => {
                    *lock(&self.open) = Some(open);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Broken(error.into_error())),
                },
            }
        }
        let mut open = self.connect(target, addresses).await?;
        address(&mut request, &uri, target, &open.form);
        let response = open.sender.send_request(request).await;
        let response = response.map_err(Failure::Broken)?;
        *lock(&self.open) = Some(open);
        Ok(response)
    }

    async fn connect(&self, target: &Target, addresses: Addresses) -> Result<Open, Failure> {
        let ready = take(&self.ready);
        let (socket, form) = match ready {
            Some(socket) => (socket, Form::Origin),
            None => {
                let outside = &self.connection.state.outside;
                let allowed = self.connection.allowed_addresses(addresses);
                let found = outside.requests(target, &allowed).await;
                found.map_err(Failure::Unreachable)?
            }
        };
        let meter = self.connection.allowed(AttemptKind::Http, target);
        let socket = TokioIo::new(socket.metered(meter));
        let (sender, driver) = hyper::client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .handshake(socket)
            .await
            .map_err(Failure::Broken)?;
        lock(&self.drivers).spawn(async move {
            // The sender reports the same error.
            let _ = driver.with_upgrades().await;
        });
        Ok(Open {
            target: target.clone(),
            form,
            sender,
        })
    }
}

enum Failure {
    Unreachable(Unreachable),
    Broken(hyper::Error),
}

/// Sets the request target, and the credentials for a company's proxy.
fn address(request: &mut Request<Body>, uri: &Uri, target: &Target, form: &Form) {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.is_empty() { "/" } else { path };
    let written = match form {
        Form::Origin => path.to_owned(),
        Form::Absolute { authorization } => {
            if let Some(authorization) = authorization {
                let headers = request.headers_mut();
                headers.insert(PROXY_AUTHORIZATION, authorization.clone());
            }
            let path = if path == "*" { "/" } else { path };
            format!("http://{target}{path}")
        }
    };
    if let Ok(uri) = written.parse() {
        *request.uri_mut() = uri;
    }
}

fn empty() -> Body {
    let body = Full::new(Bytes::new()).map_err(|never| match never {});
    body.boxed_unsync()
}

fn text(status: StatusCode, words: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(words.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take<T>(mutex: &Mutex<Option<T>>) -> Option<T> {
    lock(mutex).take()
}
