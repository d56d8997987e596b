//! The syntax of host rules: `pypi.org`, `*.example.org:8443`, `10.1.0.0/16`, `@pip`.

use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::address::{Block, plain_host};

/// Limits of DNS for a name and for each label.
const NAME_CHARS_MAX: usize = 253;
const LABEL_CHARS_MAX: usize = 63;

/// Hosts that may be connected to, on one port or the default ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    pub host: HostRule,
    /// `None` is 80 and 443.
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostRule {
    /// A lower-case name.
    Exactly(String),
    /// Every subdomain of this suffix, which begins with a dot.
    Below(String),
    /// IP literals in this block; names that resolve to them do not match.
    Within(Block),
}

/// An entry of a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostEntry {
    Rule(Rule),
    /// A named set of rules; the name without `@`.
    Preset(String),
}

/// A text that is not a valid entry of a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAHost {
    #[error("`{0}` is a URL: give its host alone, with :PORT unless it is 80 or 443")]
    Url(String),
    #[error("`{0}` would be every host: the policy \"open\" says that, or give *.DOMAIN")]
    Every(String),
    #[error("`{0}`: a port is a number from 1 to 65535")]
    Port(String),
    #[error("`{0}` is not ASCII: give the name as DNS has it (xn--…)")]
    Letters(String),
    #[error(
        "`{0}` is no host: give a name (pypi.org), all names below one (*.example.org), an address (10.1.2.3), a network \
         (10.1.0.0/16), each with :PORT if it is not 80 or 443, or a preset (@pip)"
    )]
    Other(String),
}

impl HostRule {
    /// `name` in lower case, without trailing dot.
    pub fn has_name(&self, name: &str) -> bool {
        match self {
            HostRule::Exactly(exact) => exact == name,
            HostRule::Below(suffix) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
            HostRule::Within(_) => false,
        }
    }

    pub fn has_address(&self, address: IpAddr) -> bool {
        match self {
            HostRule::Within(block) => block.contains(address),
            HostRule::Exactly(_) | HostRule::Below(_) => false,
        }
    }
}

/// Whether a text is a valid host name in lower case. Names whose last label is a number are not: resolvers take them
/// for addresses (`127.1`, `0x7f000001`).
pub(super) fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |letter: u8| {
            matches!(letter, b'-' | b'_') || letter.is_ascii_digit() || letter.is_ascii_lowercase()
        };
        (1..=LABEL_CHARS_MAX).contains(&label.len()) && label.bytes().all(is_plain)
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|letter| letter.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .is_some_and(|digits| digits.bytes().all(|letter| letter.is_ascii_hexdigit()));
    name.len() <= NAME_CHARS_MAX && name.split('.').all(is_label) && !is_number
}

impl FromStr for Rule {
    type Err = NotAHost;

    fn from_str(text: &str) -> Result<Self, NotAHost> {
        let given = text.trim();
        let owned = || given.to_owned();
        if given.contains("://") {
            return Err(NotAHost::Url(owned()));
        }
        if !given.is_ascii() {
            return Err(NotAHost::Letters(owned()));
        }
        let (host, port) = split_port(given);
        let port = match port {
            None => None,
            Some(port) => Some(parse_port(port).ok_or_else(|| NotAHost::Port(owned()))?),
        };
        let rule = |host| Ok(Rule { host, port });
        if host.contains('/') {
            let block = host.parse().map_err(|_| NotAHost::Other(owned()))?;
            return rule(HostRule::Within(block));
        }
        let plain = plain_host(host);
        if let Ok(address) = plain.parse::<IpAddr>() {
            return rule(HostRule::Within(address.into()));
        }
        match plain.strip_prefix("*.") {
            Some(domain) if is_name(domain) => rule(HostRule::Below(format!(".{domain}"))),
            None if is_name(&plain) => rule(HostRule::Exactly(plain)),
            None if plain == "*" => Err(NotAHost::Every(owned())),
            _ => Err(NotAHost::Other(owned())),
        }
    }
}

/// Splits off a port after the last colon, unless the colon belongs to an IPv6 address without brackets.
fn split_port(given: &str) -> (&str, Option<&str>) {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    let Some((host, port)) = given.rsplit_once(':') else {
        return (given, None);
    };
    if is_address(given) || given.ends_with(']') {
        return (given, None);
    }
    // In `fd00::/8` the last colon belongs to the address.
    match given.split_once('/') {
        Some((address, bits)) if is_address(address) && !bits.contains(':') => (given, None),
        _ => (host, Some(port)),
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    let port = text.parse().ok().filter(|_| is_number);
    port.filter(|port| *port != 0)
}

impl FromStr for HostEntry {
    type Err = NotAHost;

    fn from_str(text: &str) -> Result<Self, NotAHost> {
        let Some(preset) = text.trim().strip_prefix('@') else {
            return text.parse().map(HostEntry::Rule);
        };
        let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'_');
        match !preset.is_empty() && preset.bytes().all(is_plain) {
            true => Ok(HostEntry::Preset(preset.to_ascii_lowercase())),
            false => Err(NotAHost::Other(text.trim().to_owned())),
        }
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostRule::Exactly(name) => formatter.write_str(name),
            HostRule::Below(suffix) => write!(formatter, "*{suffix}"),
            HostRule::Within(block) => write!(formatter, "{block}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (host, None) => write!(formatter, "{host}"),
            (HostRule::Within(block), Some(port))
                if block.is_single() && block.address().is_ipv6() =>
            {
                write!(formatter, "[{block}]:{port}")
            }
            (host, Some(port)) => write!(formatter, "{host}:{port}"),
        }
    }
}

impl fmt::Display for HostEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostEntry::Rule(rule) => write!(formatter, "{rule}"),
            HostEntry::Preset(name) => write!(formatter, "@{name}"),
        }
    }
}

impl Serialize for HostEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for HostEntry {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HostEntry".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A name, `*.DOMAIN`, an address or a network, each with an optional `:PORT`; or `@PRESET`.",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, printed: &str) {
        let entry: HostEntry = text.parse().unwrap();
        assert_eq!(entry.to_string(), printed);
        assert_eq!(printed.parse(), Ok(entry));
    }

    #[test]
    fn every_spelling_has_one_print() {
        check("PyPI.org.", "pypi.org");
        check(" pypi.org:8443 ", "pypi.org:8443");
        check("gpu", "gpu");
        check("*.Example.org:8443", "*.example.org:8443");
        check("10.1.2.3", "10.1.2.3");
        check("10.1.2.3:80", "10.1.2.3:80");
        check("10.1.2.3/32:80", "10.1.2.3:80");
        check("10.0.0.0/8", "10.0.0.0/8");
        check("10.0.0.0/8:5432", "10.0.0.0/8:5432");
        check("FD00::1", "fd00::1");
        check("[fd00::1]", "fd00::1");
        check("[fd00::1]:443", "[fd00::1]:443");
        check("fd00::/8", "fd00::/8");
        check("[fd00::]/8:443", "fd00::/8:443");
        check("fd00::/8:443", "fd00::/8:443");
        check("::ffff:10.1.2.3", "10.1.2.3");
        check("@PIP", "@pip");
        check("@hf_router", "@hf_router");
    }

    #[test]
    fn what_is_no_host_is_told_what_would_be_one() {
        let error = |text: &str| text.parse::<HostEntry>().unwrap_err().to_string();
        assert!(error("https://pypi.org/simple").contains("is a URL: give its host alone"));
        assert!(error("*").contains("\"open\" says that"));
        assert!(error("*:80").contains("\"open\" says that"));
        assert!(error("*.").contains("\"open\" says that"));
        assert!(error("bücher.example").contains("xn--"));
        for text in ["a:0", "a:65536", "a:+80", "a:", "a:http", "10.0.0.0/8:x"] {
            assert!(error(text).contains("a port is a number"), "{text}");
        }
        for text in [
            "",
            " ",
            "@",
            "@a b",
            "a.*.b",
            "*a.b",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "10.0.0.0/33",
            "10.0.0.0/",
            "127.1",
            "2130706433",
            "0x7f000001",
            "a.0x1",
            "1.2.3.4.5",
            "user@host",
            "a,b",
            "[::1",
            "::1]",
        ] {
            let error = error(text);
            assert!(
                error.contains("is no host: give a name") || error.contains("a port is a number"),
                "{text}: {error}"
            );
        }
        let long = format!("{}.example", "a".repeat(64));
        assert!(error(&long).contains("is no host"));
    }

    #[test]
    fn wildcards_are_for_what_is_below() {
        let rule: Rule = "*.corp.example".parse().unwrap();
        assert!(rule.host.has_name("a.b.corp.example"));
        assert!(!rule.host.has_name("corp.example"));
        assert!(!rule.host.has_name(".corp.example"));
        assert!(!rule.host.has_name("evilcorp.example"));
    }

    proptest! {
        #[test]
        fn nothing_breaks_the_reader_and_what_is_read_prints_as_itself(text in "[a-c0-9.:*/@\\[\\]-]{0,24}") {
            if let Ok(entry) = text.parse::<HostEntry>() {
                prop_assert_eq!(entry.to_string().parse(), Ok(entry));
            }
        }
    }
}
