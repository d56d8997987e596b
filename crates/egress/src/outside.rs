//! Outgoing connections. Every address that a name resolves to is checked, and only checked addresses are connected to,
//! so DNS rebinding gains nothing.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::header::HeaderValue;
use rollcage_model::network::address::ClosedKind;
use rollcage_model::network::{Addresses, Host, Rules, Target, check_address};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::company::{CompanyProxy, ProxyServer, Purpose};
use crate::credential::Credential;
use crate::socket::Socket;

/// For resolving a name, and then for connecting to one of its addresses.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Of a company proxy's response to CONNECT.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Addresses that no machine has.
const NOBODYS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOBODYS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The host's network: resolving and connecting. A trait so that tests can replace it.
pub trait World: fmt::Debug + Send + Sync {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;

    /// Only called with checked addresses.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// The operating system's resolver and sockets.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl World for System {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}

/// What the rules say of a target's addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed<'a> {
    pub(crate) addresses: Addresses,
    pub(crate) rules: &'a Rules,
}

/// How outgoing connections are made from this host.
#[derive(Clone, Debug)]
pub struct Outside {
    pub world: Arc<dyn World>,
    pub company: CompanyProxy,
    pub credentials: Vec<Credential>,
}

impl Default for Outside {
    fn default() -> Self {
        Outside {
            world: Arc::new(System),
            company: CompanyProxy::default(),
            credentials: Vec::new(),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error("the name leads to {0} address")]
    Closed(ClosedKind),
    #[error("{0} is this machine itself, and that address is not listed")]
    Own(IpAddr),
    #[error("the name cannot be looked up: {0}")]
    LookUp(io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("no answer in {} seconds", CONNECT_LIMIT.as_secs())]
    TooSlow,
    #[error("the proxy of this machine refuses it: {0}")]
    Company(String),
}

impl Unreachable {
    /// Whether it was refused by a rule, rather than failed.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Unreachable::Closed(_) | Unreachable::Own(_))
    }
}

/// The form of request targets on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// Path only, to the host itself.
    Origin,
    /// The whole URL, to a proxy.
    Absolute { authorization: Option<HeaderValue> },
}

impl Outside {
    /// A connection for an opaque byte stream.
    pub(crate) async fn tunnel(
        &self,
        target: &Target,
        allowed: &Allowed<'_>,
    ) -> Result<Socket, Unreachable> {
        match self.company.server(target, Purpose::Tunnel) {
            None => self.direct(target, allowed).await,
            Some(server) => timeout(CONNECT_LIMIT, self.through(server, target))
                .await
                .unwrap_or(Err(Unreachable::TooSlow)),
        }
    }

    /// A connection for plain HTTP requests.
    pub(crate) async fn requests(
        &self,
        target: &Target,
        allowed: &Allowed<'_>,
    ) -> Result<(Socket, Form), Unreachable> {
        let Some(server) = self.company.server(target, Purpose::Requests) else {
            return Ok((self.direct(target, allowed).await?, Form::Origin));
        };
        let authorization = server.authorization.clone();
        let socket = self.to_company(server).await?;
        Ok((socket, Form::Absolute { authorization }))
    }

    async fn direct(&self, target: &Target, allowed: &Allowed<'_>) -> Result<Socket, Unreachable> {
        let addresses = match &target.host {
            Host::Ip(address) => vec![*address],
            Host::Name(name) => self.look_up(name).await?,
        };
        // One restricted address among several refuses all of them.
        for address in &addresses {
            check_address(*address, allowed.addresses).map_err(Unreachable::Closed)?;
            if is_own(*address) && !allowed.rules.lists_address(*address, target.port) {
                return Err(Unreachable::Own(*address));
            }
        }
        self.connect(&addresses, target.port).await
    }

    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Unreachable> {
        let found = timeout(LOOK_UP_LIMIT, self.world.resolve(name)).await;
        let found = found.map_err(|_| Unreachable::TooSlow)?;
        let found = found.map_err(Unreachable::LookUp)?;
        match found.is_empty() {
            true => Err(Unreachable::NoAddress),
            false => Ok(found.iter().map(IpAddr::to_canonical).collect()),
        }
    }

    /// Tries the addresses in order. Each gets an equal share of the remaining time.
    async fn connect(&self, addresses: &[IpAddr], port: u16) -> Result<Socket, Unreachable> {
        let deadline = Instant::now() + CONNECT_LIMIT;
        let mut last = Unreachable::NoAddress;
        for (index, address) in addresses.iter().enumerate() {
            let others = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / others;
            let connecting = self.world.connect(SocketAddr::new(*address, port));
            match timeout_at(now + share, connecting).await {
                Ok(Ok(stream)) => return Ok(Socket::outside(stream)),
                Ok(Err(error)) => last = Unreachable::Connect(error),
                Err(_) => last = Unreachable::TooSlow,
            }
        }
        Err(last)
    }

    /// The proxy is the operator's own setting, so its addresses are not checked.
    async fn to_company(&self, server: &ProxyServer) -> Result<Socket, Unreachable> {
        let addresses = match server.host.parse() {
            Ok(address) => vec![address],
            Err(_) => self.look_up(&server.host).await?,
        };
        self.connect(&addresses, server.port).await
    }

    async fn through(&self, server: &ProxyServer, target: &Target) -> Result<Socket, Unreachable> {
        let mut socket = self.to_company(server).await?;
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(authorization) = &server.authorization {
            head.extend_from_slice(b"Proxy-Authorization: ");
            head.extend_from_slice(authorization.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let sent = socket.write_all(&head).await;
        sent.map_err(Unreachable::Connect)?;
        let end = loop {
            let ahead = socket.ahead();
            if let Some(end) = ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            if ahead.len() > HEAD_BYTES_MAX {
                return Err(Unreachable::Company("its answer has no end".to_owned()));
            }
            let more = socket.read_ahead().await.map_err(Unreachable::Connect)?;
            if more == 0 {
                return Err(Unreachable::Company("it closed the connection".to_owned()));
            }
        };
        let head = String::from_utf8_lossy(&socket.ahead()[..end]).into_owned();
        let line = head.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some(status) if status.starts_with('2') => {
                socket.skip(end + 4);
                Ok(socket)
            }
            status => Err(Unreachable::Company(format!(
                "status {}",
                status.unwrap_or("missing")
            ))),
        }
    }
}

/// Whether the address is one of this host's own, on whatever interface: then a socket can be bound to it. Sends nothing.
fn is_own(address: IpAddr) -> bool {
    let bind = |address: IpAddr| UdpSocket::bind((address, 0));
    let (any, nobodys) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), NOBODYS_V4.into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), NOBODYS_V6.into()),
    };
    // Where sockets may be bound to foreign addresses too, the kernel is asked which address it would send from.
    if bind(nobodys).is_err() {
        return bind(address).is_ok();
    }
    let source = bind(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_addresses_are_its_own() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        // Not the address that the kernel would send from.
        assert!(is_own("127.0.0.2".parse().unwrap()));
        assert!(!is_own("192.0.2.1".parse().unwrap()));
        assert!(!is_own("2001:db8::1".parse().unwrap()));
    }
}
