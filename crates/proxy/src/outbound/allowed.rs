//! How an operator writes down which closed addresses others may name. Pure.

use std::net::IpAddr;
use std::str::FromStr;

use rollcage_model::network::address::plain_host;
use rollcage_model::network::{Host, HostRule, Rule};

/// What an operator lets clients name although it is closed. A rule with a port, or of a name, is for what a URL says,
/// whatever that resolves to; one of addresses alone is for every one of them, by whatever name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowRule(Rule);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of HOST, HOST:PORT, *.DOMAIN, ADDRESS, ADDRESS/BITS and a URL")]
pub struct InvalidAllowRule(String);

impl AllowRule {
    /// `host` as it stands in a URL.
    pub(super) fn has_host(&self, host: &str, port: u16) -> bool {
        if self.0.port.is_some_and(|only| only != port) {
            return false;
        }
        let host = plain_host(host);
        match (&self.0.host, self.0.port) {
            (HostRule::Within(_), None) => false,
            (rule @ HostRule::Within(_), Some(_)) => {
                host.parse().is_ok_and(|address| rule.has_address(address))
            }
            (rule @ (HostRule::Exactly(_) | HostRule::Below(_)), _) => rule.has_name(&host),
        }
    }

    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.0.port.is_none() && self.0.host.has_address(address)
    }
}

impl FromStr for AllowRule {
    type Err = InvalidAllowRule;

    fn from_str(text: &str) -> Result<Self, InvalidAllowRule> {
        let wrong = || InvalidAllowRule(text.to_owned());
        let given = text.trim();
        if given.contains("://") {
            let url: reqwest::Url = given.parse().map_err(|_| wrong())?;
            let host = Host::parse(url.host_str().ok_or_else(wrong)?).ok_or_else(wrong)?;
            let host = match host {
                Host::Name(name) => HostRule::Exactly(name),
                Host::Ip(address) => HostRule::Within(address.into()),
            };
            let port = Some(url.port_or_known_default().ok_or_else(wrong)?);
            return Ok(AllowRule(Rule { host, port }));
        }
        let rule: Rule = given.parse().map_err(|_| wrong())?;
        match &rule.host {
            // A name that leads into a network is connected to at the URL's port, which nobody would compare.
            HostRule::Within(block) if rule.port.is_some() && !block.is_single() => Err(wrong()),
            _ => Ok(AllowRule(rule)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_what_they_say_and_nothing_else() {
        let rule = |text: &str| text.parse::<AllowRule>().unwrap();
        let host = |text: &str, host: &str, port: u16| rule(text).has_host(host, port);
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
            "10.0.0.0/8:80",
            "@pip",
            "::/129",
            "gpu/8",
            "a/b",
            "http://",
        ] {
            assert!(text.parse::<AllowRule>().is_err(), "{text}");
        }
    }
}
