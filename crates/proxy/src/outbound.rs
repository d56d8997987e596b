//! Connections to endpoints and MCP servers: the HTTP clients, and protection against server-side request forgery.
//!
//! Clients of our server can send URLs (`base_url`, an MCP server's `url`), while the server may reach hosts that they
//! cannot: metadata services, databases, loopback. Such a URL carries a [`Guard`] from where it is parsed to where it
//! is connected to. Names are resolved only here, every address is checked, and the checked address is the one that is
//! connected to, so DNS rebinding gains nothing. Redirects are never followed.
//!
//! Names are resolved for every connection, since an address that is kept goes stale over a rollout's hours. Guarded
//! URLs ignore a configured HTTP proxy, which would resolve names itself, unless the operator allows their host by
//! name.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rollcage_model::network::address::{ClosedKind, closed_kind};

mod allowed;

pub use allowed::{AllowRule, InvalidAllowRule};

const USER_AGENT: &str = concat!("rollcage/", env!("CARGO_PKG_VERSION"));
/// For connecting to an endpoint. There is no limit on a whole answer: models think for minutes.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// Between two chunks of an answer.
const READ_LIMIT: Duration = Duration::from_secs(600);
/// For an idle connection in the pool. Servers and load balancers close those that are idle for longer.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// For resolving a name in [`Guard::check`].
const LOOK_UP_LIMIT: Duration = Duration::from_secs(5);

/// An address that clients of this server may not use. The error gives the kind of the address, not the address itself,
/// so that clients cannot resolve names of the server's internal network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{host}` is {kind} address, which clients of this server may not name: whoever runs it can allow it with \
     --allow-url {host}"
)]
pub struct ForbiddenAddress {
    host: String,
    kind: &'static str,
}

/// Why there is no client for a URL.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("set up HTTPS")]
    Http(#[from] reqwest::Error),
    #[error(transparent)]
    Forbidden(#[from] ForbiddenAddress),
}

/// Resolves host names; a trait so that tests can change the addresses of a name.
pub trait Resolver: fmt::Debug + Send + Sync {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
#[derive(Debug)]
struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let host = host.to_owned();
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Which addresses the clients of a server may use in URLs.
#[derive(Debug)]
pub struct Guard {
    allowed: Vec<AllowRule>,
    resolver: Arc<dyn Resolver>,
    /// Built on first use. Ignores a configured HTTP proxy, which would resolve names itself.
    client: OnceLock<reqwest::Client>,
}

/// Why there is no address to connect to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(transparent)]
    Forbidden(#[from] ForbiddenAddress),
    #[error(transparent)]
    Lookup(#[from] io::Error),
}

impl Guard {
    pub fn new(allowed: Vec<AllowRule>) -> Arc<Self> {
        Self::with_resolver(allowed, Arc::new(SystemResolver))
    }

    pub fn with_resolver(allowed: Vec<AllowRule>, resolver: Arc<dyn Resolver>) -> Arc<Self> {
        Arc::new(Guard {
            allowed,
            resolver,
            client: OnceLock::new(),
        })
    }

    /// Checks a URL early, before any work is done for it. A name that cannot be resolved passes: every connection
    /// resolves and checks it again.
    pub async fn check(&self, url: &str) -> Result<(), ForbiddenAddress> {
        let Ok(url) = reqwest::Url::parse(url) else {
            return Ok(());
        };
        let Some(host) = url.host_str().filter(|_| !self.is_trusted(&url)) else {
            return Ok(());
        };
        match tokio::time::timeout(LOOK_UP_LIMIT, self.addresses(host)).await {
            Ok(Err(AddressError::Forbidden(forbidden))) => Err(forbidden),
            Ok(Ok(_) | Err(AddressError::Lookup(_))) | Err(_) => Ok(()),
        }
    }

    /// Whether the operator allows the URL's host and port, whatever the name resolves to.
    fn is_trusted(&self, url: &reqwest::Url) -> bool {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return false;
        };
        self.allowed.iter().any(|rule| rule.has_host(host, port))
    }

    /// The addresses of a host. One forbidden address among several refuses all of them.
    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, AddressError> {
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

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), ForbiddenAddress> {
        if self.allowed.iter().any(|rule| rule.has_address(address)) {
            return Ok(());
        }
        let own = || is_own(address).then_some("the server's own");
        match closed_kind(address).map(ClosedKind::as_str).or_else(own) {
            None => Ok(()),
            Some(kind) => Err(ForbiddenAddress {
                host: host.to_owned(),
                kind,
            }),
        }
    }

    /// A client that connects to checked addresses only. A URL with a literal address is checked here, since it is
    /// never resolved.
    fn client(self: &Arc<Self>, url: &reqwest::Url) -> Result<reqwest::Client, ClientError> {
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = host.parse() {
            self.check_address(host, address)?;
        }
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let resolver = GuardedResolver(Arc::clone(self));
        let made = builder().no_proxy().dns_resolver(Arc::new(resolver));
        let made = made.build()?;
        Ok(self.client.get_or_init(|| made).clone())
    }
}

/// Whether the address belongs to this machine: a connected UDP socket then has it as its source. No packet is sent.
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

/// The guard as the DNS resolver of an HTTP client.
struct GuardedResolver(Arc<Guard>);

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.0);
        Box::pin(async move {
            let found = guard.addresses(name.as_str()).await?;
            // The client replaces port 0 by the URL's.
            let found = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok::<Addrs, _>(Box::new(found))
        })
    }
}

/// HTTP clients, built on first use and then shared: one for endpoints on this machine, one for remote ones. Guarded
/// URLs use their guard's client.
#[derive(Default)]
pub struct Clients {
    local: OnceLock<reqwest::Client>,
    remote: OnceLock<reqwest::Client>,
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
        let known = if is_loopback(url) {
            &self.local
        } else {
            &self.remote
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

/// A client for a URL that may come from an untrusted client, in which case it has a guard.
pub fn client_for(url: &str, guard: Option<&Arc<Guard>>) -> Result<reqwest::Client, ClientError> {
    match guarded(url, guard)? {
        Some(client) => Ok(client),
        None => Ok(client(url)?),
    }
}

/// The guard's client; `None` for a URL without a guard, or one that the operator allows.
fn guarded(url: &str, guard: Option<&Arc<Guard>>) -> Result<Option<reqwest::Client>, ClientError> {
    match (guard, reqwest::Url::parse(url)) {
        (Some(guard), Ok(url)) if !guard.is_trusted(&url) => guard.client(&url).map(Some),
        _ => Ok(None),
    }
}

/// A client for one endpoint. An endpoint on this machine is never reached through an HTTP proxy.
pub fn client(base_url: &str) -> reqwest::Result<reqwest::Client> {
    let builder = builder();
    if is_loopback(base_url) {
        builder.no_proxy()
    } else {
        builder
    }
    .build()
}

/// A client for a server that listens at a socket of this machine; URLs given to it say `localhost`.
pub fn socket_client(path: &std::path::Path) -> reqwest::Result<reqwest::Client> {
    builder().no_proxy().unix_socket(path).build()
}

fn builder() -> reqwest::ClientBuilder {
    // Fails if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .read_timeout(READ_LIMIT)
        .pool_idle_timeout(IDLE_LIMIT)
        .user_agent(USER_AGENT)
}

pub fn is_loopback(base_url: &str) -> bool {
    reqwest::Url::parse(base_url).is_ok_and(|url| is_this_machine(&url))
}

fn is_this_machine(url: &reqwest::Url) -> bool {
    matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"))
}
