//! Connections to endpoints and MCP servers: the clients that make them, and the guard of those whose address somebody
//! else names.
//!
//! A server's clients name URLs (`base_url`, an MCP server's `url`), and the server stands where they do not: beside
//! metadata services, databases and other people's loopback. Such a URL carries a [`Guard`] from where it is read to
//! where it is connected to. Names are resolved here and nowhere else, every address is checked, and what was checked is
//! what is connected to; so a name that changes its mind in between gains nothing. Redirects are never followed.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rollcage_model::network::address::{ClosedKind, closed_kind};

mod allowed;

pub use allowed::{Allowed, NotAllowed};

const USER_AGENT: &str = concat!("rollcage/", env!("CARGO_PKG_VERSION"));
/// For a connection to an endpoint. There is no limit on a whole answer: models think for minutes.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// Between two pieces of an answer.
const READ_LIMIT: Duration = Duration::from_secs(600);
/// For a connection that waits for its next call. Servers and what stands before them close what is quiet for longer.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// For a name that is looked up before anything is started.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(5);

/// An address that clients of this server may not name. Says what kind it is, not which: names of the server's own
/// network are looked up where clients cannot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{host}` is {kind} address, which clients of this server may not name: whoever runs it can allow it with \
     --allow-url {host}"
)]
pub struct Forbidden {
    host: String,
    kind: &'static str,
}

/// Why there is no client for a URL.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("set up HTTPS")]
    Http(#[from] reqwest::Error),
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
}

/// How names become addresses. Tests have names that change.
pub trait Resolver: fmt::Debug + Send + Sync {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// As the machine does it.
#[derive(Debug)]
struct System;

impl Resolver for System {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Which addresses the clients of a server may name.
#[derive(Debug)]
pub struct Guard {
    allowed: Vec<Allowed>,
    resolver: Arc<dyn Resolver>,
    /// Made when it is first needed; knows no company's proxy, which would resolve names itself.
    client: OnceLock<reqwest::Client>,
}

/// Why there is no address to connect to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAddress {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error(transparent)]
    Lookup(#[from] io::Error),
}

impl Guard {
    pub fn new(allowed: Vec<Allowed>) -> Arc<Self> {
        Self::with_resolver(allowed, Arc::new(System))
    }

    pub fn with_resolver(allowed: Vec<Allowed>, resolver: Arc<dyn Resolver>) -> Arc<Self> {
        Arc::new(Guard {
            allowed,
            resolver,
            client: OnceLock::new(),
        })
    }

    /// Looks at a URL before anything is done for it. A name that cannot be looked up passes: it is asked for again by
    /// every connection.
    pub async fn check(&self, url: &str) -> Result<(), Forbidden> {
        let Ok(url) = reqwest::Url::parse(url) else {
            return Ok(());
        };
        let Some(host) = url.host_str().filter(|_| !self.is_trusted(&url)) else {
            return Ok(());
        };
        match tokio::time::timeout(LOOK_UP_LIMIT, self.addresses(host)).await {
            Ok(Err(NoAddress::Forbidden(forbidden))) => Err(forbidden),
            Ok(Ok(_) | Err(NoAddress::Lookup(_))) | Err(_) => Ok(()),
        }
    }

    /// Whether the operator allows what the URL says, wherever that leads.
    fn is_trusted(&self, url: &reqwest::Url) -> bool {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return false;
        };
        self.allowed.iter().any(|rule| rule.has_host(host, port))
    }

    /// Where a host may be connected to. One bad address among several is enough to refuse all of them.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, NoAddress> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.resolver.resolve(host).await?,
        };
        for address in &found {
            self.check_address(host, *address)?;
        }
        if found.is_empty() {
            return Err(io::Error::other("the name has no address").into());
        }
        Ok(found)
    }

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), Forbidden> {
        if self.allowed.iter().any(|rule| rule.has_address(address)) {
            return Ok(());
        }
        let own = || is_own(address).then_some("the server's own");
        match closed_kind(address).map(ClosedKind::as_str).or_else(own) {
            None => Ok(()),
            Some(kind) => Err(Forbidden {
                host: host.to_owned(),
                kind,
            }),
        }
    }

    /// A client that connects to checked addresses only. A URL with an address in it is checked here, since nobody
    /// resolves it.
    fn client(self: &Arc<Self>, url: &reqwest::Url) -> Result<reqwest::Client, ClientError> {
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = host.parse() {
            self.check_address(host, address)?;
        }
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let resolver = Guarded(Arc::clone(self));
        let made = builder().no_proxy().dns_resolver(Arc::new(resolver));
        let made = made.build()?;
        Ok(self.client.get_or_init(|| made).clone())
    }
}

/// Whether a packet to that address would stay on this machine: then its source is the address itself. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    let any: SocketAddr = match address {
        IpAddr::V4(_) => ([0; 4], 0).into(),
        IpAddr::V6(_) => ([0; 16], 0).into(),
    };
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// The guard as the general client asks it.
struct Guarded(Arc<Guard>);

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.0);
        Box::pin(async move {
            let found = guard.addresses(name.as_str()).await?;
            // The port is the URL's.
            let found = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok::<Addrs, _>(Box::new(found))
        })
    }
}

/// HTTP clients, made when they are first needed and then shared: one for endpoints on this machine, one for others.
/// Guarded URLs have their guard's.
#[derive(Default)]
pub struct Clients {
    here: OnceLock<reqwest::Client>,
    elsewhere: OnceLock<reqwest::Client>,
}

impl Clients {
    pub fn of(
        &self,
        url: &str,
        guard: Option<&Arc<Guard>>,
    ) -> Result<reqwest::Client, ClientError> {
        if let Some(client) = guarded(url, guard)? {
            return Ok(client);
        }
        let known = if is_here(url) {
            &self.here
        } else {
            &self.elsewhere
        };
        match known.get() {
            Some(client) => Ok(client.clone()),
            None => {
                let made = client(url)?;
                Ok(known.get_or_init(|| made).clone())
            }
        }
    }
}

/// A client for a URL that somebody else may have named.
pub fn client_for(url: &str, guard: Option<&Arc<Guard>>) -> Result<reqwest::Client, ClientError> {
    match guarded(url, guard)? {
        Some(client) => Ok(client),
        None => Ok(client(url)?),
    }
}

/// `None` where there is nothing to guard against.
fn guarded(url: &str, guard: Option<&Arc<Guard>>) -> Result<Option<reqwest::Client>, ClientError> {
    match (guard, reqwest::Url::parse(url)) {
        (Some(guard), Ok(url)) if !guard.is_trusted(&url) => guard.client(&url).map(Some),
        _ => Ok(None),
    }
}

/// A client for one endpoint. An endpoint on this machine is never asked for through a company's proxy.
pub fn client(base_url: &str) -> reqwest::Result<reqwest::Client> {
    let builder = builder();
    if is_here(base_url) {
        builder.no_proxy()
    } else {
        builder
    }
    .build()
}

fn builder() -> reqwest::ClientBuilder {
    // Already installed is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .read_timeout(READ_LIMIT)
        .pool_idle_timeout(IDLE_LIMIT)
        .user_agent(USER_AGENT)
}

pub fn is_here(base_url: &str) -> bool {
    reqwest::Url::parse(base_url).is_ok_and(|url| is_this_machine(&url))
}

fn is_this_machine(url: &reqwest::Url) -> bool {
    matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"))
}
