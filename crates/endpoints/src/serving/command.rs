//! Servers of the user's servers file: a command, its base URL and its readiness check.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::check::{ProviderError, check_name, check_url};

/// A server to start. `{port}` in the command, the URLs and the environment is a free port; `{model}` is the model's
/// name.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandServer {
    pub name: String,
    pub command: Vec<String>,
    pub base_url: String,
    /// A path on the server that responds with 200 once it is ready; the default is the list of models.
    pub ready: Option<String>,
    pub ready_limit: Duration,
    pub model: Option<String>,
    pub env: BTreeMap<String, String>,
    pub is_thinking_disabled: bool,
    pub has_token_ids: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServersFile {
    #[serde(default)]
    servers: BTreeMap<String, ServerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerEntry {
    command: Vec<String>,
    #[serde(default = "default_base_url")]
    base_url: String,
    ready: Option<String>,
    #[serde(default = "default_ready_timeout_s")]
    ready_timeout_s: f64,
    model: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    is_thinking_disabled: bool,
    #[serde(default = "default_has_token_ids")]
    has_token_ids: bool,
}

fn default_base_url() -> String {
    "http://127.0.0.1:{port}/v1".to_owned()
}

fn default_ready_timeout_s() -> f64 {
    300.0
}

/// A self-hosted server ignores unknown members or reports them, and then the proxy requests less.
fn default_has_token_ids() -> bool {
    true
}

/// Parses a servers file. Errors name the file, the server and the key.
pub(crate) fn read_servers(text: &str, path: &Path) -> Result<Vec<CommandServer>, ProviderError> {
    let file: ServersFile = toml::from_str(text).map_err(|source| ProviderError::Syntax {
        path: path.to_owned(),
        source,
    })?;
    let servers = file.servers.into_iter().map(|(name, entry)| {
        let problem = entry.problem(&name);
        match problem {
            Some(problem) => Err(ProviderError::Entry {
                path: path.to_owned(),
                name,
                problem,
            }),
            None => Ok(entry.finish(name)),
        }
    });
    servers.collect()
}

impl ServerEntry {
    fn problem(&self, name: &str) -> Option<String> {
        if let Err(problem) = check_name(name) {
            return Some(problem);
        }
        if self.command.first().is_none_or(String::is_empty) {
            return Some("command: give the program and its arguments as a list".to_owned());
        }
        let url = fill(&self.base_url, 1, "m");
        if let Err(error) = check_url(&url) {
            return Some(format!("base_url: {error}"));
        }
        if self
            .ready
            .as_ref()
            .is_some_and(|path| !path.starts_with('/'))
        {
            return Some("ready: give a path on the server, such as /health".to_owned());
        }
        if !(self.ready_timeout_s > 0.0 && self.ready_timeout_s <= 86_400.0) {
            return Some("ready_timeout_s: give seconds, above 0 and at most a day".to_owned());
        }
        let has_port = |text: &String| text.contains("{port}");
        if !has_port(&self.base_url) {
            return Some("base_url: it must hold {port}, which is chosen at each start".to_owned());
        }
        if !self.command.iter().chain(self.env.values()).any(has_port) {
            return Some(
                "command: it or env must hold {port}, where the server is to listen".to_owned(),
            );
        }
        None
    }

    fn finish(self, name: String) -> CommandServer {
        CommandServer {
            name,
            command: self.command,
            base_url: self.base_url,
            ready: self.ready,
            ready_limit: Duration::from_secs_f64(self.ready_timeout_s),
            model: self.model,
            env: self.env,
            is_thinking_disabled: self.is_thinking_disabled,
            has_token_ids: self.has_token_ids,
        }
    }
}

impl CommandServer {
    /// Whether the command or URL depends on the requested model.
    pub(crate) fn needs_model(&self) -> bool {
        let texts = self.command.iter().chain(self.env.values());
        texts
            .chain([&self.base_url])
            .any(|text| text.contains("{model}"))
    }
}

/// Substitutes the port and the model.
pub(crate) fn fill(text: &str, port: u16, model: &str) -> String {
    // The model last, so that braces in its name are not substituted.
    text.replace("{port}", &port.to_string())
        .replace("{model}", model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_error(text: &str, expect: &str) {
        let error = read_servers(text, Path::new("/home/me/servers.toml")).unwrap_err();
        let text = rollcage_model::text::chain(&error);
        assert!(
            text.contains("/home/me/servers.toml") && text.contains(expect),
            "{text}"
        );
    }

    #[test]
    fn a_server_needs_only_its_command() {
        let text = "[servers.local]\ncommand = ['llama-server', '--port', '{port}']\n";
        let server = read_servers(text, Path::new("x")).unwrap().remove(0);
        assert_eq!(server.name, "local");
        assert_eq!(fill(&server.base_url, 81, "m"), "http://127.0.0.1:81/v1");
        assert_eq!(server.ready_limit, Duration::from_secs(300));
        assert!(!server.needs_model() && server.has_token_ids);
        let text = "[servers.v]\ncommand = ['vllm', 'serve', '{model}', '--port={port}']\n";
        assert!(read_servers(text, Path::new("x")).unwrap()[0].needs_model());
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        check_error("[servers.a]\ncommand = []\n", "`a`: command:");
        check_error("[servers.a]\ncomand = ['x']\n", "unknown field `comand`");
        check_error(
            "[servers.a]\ncommand = ['x']\nbase_url = 'x:{port}'\n",
            "`a`: base_url:",
        );
        check_error(
            "[servers.a]\ncommand = ['x']\nready = 'health'\n",
            "`a`: ready:",
        );
        check_error(
            "[servers.a]\ncommand = ['x']\nready_timeout_s = 0\n",
            "`a`: ready_timeout_s:",
        );
        check_error(
            "[servers.a]\ncommand = ['x', '{port}']\nbase_url = 'http://h:1'\n",
            "`a`: base_url: it must hold {port}",
        );
        check_error(
            "[servers.a]\ncommand = ['x']\n",
            "`a`: command: it or env must hold {port}",
        );
        check_error("[servers.A]\ncommand = ['x']\n", "name: `A`");
    }
}
