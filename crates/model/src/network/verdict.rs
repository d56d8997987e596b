//! The resolved rules of one phase, and their verdict on a target. Pure.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::fmt;

use super::address::{ClosedKind, closed_kind, plain_host};
use super::rule::{HostRule, is_name};

/// The ports of a rule without a port.
pub const WEB_PORTS: [u16; 2] = [80, 443];
/// The ports of `open`, and of a rule without a port in the preset `git`: HTTP, HTTPS, ssh and git's own protocol.
pub const OPEN_PORTS: [u16; 4] = [80, 443, 22, 9418];

/// The host of a connection attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// In lower case, without trailing dot.
    Name(String),
    Ip(IpAddr),
}

impl Host {
    /// From a URL, a header or a DNS question; `None` if it is not a valid host.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = plain_host(text);
        match plain.parse() {
            Ok(address) => Some(Host::Ip(address)),
            Err(_) => is_name(&plain).then_some(Host::Name(plain)),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Host::Ip(address.to_canonical())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => formatter.write_str(name),
            Host::Ip(address) => write!(formatter, "{address}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(address)) => write!(formatter, "[{address}]:{}", self.port),
            host => write!(formatter, "{host}:{}", self.port),
        }
    }
}

/// Which addresses an allowed host may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addresses {
    Public,
    /// Private and reserved ones too, because the operator listed exactly this host; never loopback, link-local or
    /// metadata addresses.
    Listed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allowed { addresses: Addresses },
    Refused(Refusal),
}

/// Why a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("this phase has no network")]
    NoNetwork,
    #[error("the host is not listed")]
    NotListed,
    #[error("the host is not listed with this port")]
    Port,
    #[error("it is {0} address")]
    Address(ClosedKind),
}

/// Checks one address of an allowed host.
pub fn check_address(address: IpAddr, allowed: Addresses) -> Result<(), ClosedKind> {
    match (closed_kind(address), allowed) {
        (None, _) => Ok(()),
        (Some(kind), Addresses::Listed) if !kind.is_never_listed() => Ok(()),
        (Some(kind), _) => Err(kind),
    }
}

/// A rule with its resolved ports and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) host: HostRule,
    pub(super) ports: Vec<u16>,
    pub(super) addresses: Addresses,
}

/// The resolved rules of one phase. The default allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub(super) is_open: bool,
    pub(super) grants: Vec<Grant>,
}

impl Rules {
    /// Whether nothing is allowed.
    pub fn is_none(&self) -> bool {
        !self.is_open && self.grants.is_empty()
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether hosts are allowed by a list, so that an unlisted one can be tried and must be refused.
    pub fn is_allowlist(&self) -> bool {
        !self.is_open && !self.grants.is_empty()
    }

    /// Every port on which some host may be allowed.
    pub fn ports(&self) -> BTreeSet<u16> {
        let open = OPEN_PORTS.iter().filter(|_| self.is_open);
        let granted = self.grants.iter().flat_map(|grant| &grant.ports);
        open.chain(granted).copied().collect()
    }

    pub fn verdict(&self, target: &Target) -> Verdict {
        let has_host = |grant: &&Grant| match &target.host {
            Host::Name(name) => grant.host.has_name(name),
            Host::Ip(address) => grant.host.has_address(*address),
        };
        let granted = || self.grants.iter().filter(has_host);
        let at_port = granted().filter(|grant| grant.ports.contains(&target.port));
        let open = self.is_open && OPEN_PORTS.contains(&target.port);
        let open = open.then_some(Addresses::Public);
        let best = at_port.map(|grant| grant.addresses).chain(open).max();
        let Some(addresses) = best else {
            return Verdict::Refused(match self.is_open || granted().next().is_some() {
                true => Refusal::Port,
                false if self.grants.is_empty() => Refusal::NoNetwork,
                false => Refusal::NotListed,
            });
        };
        match &target.host {
            Host::Ip(address) => match check_address(*address, addresses) {
                Ok(()) => Verdict::Allowed { addresses },
                Err(kind) => Verdict::Refused(Refusal::Address(kind)),
            },
            Host::Name(_) => Verdict::Allowed { addresses },
        }
    }

    /// Whether the operator lists exactly this address, which may be one of the host's own.
    pub fn lists_address(&self, address: IpAddr, port: u16) -> bool {
        let is_this = |host: &HostRule| match host {
            HostRule::Within(block) => block.is_single() && block.contains(address),
            HostRule::Exactly(_) | HostRule::Below(_) => false,
        };
        let mut grants = self.grants.iter();
        grants.any(|it| {
            it.addresses == Addresses::Listed && it.ports.contains(&port) && is_this(&it.host)
        })
    }

    /// Checks whether DNS may answer for a name: it is allowed on some port.
    pub fn check_name(&self, name: &str) -> Result<(), Refusal> {
        let mut grants = self.grants.iter();
        if self.is_open || grants.any(|grant| grant.host.has_name(name)) {
            return Ok(());
        }
        Err(match self.grants.is_empty() {
            true => Refusal::NoNetwork,
            false => Refusal::NotListed,
        })
    }
}
