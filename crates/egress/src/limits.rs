//! Resource limits of one sandbox's filter.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections; further ones are reset.
    pub connections: usize,
    /// For a ClientHello, and for the headers of a request.
    pub opening: Duration,
    /// For the client's first bytes on ports where the server may speak first.
    pub glance: Duration,
    /// For a connection without traffic in either direction.
    pub idle: Duration,
    /// Of a request's head.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            opening: Duration::from_secs(10),
            glance: Duration::from_millis(300),
            idle: Duration::from_secs(600),
            header_bytes: 64 * 1024,
        }
    }
}
