//! A WebSocket: always read, also while a request runs; answers in order; noticed at once when it is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::session::{Held, Session, SessionError};
use super::{Wire, mcp, message, rpc};
use crate::server::access::Owner;
use crate::server::listen::Place;
use crate::server::reply;

/// Requests that wait behind a running one, in number and in bytes.
const WAITING_MAX: usize = 256;
/// An idle socket holds two of these.
const BUFFER_BYTES: usize = 4 << 10;
/// Longer answers go in pieces: the socket's buffer grows to the largest and is kept.
const PIECE_BYTES_MAX: usize = 32 << 10;
/// For the handshake to end, and for the other side to answer a close.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

type Stream = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// Which language is spoken on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `/ws`
    Environment,
    /// `/mcp`
    JsonRpc,
}

/// What a request is answered with.
pub(crate) struct Reply {
    frame: Option<String>,
    is_last: bool,
}

impl Reply {
    pub(crate) fn more(frame: Value) -> Self {
        Reply {
            frame: Some(frame.to_string()),
            is_last: false,
        }
    }

    /// The socket is closed after it.
    pub(crate) fn last(frame: Value) -> Self {
        Reply {
            frame: Some(frame.to_string()),
            is_last: true,
        }
    }

    /// The socket is closed without a word.
    pub(crate) fn end() -> Self {
        Reply {
            frame: None,
            is_last: true,
        }
    }

    fn none() -> Self {
        Reply {
            frame: None,
            is_last: false,
        }
    }
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
    let headers = request.headers();
    let is_version_13 = headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_some_and(|version| version == "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).cloned();
    let Some(key) = key.filter(|_| is_version_13) else {
        let text = "a WebSocket handshake needs Sec-WebSocket-Key and Sec-WebSocket-Version: 13";
        return reply::detail(StatusCode::BAD_REQUEST, text);
    };
    let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) else {
        return reply::detail(StatusCode::BAD_REQUEST, "Sec-WebSocket-Key cannot be read");
    };
    // The original looks for a session on one of its two sockets only.
    let session_id = match dialect {
        Dialect::Environment => super::query_value(request.uri(), "session_id"),
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
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(wire.limits.body_bytes_max))
            .max_frame_size(Some(wire.limits.body_bytes_max));
        let io = TokioIo::new(upgraded);
        let stream = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        serve(stream, wire, dialect, owner, session_id).await;
    });
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

/// From the handshake to the end.
async fn serve(
    mut stream: Stream,
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
            let end = match send(&mut stream, frame).await {
                Ok(()) => End::Close(CloseCode::Normal),
                Err(_) => End::Gone,
            };
            finish(stream, end, None).await;
            return;
        }
    };
    let mut line = Line {
        stream,
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
        stream, running, ..
    } = line;
    // A session that was attached by its id lives on, and so does the step that it is in.
    if let Some(running) = running.filter(|_| session_id.is_some()) {
        let dropping = wire.ending.dropping.clone();
        wire.tasks_under_way.spawn(async move {
            dropping.run_until_cancelled(running).await;
        });
    }
    finish(stream, end, Some(held)).await;
}

/// Why a socket ends.
enum End {
    /// We say so.
    Close(CloseCode),
    /// The other side said so.
    Closed,
    /// The connection broke.
    Gone,
}

struct Line {
    stream: Stream,
    wire: Arc<Wire>,
    dialect: Dialect,
    session: Arc<Session>,
    /// Requests in the order they came.
    waiting: VecDeque<Message>,
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
                received = self.stream.next() => {
                    if let Some(end) = self.receive(received).await {
                        return end;
                    }
                }
                _ = ping.tick() => {
                    if self.heard_at.elapsed() > self.wire.limits.silence_max {
                        tracing::debug!("a client answers no pings");
                        return End::Gone;
                    }
                    if self.stream.send(Message::Ping(Bytes::new())).await.is_err() {
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
        self.waiting_bytes -= message.len();
        let (wire, session) = (Arc::clone(&self.wire), Arc::clone(&self.session));
        let dialect = self.dialect;
        let running = async move {
            match message {
                Message::Text(text) => dialect.answer(&wire, &session, &text).await,
                _ => Reply::last(dialect.fatal("a message must be a text frame")),
            }
        };
        self.running = Some(running.boxed());
    }

    async fn receive(&mut self, received: Option<Result<Message, Error>>) -> Option<End> {
        self.heard_at = Instant::now();
        match received {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                self.waiting_bytes += message.len();
                self.waiting.push_back(message);
                let is_full = self.waiting.len() > WAITING_MAX
                    || self.waiting_bytes > 2 * self.wire.limits.body_bytes_max;
                if is_full {
                    let text = "too many requests wait on this socket; read the answers first";
                    let frame = self.dialect.fatal(text).to_string();
                    let sent = send(&mut self.stream, frame).await;
                    return Some(sent.map_or(End::Gone, |()| End::Close(CloseCode::Policy)));
                }
                None
            }
            Some(Ok(Message::Close(_))) => Some(End::Closed),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => None,
            Some(Err(Error::Capacity(CapacityError::MessageTooLong { .. }))) => {
                Some(End::Close(CloseCode::Size))
            }
            Some(Err(Error::Protocol(_))) => Some(End::Close(CloseCode::Protocol)),
            Some(Err(Error::Utf8(_))) => Some(End::Close(CloseCode::Invalid)),
            Some(Err(_)) | None => Some(End::Gone),
        }
    }

    async fn reply(&mut self, reply: Reply) -> Option<End> {
        if let Some(frame) = reply.frame
            && send(&mut self.stream, frame).await.is_err()
        {
            return Some(End::Gone);
        }
        reply.is_last.then_some(End::Close(CloseCode::Normal))
    }
}

/// Sends a text, in pieces when it is long.
async fn send(stream: &mut Stream, text: String) -> Result<(), Error> {
    if text.len() <= PIECE_BYTES_MAX {
        return stream.send(Message::Text(Utf8Bytes::from(text))).await;
    }
    let mut rest = Bytes::from(text);
    let mut kind = Data::Text;
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES_MAX));
        let frame = Frame::message(piece, OpCode::Data(kind), rest.is_empty());
        stream.send(Message::Frame(frame)).await?;
        kind = Data::Continue;
    }
    Ok(())
}

/// Lets go of the session, then says goodbye: a client that hears it may come back for the session at once.
async fn finish(mut stream: Stream, end: End, held: Option<Held>) {
    drop(held);
    let code = match end {
        End::Gone => return,
        End::Closed => None,
        End::Close(code) => Some(code),
    };
    let goodbye = async {
        if let Some(code) = code {
            let reason = Utf8Bytes::from_static("");
            stream.close(Some(CloseFrame { code, reason })).await?;
        }
        // Reading on sends what is still to be sent, and waits for the other side's goodbye.
        while let Some(message) = stream.next().await {
            message?;
        }
        Ok::<_, Error>(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LIMIT, goodbye).await {
        tracing::debug!(%error, "a socket ended without a goodbye");
    }
}
