//! The egress filter of a sandbox: which names it can resolve, which hosts it can connect to.
//!
//! Inside a sandbox's network namespace every IPv4 address is local (AnyIP), and a few sockets listen: an HTTP proxy,
//! one listener for each port that some rule allows, and a DNS server. The sockets are opened inside and served here,
//! in our process ([`Filter`]). Any other port is refused by the kernel at once, and IPv6 has no route.
//!
//! - DNS: an allowed name gets a synthetic address that is valid in this sandbox only. No query leaves the machine, so
//!   DNS cannot be used as a tunnel. The name is resolved outside when something connects to it.
//! - Connections are judged by their target: the name behind a synthetic address, an IP literal, or the target of a
//!   proxy request. Then their first bytes are inspected: a TLS client's SNI must match the target, and so must the
//!   `Host` of every plain HTTP request. Requests are parsed and serialised again. On port 443 only TLS and HTTP pass.
//! - Every address that a name resolves to is checked, and only checked addresses are connected to.
//! - Refusals are immediate: a reset, a 403 that names the missing rule, or NXDOMAIN.
//! - Entering a phase resets all connections of the previous one.
//! - Every attempt is recorded in the [`Audit`].
//!
//! What the filter cannot see: everything inside TLS. A client that sends an allowed SNI can request another host's
//! pages from a shared front end (domain fronting), and with ECH only the front end's name is visible. An allowed
//! server may relay what it receives. On ports other than 80 and 443 a client that is silent at first is taken for one
//! that waits for the server's greeting: what it says first is inspected whenever it comes, unless the server spoke before, and
//! TLS even then. TLS that begins later (`STARTTLS`) is not seen. Behind a company's HTTP proxy, that proxy decides which
//! addresses names resolve to.

mod audit;
mod company;
mod connection;
mod credential;
mod dns;
mod filter;
mod headers;
mod http;
mod limits;
mod names;
mod opening;
mod outside;
mod socket;
mod state;
#[cfg(test)]
mod tests;

pub use audit::Audit;
pub use company::{CompanyProxy, NotAProxy};
pub use credential::Credential;
pub use filter::{Filter, Gates, Options};
pub use limits::Limits;
pub use outside::{Outside, System, World};
