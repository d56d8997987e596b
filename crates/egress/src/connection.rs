//! Handles one connection from the sandbox, from accept to close.

use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use rollcage_model::network::{Addresses, AttemptKind, Host, Target};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};

use crate::http::{self, Next, Scope};
use crate::opening::{self, Opening};
use crate::socket::Socket;
use crate::state::Connection;

/// Copy buffer, per direction.
const PIECE_BYTES: usize = 64 * 1024;

/// A connection to the HTTP proxy.
pub(crate) async fn proxy(connection: Connection, client: Socket) {
    match http::serve(connection.clone(), client, Scope::Proxy).await {
        Some(Next::Tunnel {
            client,
            outside,
            target,
            addresses,
        }) => {
            let client = client.await.ok().and_then(http::socket_of);
            if let Some(client) = client {
                let way = Way {
                    target,
                    addresses,
                    ready: Some(outside),
                };
                pass(connection, client, way).await;
            }
        }
        next => websocket(next).await,
    }
}

/// A connection of a client that uses no proxy. `address` is its original destination.
pub(crate) async fn transparent(connection: Connection, client: Socket, address: SocketAddr) {
    let Some(target) = connection.state.target(address) else {
        let target = Target {
            host: address.ip().into(),
            port: address.port(),
        };
        let reason = "the address stands for no name that was asked for";
        connection.refused(AttemptKind::Connect, &target, reason);
        return connection.life.cut();
    };
    match connection.verdict(&target) {
        Ok(addresses) => {
            let way = Way {
                target,
                addresses,
                ready: None,
            };
            pass(connection, client, way).await;
        }
        Err(refusal) => {
            connection.refused(AttemptKind::Connect, &target, refusal);
            connection.life.cut();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Client,
    Server,
}

/// An allowed target of a connection.
struct Way {
    target: Target,
    addresses: Addresses,
    /// An established connection to it.
    ready: Option<Socket>,
}

/// Inspects the client's first bytes, and forwards the connection if they match the target.
async fn pass(connection: Connection, mut client: Socket, mut way: Way) {
    let limits = connection.state.limits;
    let mut opening = opening::look(&mut client, way.target.port, &limits).await;
    if opening == Opening::Silent {
        let Some(mut outside) = outside(&connection, &mut way, AttemptKind::Raw).await else {
            return;
        };
        let is_greeted = match outside.ahead() {
            // A company's proxy may have sent it along with its own answer.
            [_, ..] => true,
            [] => tokio::select! {
                biased;
                _ = client.read_ahead() => false,
                _ = outside.read_ahead() => true,
            },
        };
        if is_greeted {
            return greeted(&connection, client, outside, &way.target).await;
        }
        way.ready = Some(outside);
        opening = opening::look(&mut client, way.target.port, &limits).await;
    }
    let target = &way.target;
    let refuse = |kind, reason: &str| {
        connection.refused(kind, target, reason);
        connection.life.cut();
    };
    match opening {
        Opening::Tls { server_name } => match misnamed(&connection, target, server_name) {
            Some(reason) => refuse(AttemptKind::Tls, &reason),
            None => splice(&connection, client, way, AttemptKind::Tls).await,
        },
        Opening::Http => requests(connection, client, way).await,
        Opening::Other if target.port == 80 => requests(connection, client, way).await,
        Opening::Other if target.port == 443 => {
            refuse(AttemptKind::Raw, "neither TLS nor HTTP at port 443");
        }
        Opening::Other => splice(&connection, client, way, AttemptKind::Raw).await,
        Opening::Nothing | Opening::Silent => {
            refuse(AttemptKind::Connect, "the client said nothing in time");
        }
        Opening::Gone => connection.abandoned(target),
        Opening::BrokenTls => refuse(AttemptKind::Tls, "the ClientHello cannot be read"),
    }
}

/// Why the SNI does not match the target. A missing SNI matches.
fn misnamed(
    connection: &Connection,
    target: &Target,
    server_name: Option<String>,
) -> Option<String> {
    let said = server_name?;
    let is_meant = match (&target.host, Host::parse(&said)) {
        (Host::Name(_), Some(host)) => host == target.host,
        // For an IP literal: any name that is allowed on this port.
        (Host::Ip(_), Some(host @ Host::Name(_))) => {
            let port = target.port;
            connection.verdict(&Target { host, port }).is_ok()
        }
        (Host::Ip(_), Some(host @ Host::Ip(_))) => host == target.host,
        (_, None) => false,
    };
    (!is_meant).then(|| format!("the TLS client names another server, {said}"))
}

async fn requests(connection: Connection, client: Socket, way: Way) {
    let scope = Scope::One {
        target: way.target,
        addresses: way.addresses,
        ready: way.ready,
    };
    let next = http::serve(connection, client, scope).await;
    websocket(next).await;
}

async fn websocket(next: Option<Next>) {
    if let Some(Next::WebSocket { client, outside }) = next
        && let (Ok(client), Ok(outside)) = (client.await, outside.await)
    {
        copy(TokioIo::new(client), TokioIo::new(outside)).await;
    }
}

/// Forwards bytes unchanged.
async fn splice(connection: &Connection, client: Socket, mut way: Way, kind: AttemptKind) {
    if let Some(outside) = outside(connection, &mut way, kind).await {
        let meter = connection.allowed(kind, &way.target);
        copy(client, outside.metered(meter)).await;
    }
}

/// The connection to the target; `None` if there is none, which is recorded.
async fn outside(connection: &Connection, way: &mut Way, kind: AttemptKind) -> Option<Socket> {
    if let Some(socket) = way.ready.take() {
        return Some(socket);
    }
    let allowed = connection.allowed_addresses(way.addresses);
    let outside = connection.state.outside.tunnel(&way.target, &allowed).await;
    let failed = |error| {
        connection.unreachable(kind, &way.target, &error);
        connection.life.cut();
    };
    outside.map_err(failed).ok()
}

/// Forwards bytes unchanged where the server spoke first, as no server of TLS or HTTP does. Still, a client that answers with
/// TLS has to name the target.
async fn greeted(connection: &Connection, mut client: Socket, outside: Socket, target: &Target) {
    let meter = connection.allowed(AttemptKind::Raw, target);
    let mut outside = outside.metered(meter);
    while client.ahead().is_empty() {
        let said = outside.ahead().to_vec();
        if client.write_all(&said).await.is_err() {
            return;
        }
        outside.skip(said.len());
        let (who, read) = tokio::select! {
            biased;
            read = client.read_ahead() => (Speaker::Client, read),
            read = outside.read_ahead() => (Speaker::Server, read),
        };
        // The end of either side is for the copying to pass on.
        if !matches!(read, Ok(1..)) || who == Speaker::Client {
            break;
        }
    }
    if opening::is_tls(&client) {
        let limits = &connection.state.limits;
        let reason = match opening::look(&mut client, target.port, limits).await {
            Opening::Tls { server_name } => misnamed(connection, target, server_name),
            _ => Some("the ClientHello cannot be read".to_owned()),
        };
        if let Some(reason) = reason {
            connection.refused(AttemptKind::Tls, target, reason);
            return connection.life.cut();
        }
    }
    copy(client, outside).await;
}

/// Copies until both sides have closed, or one fails.
async fn copy(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut outside: impl AsyncRead + AsyncWrite + Unpin,
) {
    let copied =
        copy_bidirectional_with_sizes(&mut client, &mut outside, PIECE_BYTES, PIECE_BYTES).await;
    if let Err(error) = copied {
        tracing::debug!(%error, "a sandbox's connection broke");
    }
}
