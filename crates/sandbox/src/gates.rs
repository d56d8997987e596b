//! How programs inside a sandbox reach the world outside of it, where somebody outside says what of it: see [`Gates`].

use std::net::{TcpListener, UdpSocket};

/// Where programs inside that know proxies find one.
pub const PROXY_PORT: u16 = 3128;
/// At most so many ports can be intercepted in one sandbox.
pub const PORTS_MAX: usize = 32;

/// Sockets in a sandbox's network, to be answered from outside. Inside, every IPv4 address is local, so whoever connects to
/// an intercepted port of any address arrives here; all other ports refuse at once, and IPv6 has no route.
#[derive(Debug)]
pub struct Gates {
    /// `127.0.0.1:PROXY_PORT`, for an HTTP proxy.
    pub proxy: TcpListener,
    /// One per port of [`crate::Spec::intercepted_ports`]. An accepted connection's local address is its destination.
    pub intercepted: Vec<TcpListener>,
    /// `127.0.0.1:53`, which `/etc/resolv.conf` names.
    pub dns: UdpSocket,
}
