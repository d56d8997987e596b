//! What one sandbox may take of the filter.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At once; one more is reset.
    pub connections: usize,
    /// For a ClientHello, and for the headers of a request.
    pub opening: Duration,
    /// For the first bytes where the other side may be the one that begins.
    pub glance: Duration,
    /// Without a byte in either direction.
    pub idle: Duration,
    /// Of the headers of a request.
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
