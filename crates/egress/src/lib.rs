//! What stands between a sandbox and the outside.
//!
//! Inside a sandbox's network every address is the machine's own, and a few sockets listen there: an HTTP proxy, one listener
//! for each port that some rule allows, and a name server. All of them are served here, outside ([`Filter`]). Whatever else is
//! tried inside finds nobody and is told so at once by the kernel.
//!
//! - A name is answered if the rules allow it, with an address that stands for it in this sandbox alone. Nobody outside is
//!   asked, so a name carries nothing out. It is resolved outside when something connects to it.
//! - A connection is judged by where it goes: the name that its address stands for, an address itself, or what is asked of the
//!   proxy. Then it is looked at: a TLS client must name the same server, and each request in the clear must be for the same
//!   host. Requests are read and written anew. At 443 nothing but TLS and HTTP passes.
//! - All addresses of a name are checked, and the connection goes to what was checked.
//! - Who is refused learns it at once: a reset, a 403 that says which rule is missing, or a name that does not exist.
//! - When a phase begins, connections of the last one are reset.
//! - Every attempt is in the [`Audit`].
//!
//! What is not seen: everything inside TLS. A client that names an allowed server can ask it for another host's pages if that
//! server has them (shared front ends do), and one that hides the name of its server (ECH) shows that of the front end.
//! A server that is allowed may itself pass on what it is told. At ports other than 80 and 443 a client that says nothing at
//! first is taken for one that waits for a greeting, and is not looked at later. Behind a company's proxy that proxy decides
//! which addresses names lead to.

mod audit;
mod company;
mod connection;
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
pub use filter::{Filter, Gates, Options};
pub use limits::Limits;
pub use outside::{Credential, Outside, System, World};
