//! How programs inside a sandbox reach the model, which is served outside.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A connection, whatever it is made of.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub type BoxedStream = Box<dyn Stream>;

/// What [`crate::Sandbox::take_entrance`] gives.
#[derive(Debug)]
pub enum Entrance {
    /// Connections that come from inside this sandbox alone.
    Listener {
        listener: Listener,
        /// Where programs inside find it: scheme, host and port.
        base_url: String,
    },
    /// An address of this machine that programs inside can connect to. Whoever serves the model listens there.
    Address {
        /// Port 0 is any that is free.
        listen: SocketAddr,
        /// This machine's name, as seen from inside.
        host: String,
        /// Who else could connect as well, and is not to be answered.
        from: Peers,
    },
}

/// Where connections come from.
pub enum Listener {
    Tcp {
        listener: TcpListener,
        from: Peers,
    },
    /// Connections that were made elsewhere.
    Streams(mpsc::Receiver<BoxedStream>),
}

/// Who is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    Anybody,
    Only(Vec<IpAddr>),
}

impl Entrance {
    /// What to serve, and the base URL that programs inside are told.
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
            from: Peers::Anybody,
        }
    }
}

impl Peers {
    pub fn includes(&self, peer: IpAddr) -> bool {
        match self {
            Peers::Anybody => true,
            // A socket for both families shows IPv4 addresses as IPv6 ones.
            Peers::Only(peers) => peers.contains(&peer.to_canonical()),
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
    fn an_address_is_listened_on_and_told_as_a_url() {
        let entrance = Entrance::Address {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            host: "host.internal".to_owned(),
            from: Peers::Only(vec![Ipv4Addr::LOCALHOST.into()]),
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
