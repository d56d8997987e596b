//! MCP servers outside the sandbox: the real URLs of a task's HTTP servers, and the headers that requests to them need.
//! Both stay in our process; the agent only sees the proxy's URL for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    ORIGIN, USER_AGENT,
};

use rollcage_model::task::mcp::{McpServer, McpServers, fill_variables};

use crate::outbound::{ForbiddenAddress, Guard};
use crate::scrub::KeyScrubber;
use crate::secret::Secret;

/// Headers that say nothing secret, and whose values stand in answers for good reasons.
const PLAIN_HEADERS: [HeaderName; 6] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CONTENT_TYPE,
    ORIGIN,
    USER_AGENT,
];

/// One server, by the only URL that requests to it are sent to.
#[derive(Clone, Debug)]
pub struct RemoteMcpServer {
    pub(crate) url: reqwest::Url,
    pub(crate) headers: HeaderMap,
    /// Restricts the addresses that may be connected to, where the URL comes from an untrusted client.
    pub(crate) guard: Option<Arc<Guard>>,
    /// The headers' values, which are removed from the server's answers.
    secrets: Vec<Secret>,
}

impl RemoteMcpServer {
    /// What takes them out, the longest first: replacing a part of a secret would leave the rest of it visible.
    pub(crate) fn scrubbers(&self) -> Vec<Arc<KeyScrubber>> {
        self.secrets
            .iter()
            .filter_map(KeyScrubber::of_header)
            .collect()
    }
}

/// A task's remote servers, by name.
#[derive(Clone, Debug, Default)]
pub struct RemoteMcpServers {
    by_name: BTreeMap<String, RemoteMcpServer>,
}

/// Why a server cannot be used. Never shows the value of a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RemoteMcpError {
    #[error(
        "MCP server `{server}`: header `{header}` needs the environment variable {variable}, which is not set"
    )]
    Variable {
        server: String,
        header: String,
        variable: String,
    },
    #[error("MCP server `{server}`: the value of header `{header}` is none that a header can hold")]
    Value { server: String, header: String },
    #[error("MCP server `{0}`: its `url` is no URL")]
    Url(String),
}

impl RemoteMcpServers {
    /// Moves the secrets out of a task's servers; what is left there may be shown and stored. Environment variables are
    /// substituted here, so the servers must come from the operator and not from a client.
    pub fn take(
        servers: &mut McpServers,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RemoteMcpError> {
        let mut by_name = BTreeMap::new();
        for (name, server) in servers {
            if let Some(url) = &server.url {
                by_name.insert(name.clone(), open(name, url, server, &variable)?);
            }
            server.mask();
        }
        Ok(RemoteMcpServers { by_name })
    }

    /// Guards the servers of these names, which come from an untrusted client.
    pub fn guard(&mut self, names: &BTreeSet<String>, guard: &Arc<Guard>) {
        for (name, remote) in &mut self.by_name {
            if names.contains(name) {
                remote.guard = Some(Arc::clone(guard));
            }
        }
    }

    /// Refuses forbidden URLs of guarded servers early, before any work is done for them.
    pub async fn check_addresses(&self) -> Result<(), ForbiddenAddress> {
        for remote in self.by_name.values() {
            if let Some(guard) = &remote.guard {
                guard.check(remote.url.as_str()).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RemoteMcpServer> {
        self.by_name.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

/// A text, and how it stands in JSON if that differs; some programs write a slash there as `\/`.
fn spellings(text: &str) -> Vec<String> {
    let quoted = serde_json::Value::from(text).to_string();
    let inside = quoted[1..quoted.len() - 1].to_owned();
    let mut all = vec![text.to_owned(), inside.replace('/', "\\/"), inside];
    all.sort();
    all.dedup();
    all
}

fn open(
    name: &str,
    url: &str,
    server: &McpServer,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<RemoteMcpServer, RemoteMcpError> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    for (header, value) in &server.headers {
        let filled =
            fill_variables(value, &variable).map_err(|missing| RemoteMcpError::Variable {
                server: name.to_owned(),
                header: header.clone(),
                variable: missing,
            })?;
        let unfit = || RemoteMcpError::Value {
            server: name.to_owned(),
            header: header.clone(),
        };
        let mut held = HeaderValue::from_str(&filled).map_err(|_| unfit())?;
        held.set_sensitive(true);
        let header_name = HeaderName::from_bytes(header.as_bytes()).map_err(|_| unfit())?;
        if !PLAIN_HEADERS.contains(&header_name) {
            // In `Bearer TOKEN` the token alone is a secret too.
            let token = filled.split_once(' ').map(|(_, token)| token.trim());
            for secret in token.into_iter().chain([filled.as_str()]) {
                secrets.extend(spellings(secret).into_iter().map(Secret::new));
            }
        }
        headers.insert(header_name, held);
    }
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    let url = url
        .parse()
        .map_err(|_| RemoteMcpError::Url(name.to_owned()))?;
    Ok(RemoteMcpServer {
        url,
        headers,
        guard: None,
        secrets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(value: &str) -> McpServers {
        let server = McpServer {
            url: Some("http://127.0.0.1:9/mcp".to_owned()),
            headers: [("Authorization".to_owned(), value.to_owned())].into(),
            ..McpServer::default()
        };
        [("docs".to_owned(), server)].into()
    }

    #[test]
    fn secrets_leave_the_task_and_do_not_print() {
        let variable = |name: &str| (name == "TOKEN").then(|| "sekrit-12345".to_owned());
        let mut given = servers("Bearer ${TOKEN}");
        let remotes = RemoteMcpServers::take(&mut given, variable).unwrap();
        let remote = remotes.get("docs").unwrap();
        assert_eq!(remote.headers["authorization"], "Bearer sekrit-12345");
        assert_eq!(given, servers("Bearer ${TOKEN}"));
        assert!(!format!("{remotes:?}").contains("sekrit"));
        assert_eq!(remote.scrubbers().len(), 2);

        let mut given = servers("Bearer sekrit-12345");
        RemoteMcpServers::take(&mut given, variable).unwrap();
        assert_eq!(given, servers("***"));
    }

    #[test]
    fn what_is_missing_is_named_without_its_value() {
        let error = RemoteMcpServers::take(&mut servers("Bearer ${TOKEN}"), |_| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "MCP server `docs`: header `Authorization` needs the environment variable TOKEN, which is not set"
        );
        let broken = |_: &str| Some("sekrit\n".to_owned());
        let error = RemoteMcpServers::take(&mut servers("${TOKEN}"), broken).unwrap_err();
        assert!(!error.to_string().contains("sekrit"));
    }
}
