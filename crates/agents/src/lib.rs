//! Agents: how to launch each, as data. Adapters are pure and spawn nothing.
//!
//! An agent is a TOML manifest ([`Manifest`]): the built-in ones in `agent/builtin`, a user's own in files of theirs.
//! Rust is only for what data cannot say: the reference solution played without a model ([`Oracle`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rollcage_model::task::{AgentLimits, AgentOptions, Task};
use rollcage_model::transcript::TranscriptFormat;

use crate::bundle::{Bundle, Source, VersionRequest};
use rollcage_model::drill::Part;

mod addition;
pub mod bundle;
mod environment;
mod error;
mod fill;
mod manifest;
mod mcp;
mod oracle;
mod own;
mod patch;
mod warm;

pub use environment::base_environment;
pub use error::ManifestError;
pub use manifest::{Manifest, WireDialect};
pub use oracle::Oracle;
pub use warm::{ReadyAgent, WarmError, warm_up};

/// The manifests that come with us, in the order in which they are listed, each with the pinned list of its version.
const BUILT_IN: [(&str, &str); 10] = [
    (
        include_str!("builtin/opencode.toml"),
        include_str!("builtin/opencode.lock"),
    ),
    (
        include_str!("builtin/claude.toml"),
        include_str!("builtin/claude.lock"),
    ),
    (
        include_str!("builtin/codex.toml"),
        include_str!("builtin/codex.lock"),
    ),
    (
        include_str!("builtin/gemini.toml"),
        include_str!("builtin/gemini.lock"),
    ),
    (
        include_str!("builtin/qwen.toml"),
        include_str!("builtin/qwen.lock"),
    ),
    (
        include_str!("builtin/mini-swe-agent.toml"),
        include_str!("builtin/mini-swe-agent.lock"),
    ),
    (
        include_str!("builtin/pi.toml"),
        include_str!("builtin/pi.lock"),
    ),
    (
        include_str!("builtin/goose.toml"),
        include_str!("builtin/goose.lock"),
    ),
    (
        include_str!("builtin/aider.toml"),
        include_str!("builtin/aider.lock"),
    ),
    (include_str!("builtin/nop.toml"), ""),
];

/// What an agent is told of the model: our proxy as it looks from inside the sandbox.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// Ends in `/v1`.
    pub base_url: String,
    /// The session's key, worthless anywhere else.
    pub key: String,
    pub model: String,
    /// The model's context length, as far as an agent needs to know one.
    pub context_tokens: u64,
    pub output_tokens: u64,
    /// For agents that have a deadline of their own for an answer.
    pub patience_ms: u64,
}

/// What a launch is made from.
#[derive(Clone, Copy, Debug)]
pub struct LaunchRequest<'a> {
    pub task: &'a Task,
    pub access: &'a ModelAccess,
    pub bundle: &'a Bundle,
}

/// How to start an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: String,
    /// Written before it starts, by path inside.
    pub files: Vec<(String, String)>,
}

/// This agent cannot do this task.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LaunchError {
    #[error(
        "solution step {step} calls the tool `{tool}`, which only an agent with a model has: the oracle runs \
         `run` and `write` steps"
    )]
    Tool { step: usize, tool: String },
    #[error("{agent} has no way to set `{name}` in `{option}`: it knows {known}")]
    Name {
        agent: String,
        option: &'static str,
        name: String,
        known: String,
    },
    #[error(
        "{what} `{name}` leads the agent to the rollout's model or task, so a task may not set it"
    )]
    Kept { what: &'static str, name: String },
    #[error("{agent} has no way to set `{option}`; {able}")]
    Option {
        agent: String,
        option: &'static str,
        /// Which agents do.
        able: String,
    },
    #[error(
        "{agent} takes the instruction as an argument, which may have {bytes_max} bytes at most; this one has {bytes}"
    )]
    LongInstruction {
        agent: String,
        bytes: usize,
        bytes_max: usize,
    },
    #[error("{agent} takes no MCP servers; these do: {able}")]
    Mcp { agent: String, able: String },
    #[error("the agent has tools of its own by the name of the MCP server `{server}`: rename it")]
    McpName { server: String },
    #[error("{path} cannot be changed: {problem}")]
    ConfigFile { path: String, problem: String },
}

/// Where an agent tells what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    pub format: TranscriptFormat,
    /// A file inside the sandbox; `None` is standard output.
    pub file: Option<String>,
}

/// What the engine must know of an agent.
pub trait Agent: Send + Sync {
    fn name(&self) -> &str;

    /// Other names by which it may be asked for; records have its own.
    fn aliases(&self) -> &[String] {
        &[]
    }

    /// One line on what it is.
    fn title(&self) -> &str;

    /// Where its bundle comes from.
    fn source(&self) -> &Source;

    /// The dialect it speaks; `None` for one that asks no model.
    fn dialect(&self) -> Option<WireDialect>;

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError>;

    /// Files of the pre-baked home, by path inside the sandbox.
    fn home_files(&self) -> Vec<(String, String)>;

    /// A command that makes the agent write its first-start state, and what to keep of it.
    fn warm_up(&self, bundle: &Bundle) -> Option<WarmUp>;

    fn events(&self) -> Events;

    /// Whether a task may set this option for it.
    fn has_option(&self, name: &str) -> bool {
        name == "env"
    }

    /// Refuses a task's own configuration or variables where they cannot be.
    fn check(&self, _task: &Task) -> Result<(), LaunchError> {
        Ok(())
    }

    /// Limits of its rollouts, for tasks that do not set them.
    fn limits(&self) -> AgentLimits {
        AgentLimits::default()
    }

    /// How it names the tools of MCP servers, with `{server}` and `{tool}`; `None` when it takes no servers.
    fn mcp_tool(&self) -> Option<&str> {
        None
    }

    /// What it does with a task of one tool call, and in a long conversation.
    fn expectation(&self) -> Expectation {
        Expectation::default()
    }
}

/// How an agent behaves in a task of one tool call and a last word, for `rollcage agent doctor`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expectation {
    /// Model calls of its own conversation, all of them exact.
    pub calls: usize,
    /// Model calls for anything else, such as a title.
    pub side_calls: usize,
    pub long: LongExpectation,
}

/// How an agent behaves in the drill, a long conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LongExpectation {
    /// Parts that would end its run, and are left out.
    pub without: Vec<Part>,
    /// Parts whose reply it throws away.
    pub thrown_away: Vec<Part>,
    /// The tools that it is given, where its usual ones lack some that the drill has a part for.
    pub tools: Option<Vec<String>>,
}

impl Default for Expectation {
    fn default() -> Self {
        Expectation {
            calls: 2,
            side_calls: 0,
            long: LongExpectation::default(),
        }
    }
}

/// Run once per bundle, so that no rollout pays for an agent's first start.
#[derive(Clone, Debug)]
pub struct WarmUp {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Directories below the home whose files are kept.
    pub keep: Vec<String>,
}

/// An agent that we do not have, or cannot read.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("unknown agent `{name}`: there is {known}")]
    Unknown { name: String, known: String },
    #[error("read the agent's manifest {path}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("the agent's manifest {path} is wrong")]
    Manifest { path: String, source: ManifestError },
}

/// The agents that come with us.
pub fn all() -> Vec<Arc<dyn Agent>> {
    let read = |(text, list)| match Manifest::built_in(text, list) {
        Ok(manifest) => Some(Arc::new(manifest) as Arc<dyn Agent>),
        Err(error) => {
            // A test reads them all, so nobody sees this.
            tracing::error!(%error, "a built-in agent is unreadable");
            None
        }
    };
    let oracle: Arc<dyn Agent> = Arc::new(Oracle::new());
    BUILT_IN
        .into_iter()
        .filter_map(read)
        .chain([oracle])
        .collect()
}

/// The agents that come with us and those in a folder of the user's, whose own come first.
pub fn all_in(folder: &Path) -> Result<Vec<Arc<dyn Agent>>, AgentError> {
    let mut agents: Vec<Arc<dyn Agent>> = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    paths.sort();
    for path in paths {
        agents.push(load(&path)?);
    }
    for agent in all() {
        if !agents.iter().any(|own| own.name() == agent.name()) {
            agents.push(agent);
        }
    }
    Ok(agents)
}

/// Reads `NAME` or `NAME@VERSION` of an agent that comes with us.
pub fn find(text: &str) -> Result<(Arc<dyn Agent>, VersionRequest), AgentError> {
    choose(all(), text)
}

/// As [`find`], with a folder of the user's.
pub fn find_in(folder: &Path, text: &str) -> Result<(Arc<dyn Agent>, VersionRequest), AgentError> {
    choose(all_in(folder)?, text)
}

/// The agent that a manifest file describes. Such a file can have any directory of the host mounted into sandboxes, so
/// its path must come from whoever runs the program.
pub fn load(path: &Path) -> Result<Arc<dyn Agent>, AgentError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| AgentError::Read {
        path: shown.clone(),
        source,
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let manifest = Manifest::read(&text).and_then(|manifest| manifest.below(folder));
    let manifest = manifest.map_err(|source| AgentError::Manifest {
        path: shown,
        source,
    })?;
    Ok(Arc::new(manifest))
}

/// What a task may set for an agent, by name.
pub fn options(agent: &dyn Agent) -> Vec<&'static str> {
    let names = AgentOptions::NAMES.iter().copied();
    names.filter(|name| agent.has_option(name)).collect()
}

/// Refuses a task that asks for more than the agent can do.
pub fn check_options(agent: &dyn Agent, task: &Task) -> Result<(), LaunchError> {
    let able = |can: &dyn Fn(&dyn Agent) -> bool| {
        let agents = all().into_iter().filter(|agent| can(&**agent));
        let names: Vec<_> = agents.map(|agent| agent.name().to_owned()).collect();
        names.join(", ")
    };
    // Who asks no model calls no tools either, so servers mean nothing to it.
    if !task.mcp.is_empty() && agent.dialect().is_some() && agent.mcp_tool().is_none() {
        return Err(LaunchError::Mcp {
            agent: agent.name().to_owned(),
            able: able(&|agent| agent.mcp_tool().is_some()),
        });
    }
    let config = (!task.agent.config.is_empty()).then_some("config");
    let mut wanted = task.agent.set().map(|(name, _)| name).chain(config);
    let Some(option) = wanted.find(|name| !agent.has_option(name)) else {
        return agent.check(task);
    };
    Err(LaunchError::Option {
        agent: agent.name().to_owned(),
        option,
        able: format!("these have: {}", able(&|agent| agent.has_option(option))),
    })
}

/// Reads `NAME` or `NAME@VERSION` of one of these agents; a name comes before another's alias.
pub fn choose(
    agents: Vec<Arc<dyn Agent>>,
    text: &str,
) -> Result<(Arc<dyn Agent>, VersionRequest), AgentError> {
    let (name, version) = text.split_once('@').unwrap_or((text, ""));
    let known: Vec<_> = agents.iter().map(|agent| names(&**agent)).collect();
    let known = known.join(", ");
    let by_name = agents.iter().find(|agent| agent.name() == name);
    let by_alias = || {
        let mut agents = agents.iter();
        agents.find(|agent| agent.aliases().iter().any(|alias| alias == name))
    };
    let found = by_name.or_else(by_alias).cloned();
    let agent = found.ok_or_else(|| AgentError::Unknown {
        name: name.to_owned(),
        known,
    })?;
    Ok((agent, VersionRequest::parse(version)))
}

/// An agent's name, with those that mean the same in brackets.
fn names(agent: &dyn Agent) -> String {
    match agent.aliases() {
        [] => agent.name().to_owned(),
        aliases => format!("{} ({})", agent.name(), aliases.join(", ")),
    }
}

#[cfg(test)]
mod tests;
