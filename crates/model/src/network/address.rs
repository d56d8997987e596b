//! Which addresses are not public and of what kind they are; CIDR blocks. Pure: `core::net` has the address types
//! without sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

/// The kind of an address that is not public. Displayed with its article: `a private`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedKind {
    Unspecified,
    Private,
    Shared,
    Loopback,
    /// A cloud's metadata service, which hands out credentials.
    Metadata,
    LinkLocal,
    Reserved,
    Documentation,
    Benchmarking,
    Multicast,
}

impl ClosedKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ClosedKind::Unspecified => "an unspecified",
            ClosedKind::Private => "a private",
            ClosedKind::Shared => "a shared",
            ClosedKind::Loopback => "a loopback",
            ClosedKind::Metadata => "a metadata",
            ClosedKind::LinkLocal => "a link-local",
            ClosedKind::Reserved => "a reserved",
            ClosedKind::Documentation => "a documentation",
            ClosedKind::Benchmarking => "a benchmarking",
            ClosedKind::Multicast => "a multicast",
        }
    }

    /// Whether no rule can allow such addresses to a sandbox: those of the host itself and its cloud.
    pub fn is_never_listed(self) -> bool {
        match self {
            ClosedKind::Unspecified
            | ClosedKind::Loopback
            | ClosedKind::Metadata
            | ClosedKind::LinkLocal
            | ClosedKind::Multicast => true,
            ClosedKind::Private
            | ClosedKind::Shared
            | ClosedKind::Reserved
            | ClosedKind::Documentation
            | ClosedKind::Benchmarking => false,
        }
    }
}

impl fmt::Display for ClosedKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// IPv4 networks that are not public, from IANA's special-purpose address registry. The first match counts.
const CLOSED_V4: [(Ipv4Addr, u8, ClosedKind); 19] = [
    // Metadata services: of Azure (a public address by its number), most clouds, Alibaba and Oracle.
    (Ipv4Addr::new(168, 63, 129, 16), 32, ClosedKind::Metadata),
    (Ipv4Addr::new(169, 254, 169, 254), 32, ClosedKind::Metadata),
    (Ipv4Addr::new(100, 100, 100, 200), 32, ClosedKind::Metadata),
    (Ipv4Addr::new(192, 0, 0, 192), 32, ClosedKind::Metadata),
    (Ipv4Addr::new(0, 0, 0, 0), 8, ClosedKind::Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, ClosedKind::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, ClosedKind::Shared),
    (Ipv4Addr::new(127, 0, 0, 0), 8, ClosedKind::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, ClosedKind::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, ClosedKind::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, ClosedKind::Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, ClosedKind::Documentation),
    (Ipv4Addr::new(192, 88, 99, 0), 24, ClosedKind::Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, ClosedKind::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, ClosedKind::Benchmarking),
    (
        Ipv4Addr::new(198, 51, 100, 0),
        24,
        ClosedKind::Documentation,
    ),
    (Ipv4Addr::new(203, 0, 113, 0), 24, ClosedKind::Documentation),
    (Ipv4Addr::new(224, 0, 0, 0), 4, ClosedKind::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, ClosedKind::Reserved),
];

/// The same for IPv6, where everything outside of 2000::/3 is closed too.
const CLOSED_V6: [(Ipv6Addr, u8, ClosedKind); 10] = [
    // Metadata services of AWS and Google.
    (
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        128,
        ClosedKind::Metadata,
    ),
    (
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
        128,
        ClosedKind::Metadata,
    ),
    (Ipv6Addr::UNSPECIFIED, 128, ClosedKind::Unspecified),
    (Ipv6Addr::LOCALHOST, 128, ClosedKind::Loopback),
    (prefix_v6(0xfc00, 0, 0), 7, ClosedKind::Private),
    (prefix_v6(0xfe80, 0, 0), 10, ClosedKind::LinkLocal),
    (prefix_v6(0xff00, 0, 0), 8, ClosedKind::Multicast),
    // Protocol assignments; among them Teredo, whose addresses embed IPv4 addresses.
    (prefix_v6(0x2001, 0, 0), 23, ClosedKind::Reserved),
    (prefix_v6(0x2001, 0xdb8, 0), 32, ClosedKind::Documentation),
    (prefix_v6(0x3fff, 0, 0), 20, ClosedKind::Documentation),
];

const fn prefix_v6(first: u16, second: u16, third: u16) -> Ipv6Addr {
    Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0)
}

/// The kind of an address that is not public; `None` for a public one.
pub fn closed_kind(address: IpAddr) -> Option<ClosedKind> {
    match address {
        IpAddr::V4(address) => closed_v4(address),
        IpAddr::V6(address) => closed_v6(address),
    }
}

fn closed_v4(address: Ipv4Addr) -> Option<ClosedKind> {
    let mut closed = CLOSED_V4.iter();
    let found = closed.find(|(network, bits, _)| is_in(address.into(), (*network).into(), *bits));
    found.map(|(_, _, kind)| *kind)
}

fn closed_v6(address: Ipv6Addr) -> Option<ClosedKind> {
    let closed = CLOSED_V6.iter();
    let mut closed =
        closed.filter(|(network, bits, _)| is_in(address.into(), (*network).into(), *bits));
    if let Some((_, _, kind)) = closed.next() {
        return Some(*kind);
    }
    let parts = address.segments();
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        closed_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // IPv4-mapped and NAT64: the kernel, or a router, connects to the embedded IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        [0x2002, high, low, ..] => embedded(high, low),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(ClosedKind::Reserved),
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

/// A CIDR block; a single address is a block with all bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    network: IpAddr,
    bits: u8,
}

/// A text that is not a CIDR block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a block of addresses is ADDRESS/BITS")]
pub struct NotABlock;

impl Block {
    /// `None` if there are more bits than the address has.
    pub fn new(network: IpAddr, bits: u8) -> Option<Self> {
        let width = if network.is_ipv4() { 32 } else { 128 };
        if bits > width {
            return None;
        }
        // A block of IPv4-mapped addresses becomes one of IPv4, since addresses are compared in canonical form.
        match (network.to_canonical(), bits) {
            (IpAddr::V4(inner), 96..) if network.is_ipv6() => Some(Block {
                network: inner.into(),
                bits: bits - 96,
            }),
            _ => Some(Block { network, bits }),
        }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        is_in(address.to_canonical(), self.network, self.bits)
    }

    /// Whether it is a single address.
    pub fn is_single(&self) -> bool {
        self.bits == if self.network.is_ipv4() { 32 } else { 128 }
    }

    pub fn address(&self) -> IpAddr {
        self.network
    }

    /// The kind of some address in it that is not public.
    pub fn closed_kind(&self) -> Option<ClosedKind> {
        let touches = |network: IpAddr, bits: u8| {
            is_in(network, self.network, self.bits) || is_in(self.network, network, bits)
        };
        let own = closed_kind(self.network);
        own.or_else(|| match self.network {
            IpAddr::V4(_) => {
                let mut closed = CLOSED_V4.iter();
                let found = closed.find(|(network, bits, _)| touches((*network).into(), *bits));
                found.map(|(_, _, kind)| *kind)
            }
            // Shorter prefixes may include 6to4 (2002::/16), which embeds IPv4 addresses.
            IpAddr::V6(_) if self.bits < 16 => Some(ClosedKind::Reserved),
            IpAddr::V6(_) => {
                let mut closed = CLOSED_V6.iter();
                let found = closed.find(|(network, bits, _)| touches((*network).into(), *bits));
                found.map(|(_, _, kind)| *kind)
            }
        })
    }
}

impl From<IpAddr> for Block {
    fn from(address: IpAddr) -> Self {
        let network = address.to_canonical();
        let bits = if network.is_ipv4() { 32 } else { 128 };
        Block { network, bits }
    }
}

impl FromStr for Block {
    type Err = NotABlock;

    fn from_str(text: &str) -> Result<Self, NotABlock> {
        let (network, bits) = text.split_once('/').ok_or(NotABlock)?;
        let is_number = bits.bytes().all(|digit| digit.is_ascii_digit());
        let bits = bits.parse().ok().filter(|_| is_number);
        let network = unbracketed(network).parse().map_err(|_| NotABlock)?;
        Block::new(network, bits.ok_or(NotABlock)?).ok_or(NotABlock)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_single() {
            true => write!(formatter, "{}", self.network),
            false => write!(formatter, "{}/{}", self.network, self.bits),
        }
    }
}

fn unbracketed(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// A URL's host in normal form: lower case, without brackets and trailing dot, addresses in canonical spelling.
pub fn plain_host(host: &str) -> String {
    let host = unbracketed(host);
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
        ("100.100.100.200", "a metadata"),
        ("100.127.255.255", "a shared"),
        ("127.0.0.1", "a loopback"),
        ("127.255.0.9", "a loopback"),
        ("168.63.129.16", "a metadata"),
        ("169.254.169.254", "a metadata"),
        ("169.254.170.2", "a link-local"),
        ("172.16.0.1", "a private"),
        ("172.31.255.255", "a private"),
        ("192.0.0.192", "a metadata"),
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
        ("fd00:ec2::254", "a metadata"),
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
    fn every_closed_network_is_known_in_every_spelling() {
        for (text, kind) in CLOSED {
            let found = closed_kind(text.parse().unwrap());
            assert_eq!(found.map(ClosedKind::as_str), Some(kind), "{text}");
        }
        for text in PUBLIC {
            assert_eq!(closed_kind(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn blocks_have_the_addresses_that_begin_with_their_bits() {
        let contains = |block: &str, address: &str| {
            let block: Block = block.parse().unwrap();
            block.contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.9.9.9"));
        assert!(contains("10.0.0.0/8", "::ffff:10.9.9.9"));
        assert!(contains("::ffff:10.0.0.0/104", "10.9.9.9"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("fd00::/8", "fd12::1"));
        assert!(contains("0.0.0.0/0", "127.0.0.1"));
        assert!(!contains("0.0.0.0/0", "::1"));
        for text in [
            "",
            "/8",
            "10.0.0.0/33",
            "::/129",
            "gpu/8",
            "10.0.0.0/+8",
            "10.0.0.0",
        ] {
            assert!(text.parse::<Block>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_block_is_closed_when_any_address_in_it_is() {
        let kind = |text: &str| text.parse::<Block>().unwrap().closed_kind();
        assert_eq!(kind("10.1.0.0/16"), Some(ClosedKind::Private));
        assert_eq!(kind("8.0.0.0/5"), Some(ClosedKind::Private));
        assert_eq!(kind("0.0.0.0/0"), Some(ClosedKind::Unspecified));
        assert_eq!(kind("8.8.8.0/24"), None);
        assert_eq!(kind("2001:4860::/32"), None);
        assert_eq!(kind("2000::/3"), Some(ClosedKind::Reserved));
        assert_eq!(kind("2001::/16"), Some(ClosedKind::Reserved));
        assert_eq!(kind("fd00::/8"), Some(ClosedKind::Private));
    }
}
