//! Certificate authorities: which variables say where they are, and which of those places exist inside.

use std::collections::BTreeMap;

use crate::host::Host;
use crate::shown::{not_shown, shown_path};

/// Of every tool that has a variable for it; these name files or, the second, directories.
const VARIABLES: [&str; 10] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "AWS_CA_BUNDLE",
    "NIX_SSL_CERT_FILE",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
];

/// The variables that hold inside too.
pub(crate) fn shared(host: &Host<'_>, notes: &mut Vec<String>) -> BTreeMap<String, String> {
    let mut shared = BTreeMap::new();
    for name in VARIABLES {
        let Some(value) = host.variable(name) else {
            continue;
        };
        // SSL_CERT_DIR may be a list.
        let shown: Vec<&str> = value.split(':').filter_map(shown_path).collect();
        if shown.len() < value.split(':').count() {
            notes.push(not_shown(name));
        }
        if !shown.is_empty() {
            shared.insert(name.to_owned(), shown.join(":"));
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_seen_inside_is_carried_over() {
        let env = [
            ("SSL_CERT_FILE", "/etc/ssl/certs/ca.crt"),
            ("SSL_CERT_DIR", "/etc/ssl/certs:/root/certs"),
            ("REQUESTS_CA_BUNDLE", "/root/ca.pem"),
            ("CURL_CA_BUNDLE", "/usr/../root/ca.pem"),
            ("NODE_EXTRA_CA_CERTS", "/usr/share/company/ca.pem"),
            ("AWS_CA_BUNDLE", ""),
            ("NIX_SSL_CERT_FILE", "certs/ca.pem"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let host = Host {
            env: &BTreeMap::from(env),
            read: &|_| Ok(String::new()),
            list: &|_| Ok(Vec::new()),
        };
        let mut notes = Vec::new();
        let shared = shared(&host, &mut notes);
        let shared: Vec<_> = shared
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let expect = [
            ("NODE_EXTRA_CA_CERTS", "/usr/share/company/ca.pem"),
            ("SSL_CERT_DIR", "/etc/ssl/certs"),
            ("SSL_CERT_FILE", "/etc/ssl/certs/ca.crt"),
        ];
        assert_eq!(shared, expect);
        let left_out = [
            "SSL_CERT_DIR",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "NIX_SSL_CERT_FILE",
        ];
        assert_eq!(notes, left_out.map(not_shown));
    }
}
