//! A WebSocket: always read, also while a request runs; answers in order; noticed at once when it is gone.

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

use super::message::Reply;
use super::session::{Session, SessionError, SessionHold};
use super::{Wire, mcp, message, rpc};
use crate::server::access::Owner;
use crate::server::listen::Place;
use crate::server::reply;
use crate::server::websocket::{Broken, CloseCode, Received, WebSocket, handshake};

/// Requests that wait behind a running one, in number and in bytes.
const WAITING_MAX: usize = 256;
/// For the handshake to end.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

type Socket = WebSocket<TokioIo<hyper::upgrade::Upgraded>>;

/// Which language is spoken on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `/ws`
    Environment,
    /// `/mcp`
    JsonRpc,
}

impl Dialect {
    fn refusal(self, error: SessionError) -> Value {
        match self {
            Dialect::Environment => message::refusal(&error),
            Dialect::JsonRpc => mcp::refusal(error),
        }
    }

    /// An error after which the socket is closed.
    fn fatal(self, text: &str) -> Value {
        match self {
            Dialect::Environment => message::error("SESSION_ERROR", text, None),
            Dialect::JsonRpc => rpc::error(&Value::Null, rpc::SERVER_ERROR, text, None),
        }
    }

    async fn answer(self, wire: &Wire, session: &Arc<Session>, text: &str) -> Reply {
        if self == Dialect::Environment {
            return message::answer(wire, session, text).await;
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(members)) => match rpc::read(members) {
                Ok(request) if request.is_notification() => Reply::none(),
                Ok(request) => {
                    let asker = message::asker(session);
                    Reply::more(mcp::answer(wire, request, asker).await)
                }
                Err(refused) => Reply::more(refused),
            },
            Ok(_) => Reply::last(self.fatal("a message must be a JSON object")),
            Err(cause) => {
                let text = format!("Parse error: {cause}");
                Reply::more(rpc::error(&Value::Null, rpc::PARSE_ERROR, &text, None))
            }
        }
    }
}

/// Turns a request into a socket.
pub(crate) fn upgrade(
    wire: Arc<Wire>,
    dialect: Dialect,
    owner: Owner,
    mut request: Request,
) -> Response {
    let response = match handshake::answer(request.headers()) {
        Ok(response) => response,
        Err(refusal) => return reply::detail(StatusCode::BAD_REQUEST, refusal),
    };
    // The original looks for a session on one of its two sockets only.
    let session_id = match dialect {
        Dialect::Environment => handshake::query_value(request.uri(), "session_id"),
        Dialect::JsonRpc => None,
    };
    let place = request.extensions_mut().remove::<Place>();
    let upgrading = hyper::upgrade::on(&mut request);
    let tasks = wire.tasks_under_way.clone();
    tasks.spawn(async move {
        let _place = place;
        let Ok(Ok(upgraded)) = tokio::time::timeout(HANDSHAKE_LIMIT, upgrading).await else {
            return;
        };
        let socket = WebSocket::new(TokioIo::new(upgraded), wire.limits.body_bytes_max);
        serve(socket, wire, dialect, owner, session_id).await;
    });
    response
}

/// From the handshake to the end.
async fn serve(
    mut socket: Socket,
    wire: Arc<Wire>,
    dialect: Dialect,
    owner: Owner,
    session_id: Option<String>,
) {
    let opened = match &session_id {
        Some(id) => wire.sessions.attach(id, &owner.0),
        None => wire.sessions.open(owner.0),
    };
    let held = match opened {
        Ok(held) => held,
        Err(error) => {
            // Clients send first and read then, so this must come after a good handshake.
            let frame = dialect.refusal(error).to_string();
            let end = match socket.send_text(&frame).await {
                Ok(()) => End::Close(CloseCode::Normal),
                Err(_) => End::Gone,
            };
            finish(socket, end, None).await;
            return;
        }
    };
    let mut line = Line {
        socket,
        wire: Arc::clone(&wire),
        dialect,
        session: Arc::clone(held.session()),
        waiting: VecDeque::new(),
        waiting_bytes: 0,
        heard_at: Instant::now(),
        running: None,
    };
    let end = line.talk().await;
    let Line {
        socket, running, ..
    } = line;
    // A session that was attached by its id lives on, and so does the step that it is in.
    if let Some(running) = running.filter(|_| session_id.is_some()) {
        let dropping = wire.ending.dropping.clone();
        wire.tasks_under_way.spawn(async move {
            dropping.run_until_cancelled(running).await;
        });
    }
    finish(socket, end, Some(held)).await;
}

/// Why a socket ends.
enum End {
    /// We say so.
    Close(CloseCode),
    /// The other side said so, with this code.
    Closed(Option<u16>),
    /// The connection broke.
    Gone,
}

struct Line {
    socket: Socket,
    wire: Arc<Wire>,
    dialect: Dialect,
    session: Arc<Session>,
    /// Requests in the order they came.
    waiting: VecDeque<Received>,
    waiting_bytes: usize,
    /// When the other side last sent anything.
    heard_at: Instant,
    running: Option<BoxFuture<'static, Reply>>,
}

impl Line {
    async fn talk(&mut self) -> End {
        let ending = self.wire.ending.clone();
        let every = self.wire.limits.ping_every;
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
                () = ending.dropping.cancelled() => return End::Close(CloseCode::Away),
                reply = running => {
                    self.running = None;
                    if let Some(end) = self.reply(reply).await {
                        return end;
                    }
                }
                () = ending.stopping.cancelled(), if is_idle => {
                    return End::Close(CloseCode::Away);
                }
                received = self.socket.receive() => {
                    if let Some(end) = self.receive(received).await {
                        return end;
                    }
                }
                _ = ping.tick() => {
                    if self.heard_at.elapsed() > self.wire.limits.silence_max {
                        tracing::debug!("a client answers no pings");
                        return End::Gone;
                    }
                    if self.socket.ping().await.is_err() {
                        return End::Gone;
                    }
                }
            }
        }
    }

    /// Takes up the next request when nothing runs.
    fn begin_next(&mut self) {
        if self.running.is_some() {
            return;
        }
        let Some(message) = self.waiting.pop_front() else {
            return;
        };
        self.waiting_bytes -= bytes_of(&message);
        let (wire, session) = (Arc::clone(&self.wire), Arc::clone(&self.session));
        let dialect = self.dialect;
        let running = async move {
            match message {
                Received::Text(text) => dialect.answer(&wire, &session, &text).await,
                _ => Reply::last(dialect.fatal("a message must be a text frame")),
            }
        };
        self.running = Some(running.boxed());
    }

    async fn receive(&mut self, received: Result<Received, Broken>) -> Option<End> {
        self.heard_at = Instant::now();
        match received {
            Ok(message @ (Received::Text(_) | Received::Binary(_))) => {
                self.waiting_bytes += bytes_of(&message);
                self.waiting.push_back(message);
                let is_full = self.waiting.len() > WAITING_MAX
                    || self.waiting_bytes > 2 * self.wire.limits.body_bytes_max;
                if !is_full {
                    return None;
                }
                let text = "too many requests wait on this socket; read the answers first";
                let frame = self.dialect.fatal(text).to_string();
                let sent = self.socket.send_text(&frame).await;
                Some(sent.map_or(End::Gone, |()| End::Close(CloseCode::Policy)))
            }
            Ok(Received::Ping(payload)) => {
                let sent = self.socket.pong(&payload).await;
                sent.is_err().then_some(End::Gone)
            }
            Ok(Received::Pong) => None,
            Ok(Received::Close(code)) => Some(End::Closed(code)),
            Err(broken) => {
                tracing::debug!(%broken, "a socket broke");
                Some(broken.close_code().map_or(End::Gone, End::Close))
            }
        }
    }

    async fn reply(&mut self, reply: Reply) -> Option<End> {
        if let Some(frame) = reply.frame
            && self.socket.send_text(&frame).await.is_err()
        {
            return Some(End::Gone);
        }
        reply.is_last.then_some(End::Close(CloseCode::Normal))
    }
}

fn bytes_of(message: &Received) -> usize {
    match message {
        Received::Text(text) => text.len(),
        Received::Binary(bytes) => bytes.len(),
        Received::Ping(_) | Received::Pong | Received::Close(_) => 0,
    }
}

/// Lets go of the session, then says goodbye: a client that hears it may come back for the session at once.
async fn finish(socket: Socket, end: End, held: Option<SessionHold>) {
    drop(held);
    match end {
        End::Gone => {}
        End::Closed(code) => socket.close(code).await,
        End::Close(code) => socket.close(Some(code as u16)).await,
    }
}
