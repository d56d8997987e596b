//! The entrance: how programs inside a sandbox reach the model, which is served outside.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A connection of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub type BoxedStream = Box<dyn Stream>;

/// Where to serve the model, from [`crate::Sandbox::take_entrance`].
#[derive(Debug)]
pub enum Entrance {
    /// A listener that only programs in this sandbox can connect to.
    Listener {
        listener: Listener,
        /// Its URL from inside the sandbox: scheme, host and port.
        base_url: String,
    },
    /// An address of this machine that programs inside can connect to, and that the model's server has to listen on.
    Address {
        /// Port 0 means any free port.
        listen: SocketAddr,
        /// This machine's host name inside the sandbox.
        host: String,
        /// Which peers are answered; others may be able to connect too.
        from: AllowedPeers,
    },
}

/// A source of connections.
pub enum Listener {
    Tcp {
        listener: TcpListener,
        from: AllowedPeers,
    },
    /// Connections accepted elsewhere.
    Streams(mpsc::Receiver<BoxedStream>),
}

/// The peers whose connections are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedPeers {
    Anybody,
    Only(Vec<IpAddr>),
}

impl Entrance {
    /// Returns the listener to serve, and the base URL for programs inside.
    pub fn open(self) -> io::Result<(Listener, String)> {
        match self {
            Entrance::Listener { listener, base_url } => Ok((listener, base_url)),
            Entrance::Address { listen, host, from } => {
                let listener = TcpListener::bind(listen)?;
                let port = listener.local_addr()?.port();
                let listener = Listener::Tcp { listener, from };
                Ok((listener, format!("http://{host}:{port}")))
            }
        }
    }
}

impl From<TcpListener> for Listener {
    /// Answers anybody.
    fn from(listener: TcpListener) -> Self {
        Listener::Tcp {
            listener,
            from: AllowedPeers::Anybody,
        }
    }
}

impl AllowedPeers {
    pub fn includes(&self, peer: IpAddr) -> bool {
        match self {
            AllowedPeers::Anybody => true,
            // A dual-stack socket reports IPv4 addresses as IPv6 ones.
            AllowedPeers::Only(peers) => peers.contains(&peer.to_canonical()),
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Tcp { listener, from } => formatter
                .debug_struct("Tcp")
                .field("listener", listener)
                .field("from", from)
                .finish(),
            Listener::Streams(_) => formatter.debug_tuple("Streams").finish_non_exhaustive(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_is_listened_on_and_returned_as_a_url() {
        let entrance = Entrance::Address {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            host: "host.internal".to_owned(),
            from: AllowedPeers::Only(vec![Ipv4Addr::LOCALHOST.into()]),
        };
        let (listener, base_url) = entrance.open().unwrap();
        let Listener::Tcp { listener, from } = listener else {
            panic!("an address gives a TCP listener");
        };
        let port = listener.local_addr().unwrap().port();
        assert_eq!(base_url, format!("http://host.internal:{port}"));
        assert!(from.includes("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!from.includes("127.0.0.2".parse().unwrap()));
    }
}
