//! Servers that are known by a URL.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use rollcage_sandbox::BoxedStream;
use tokio::net::TcpStream;
use url::{Host, Url};

use super::{Client, Connect, Credentials};

/// Why a URL is not that of a server.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("the server's address is no URL, such as http://127.0.0.1:4096")]
    Parse(#[source] url::ParseError),
    #[error("the server's address must begin with http://")]
    Scheme,
    #[error("the server's address has no host")]
    NoHost,
    /// It would be shown wherever the address is.
    #[error("give user and password apart from the server's address")]
    Password,
}

struct TcpAddress {
    host: Host<String>,
    port: u16,
}

#[async_trait]
impl Connect for TcpAddress {
    async fn connect(&self) -> io::Result<BoxedStream> {
        let stream = match &self.host {
            Host::Domain(name) => TcpStream::connect((name.as_str(), self.port)).await?,
            Host::Ipv4(address) => TcpStream::connect((*address, self.port)).await?,
            Host::Ipv6(address) => TcpStream::connect((*address, self.port)).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

impl Client {
    /// Of any server by its address, such as `http://127.0.0.1:4096`. A path in it stands before the path of every request.
    pub fn of_url(base_url: &str, credentials: Option<Credentials>) -> Result<Self, AddressError> {
        let url = Url::parse(base_url.trim()).map_err(AddressError::Parse)?;
        if url.scheme() != "http" {
            return Err(AddressError::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Password);
        }
        let host = url.host().ok_or(AddressError::NoHost)?.to_owned();
        let port = url.port().unwrap_or(80);
        Ok(Client {
            host: format!("{host}:{port}"),
            prefix: url.path().trim_end_matches('/').to_owned(),
            ..Client::new(Arc::new(TcpAddress { host, port }), credentials)
        })
    }
}
