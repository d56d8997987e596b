//! By which names a server that asks for no token may be called.
//!
//! A web page can give its own name the address of this server (DNS rebinding). Its requests are then those of our own
//! page to the browser, and only the name in `Host` tells them apart. So the server answers to addresses, to names that
//! nobody can register for a page, and to those that the operator gives. `X-Forwarded-Host` does not count: a page can
//! set it.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::{HeaderMap, header};

/// Ends of names that no registry sells. Clusters and local networks use them.
const PRIVATE_ENDS: [&str; 4] = [".localhost", ".local", ".internal", ".home.arpa"];

/// A name that a server answers to, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        match !text.is_empty() && text.chars().all(is_plain) {
            true => Ok(HostName(text.to_ascii_lowercase())),
            false => Err("must be a name such as rollcage.example.org, without a port".to_owned()),
        }
    }
}

/// Whether the name in `Host` is one of the server's.
pub(super) fn is_own(headers: &HeaderMap, names: &[HostName]) -> bool {
    let Some(authority) = headers.get(header::HOST) else {
        // Browsers always send it.
        return true;
    };
    let Some(host) = authority.to_str().ok().map(host_of) else {
        return false;
    };
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    host.parse::<IpAddr>().is_ok()
        || !host.is_empty() && !host.contains('.')
        || PRIVATE_ENDS.iter().any(|end| host.ends_with(end))
        || names.iter().any(|HostName(name)| name == host)
}

/// `localhost` or a loopback address, with or without a port.
pub(super) fn is_loopback_authority(authority: &str) -> bool {
    let host = host_of(authority);
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Without the port, and without the brackets of an IPv6 address; empty when it is nothing of that.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if port.is_empty() || port.starts_with(':') => host,
            _ => "",
        },
        None => authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_page_could_have_are_the_operators_to_give() {
        let names = ["Cage.Example.org".parse().unwrap()];
        let is_own = |host: &str| {
            let pair = (header::HOST, host.parse().unwrap());
            is_own(&HeaderMap::from_iter([pair]), &names)
        };
        for host in [
            "localhost:8000",
            "127.0.0.1",
            "192.0.2.7:8000",
            "[2001:db8::1]:8000",
            "rollcage:8000",
            "rollcage.default.svc.cluster.local",
            "GPU-1.internal.:8000",
            "cage.example.ORG:8000",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "cage.example.org.evil.example",
            "evil.cage.example.org",
            "a.local.evil.example:8000",
            "[::1].evil.example",
            "[::1",
            "",
        ] {
            assert!(!is_own(host), "{host}");
        }
        assert!(super::is_own(&HeaderMap::new(), &[]));
    }

    #[test]
    fn a_host_name_is_a_name_alone() {
        for wrong in ["", "https://a.example", "a.example:80", "*.example", "a b"] {
            assert!(wrong.parse::<HostName>().is_err(), "{wrong}");
        }
    }
}
