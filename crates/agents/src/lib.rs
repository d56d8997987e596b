//! Agents: how to install and start each, as data.
//!
//! An agent is a TOML manifest ([`Manifest`]): where its bundle comes from, its files, command, environment and event
//! format, and what each option of a task adds to them. The built-in ones are in `src/builtin`, users write their own.
//! Rust is used only for what data cannot express: playing the reference solution without a model ([`Oracle`]).
//!
//! Reading order: [`Agent`] and [`Launch`] in this file; `builtin/opencode.toml` as an example; `manifest`, which makes
//! a launch of it with `fill` (placeholders), `addition` and `patch` (options), `protected` (what a task may not
//! replace) and `mcp`; then [`bundle`], which installs agents, and `warm`, which prepares an installed one in a
//! sandbox.
//!
//! A launch is made here and carried out by the engine: adapters are pure and start nothing. Of the model they know
//! only [`ModelAccess`], that is, the proxy's URL inside the sandbox and a key that is worthless elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollcage_model::task::{AgentDriver, AgentLimits, AgentOptions, Task};
use rollcage_model::text::chain;
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
mod patch;
mod protected;
mod serve;
mod warm;

pub use environment::base_environment;
pub use error::ManifestError;
pub use manifest::{Manifest, WireDialect};
pub use oracle::Oracle;
pub use warm::{ReadyAgent, WarmError, warm_up};

/// The built-in manifests in listing order, each with the pinned list of its version.
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

/// The model as the agent sees it: our proxy, from inside the sandbox.
#[derive(Clone, Debug)]
pub struct ModelAccess {
    /// Ends in `/v1`.
    pub base_url: String,
    /// The session's key, worthless anywhere else.
    pub key: String,
    pub model: String,
    /// The model's context length, or a default.
    pub context_tokens: u64,
    pub output_tokens: u64,
    /// For agents with their own timeout for a response.
    pub patience_ms: u64,
}

/// The inputs of a launch.
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
    /// Files written before it starts, by path in the sandbox.
    pub files: Vec<(String, String)>,
}

/// How to start an agent's server, which gets its instructions as messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeLaunch {
    /// `{port}` stands for the port that it listens on.
    pub argv: Vec<String>,
    /// Without the server's own user and password.
    pub env: BTreeMap<String, String>,
    /// Files written before it starts, by path in the sandbox.
    pub files: Vec<(String, String)>,
    /// Sent with each message: the task's `effort`.
    pub variant: Option<String>,
    /// Sent with each message: provider and model; what the configuration says when not given.
    pub model: Option<(String, String)>,
}

/// Why an agent cannot run a task.
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
    Protected { what: &'static str, name: String },
    #[error("{agent} has no way to set `{option}`; {able}")]
    Option {
        agent: String,
        option: &'static str,
        /// The agents that support it.
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
    #[error("{agent} cannot be driven as a server (`driver`); these can: {able}")]
    NoServer { agent: String, able: String },
    #[error("{agent} takes no MCP servers; these do: {able}")]
    Mcp { agent: String, able: String },
    #[error("the agent has tools of its own by the name of the MCP server `{server}`: rename it")]
    McpName { server: String },
    #[error("{path} cannot be changed: {problem}")]
    ConfigFile { path: String, problem: String },
}

/// Where and how an agent logs what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    pub format: TranscriptFormat,
    /// A file in the sandbox; `None` means standard output.
    pub file: Option<String>,
}

/// An agent, as the engine sees it.
pub trait Agent: Send + Sync {
    fn name(&self) -> &str;

    /// Other names by which it may be requested; records use its own name.
    fn aliases(&self) -> &[String] {
        &[]
    }

    /// A one-line description.
    fn title(&self) -> &str;

    /// Where its bundle comes from.
    fn source(&self) -> &Source;

    /// The dialect of its model calls; `None` for an agent that uses no model.
    fn dialect(&self) -> Option<WireDialect>;

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError>;

    /// Whether it can be kept running as a server.
    fn can_serve(&self) -> bool {
        false
    }

    /// How its server is started, with the same files, variables and options as [`Agent::launch`]; `None` for an agent
    /// without one.
    fn serve(&self, _request: &LaunchRequest<'_>) -> Option<Result<ServeLaunch, LaunchError>> {
        None
    }

    /// Files of the pre-baked home directory, by path in the sandbox.
    fn home_files(&self) -> Vec<(String, String)>;

    /// A command that makes the agent write its first-start state, and which of its files to keep.
    fn warm_up(&self, bundle: &Bundle) -> Option<WarmUp>;

    fn events(&self) -> Events;

    /// Whether it supports this task option.
    fn has_option(&self, name: &str) -> bool {
        name == "env"
    }

    /// Refuses configuration or variables in a task that this agent does not allow.
    fn check(&self, _task: &Task) -> Result<(), LaunchError> {
        Ok(())
    }

    /// Default limits of its rollouts, for tasks that do not set them.
    fn limits(&self) -> AgentLimits {
        AgentLimits::default()
    }

    /// The pattern of its names for MCP tools, with `{server}` and `{tool}`; `None` if it does not support MCP servers.
    fn mcp_tool(&self) -> Option<&str> {
        None
    }

    /// Its expected behaviour in a task of one tool call, and in a long conversation.
    fn expectation(&self) -> Expectation {
        Expectation::default()
    }
}

/// The expected behaviour of an agent in a task of one tool call and a final reply, for `rollcage agent doctor`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expectation {
    /// Model calls of its main conversation, all with exact tokens.
    pub calls: usize,
    /// Model calls for anything else, such as a title.
    pub side_calls: usize,
    pub long: LongExpectation,
}

/// The expected behaviour of an agent in the drill, a long conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LongExpectation {
    /// Parts that would end its run; they are skipped.
    pub without: Vec<Part>,
    /// Parts whose reply it discards.
    pub thrown_away: Vec<Part>,
    /// The tools it gets, if its default ones lack some that the drill needs.
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

/// A command run once per bundle, so that no rollout pays for an agent's first start.
#[derive(Clone, Debug)]
pub struct WarmUp {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Directories below the home directory whose files are kept.
    pub keep: Vec<String>,
}

/// Why an agent was not found or not loaded.
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

/// The built-in agents.
pub fn all() -> Vec<Arc<dyn Agent>> {
    let read = |(text, list)| match Manifest::built_in(text, list) {
        Ok(manifest) => Some(Arc::new(manifest) as Arc<dyn Agent>),
        Err(error) => {
            // Unreachable in practice: a test loads them all.
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

/// The built-in agents and those in a user's folder, which come first and replace built-in ones of the same name.
pub fn all_in(folder: &Path) -> Result<Vec<Arc<dyn Agent>>, AgentError> {
    let own: Result<Vec<_>, _> = manifests(folder).iter().map(|path| load(path)).collect();
    Ok(over(own?, &all()))
}

/// The agents in a user's folder that can be read. For a program that goes on when one of them is edited to be wrong.
pub fn readable_in(folder: &Path) -> Vec<Arc<dyn Agent>> {
    let read = |path: &PathBuf| {
        let read = load(path);
        read.inspect_err(|error| tracing::warn!(error = chain(error), "an agent is left out"))
            .ok()
    };
    manifests(folder).iter().filter_map(read).collect()
}

/// `own`, and those of `others` that have other names.
pub fn over(mut own: Vec<Arc<dyn Agent>>, others: &[Arc<dyn Agent>]) -> Vec<Arc<dyn Agent>> {
    for agent in others {
        if !own.iter().any(|own| own.name() == agent.name()) {
            own.push(Arc::clone(agent));
        }
    }
    own
}

/// The manifests of a folder, in order.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    paths.sort();
    paths
}

/// Finds a built-in agent by `NAME` or `NAME@VERSION`.
pub fn find(text: &str) -> Result<(Arc<dyn Agent>, VersionRequest), AgentError> {
    choose(all(), text)
}

/// As [`find`], including the agents in a user's folder.
pub fn find_in(folder: &Path, text: &str) -> Result<(Arc<dyn Agent>, VersionRequest), AgentError> {
    choose(all_in(folder)?, text)
}

/// Loads an agent from a manifest file. Such a file can have any directory of the host mounted into sandboxes, so its
/// path must come from the operator.
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

/// The names of the options that a task may set for an agent.
pub fn options(agent: &dyn Agent) -> Vec<&'static str> {
    let names = AgentOptions::NAMES.iter().copied();
    names.filter(|name| agent.has_option(name)).collect()
}

/// The names of the built-in agents that can do something.
pub fn able(can: &dyn Fn(&dyn Agent) -> bool) -> String {
    let agents = all().into_iter().filter(|agent| can(&**agent));
    let names: Vec<_> = agents.map(|agent| agent.name().to_owned()).collect();
    names.join(", ")
}

/// Refuses a task with options that the agent does not support.
pub fn check_options(agent: &dyn Agent, task: &Task) -> Result<(), LaunchError> {
    // An agent without a model calls no tools, so it may ignore the servers.
    if !task.mcp.is_empty() && agent.dialect().is_some() && agent.mcp_tool().is_none() {
        return Err(LaunchError::Mcp {
            agent: agent.name().to_owned(),
            able: able(&|agent| agent.mcp_tool().is_some()),
        });
    }
    if task.driver == Some(AgentDriver::Serve) && !agent.can_serve() {
        return Err(LaunchError::NoServer {
            agent: agent.name().to_owned(),
            able: able(&|agent| agent.can_serve()),
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

/// Finds one of these agents by `NAME` or `NAME@VERSION`; names take precedence over aliases.
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

/// An agent's name, with its aliases in brackets.
fn names(agent: &dyn Agent) -> String {
    match agent.aliases() {
        [] => agent.name().to_owned(),
        aliases => format!("{} ({})", agent.name(), aliases.join(", ")),
    }
}

#[cfg(test)]
mod tests;
