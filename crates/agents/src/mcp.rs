//! How an agent gets MCP servers, as defined in its manifest: an object per server in one of its configuration files,
//! and a pattern for the names of their tools.
//!
//! A server inside the sandbox is started by a script of ours, which holds the declared command byte for byte; the
//! agent's configuration names `/bin/sh SCRIPT`. Agents replace `$NAME` in commands, start servers in other
//! directories, or pass on only some variables.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use rollcage_model::task::mcp::McpServer;
use rollcage_sandbox::guest::{HOME, WORKDIR};

use super::addition::filled;
use super::error::ManifestError;
use super::fill::{self, Quoting};
use super::{Launch, LaunchError, LaunchRequest, patch};

/// Placeholders of this section, in addition to the common ones.
const SERVER: &str = "server";
const SCRIPT: &str = "script";
const URL: &str = "mcp_url";

/// The section `[mcp]` of a manifest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct McpText {
    /// The file for the servers, by default the agent's configuration file.
    file: Option<String>,
    /// The path of keys to the object of servers in the file.
    at: Vec<String>,
    /// The object for a server that the agent starts as `/bin/sh {script}`.
    stdio: Map<String, Value>,
    /// The object for a server over HTTP, at `{mcp_url}` and with `{key}`.
    http: Map<String, Value>,
    /// The pattern of tool names: `{server}`, then `{tool}`.
    pub(super) tool: String,
    /// Arguments added when a task has servers.
    #[serde(default)]
    command: Vec<String>,
    /// Arguments removed from the agent's command then.
    #[serde(default)]
    pub(super) drop: Vec<String>,
    /// Names that no server may have, because tools of the agent use them.
    #[serde(default)]
    reserved: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Further settings merged into the file when a task has servers.
    #[serde(default)]
    config: Map<String, Value>,
    /// Further settings merged into the file for each server.
    #[serde(default)]
    each: Map<String, Value>,
}

impl McpText {
    pub(super) fn check(&self, config: Option<&str>) -> Result<(), ManifestError> {
        let wrong = |problem: &str| Err(ManifestError::Mcp(problem.to_owned()));
        let Some(file) = self.file.as_deref().or(config) else {
            return wrong("name the file that the servers go to: `file = \"…\"`");
        };
        let is_inside =
            !file.is_empty() && !file.starts_with('/') && !file.split('/').any(|part| part == "..");
        if !is_inside {
            return Err(ManifestError::Path(file.to_owned()));
        }
        if patch::Format::of(file).is_none() {
            return wrong("the file's name must end in .json, .toml or .yaml");
        }
        if self.at.is_empty() || self.at.iter().any(String::is_empty) {
            return wrong("`at` lists the keys that lead to the servers");
        }
        let is_pattern = self.tool.split_once("{server}").is_some_and(|(_, rest)| {
            let joint = rest.strip_suffix("{tool}");
            joint.is_some_and(|joint| !joint.is_empty() && fill::names(joint).is_empty())
        });
        if !is_pattern {
            return wrong("`tool` is like \"{server}_{tool}\"");
        }
        let own = |names: Vec<&str>, known: &[&str]| {
            let mut names = names.into_iter();
            names.find(|name| !known.contains(name)).map(str::to_owned)
        };
        let command = self.command.iter().map(|text| (text.clone(), &[][..]));
        let env = self.env.values().map(|text| (text.clone(), &[][..]));
        let text = |object: &Map<String, Value>| Value::Object(object.clone()).to_string();
        let config = [
            (text(&self.config), &[][..]),
            (text(&self.each), &[SERVER][..]),
        ];
        let stdio = [(text(&self.stdio), &[SERVER, SCRIPT][..])];
        let http = [(text(&self.http), &[SERVER, URL][..])];
        for (text, known) in command.chain(env).chain(config).chain(stdio).chain(http) {
            if let Some(name) = own(fill::unknown(&text), known) {
                return Err(ManifestError::Placeholder {
                    placeholder: format!("{{{name}}}"),
                    place: "`mcp`".to_owned(),
                });
            }
        }
        if self
            .command
            .iter()
            .any(|text| fill::names(text).contains(&"key"))
        {
            return Err(ManifestError::KeyInCommand);
        }
        Ok(())
    }

    /// Adds a task's servers to a launch. `home` holds the files of the pre-baked home directory, `config` is the
    /// agent's configuration file.
    pub(super) fn add(
        &self,
        launch: &mut Launch,
        request: &LaunchRequest<'_>,
        home: &[(String, String)],
        config: Option<&str>,
    ) -> Result<(), LaunchError> {
        let mut names = request.task.mcp.keys();
        if let Some(server) = names.find(|name| self.reserved.contains(name)) {
            return Err(LaunchError::McpName {
                server: server.clone(),
            });
        }
        let values = fill::rollout_values(request);
        let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
        launch.argv.extend(self.command.iter().map(plain));
        let env = self
            .env
            .iter()
            .map(|(name, text)| (name.clone(), plain(text)));
        launch.env.extend(env);
        let file = self.file.as_deref().or(config).unwrap_or_default();
        let path = format!("{HOME}/{file}");
        if !self.config.is_empty() {
            let more = filled(&Value::Object(self.config.clone()), &values, &[]);
            patch::merge(&mut launch.files, home, &path, &more)?;
        }
        let mut servers = Map::new();
        for (name, server) in &request.task.mcp {
            let script = format!("{HOME}/.config/rollcage-mcp/{name}.sh");
            let mut values = values.clone();
            values.push((SERVER, name.clone()));
            if !self.each.is_empty() {
                let more = filled(&Value::Object(self.each.clone()), &values, &[]);
                patch::merge(&mut launch.files, home, &path, &more)?;
            }
            let object = if server.url.is_some() {
                values.push((
                    URL,
                    format!("{}/mcp/{name}", fill::root_url(request.access)),
                ));
                &self.http
            } else {
                let text = start_script(&request.task.env, server);
                launch.files.push((script.clone(), text));
                values.push((SCRIPT, script));
                &self.stdio
            };
            servers.insert(
                name.clone(),
                filled(&Value::Object(object.clone()), &values, &[]),
            );
        }
        let inner = Value::Object(servers);
        let addition = self.at.iter().rev().fold(inner, |inner, key| {
            Value::Object(Map::from_iter([(key.clone(), inner)]))
        });
        patch::merge(&mut launch.files, home, &path, &addition)
    }
}

/// A script that starts a server as it was declared. Agents do not do so reliably: some expand `$NAME` in commands, and
/// some pass on only a few variables.
fn start_script(env: &BTreeMap<String, String>, server: &McpServer) -> String {
    let mut script = format!("cd {WORKDIR} || exit 1\n");
    for (name, value) in env.iter().chain(&server.env) {
        // Passed through `env`, because a task's variables may have names that a shell does not allow.
        script.push_str(&format!(
            "set -- \"$@\" {}\n",
            quote(&format!("{name}={value}"))
        ));
    }
    let command: Vec<_> = server.command.iter().map(|word| quote(word)).collect();
    script.push_str(&format!("exec env -- \"$@\" {}\n", command.join(" ")));
    script
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
