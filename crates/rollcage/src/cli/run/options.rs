//! Flags of `rollcage run` for the agent's options.

use serde_json::{Map, Value};

use rollcage_model::task::{AgentOptions, merge};

use crate::UsageError;

#[derive(clap::Args)]
#[command(next_help_heading = "Agent")]
pub(crate) struct AgentArguments {
    /// Replace the agent's own system prompt (`@FILE` reads it from a file)
    #[arg(long, value_name = "TEXT|@FILE")]
    system_prompt: Option<String>,

    /// Tell the agent more, as its users' own notes do (`@FILE` reads it from a file)
    #[arg(long, value_name = "TEXT|@FILE")]
    agent_instructions: Option<String>,

    /// How much the model should think, in the agent's own words (`low`, `high` …)
    #[arg(long, value_name = "LEVEL")]
    effort: Option<String>,

    /// Leave the agent these tools only, by its own names for them
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    tools: Vec<String>,

    /// Take these tools away from the agent, by its own names for them
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    disable_tools: Vec<String>,

    /// Keep the agent's own log of this level with the record, as agent.stderr.log (`DEBUG`, `INFO` …)
    #[arg(long, value_name = "LEVEL")]
    agent_log_level: Option<String>,

    /// Merge this over the agent's own configuration file: a JSON object, or a file with one
    #[arg(long, value_name = "JSON|FILE.json|FILE.toml")]
    agent_config: Option<String>,

    /// A variable for the agent alone (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    agent_env: Vec<String>,
}

impl AgentArguments {
    /// Applies flags, which take precedence over the task.
    pub(crate) fn set(&self, options: &mut AgentOptions) -> anyhow::Result<()> {
        for (given, place) in [
            (&self.system_prompt, &mut options.system_prompt),
            (&self.agent_instructions, &mut options.instructions),
        ] {
            if let Some(text) = given {
                *place = Some(text_or_file(text)?);
            }
        }
        options.effort = self.effort.clone().or(options.effort.take());
        options.log_level = self.agent_log_level.clone().or(options.log_level.take());
        if !self.tools.is_empty() {
            options.tools = Some(self.tools.clone());
        }
        if !self.disable_tools.is_empty() {
            options.disabled_tools.clone_from(&self.disable_tools);
        }
        if let Some(config) = &self.agent_config {
            merge(&mut options.config, &read_config(config)?);
        }
        for pair in &self.agent_env {
            let (name, value) = variable("--agent-env", pair)?;
            options.env.insert(name, value);
        }
        Ok(())
    }
}

/// Splits `NAME=VALUE`.
pub(crate) fn variable(flag: &str, pair: &str) -> anyhow::Result<(String, String)> {
    match pair.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        // The argument may be a secret without its name, so it is not part of the error.
        None => Err(UsageError(format!("{flag} wants NAME=VALUE, and there is no `=`")).into()),
    }
}

pub(super) fn text_or_file(text: &str) -> anyhow::Result<String> {
    match text.strip_prefix('@') {
        None => Ok(text.to_owned()),
        Some(path) => read(path),
    }
}

fn read_config(text: &str) -> anyhow::Result<Map<String, Value>> {
    let is_object = text.trim_start().starts_with('{');
    let content = if is_object {
        text.to_owned()
    } else {
        read(text)?
    };
    let config = if text.ends_with(".toml") && !is_object {
        toml::from_str(&content).map_err(|error| error.to_string())
    } else {
        serde_json::from_str(&content).map_err(|error| error.to_string())
    };
    config.map_err(|error| {
        UsageError(format!(
            "--agent-config wants a JSON object, or a .json or .toml file with one: {error}"
        ))
        .into()
    })
}

fn read(path: &str) -> anyhow::Result<String> {
    let read = std::fs::read_to_string(path);
    read.map_err(|error| UsageError(format!("read {path}: {error}")).into())
}
