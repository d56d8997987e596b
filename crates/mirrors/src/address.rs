//! URLs out of settings: what of one may be shown inside, and the credentials that were in it.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

use crate::secret::Secret;

/// An http or https URL whose credentials were taken out. Nothing in it is secret but `authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// As it was written, credentials aside.
    pub(crate) text: String,
    pub(crate) is_encrypted: bool,
    /// In lower case; an address of IPv6 without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    /// A whole `Authorization` header.
    pub(crate) authorization: Option<Secret>,
}

/// Why a setting's URL is not carried over. Texts go behind the setting's name and never quote the URL: what could not be
/// read may hold a password anywhere.
pub(crate) type Unusable = &'static str;

const NOT_HTTP: Unusable = "is no http or https URL";
const ODD: Unusable = "is not written as a plain URL (https://host/path)";
const AMBIGUOUS: Unusable = "has an @ or a colon behind its host: write special letters of a password as %40, %2F and so on";
const QUERY: Unusable = "has a query or a fragment, which may hold a token";

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, Unusable> {
        let text = text.trim();
        // The URL standard forgives these, and reads them otherwise than the tools do.
        let is_odd = |letter: char| letter.is_whitespace() || letter.is_control() || letter == '\\';
        if text.chars().any(is_odd) {
            return Err(ODD);
        }
        let (scheme, rest) = text.split_once("://").ok_or(NOT_HTTP)?;
        let is_encrypted = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(NOT_HTTP),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, behind) = rest.split_at(end);
        // Of a password with a slash in it, a file's comment sign may even have cut off the `@`.
        if behind.contains(['@', ':']) {
            return Err(AMBIGUOUS);
        }
        if behind.contains(['?', '#']) {
            return Err(QUERY);
        }
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        if place.is_empty() {
            return Err(ODD);
        }
        let clean = format!("{scheme}://{place}{behind}");
        let url = Url::parse(&clean).map_err(|_| ODD)?;
        let host = host_of(&url).ok_or(ODD)?;
        Ok(Address {
            is_encrypted,
            host,
            port: url.port_or_known_default().ok_or(ODD)?,
            path: url.path().to_owned(),
            authorization: user.filter(|user| !user.is_empty()).map(basic_of_user),
            text: clean,
        })
    }

    /// The path of what stands below it.
    pub(crate) fn folder(&self) -> String {
        format!("{}/", self.path.trim_end_matches('/'))
    }

    /// How a list of allowed hosts names this one. The usual ports stand for each other, since servers redirect from http
    /// to https.
    pub(crate) fn rule(&self) -> String {
        rule(&self.host, self.port)
    }
}

pub(crate) fn rule(host: &str, port: u16) -> String {
    match (port, host.contains(':')) {
        (80 | 443, _) => host.to_owned(),
        (_, true) => format!("[{host}]:{port}"),
        (_, false) => format!("{host}:{port}"),
    }
}

/// `name`, `name:port` or an address, as `trusted-host` and the like have it, as a rule.
pub(crate) fn rule_of_host(text: &str) -> Option<String> {
    let address = Address::parse(&format!("http://{text}/")).ok()?;
    (address.authorization.is_none() && address.path == "/").then(|| address.rule())
}

fn host_of(url: &Url) -> Option<String> {
    match url.host()? {
        Host::Ipv4(address) => Some(IpAddr::V4(address).to_string()),
        Host::Ipv6(address) => Some(IpAddr::V6(address).to_string()),
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            is_name(&name).then_some(name)
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(is_plain)
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// `user:password` of a URL, where letters may be written as `%40`.
fn basic_of_user(user: &str) -> Secret {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    basic(&decoded(name), &decoded(password))
}

pub(crate) fn basic(name: &[u8], password: &[u8]) -> Secret {
    let pair = [name, b":", password].concat();
    Secret::new(format!("Basic {}", STANDARD.encode(pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, clean: &str, rule: &str, authorization: Option<&str>) {
        let address = Address::parse(text).unwrap();
        let got = address.authorization.as_ref().map(Secret::expose);
        assert_eq!(
            (address.text.as_str(), address.rule().as_str(), got),
            (clean, rule, authorization)
        );
    }

    #[test]
    fn credentials_are_taken_out() {
        let clean = "https://mirror.example/simple";
        check(clean, clean, "mirror.example", None);
        // user:password
        let basic = Some("Basic dXNlcjpwYXNzd29yZA==");
        check(
            "https://user:password@mirror.example/simple",
            clean,
            "mirror.example",
            basic,
        );
        check(
            "https://us%65r:pass%77ord@mirror.example/simple",
            clean,
            "mirror.example",
            basic,
        );
        // user:p@ss and token:
        let basic = Some("Basic dXNlcjpwQHNz");
        check(
            "https://user:p@ss@mirror.example/simple",
            clean,
            "mirror.example",
            basic,
        );
        check(
            "http://token@h.example",
            "http://h.example",
            "h.example",
            Some("Basic dG9rZW46"),
        );
        check("http://@h.example", "http://h.example", "h.example", None);
    }

    #[test]
    fn ports_and_addresses_make_rules() {
        check(
            "http://H.example.:8081/a",
            "http://H.example.:8081/a",
            "h.example:8081",
            None,
        );
        check(
            "HTTPS://h.example:443",
            "HTTPS://h.example:443",
            "h.example",
            None,
        );
        check("http://10.1.2.3", "http://10.1.2.3", "10.1.2.3", None);
        check(
            "http://[fd00::1]:81/",
            "http://[fd00::1]:81/",
            "[fd00::1]:81",
            None,
        );
        check("http://[fd00::1]/", "http://[fd00::1]/", "fd00::1", None);
        assert_eq!(
            rule_of_host("h.example:81"),
            Some("h.example:81".to_owned())
        );
        assert_eq!(rule_of_host("user@h.example"), None);
        assert_eq!(rule_of_host("h.example/x"), None);
        assert_eq!(rule_of_host(""), None);
    }

    #[test]
    fn what_could_hide_a_password_is_not_carried() {
        let check =
            |text: &str, expect: Unusable| assert_eq!(Address::parse(text), Err(expect), "{text}");
        check("https://user/pa:ss@h.example/", AMBIGUOUS);
        check("https://user:1/x@h.example/", AMBIGUOUS);
        check("https://user/pa:ss", AMBIGUOUS);
        check("https://h.example/?token=s", QUERY);
        check("https://h.example/#token=s", QUERY);
        check("https:/user:pass@h.example/", NOT_HTTP);
        check("https:///user:pass@h.example/", AMBIGUOUS);
        check("https:////h.example/", ODD);
        check("https://user:pa ss@h.example/", ODD);
        check("https://user:pa\tss@h.example/", ODD);
        check("https://h.example\\@other.example/", ODD);
        check("https://h.example:99999/", ODD);
        check("https://h!.example/", ODD);
        check("https://h..example/", ODD);
        check("ftp://h.example/", NOT_HTTP);
        check("/opt/wheels", NOT_HTTP);
        check("", NOT_HTTP);
    }
}
