//! GET requests to a registry: client, credentials, certificates, and which faults are retried.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Client, NoProxy, Proxy, Response, Url};

use super::registry::{Registry, RegistryLimits, Secret};

/// The longest `Retry-After` that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// A fault between us and the registry. Carries no credentials.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("get {url}")]
    Connection { url: String, source: reqwest::Error },
    #[error("get {url}: the certificate is not trusted (npm's cafile, or SSL_CERT_FILE, adds one)")]
    Certificate { url: String, source: reqwest::Error },
    #[error("get {url}: the server answered {status}{}", hint(*status))]
    Status {
        url: String,
        status: u16,
        retry_after: Option<Duration>,
    },
    #[error("get {url}: {got} of {expected} bytes arrived")]
    Truncated {
        url: String,
        got: u64,
        expected: u64,
    },
    #[error("get {url}: the answer is larger than {bytes_max} bytes")]
    TooLarge { url: String, bytes_max: usize },
    #[error("get {url}: the answer is no package description")]
    Malformed {
        url: String,
        source: serde_json::Error,
    },
    #[error("set up the connection to the registry")]
    Client { source: reqwest::Error },
    #[error("read certificates from {origin}")]
    Certificates { origin: String, source: io::Error },
    #[error("the proxy setting for {scheme} is no http:// or https:// address")]
    Proxy { scheme: &'static str },
    #[error("the registry setting for {package} is no http:// or https:// address")]
    RegistryAddress { package: String },
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => " (it wants other credentials than npm's configuration has)",
        407 => " (the proxy wants credentials)",
        _ => "",
    }
}

impl FetchError {
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the same request may succeed a little later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Truncated { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            Self::Certificate { .. }
            | Self::TooLarge { .. }
            | Self::Malformed { .. }
            | Self::Client { .. }
            | Self::Certificates { .. }
            | Self::Proxy { .. }
            | Self::RegistryAddress { .. } => false,
        }
    }

    pub(super) fn connection(url: &Url, error: reqwest::Error) -> Self {
        let url = redacted(url);
        // reqwest's own message contains the URL, credentials included.
        let source = error.without_url();
        if blames_certificate(&source) {
            Self::Certificate { url, source }
        } else {
            Self::Connection { url, source }
        }
    }
}

/// Counts attempts and waits between them.
pub(super) struct Attempts {
    left: u32,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new(limits: &RegistryLimits) -> Self {
        Self {
            left: limits.retries,
            pause: limits.backoff,
        }
    }

    /// Waits before another attempt, or returns the error if there is none.
    pub(super) async fn after(&mut self, error: FetchError) -> Result<(), FetchError> {
        if self.left == 0 || !error.is_transient() {
            return Err(error);
        }
        let asked = match &error {
            FetchError::Status { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = asked.map_or(self.pause, |asked| asked.min(RETRY_AFTER_MAX));
        tracing::debug!(%error, ?pause, "registry request will be repeated");
        tokio::time::sleep(pause).await;
        self.left -= 1;
        self.pause *= 2;
        Ok(())
    }
}

/// An HTTP client for one `Registry`.
pub(super) struct Fetcher<'a> {
    pub(super) registry: &'a Registry,
    client: Client,
}

impl<'a> Fetcher<'a> {
    pub(super) fn new(registry: &'a Registry) -> Result<Self, FetchError> {
        // An error only means that a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .no_proxy()
            .user_agent(concat!("rollcage/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(registry.limits.connect)
            .read_timeout(registry.limits.stall)
            .tls_certs_merge(certificates(registry)?);
        if !registry.strict_tls {
            tracing::warn!("npm's strict-ssl=false: the registry's certificate is not checked");
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        let no_proxy = registry.no_proxy.as_deref().and_then(NoProxy::from_string);
        for proxy in proxies(registry)? {
            builder = builder.proxy(proxy.no_proxy(no_proxy.clone()));
        }
        let client = builder.build();
        let client = client.map_err(|source| FetchError::Client { source })?;
        Ok(Self { registry, client })
    }

    /// Makes one attempt; any status but success is an error.
    pub(super) async fn get(
        &self,
        url: &Url,
        accept: &'static str,
    ) -> Result<Response, FetchError> {
        let mut request = self.client.get(url.clone()).header(ACCEPT, accept);
        if let Some(secret) = self.registry.authorization(url)
            && let Ok(mut value) = HeaderValue::from_str(secret.reveal())
        {
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let answer = request.send().await;
        let response = answer.map_err(|error| FetchError::connection(url, error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let after = response.headers().get(RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
        Err(FetchError::Status {
            url: redacted(url),
            status: response.status().as_u16(),
            retry_after: after.map(Duration::from_secs),
        })
    }

    /// Fetches a small body, with retries.
    pub(super) async fn get_small(
        &self,
        url: &Url,
        accept: &'static str,
        bytes_max: usize,
    ) -> Result<Vec<u8>, FetchError> {
        let mut attempts = Attempts::new(&self.registry.limits);
        loop {
            match self.get_once(url, accept, bytes_max).await {
                Ok(body) => return Ok(body),
                Err(error) => attempts.after(error).await?,
            }
        }
    }

    async fn get_once(
        &self,
        url: &Url,
        accept: &'static str,
        bytes_max: usize,
    ) -> Result<Vec<u8>, FetchError> {
        let mut response = self.get(url, accept).await?;
        let mut body = Vec::new();
        loop {
            let chunk = response.chunk().await;
            match chunk.map_err(|error| FetchError::connection(url, error))? {
                None => return Ok(body),
                Some(chunk) if body.len() + chunk.len() > bytes_max => {
                    let url = redacted(url);
                    return Err(FetchError::TooLarge { url, bytes_max });
                }
                Some(chunk) => body.extend_from_slice(&chunk),
            }
        }
    }
}

/// A URL without the parts that may hold secrets.
pub(super) fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.into()
}

fn certificates(registry: &Registry) -> Result<Vec<Certificate>, FetchError> {
    let mut found = Vec::new();
    for path in &registry.ca_files {
        found.extend(certificates_of(path)?);
    }
    for text in &registry.ca {
        // npm allows a certificate on one line, with `\n` spelled out.
        let pem = text.replace("\\n", "\n");
        found.extend(parse(pem.as_bytes(), "npm's ca setting")?);
    }
    Ok(found)
}

fn certificates_of(path: &PathBuf) -> Result<Vec<Certificate>, FetchError> {
    let origin = path.display().to_string();
    match std::fs::read(path) {
        Ok(pem) => parse(&pem, &origin),
        // npm ignores a missing file too; if it was needed, the connection fails.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::warn!(
                path = origin,
                "certificate file of npm's configuration not found"
            );
            Ok(Vec::new())
        }
        Err(source) => Err(FetchError::Certificates { origin, source }),
    }
}

fn parse(pem: &[u8], origin: &str) -> Result<Vec<Certificate>, FetchError> {
    Certificate::from_pem_bundle(pem).map_err(|error| FetchError::Certificates {
        origin: origin.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

fn proxies(registry: &Registry) -> Result<Vec<Proxy>, FetchError> {
    let mut proxies = Vec::new();
    if let Some(secret) = &registry.https_proxy {
        proxies.push(proxy("https", secret, Proxy::https)?);
    }
    if let Some(secret) = &registry.http_proxy {
        proxies.push(proxy("http", secret, Proxy::http)?);
    }
    Ok(proxies)
}

fn proxy(
    scheme: &'static str,
    secret: &Secret,
    make: fn(Url) -> reqwest::Result<Proxy>,
) -> Result<Proxy, FetchError> {
    // `host:port` alone is common in the environment.
    let text = match secret.reveal() {
        text if text.contains("://") => text.to_owned(),
        bare => format!("http://{bare}"),
    };
    let url = Url::parse(&text).ok();
    url.filter(|url| matches!(url.scheme(), "http" | "https"))
        .and_then(|url| make(url).ok())
        .ok_or(FetchError::Proxy { scheme })
}

fn blames_certificate(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let tls = error.downcast_ref::<rustls::Error>();
        if matches!(tls, Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // An `io::Error` hides the error it wraps from `source`.
        let wrapped = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        cause = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}
