//! An echo server: our connections, handshake and frames, without OpenEnv.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::server::listen;

/// The length of Autobahn's longest messages.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A running echo server; dropping it ends it.
pub(super) struct Echo {
    pub(super) address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Echo {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(upgrade);
        let mut serving = JoinSet::new();
        serving.spawn(listen::accept(
            listener,
            router,
            listen::Shutdown::default(),
        ));
        Echo {
            address,
            _serving: serving,
        }
    }
}

async fn upgrade(mut request: Request) -> Response {
    let response = handshake::answer(request.headers()).unwrap();
    let upgrading = hyper::upgrade::on(&mut request);
    #[expect(
        clippy::disallowed_methods,
        reason = "it ends with the runtime of its test"
    )]
    tokio::spawn(async move {
        let socket = TokioIo::new(upgrading.await.unwrap());
        say_back(WebSocket::new(socket, MESSAGE_BYTES_MAX)).await;
    });
    response
}

async fn say_back<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocket<S>) {
    loop {
        let sent = match socket.receive().await {
            Ok(SocketMessage::Text(text)) => socket.send_text(&text).await,
            Ok(SocketMessage::Binary(bytes)) => socket.send(BINARY, &bytes).await,
            Ok(SocketMessage::Ping(payload)) => socket.pong(&payload).await,
            Ok(SocketMessage::Pong) => Ok(()),
            Ok(SocketMessage::Close(code)) => return socket.close(code).await,
            Err(broken) => match broken.close_code() {
                Some(code) => return socket.close(Some(code as u16)).await,
                None => return,
            },
        };
        if sent.is_err() {
            return;
        }
    }
}
