//! A WebSocket connection. It is read even while a request runs, so that its end is noticed at once; requests are
//! answered in order. The running request ends with the socket, unless the socket attached to a session by its id: then
//! the client may come back to the session and find the step done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::message::SocketReply;
use super::session::{Session, SessionError, SessionHold};
use super::{OpenEnvServer, mcp, message, rpc};
use crate::server::access::Owner;
use crate::server::listen::ConnectionPermit;
use crate::server::reply;
use crate::server::websocket::{CloseCode, SocketError, SocketMessage, WebSocket, handshake};

/// The most requests that may wait behind a running one.
const WAITING_MAX: usize = 256;
/// For the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

type Socket = WebSocket<TokioIo<hyper::upgrade::Upgraded>>;

/// The protocol of a socket's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketProtocol {
    /// `/ws`
    Environment,
    /// `/mcp`
    JsonRpc,
}

impl SocketProtocol {
    fn refusal(self, error: SessionError) -> Value {
        match self {
            SocketProtocol::Environment => message::refusal(&error),
            SocketProtocol::JsonRpc => mcp::refusal(error),
        }
    }

    /// An error after which the socket is closed.
    fn fatal(self, text: &str) -> Value {
        match self {
            SocketProtocol::Environment => message::error("SESSION_ERROR", text, None),
            SocketProtocol::JsonRpc => rpc::error(&Value::Null, rpc::SERVER_ERROR, text, None),
        }
    }

    async fn answer(
        self,
        server: &OpenEnvServer,
        session: &Arc<Session>,
        text: &str,
    ) -> SocketReply {
        if self == SocketProtocol::Environment {
            return message::answer(server, session, text).await;
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(members)) => match rpc::read(members) {
                Ok(request) if request.is_notification() => SocketReply::none(),
                Ok(request) => {
                    let caller = message::rpc_caller(session);
                    SocketReply::more(mcp::answer(server, request, caller).await)
                }
                Err(refused) => SocketReply::more(refused),
            },
            Ok(_) => SocketReply::last(self.fatal("a message must be a JSON object")),
            Err(cause) => {
                let text = format!("Parse error: {cause}");
                SocketReply::more(rpc::error(&Value::Null, rpc::PARSE_ERROR, &text, None))
            }
        }
    }
}

/// Upgrades a request to a WebSocket.
pub(crate) fn upgrade(
    server: Arc<OpenEnvServer>,
    protocol: SocketProtocol,
    owner: Owner,
    mut request: Request,
) -> Response {
    let response = match handshake::answer(request.headers()) {
        Ok(response) => response,
        Err(refusal) => return reply::detail(StatusCode::BAD_REQUEST, refusal),
    };
    // The original attaches sessions by id on only one of its two sockets.
    let session_id = match protocol {
        SocketProtocol::Environment => handshake::query_value(request.uri(), "session_id"),
        SocketProtocol::JsonRpc => None,
    };
    let connection_permit = request.extensions_mut().remove::<ConnectionPermit>();
    let upgrading = hyper::upgrade::on(&mut request);
    let tasks = server.tasks_under_way.clone();
    tasks.spawn(async move {
        let _permit = connection_permit;
        let Ok(Ok(upgraded)) = tokio::time::timeout(HANDSHAKE_LIMIT, upgrading).await else {
            return;
        };
        let socket = WebSocket::new(TokioIo::new(upgraded), server.limits.body_bytes_max);
        serve(socket, server, protocol, owner, session_id).await;
    });
    response
}

/// Serves a socket from the handshake to its end.
async fn serve(
    mut socket: Socket,
    server: Arc<OpenEnvServer>,
    protocol: SocketProtocol,
    owner: Owner,
    session_id: Option<String>,
) {
    let opened = match &session_id {
        Some(id) => server.sessions.attach(id, &owner.0),
        None => server.sessions.open(owner.0),
    };
    let held = match opened {
        Ok(held) => held,
        Err(error) => {
            // Clients send before they read, so the refusal must come after a successful handshake.
            let frame = protocol.refusal(error).to_string();
            let end = match socket.send_text(&frame).await {
                Ok(()) => SocketEnd::Close(CloseCode::Normal),
                Err(_) => SocketEnd::Gone,
            };
            finish(socket, end, None).await;
            return;
        }
    };
    let mut connection = Connection {
        socket,
        server: Arc::clone(&server),
        protocol,
        session: Arc::clone(held.session()),
        waiting: VecDeque::new(),
        waiting_bytes: 0,
        heard_at: Instant::now(),
        running: None,
    };
    let end = connection.run().await;
    let Connection {
        socket, running, ..
    } = connection;
    // A session that was attached by its id outlives the socket, and so does its running step.
    if let Some(running) = running.filter(|_| session_id.is_some()) {
        let dropping = server.shutdown.dropping.clone();
        server.tasks_under_way.spawn(async move {
            dropping.run_until_cancelled(running).await;
        });
    }
    finish(socket, end, Some(held)).await;
}

/// Why a socket ends.
enum SocketEnd {
    /// We close it.
    Close(CloseCode),
    /// The peer closed it with this code.
    Closed(Option<u16>),
    /// The connection broke.
    Gone,
}

/// An open socket and its requests.
struct Connection {
    socket: Socket,
    server: Arc<OpenEnvServer>,
    protocol: SocketProtocol,
    session: Arc<Session>,
    /// Requests in order of arrival.
    waiting: VecDeque<SocketMessage>,
    waiting_bytes: usize,
    /// When the peer last sent anything.
    heard_at: Instant,
    running: Option<BoxFuture<'static, SocketReply>>,
}

impl Connection {
    async fn run(&mut self) -> SocketEnd {
        let shutdown = self.server.shutdown.clone();
        let every = self.server.limits.ping_every;
        let mut ping = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.begin_next();
            let is_idle = self.running.is_none();
            let running = async {
                match &mut self.running {
                    Some(running) => running.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.dropping.cancelled() => return SocketEnd::Close(CloseCode::Away),
                reply = running => {
                    self.running = None;
                    if let Some(end) = self.reply(reply).await {
                        return end;
                    }
                }
                () = shutdown.stopping.cancelled(), if is_idle => {
                    return SocketEnd::Close(CloseCode::Away);
                }
                received = self.socket.receive() => {
                    if let Some(end) = self.receive(received).await {
                        return end;
                    }
                }
                _ = ping.tick() => {
                    if self.heard_at.elapsed() > self.server.limits.silence_max {
                        tracing::debug!("a client answers no pings");
                        return SocketEnd::Gone;
                    }
                    if self.socket.ping().await.is_err() {
                        return SocketEnd::Gone;
                    }
                }
            }
        }
    }

    /// Starts the next request if none is running.
    fn begin_next(&mut self) {
        if self.running.is_some() {
            return;
        }
        let Some(message) = self.waiting.pop_front() else {
            return;
        };
        self.waiting_bytes -= bytes_of(&message);
        let (server, session) = (Arc::clone(&self.server), Arc::clone(&self.session));
        let protocol = self.protocol;
        let running = async move {
            match message {
                SocketMessage::Text(text) => protocol.answer(&server, &session, &text).await,
                _ => SocketReply::last(protocol.fatal("a message must be a text frame")),
            }
        };
        self.running = Some(running.boxed());
    }

    async fn receive(&mut self, received: Result<SocketMessage, SocketError>) -> Option<SocketEnd> {
        self.heard_at = Instant::now();
        match received {
            Ok(message @ (SocketMessage::Text(_) | SocketMessage::Binary(_))) => {
                self.waiting_bytes += bytes_of(&message);
                self.waiting.push_back(message);
                let is_full = self.waiting.len() > WAITING_MAX
                    || self.waiting_bytes > 2 * self.server.limits.body_bytes_max;
                if !is_full {
                    return None;
                }
                let text = "too many requests wait on this socket; read the answers first";
                let frame = self.protocol.fatal(text).to_string();
                let sent = self.socket.send_text(&frame).await;
                Some(sent.map_or(SocketEnd::Gone, |()| SocketEnd::Close(CloseCode::Policy)))
            }
            Ok(SocketMessage::Ping(payload)) => {
                let sent = self.socket.pong(&payload).await;
                sent.is_err().then_some(SocketEnd::Gone)
            }
            Ok(SocketMessage::Pong) => None,
            Ok(SocketMessage::Close(code)) => Some(SocketEnd::Closed(code)),
            Err(broken) => {
                tracing::debug!(%broken, "a socket broke");
                Some(
                    broken
                        .close_code()
                        .map_or(SocketEnd::Gone, SocketEnd::Close),
                )
            }
        }
    }

    async fn reply(&mut self, reply: SocketReply) -> Option<SocketEnd> {
        if let Some(frame) = reply.frame
            && self.socket.send_text(&frame).await.is_err()
        {
            return Some(SocketEnd::Gone);
        }
        reply.is_last.then_some(SocketEnd::Close(CloseCode::Normal))
    }
}

fn bytes_of(message: &SocketMessage) -> usize {
    match message {
        SocketMessage::Text(text) => text.len(),
        SocketMessage::Binary(bytes) => bytes.len(),
        SocketMessage::Ping(_) | SocketMessage::Pong | SocketMessage::Close(_) => 0,
    }
}

/// Releases the session before closing the socket: a client that sees the close may attach to the session again at
/// once.
async fn finish(socket: Socket, end: SocketEnd, held: Option<SessionHold>) {
    drop(held);
    match end {
        SocketEnd::Gone => {}
        SocketEnd::Closed(code) => socket.close(code).await,
        SocketEnd::Close(code) => socket.close(Some(code as u16)).await,
    }
}
