//! A company's HTTP proxy between this machine and the Internet, as HTTP_PROXY, HTTPS_PROXY and NO_PROXY describe it.
//!
//! Such a machine cannot resolve outside names itself, so the proxy does, and the company's own policy applies to the
//! addresses. IP literals of restricted networks never go through it.

use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use rollcage_model::network::address::{Block, closed_kind};
use rollcage_model::network::{Host, Target};

/// A proxy's address and our credentials for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxyServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `Proxy-Authorization`, marked sensitive, so that it is not printed.
    pub(crate) authorization: Option<HeaderValue>,
}

/// The proxies for plain requests and for tunnels, with their exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompanyProxy {
    http: Option<ProxyServer>,
    https: Option<ProxyServer>,
    except: Vec<Exception>,
}

/// An entry of NO_PROXY.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    Everything,
    /// A domain with its subdomains, on one port or all.
    Domain(String, Option<u16>),
    Block(Block),
}

/// A proxy URL that is not supported. The text does not repeat it, since it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a proxy for sandboxes must be http://[USER:PASSWORD@]HOST[:PORT]")]
pub struct NotAProxy;

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Plain HTTP requests in absolute form.
    Requests,
    Tunnel,
}

impl CompanyProxy {
    /// From the values of HTTP_PROXY, HTTPS_PROXY and NO_PROXY; empty ones are none.
    pub fn parse(http: &str, https: &str, except: &str) -> Result<Self, NotAProxy> {
        let server = |text: &str| match text.trim() {
            "" => Ok(None),
            text => ProxyServer::parse(text).map(Some),
        };
        let except = except.split(',').map(str::trim);
        Ok(CompanyProxy {
            http: server(http)?,
            https: server(https)?,
            except: except.filter_map(Exception::parse).collect(),
        })
    }

    /// The proxy for a target; `None` is a direct connection.
    pub(crate) fn server(&self, target: &Target, purpose: Purpose) -> Option<&ProxyServer> {
        let is_closed = match &target.host {
            Host::Ip(address) => closed_kind(*address).is_some(),
            Host::Name(_) => false,
        };
        let is_exempt = || self.except.iter().any(|exception| exception.has(target));
        if is_closed || is_exempt() {
            return None;
        }
        match purpose {
            Purpose::Requests => self.http.as_ref(),
            Purpose::Tunnel => self.https.as_ref(),
        }
    }
}

impl ProxyServer {
    fn parse(text: &str) -> Result<Self, NotAProxy> {
        let with_scheme = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let uri: Uri = with_scheme.parse().map_err(|_| NotAProxy)?;
        let authority = uri.authority().ok_or(NotAProxy)?;
        if uri.scheme_str() != Some("http") {
            return Err(NotAProxy);
        }
        let authorization = match authority.as_str().rsplit_once('@') {
            None => None,
            Some((user, _)) => Some(basic(user)?),
        };
        let host = Host::parse(authority.host()).ok_or(NotAProxy)?;
        Ok(ProxyServer {
            host: host.to_string(),
            port: authority.port_u16().unwrap_or(80),
            authorization,
        })
    }
}

/// A URL's `user:password` as a sensitive header value.
fn basic(user: &str) -> Result<HeaderValue, NotAProxy> {
    let value = format!("Basic {}", BASE64_STANDARD.encode(decoded(user.as_bytes())));
    let mut value = HeaderValue::from_str(&value).map_err(|_| NotAProxy)?;
    value.set_sensitive(true);
    Ok(value)
}

fn decoded(bytes: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.extend(u8::try_from(high * 16 + low));
                at += 3;
            }
            (byte, _, _) => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        if text == "*" {
            return Some(Exception::Everything);
        }
        let address = text.trim_matches(['[', ']']).parse::<IpAddr>();
        let block = text.parse().ok();
        if let Some(block) = block.or_else(|| address.ok().map(Block::from)) {
            return Some(Exception::Block(block));
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let name = name.trim_start_matches("*.").trim_start_matches('.');
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(Exception::Domain(name, port))
    }

    fn has(&self, target: &Target) -> bool {
        match (self, &target.host) {
            (Exception::Everything, _) => true,
            (Exception::Domain(domain, port), Host::Name(name)) => {
                let rest = name.strip_suffix(domain.as_str());
                let is_named = rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                is_named && port.is_none_or(|port| port == target.port)
            }
            (Exception::Block(block), Host::Ip(address)) => block.contains(*address),
            (Exception::Domain(..), Host::Ip(_)) | (Exception::Block(_), Host::Name(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16) -> Target {
        Target {
            host: Host::parse(host).unwrap(),
            port,
        }
    }

    #[test]
    fn a_proxys_password_is_sent_and_not_printed() {
        let proxy = CompanyProxy::parse("", "http://me:p%40ss@proxy.corp:3128/", "").unwrap();
        let server = proxy.server(&target("pypi.org", 443), Purpose::Tunnel);
        let server = server.unwrap();
        assert_eq!((server.host.as_str(), server.port), ("proxy.corp", 3128));
        let sent = server.authorization.as_ref().unwrap();
        assert_eq!(sent.to_str().unwrap(), "Basic bWU6cEBzcw==");
        let printed = format!("{proxy:?}");
        assert!(
            !printed.contains("bWU6") && !printed.contains("ss@"),
            "{printed}"
        );
        for text in ["https://proxy", "socks5://proxy", "http://", "http://a b"] {
            assert_eq!(CompanyProxy::parse(text, "", ""), Err(NotAProxy), "{text}");
        }
    }

    #[test]
    fn exceptions_and_closed_addresses_are_not_asked_of_it() {
        let except = "localhost, .corp,*.lan, example.org:8443,10.0.0.0/8,192.0.2.1";
        let proxy = CompanyProxy::parse("proxy", "proxy:8080", except).unwrap();
        let asks =
            |host: &str, port: u16| proxy.server(&target(host, port), Purpose::Tunnel).is_some();
        assert!(asks("pypi.org", 443));
        assert!(asks("8.8.8.8", 443));
        assert!(!asks("mirror.corp", 443) && !asks("corp", 443) && asks("notcorp", 443));
        assert!(!asks("a.lan", 443));
        assert!(!asks("example.org", 8443) && asks("example.org", 443));
        assert!(!asks("10.1.1.1", 443) && !asks("192.168.1.1", 443) && !asks("127.0.0.1", 443));
        let all = CompanyProxy::parse("proxy", "proxy", "*").unwrap();
        assert_eq!(
            all.server(&target("pypi.org", 443), Purpose::Requests),
            None
        );
        let none = CompanyProxy::parse("", "", "").unwrap();
        assert_eq!(none.server(&target("pypi.org", 443), Purpose::Tunnel), None);
    }
}
