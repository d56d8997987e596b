//! What all our servers have in common: flags about the web around them, and errors of addresses that they cannot listen
//! on.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use rollcage_model::network::address::Block;

use crate::UsageError;
use crate::server::access::WebOrigin;

#[derive(clap::Args)]
pub(crate) struct WebArguments {
    /// Where no token is asked for: let web pages of this origin use the server, such as http://localhost:3000; may be given
    /// more than once (in the variable: by commas)
    ///
    /// Pages of other origins, and a program of this machine at another port is one, may neither open a WebSocket nor change
    /// anything. Requests without an `Origin`, as those of programs, are not concerned.
    #[arg(
        long,
        env = "ROLLCAGE_ALLOW_ORIGINS",
        value_delimiter = ',',
        value_name = "ORIGIN"
    )]
    pub(crate) allow_origin: Vec<WebOrigin>,

    /// The address of a reverse proxy before the server, ADDRESS or ADDRESS/BITS, whose `X-Forwarded-For` tells clients apart
    /// when wrong tokens are counted; may be given more than once (in the variable: by commas)
    #[arg(long, env = "ROLLCAGE_TRUST_PROXIES", value_delimiter = ',', value_name = "ADDRESS", value_parser = block)]
    pub(crate) trust_proxy: Vec<Block>,
}

fn block(text: &str) -> Result<Block, String> {
    let single = text.parse().ok().and_then(|address: IpAddr| {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Block::new(address, bits)
    });
    let block = single.or_else(|| text.parse().ok());
    block.ok_or_else(|| "must be ADDRESS or ADDRESS/BITS".to_owned())
}

/// An address that is in use, unavailable or not permitted is a usage error.
pub(crate) fn refused(host: IpAddr, port: u16, error: io::Error) -> anyhow::Error {
    let place = format!("listen on {host} port {port}");
    match error.kind() {
        ErrorKind::AddrInUse => UsageError(format!(
            "{place}: another program has it (--port 0 takes a free one)"
        ))
        .into(),
        ErrorKind::AddrNotAvailable => {
            UsageError(format!("{place}: this machine has no such address")).into()
        }
        ErrorKind::PermissionDenied => {
            UsageError(format!("{place}: not allowed (ports from 1024 on are)")).into()
        }
        _ => anyhow::Error::from(error).context(place),
    }
}
