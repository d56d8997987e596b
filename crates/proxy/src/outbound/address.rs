//! Which addresses are restricted because they are not public, and the rules with which an operator allows some of
//! them. Pure: no I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// IPv4 networks that are not public, from IANA's special-purpose address registry.
const RESTRICTED_V4: [(Ipv4Addr, u8, &str); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "a shared"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback"),
    // Formally a public address, but the metadata service of every machine on Azure.
    (Ipv4Addr::new(168, 63, 129, 16), 32, "a metadata"),
    (Ipv4Addr::new(169, 254, 169, 254), 32, "a metadata"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "a documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "a benchmarking"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "a documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "a documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved"),
];

/// The same for IPv6, where everything outside of 2000::/3 is restricted too.
const RESTRICTED_V6: [(Ipv6Addr, u8, &str); 8] = [
    (Ipv6Addr::UNSPECIFIED, 128, "an unspecified"),
    (Ipv6Addr::LOCALHOST, 128, "a loopback"),
    (prefix_v6(0xfc00, 0, 0), 7, "a private"),
    (prefix_v6(0xfe80, 0, 0), 10, "a link-local"),
    (prefix_v6(0xff00, 0, 0), 8, "a multicast"),
    // Protocol assignments; among them Teredo, whose addresses embed IPv4 addresses.
    (prefix_v6(0x2001, 0, 0), 23, "a reserved"),
    (prefix_v6(0x2001, 0xdb8, 0), 32, "a documentation"),
    (prefix_v6(0x3fff, 0, 0), 20, "a documentation"),
];

const fn prefix_v6(first: u16, second: u16, third: u16) -> Ipv6Addr {
    Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0)
}

/// The kind of a restricted address, for the error message; `None` for a public one.
pub(crate) fn restricted_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => restricted_v4(address),
        IpAddr::V6(address) => restricted_v6(address),
    }
}

fn restricted_v4(address: Ipv4Addr) -> Option<&'static str> {
    let mut closed = RESTRICTED_V4.iter();
    let found = closed.find(|(network, bits, _)| is_in(address.into(), (*network).into(), *bits));
    found.map(|(_, _, kind)| *kind)
}

fn restricted_v6(address: Ipv6Addr) -> Option<&'static str> {
    let closed = RESTRICTED_V6.iter();
    let mut closed =
        closed.filter(|(network, bits, _)| is_in(address.into(), (*network).into(), *bits));
    if let Some((_, _, kind)) = closed.next() {
        return Some(kind);
    }
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        restricted_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // IPv4-mapped and NAT64: the kernel, or a router, connects to the embedded IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        [0x2002, high, low, ..] => embedded(high, low),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("a reserved"),
    }
}

/// Whether the address is in the network, by comparing the first `bits` bits.
fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    // A shift by the whole width is an overflow in Rust; its result here is 0.
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differing = address.to_bits() ^ network.to_bits();
            differing
                .checked_shr(32 - u32::from(bits.min(32)))
                .unwrap_or(0)
                == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differing = address.to_bits() ^ network.to_bits();
            differing
                .checked_shr(128 - u32::from(bits.min(128)))
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

/// An operator's exception: a host or network that clients may use although it is restricted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowRule {
    /// Matches a URL's host and port, whatever the name resolves to.
    Host {
        host: HostPattern,
        port: Option<u16>,
    },
    /// Matches every address in the network, whatever the host is called.
    Network { address: IpAddr, bits: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// A lower-case name, or an address.
    Exactly(String),
    /// Every subdomain of this suffix, which begins with a dot.
    Below(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of HOST, HOST:PORT, *.DOMAIN, ADDRESS, ADDRESS/BITS and a URL")]
pub struct InvalidAllowRule(String);

impl AllowRule {
    /// `host` must be normalised by [`plain_host`].
    pub(crate) fn has_host(&self, host: &str, port: u16) -> bool {
        let AllowRule::Host {
            host: rule,
            port: only,
        } = self
        else {
            return false;
        };
        let is_named = match rule {
            HostPattern::Exactly(name) => name == host,
            HostPattern::Below(suffix) => host.ends_with(suffix.as_str()),
        };
        is_named && only.is_none_or(|only| only == port)
    }

    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        match self {
            AllowRule::Network {
                address: network,
                bits,
            } => is_in(address.to_canonical(), *network, *bits),
            AllowRule::Host { .. } => false,
        }
    }
}

impl FromStr for AllowRule {
    type Err = InvalidAllowRule;

    fn from_str(text: &str) -> Result<Self, InvalidAllowRule> {
        let wrong = || InvalidAllowRule(text.to_owned());
        let given = text.trim();
        if given.contains("://") {
            let url: reqwest::Url = given.parse().map_err(|_| wrong())?;
            let host = plain_host(url.host_str().ok_or_else(wrong)?);
            let port = url.port_or_known_default().ok_or_else(wrong)?;
            return Ok(AllowRule::Host {
                host: HostPattern::Exactly(host),
                port: Some(port),
            });
        }
        if let Some((address, bits)) = given.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| wrong())?;
            let bits: u8 = bits.parse().map_err(|_| wrong())?;
            let bits_max = if address.is_ipv4() { 32 } else { 128 };
            return match bits <= bits_max {
                true => Ok(AllowRule::Network { address, bits }),
                false => Err(wrong()),
            };
        }
        let unwrapped = given.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = unwrapped.parse::<IpAddr>() {
            let address = address.to_canonical();
            let bits = if address.is_ipv4() { 32 } else { 128 };
            return Ok(AllowRule::Network { address, bits });
        }
        let (host, port) = match given.rsplit_once(':') {
            None => (given, None),
            Some((host, port)) => (host, Some(port.parse().map_err(|_| wrong())?)),
        };
        let host = plain_host(host);
        let (rule, name) = match host.strip_prefix("*.") {
            Some(domain) => (HostPattern::Below(format!(".{domain}")), domain),
            None => (HostPattern::Exactly(host.clone()), host.as_str()),
        };
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        let is_name = !name.is_empty() && name.chars().all(is_plain);
        if !is_name && name.parse::<IpAddr>().is_err() {
            return Err(wrong());
        }
        Ok(AllowRule::Host { host: rule, port })
    }
}

/// A URL's host in normal form: lower case, without brackets and trailing dot, addresses in canonical spelling.
pub(crate) fn plain_host(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: [(&str, &str); 51] = [
        ("0.0.0.0", "an unspecified"),
        ("0.1.2.3", "an unspecified"),
        ("10.0.0.1", "a private"),
        ("10.255.255.255", "a private"),
        ("100.64.0.0", "a shared"),
        ("100.100.100.200", "a shared"),
        ("100.127.255.255", "a shared"),
        ("127.0.0.1", "a loopback"),
        ("127.255.0.9", "a loopback"),
        ("168.63.129.16", "a metadata"),
        ("169.254.169.254", "a metadata"),
        ("169.254.170.2", "a link-local"),
        ("172.16.0.1", "a private"),
        ("172.31.255.255", "a private"),
        ("192.0.0.192", "a reserved"),
        ("192.0.2.7", "a documentation"),
        ("192.88.99.1", "a reserved"),
        ("192.168.1.1", "a private"),
        ("198.18.0.1", "a benchmarking"),
        ("198.19.255.255", "a benchmarking"),
        ("198.51.100.1", "a documentation"),
        ("203.0.113.1", "a documentation"),
        ("224.0.0.1", "a multicast"),
        ("239.255.255.255", "a multicast"),
        ("240.0.0.1", "a reserved"),
        ("255.255.255.255", "a reserved"),
        ("::", "an unspecified"),
        ("::1", "a loopback"),
        ("::ffff:127.0.0.1", "a loopback"),
        ("::ffff:10.1.2.3", "a private"),
        ("::ffff:169.254.169.254", "a metadata"),
        ("::127.0.0.1", "a reserved"),
        ("::8.8.8.8", "a reserved"),
        ("::ffff:0:7f00:1", "a reserved"),
        ("64:ff9b::7f00:1", "a loopback"),
        ("64:ff9b::a9fe:a9fe", "a metadata"),
        ("64:ff9b:1::808:808", "a reserved"),
        ("2002:7f00:1::", "a loopback"),
        ("2002:c0a8:101::1", "a private"),
        ("2001::1", "a reserved"),
        ("2001:db8::1", "a documentation"),
        ("3fff::1", "a documentation"),
        ("fc00::1", "a private"),
        ("fd00:ec2::254", "a private"),
        ("fdff::1", "a private"),
        ("fe80::1", "a link-local"),
        ("febf::1", "a link-local"),
        ("fec0::1", "a reserved"),
        ("ff02::1", "a multicast"),
        ("100::1", "a reserved"),
        ("4000::1", "a reserved"),
    ];

    const PUBLIC: [&str; 21] = [
        "1.1.1.1",
        "8.8.8.8",
        "11.0.0.1",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "169.253.1.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.1.1",
        "198.17.1.1",
        "198.20.0.1",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
        "2001:4860:4860::8888",
        "2606:4700:4700::1111",
        "2a00::1",
    ];

    #[test]
    fn every_restricted_network_is_recognised_in_every_spelling() {
        for (text, kind) in CLOSED {
            assert_eq!(restricted_kind(text.parse().unwrap()), Some(kind), "{text}");
        }
        for text in PUBLIC {
            assert_eq!(restricted_kind(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn rules_match_what_they_say_and_nothing_else() {
        let rule = |text: &str| text.parse::<AllowRule>().unwrap();
        let host = |text: &str, host: &str, port: u16| rule(text).has_host(&plain_host(host), port);
        assert!(host("gpu", "GPU.", 8000));
        assert!(!host("gpu", "gpu.evil.example", 8000));
        assert!(host("gpu:8000", "gpu", 8000));
        assert!(!host("gpu:8000", "gpu", 22));
        assert!(host("*.corp.example", "a.b.corp.example", 1));
        assert!(!host("*.corp.example", "corp.example", 1));
        assert!(!host("*.corp.example", "evilcorp.example", 1));
        assert!(host("10.0.0.7:80", "10.0.0.7", 80));
        assert!(!host("10.0.0.7:80", "10.0.0.7", 81));
        assert!(host("[::1]:80", "[::1]", 80));
        assert!(host("http://gpu:8000/v1", "gpu", 8000));
        assert!(host("https://gpu", "gpu", 443));

        let address = |text: &str, address: &str| rule(text).has_address(address.parse().unwrap());
        assert!(address("10.0.0.0/8", "10.9.9.9"));
        assert!(address("10.0.0.0/8", "::ffff:10.9.9.9"));
        assert!(!address("10.0.0.0/8", "11.0.0.1"));
        assert!(address("127.0.0.1", "127.0.0.1"));
        assert!(!address("127.0.0.1", "127.0.0.2"));
        assert!(address("::1", "::1"));
        assert!(address("[::1]", "::1"));
        assert!(address("fd00::/8", "fd12::1"));
        assert!(address("0.0.0.0/0", "127.0.0.1"));
        assert!(!address("0.0.0.0/0", "::1"));

        for text in [
            "",
            "*",
            "*.",
            "a b",
            "gpu:port",
            "gpu:",
            "10.0.0.0/33",
            "::/129",
            "gpu/8",
            "a/b",
            "http://",
        ] {
            assert!(text.parse::<AllowRule>().is_err(), "{text}");
        }
    }
}
