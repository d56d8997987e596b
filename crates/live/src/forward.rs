//! An authenticated address on loopback that leads to a server in a sandbox.

use std::io;
use std::net::SocketAddr;

use crate::client::{Connect, Credentials};

/// A listening forwarder. Dropping it ends its connections.
pub struct Forwarder {
    _address: SocketAddr,
}

impl Forwarder {
    /// Listens on a free port of loopback. Requests need `outer`; they are passed on with the server's own credentials, bodies
    /// and event streams as they come. `connect` is asked for each request, since the server may have been started anew.
    pub async fn start(
        _connect: std::sync::Arc<dyn ForwardTarget>,
        _outer: Credentials,
    ) -> io::Result<Self> {
        todo!()
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base_url(&self) -> String {
        todo!()
    }

    pub async fn close(&mut self) {
        todo!()
    }
}

/// The server behind a forwarder, right now.
pub trait ForwardTarget: Send + Sync {
    /// `None` while it does not run.
    fn target(&self) -> Option<(std::sync::Arc<dyn Connect>, Credentials)>;
}
