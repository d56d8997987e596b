//! MCP servers outside the sandbox: where a task's HTTP servers really are, and the headers they are asked with. Both
//! stay in our process; the agent knows the proxy's own URL for each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use rollcage_model::task::mcp::{McpServer, McpServers, fill_variables};

use crate::outbound::{Forbidden, Guard};
use crate::secret::Secret;

/// One server, by the only URL that requests to it are sent to.
#[derive(Clone, Debug)]
pub struct Remote {
    pub(crate) url: reqwest::Url,
    pub(crate) headers: HeaderMap,
    /// Where somebody else named the URL: what may be connected to.
    pub(crate) guard: Option<Arc<Guard>>,
    /// The headers' values, to take out of what the server says.
    secrets: Vec<Secret>,
}

impl Remote {
    pub(crate) fn scrub(&self, text: &str) -> String {
        let scrub = |text: String, secret: &Secret| secret.scrub(&text);
        self.secrets.iter().fold(text.to_owned(), scrub)
    }
}

/// A task's servers outside, by name.
#[derive(Clone, Debug, Default)]
pub struct Remotes {
    by_name: BTreeMap<String, Remote>,
}

/// Why a server cannot be asked. Never shows the value of a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RemoteError {
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

impl Remotes {
    /// Takes the secrets out of a task's servers: what is left there may be shown and kept. Variables are looked up here
    /// and nowhere else, so the servers must come from whoever runs the program.
    pub fn take(
        servers: &mut McpServers,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RemoteError> {
        let mut by_name = BTreeMap::new();
        for (name, server) in servers {
            if let Some(url) = &server.url {
                by_name.insert(name.clone(), open(name, url, server, &variable)?);
            }
            server.mask();
        }
        Ok(Remotes { by_name })
    }

    /// Those of these names were named by somebody else.
    pub fn guard(&mut self, names: &BTreeSet<String>, guard: &Arc<Guard>) {
        for (name, remote) in &mut self.by_name {
            if names.contains(name) {
                remote.guard = Some(Arc::clone(guard));
            }
        }
    }

    /// Refuses a URL that somebody else named and may not, before anything is done for it.
    pub async fn check_addresses(&self) -> Result<(), Forbidden> {
        for remote in self.by_name.values() {
            if let Some(guard) = &remote.guard {
                guard.check(remote.url.as_str()).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Remote> {
        self.by_name.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

fn open(
    name: &str,
    url: &str,
    server: &McpServer,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Remote, RemoteError> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    for (header, value) in &server.headers {
        let filled = fill_variables(value, &variable).map_err(|missing| RemoteError::Variable {
            server: name.to_owned(),
            header: header.clone(),
            variable: missing,
        })?;
        let unfit = || RemoteError::Value {
            server: name.to_owned(),
            header: header.clone(),
        };
        let mut held = HeaderValue::from_str(&filled).map_err(|_| unfit())?;
        held.set_sensitive(true);
        let header_name = HeaderName::from_bytes(header.as_bytes()).map_err(|_| unfit())?;
        headers.insert(header_name, held);
        // What counts of `Bearer TOKEN` is the token.
        let token = filled.split_once(' ').map(|(_, token)| token.trim());
        secrets.extend(token.map(Secret::new));
        secrets.push(Secret::new(filled));
    }
    // The longest first, or a part of it would tear it apart.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    let url = url.parse().map_err(|_| RemoteError::Url(name.to_owned()))?;
    Ok(Remote {
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
        let remotes = Remotes::take(&mut given, variable).unwrap();
        let remote = remotes.get("docs").unwrap();
        assert_eq!(remote.headers["authorization"], "Bearer sekrit-12345");
        assert_eq!(given, servers("Bearer ${TOKEN}"));
        assert!(!format!("{remotes:?}").contains("sekrit"));
        assert_eq!(remote.scrub("bad token sekrit-12345!"), "bad token ***!");

        let mut given = servers("Bearer sekrit-12345");
        Remotes::take(&mut given, variable).unwrap();
        assert_eq!(given, servers("***"));
    }

    #[test]
    fn what_is_missing_is_named_without_its_value() {
        let error = Remotes::take(&mut servers("Bearer ${TOKEN}"), |_| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "MCP server `docs`: header `Authorization` needs the environment variable TOKEN, which is not set"
        );
        let broken = |_: &str| Some("sekrit\n".to_owned());
        let error = Remotes::take(&mut servers("${TOKEN}"), broken).unwrap_err();
        assert!(!error.to_string().contains("sekrit"));
    }
}
