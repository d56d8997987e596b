//! Handles one connection from the sandbox, from accept to close.

use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use rollcage_model::network::{Addresses, AttemptKind, Host, Target};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};

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

/// An allowed target of a connection.
struct Way {
    target: Target,
    addresses: Addresses,
    /// An established connection to it.
    ready: Option<Socket>,
}

/// Inspects the client's first bytes, and forwards the connection if they match the target.
async fn pass(connection: Connection, mut client: Socket, way: Way) {
    let target = &way.target;
    let limits = connection.state.limits;
    let refuse = |kind, reason: &str| {
        connection.refused(kind, target, reason);
        connection.life.cut();
    };
    match opening::look(&mut client, target.port, &limits).await {
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
        Opening::Nothing => refuse(AttemptKind::Connect, "the client said nothing in time"),
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
async fn splice(connection: &Connection, client: Socket, way: Way, kind: AttemptKind) {
    let outside = match way.ready {
        Some(socket) => Ok(socket),
        None => {
            let outside = &connection.state.outside;
            outside.tunnel(&way.target, way.addresses).await
        }
    };
    match outside {
        Ok(outside) => {
            let meter = connection.allowed(kind, &way.target);
            copy(client, outside.metered(meter)).await;
        }
        Err(error) => {
            connection.unreachable(kind, &way.target, &error);
            connection.life.cut();
        }
    }
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
