//! The proxy that this machine's own connections go through. Sandboxes are not told of it: the filter uses it for them.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::address::Address;
use crate::secret::Secret;

/// What may stand in a URL before its `@` as it is.
const USER: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'%')
    .remove(b':')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Which proxy serves which requests, as `HTTP_PROXY` and its like say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboundProxy {
    /// For plain http: `http://[USER:PASSWORD@]HOST:PORT`.
    pub http: Option<Secret>,
    /// For everything that goes through CONNECT, in the same form.
    pub https: Option<Secret>,
    /// Hosts that are reached without it, in lower case and with commas between, as `NO_PROXY` has them.
    pub no_proxy: String,
}

impl OutboundProxy {
    /// One server for every request.
    pub(crate) fn for_all(text: &str, no_proxy: &str) -> Option<Self> {
        let server = server(text);
        proxy(server.clone(), server, no_proxy)
    }
}

/// The machine's proxy, out of variables that all tools share. Lower case wins, as it does for curl.
pub(crate) fn of_environment(
    env: &BTreeMap<String, String>,
    notes: &mut Vec<String>,
) -> Option<OutboundProxy> {
    let set = |name: &str| {
        let value = env.get(name).map(|value| value.trim());
        value.filter(|value| !value.is_empty())
    };
    let variable = |name: &str| set(name).or_else(|| set(&name.to_uppercase()));
    let mut server = |name: &str| {
        let text = variable(name).or_else(|| variable("all_proxy"))?;
        let server = server(text);
        if server.is_none() {
            let name = name.to_uppercase();
            notes.push(format!(
                "{name} (or ALL_PROXY) is no proxy of the form http://host:port: it is not used for sandboxes"
            ));
        }
        server
    };
    let (http, https) = (server("http_proxy"), server("https_proxy"));
    proxy(http, https, variable("no_proxy").unwrap_or_default())
}

fn proxy(http: Option<Secret>, https: Option<Secret>, no_proxy: &str) -> Option<OutboundProxy> {
    let hosts = no_proxy
        .split([',', ' '])
        .map(|host| host.trim().to_ascii_lowercase());
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"._-*:/[]".contains(&letter);
    let hosts = hosts.filter(|host| !host.is_empty() && host.bytes().all(is_plain));
    (http.is_some() || https.is_some()).then(|| OutboundProxy {
        http,
        https,
        no_proxy: hosts.collect::<Vec<_>>().join(","),
    })
}

/// curl and its relatives take a proxy without its scheme, too.
fn server(text: &str) -> Option<Secret> {
    let text = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let address = Address::parse(&text).ok().filter(|it| !it.is_encrypted)?;
    let place = match address.host.contains(':') {
        true => format!("[{}]:{}", address.host, address.port),
        false => format!("{}:{}", address.host, address.port),
    };
    let (_, rest) = text.split_once("://")?;
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    Some(Secret::new(match user.is_empty() {
        true => format!("http://{place}"),
        // Not everybody reads a password with an `@` in it as it is meant.
        false => format!("http://{}@{place}", utf8_percent_encode(user, USER)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two servers and the exceptions as texts, and the notes.
    fn read(env: &[(&str, &str)]) -> (Option<[String; 3]>, Vec<String>) {
        let pairs = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut notes = Vec::new();
        let proxy = of_environment(&pairs.collect(), &mut notes);
        let text = |secret: Option<Secret>| secret.map_or(String::new(), |it| it.expose().into());
        let texts = proxy.map(|it| [text(it.http), text(it.https), it.no_proxy]);
        (texts, notes)
    }

    #[track_caller]
    fn check(env: &[(&str, &str)], expect: [&str; 3]) {
        let expect = expect.map(str::to_owned);
        assert_eq!(read(env), (Some(expect), Vec::new()));
    }

    #[test]
    fn both_cases_are_read_and_lower_case_wins() {
        check(
            &[
                ("HTTP_PROXY", "http://upper.example:1"),
                ("http_proxy", "http://lower.example:3128/"),
                ("HTTPS_PROXY", "Secure.example"),
                (
                    "NO_PROXY",
                    "localhost, .Corp.example,10.0.0.0/8 other.example",
                ),
            ],
            [
                "http://lower.example:3128",
                "http://secure.example:80",
                "localhost,.corp.example,10.0.0.0/8,other.example",
            ],
        );
    }

    #[test]
    fn a_password_stays_with_its_proxy() {
        check(
            &[
                ("http_proxy", "http://me:p@ss%2F!@[fd00::1]:3128"),
                ("https_proxy", "me@p.example:1"),
            ],
            [
                "http://me:p%40ss%2F%21@[fd00::1]:3128",
                "http://me@p.example:1",
                "",
            ],
        );
    }

    #[test]
    fn all_proxy_stands_in_for_what_is_not_set() {
        check(
            &[
                ("ALL_PROXY", "http://all.example"),
                ("https_proxy", "http://own.example:1"),
            ],
            ["http://all.example:80", "http://own.example:1", ""],
        );
    }

    #[test]
    fn without_variables_there_is_no_proxy() {
        let env = [("NO_PROXY", "*"), ("HTTP_PROXY", "")];
        assert_eq!(read(&env), (None, Vec::new()));
    }

    #[test]
    fn a_proxy_of_another_kind_is_named_without_its_password() {
        for url in [
            "socks5://user:s3cret@h.example:1080",
            "https://user:s3cret@h.example",
        ] {
            let note = "HTTPS_PROXY (or ALL_PROXY) is no proxy of the form http://host:port: it is not used for sandboxes";
            assert_eq!(read(&[("HTTPS_PROXY", url)]), (None, vec![note.to_owned()]));
        }
    }
}
