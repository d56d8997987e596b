//! Agents: how to launch each, as data. Adapters are pure and spawn nothing.

use std::collections::BTreeMap;

use crate::bundle::{Source, VersionRequest};

mod opencode;

pub use opencode::OpenCode;

/// Where an agent's bundle is seen inside every sandbox.
pub const BUNDLE_DIR: &str = "/opt/rollcage/agent";

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

/// How to start an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: String,
}

/// What the engine must know of an agent. One implementation each.
pub trait Agent: Send + Sync {
    fn name(&self) -> &'static str;

    /// Where its bundle comes from.
    fn source(&self) -> &'static Source;

    fn launch(&self, instruction: &str, access: &ModelAccess) -> Launch;

    /// Files of the pre-baked home, by path inside the sandbox.
    fn home_files(&self) -> Vec<(&'static str, &'static str)>;

    /// A command that makes the agent write its first-start state, and what to keep of it.
    fn warm_up(&self) -> Option<WarmUp>;

    /// The agent's own last word on why it failed, from its standard output.
    fn failure(&self, log_tail: &str) -> Option<String>;
}

/// Run once per bundle, so that no rollout pays for an agent's first start.
#[derive(Clone, Debug)]
pub struct WarmUp {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Directories below the home whose files are kept.
    pub keep: &'static [&'static str],
}

/// The agents there are.
pub fn all() -> Vec<&'static dyn Agent> {
    vec![&OpenCode]
}

/// An agent that we do not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown agent `{name}`: there is {known}")]
pub struct UnknownAgent {
    name: String,
    known: String,
}

/// Reads `NAME` or `NAME@VERSION`.
pub fn find(text: &str) -> Result<(&'static dyn Agent, VersionRequest), UnknownAgent> {
    let (name, version) = text.split_once('@').unwrap_or((text, ""));
    let agent = all()
        .into_iter()
        .find(|agent| agent.name() == name)
        .ok_or_else(|| {
            let known: Vec<_> = all().iter().map(|agent| agent.name()).collect();
            UnknownAgent {
                name: name.to_owned(),
                known: known.join(", "),
            }
        })?;
    Ok((agent, VersionRequest::parse(version)))
}
