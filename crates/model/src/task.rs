//! A task: what to do, how to prepare for it, how to check it. Read from TOML or JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget;
use crate::glob::{Glob, NotAGlob};
use crate::network::Network;
use crate::script::{self, Step, StepError};

mod agent;
mod counted;
mod limits;
pub mod mcp;
mod place;
pub mod reward;
mod service;
mod trust;

pub use agent::{AgentLimits, AgentOptions, OptionValue, merge};
pub use counted::{CountedTests, ReportFormat, RequiredTests};
pub use limits::SandboxLimits;
use mcp::{McpError, McpServers};
pub use reward::RewardSource;
pub use service::{READY_TIMEOUT_S, Service};
pub use trust::VerifyTrust;

pub const WORKDIR: &str = "/home/user/workdir";
/// Where the instruction lies, unless a task puts a file of its own there.
pub const INSTRUCTION: &str = "/home/user/task/instruction.md";
/// Empty while the agent runs: files for this directory arrive when it is dead.
const TESTS: &str = "/home/user/tests";
/// `test_script`, as a file.
pub const TEST_SCRIPT: &str = "/home/user/tests/test.sh";
/// Only the verifier writes here, so no task file may be placed below it.
const VERIFIER_LOGS: &str = "/home/user/logs/verifier";

/// What holds where neither a task nor whoever runs it says anything: the same for the command line, task files, tools
/// and REST.
pub const AGENT_TIMEOUT_S: f64 = 600.0;
pub const COMMAND_TIMEOUT_S: f64 = 120.0;
/// The most tokens that an agent may ask for in one call; 0 or less is no cap.
pub const MAX_TOKENS_CAP: i64 = 4096;
/// What is kept of `artifacts`, unless a task limits it.
pub const ARTIFACTS_MB: u64 = 1024;
const ARTIFACTS_MAX: usize = 32;
/// Alternatives to ask for per token.
pub const TOP_LOGPROBS: u32 = 5;

/// What to do. Every key is optional in a file except `instruction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Task {
    /// Names the task in results; the file's name when it is not given.
    #[serde(alias = "task_id")]
    pub id: String,
    /// What the agent is told, byte for byte.
    pub instruction: String,
    /// Text files by path; a relative path is below the work directory. Those below `/home/user/tests` arrive when the
    /// agent is dead.
    #[serde(alias = "upload_files")]
    pub files: BTreeMap<String, String>,
    /// Files and directories to copy in by path inside, of any bytes; the source is relative to the task file.
    pub upload: BTreeMap<String, String>,
    /// Shell commands run before the agent; the first that fails ends the rollout.
    pub setup: Vec<String>,
    /// Who runs them. Root's installs are the system's (apt-get works where the host is a Debian or Ubuntu); it needs
    /// Rollcage itself to run as root.
    #[serde(skip_serializing_if = "SetupUser::is_default")]
    pub setup_user: SetupUser,
    /// Remove from the work directory's Git repositories what their HEAD does not reach, before the agent starts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub git_strip: bool,
    /// One more setup command, run last, under the original's name. It is among `setup` once a task is read.
    #[serde(skip_serializing)]
    pub setup_shell: Option<String>,
    /// Programs that run beside the agent: started after setup, ended with the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Programs that run beside the verify commands: started anew for each of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verify_services: Vec<Service>,
    /// Shell commands run after it; the reward is the share that exits with 0.
    pub verify: Vec<String>,
    /// A script run after them as `/home/user/tests/test.sh`, which writes the reward to
    /// `/home/user/logs/verifier/reward.txt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_script: Option<String>,
    /// Where the reward comes from. When it is not given: from the file if the task has a `test_script` or names
    /// `reward.txt` in a command or file, else from exit codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<RewardSource>,
    /// The least and the greatest reward; what a verifier writes beyond them counts as 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_range: Option<[f64; 2]>,
    /// Tests that must have passed, as a report of the verifier's says; otherwise the reward is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tests: Option<CountedTests>,
    /// What of the agent's the verify commands obey, which they do not by themselves: `home` (its start files and settings),
    /// `modules` (Python modules under taken names), `pytest` (settings and plugins, for the verifier's tests), `git` (the
    /// repository's configuration) and `hooks` (of git).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verify_trust: Vec<VerifyTrust>,
    /// Files to keep with the record when the verify commands have run, of any bytes: patterns of paths below the work
    /// directory, such as `out/**` and `*.bin`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// Keep what the agent changed in the work directory, as a patch with the record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub patch: bool,
    /// The reference solution, played by the scripted endpoint.
    pub solution: Vec<Step>,
    /// Added to the environment of setup commands, the agent and verify commands.
    pub env: BTreeMap<String, String>,
    /// The time zone inside, such as `Europe/Berlin`; UTC when it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The locale inside, such as `de_DE.UTF-8`; `C.UTF-8` when it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// 600 when neither the task nor its agent sets it.
    pub agent_timeout_s: Option<f64>,
    /// For each setup and verify command.
    pub command_timeout_s: f64,
    /// What the sandbox may use.
    pub limits: SandboxLimits,
    /// What setup commands, the agent and verify commands may reach.
    #[serde(skip_serializing_if = "Network::is_default")]
    pub network: Network,
    /// What may be spent on the model.
    pub budget: TaskBudget,
    /// How the agent is run; `cli` when it is not given, except where a rollout is started to be followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<AgentDriver>,
    /// What is seen of the model calls.
    pub mode: Mode,
    /// What is asked of the agent beside the instruction.
    #[serde(alias = "agent_options")]
    pub agent: AgentOptions,
    /// MCP servers whose tools the agent is given.
    pub mcp: McpServers,
}

/// What is seen of a rollout's model calls.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every call is captured.
    #[default]
    TransparentProxy,
    /// Nothing is asked of the endpoint but what the agent asks for, and the result lists no calls.
    BlackBox,
}

/// How an agent is run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[schemars(rename = "Driver")]
#[serde(rename_all = "snake_case")]
pub enum AgentDriver {
    /// Its command, from the instruction to its exit.
    #[default]
    Cli,
    /// Its server, which gets the instruction as the first message and takes more while it lives.
    Serve,
}

impl AgentDriver {
    pub const ALL: [AgentDriver; 2] = [AgentDriver::Cli, AgentDriver::Serve];

    pub fn as_str(self) -> &'static str {
        match self {
            AgentDriver::Cli => "cli",
            AgentDriver::Serve => "serve",
        }
    }
}

/// Who runs setup commands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SetupUser {
    #[default]
    User,
    Root,
}

impl SetupUser {
    pub const ALL: [SetupUser; 2] = [SetupUser::User, SetupUser::Root];

    pub fn as_str(self) -> &'static str {
        match self {
            SetupUser::User => "user",
            SetupUser::Root => "root",
        }
    }

    fn is_default(&self) -> bool {
        *self == SetupUser::default()
    }
}

impl Mode {
    pub const ALL: [Mode; 2] = [Mode::TransparentProxy, Mode::BlackBox];

    pub fn as_str(self) -> &'static str {
        match self {
            Mode::TransparentProxy => "transparent_proxy",
            Mode::BlackBox => "black_box",
        }
    }
}

/// What a rollout may spend on its model; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Budget")]
#[serde(deny_unknown_fields, default)]
pub struct TaskBudget {
    /// Model calls.
    pub calls: Option<u64>,
    /// Over all calls.
    pub prompt_tokens: Option<u64>,
    /// Over all calls.
    pub completion_tokens: Option<u64>,
    /// US dollars; needs the model's price.
    pub usd: Option<f64>,
    /// Seconds without a model call after which the agent is ended.
    pub idle_s: Option<f64>,
}

impl From<TaskBudget> for budget::SpendingLimits {
    fn from(budget: TaskBudget) -> Self {
        budget::SpendingLimits {
            calls: budget.calls,
            prompt_tokens: budget.prompt_tokens,
            completion_tokens: budget.completion_tokens,
            usd: budget.usd,
        }
    }
}

impl Default for Task {
    fn default() -> Self {
        Task {
            id: String::new(),
            instruction: String::new(),
            files: BTreeMap::new(),
            upload: BTreeMap::new(),
            setup: Vec::new(),
            setup_user: SetupUser::default(),
            git_strip: false,
            setup_shell: None,
            services: Vec::new(),
            verify_services: Vec::new(),
            verify: Vec::new(),
            test_script: None,
            reward: None,
            reward_range: None,
            tests: None,
            verify_trust: Vec::new(),
            artifacts: Vec::new(),
            patch: false,
            solution: Vec::new(),
            env: BTreeMap::new(),
            timezone: None,
            locale: None,
            agent_timeout_s: None,
            command_timeout_s: COMMAND_TIMEOUT_S,
            limits: SandboxLimits::default(),
            network: Network::default(),
            budget: TaskBudget::default(),
            driver: None,
            mode: Mode::default(),
            agent: AgentOptions::default(),
            mcp: McpServers::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("not a valid TOML task")]
    Toml(#[from] toml::de::Error),
    #[error("not a valid JSON task")]
    Json(#[from] serde_json::Error),
    #[error("`instruction` is missing or empty: say what the agent should do")]
    NoInstruction,
    #[error("`{key}` must be a number of seconds between 0.1 and 604800, not {value}")]
    Timeout { key: &'static str, value: f64 },
    #[error("limit `{key}` must be {wanted}")]
    Limit {
        key: &'static str,
        wanted: &'static str,
    },
    #[error(
        "file path `{0}` must be relative to the work directory or absolute, name a file, and have no `.` or `..` in it"
    )]
    Path(String),
    #[error("file path `{0}`: only verify commands write below /home/user/logs/verifier")]
    SealedPath(String),
    #[error("give either `test_script` or a file {TEST_SCRIPT}, not both")]
    BothTests,
    #[error("environment variable `{0}` must be a name without `=` and hold no NUL byte")]
    Env(String),
    #[error("`agent.tools` is empty: name at least one tool, or leave it out")]
    NoTools,
    #[error(
        "give either `agent.tools` (only these) or `agent.disabled_tools` (all but these), not both"
    )]
    BothTools,
    #[error("{0:?} is no name of a tool: it must not be empty, start with a dash or hold a comma")]
    Tool(String),
    #[error("`agent.config` holds a date, which cannot be merged: give it as a text")]
    Date,
    #[error("`timezone` must be a name like Europe/Berlin, not {0:?}")]
    Timezone(String),
    #[error("`locale` must be a name like de_DE.UTF-8, not {0:?}")]
    Locale(String),
    #[error("`{key}` must be {wanted}")]
    Services {
        key: &'static str,
        wanted: &'static str,
    },
    #[error(
        "`reward_range` must be two finite numbers, the least reward and the greatest, such as 0,1"
    )]
    RewardRange,
    #[error("`tests`: {0}")]
    Tests(&'static str),
    #[error("`artifacts`: {0}")]
    Artifacts(#[from] NotAGlob),
    #[error("`artifacts` are at most {ARTIFACTS_MAX} patterns")]
    TooManyArtifacts,
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Mcp(#[from] McpError),
    #[error(
        "solution step {step} calls a tool of the MCP server `{server}`, which the task does not declare"
    )]
    UnknownMcp { step: usize, server: String },
}

impl Task {
    pub fn from_toml(text: &str) -> Result<Self, TaskError> {
        Task::read(toml::from_str(text)?)
    }

    pub fn from_json(text: &str) -> Result<Self, TaskError> {
        Task::read(serde_json::from_str(text)?)
    }

    fn read(mut task: Task) -> Result<Self, TaskError> {
        task.setup.extend(task.setup_shell.take());
        task.check()?;
        Ok(task)
    }

    /// How long the agent may take.
    pub fn agent_timeout_s(&self) -> f64 {
        self.agent_timeout_s.unwrap_or(AGENT_TIMEOUT_S)
    }

    /// The script that grades; an empty one is none.
    pub fn test_script(&self) -> Option<&str> {
        self.test_script
            .as_deref()
            .filter(|script| !script.trim().is_empty())
    }

    /// Whether there is anything to grade with.
    pub fn has_verifier(&self) -> bool {
        !self.verify.is_empty() || self.test_script().is_some()
    }

    /// What to keep of the work directory.
    pub fn artifact_globs(&self) -> Result<Vec<Glob>, TaskError> {
        if self.artifacts.len() > ARTIFACTS_MAX {
            return Err(TaskError::TooManyArtifacts);
        }
        let parsed = self.artifacts.iter().map(|text| Glob::parse(text));
        Ok(parsed.collect::<Result<_, _>>()?)
    }

    /// What a type cannot say. Called by the readers; call it for a task made by hand.
    pub fn check(&self) -> Result<(), TaskError> {
        if self.instruction.trim().is_empty() {
            return Err(TaskError::NoInstruction);
        }
        check_timeout("agent_timeout_s", self.agent_timeout_s())?;
        check_timeout("command_timeout_s", self.command_timeout_s)?;
        check_timeout("budget.idle_s", self.budget.idle_s.unwrap_or(1.0))?;
        if self
            .budget
            .usd
            .is_some_and(|usd| !usd.is_finite() || usd <= 0.0)
        {
            return Err(TaskError::Limit {
                key: "budget.usd",
                wanted: "a positive number",
            });
        }
        for path in self.files.keys().chain(self.upload.keys()) {
            if path_inside(path)? == TEST_SCRIPT && self.test_script().is_some() {
                return Err(TaskError::BothTests);
            }
        }
        self.artifact_globs()?;
        reward::check_range(self.reward_range)?;
        self.tests.as_ref().map_or(Ok(()), CountedTests::check)?;
        check_env(&self.env)?;
        place::check_timezone(self.timezone.as_deref())?;
        place::check_locale(self.locale.as_deref())?;
        self.agent.check()?;
        self.limits.check()?;
        service::check("services", &self.services)?;
        service::check("verify_services", &self.verify_services)?;
        script::check(&self.solution)?;
        mcp::check(&self.mcp)?;
        let mut steps = self.solution.iter().enumerate();
        let unknown = steps.find_map(|(index, step)| {
            let server = step.mcp.as_ref()?;
            (!self.mcp.contains_key(server)).then(|| (index + 1, server.clone()))
        });
        match unknown {
            Some((step, server)) => Err(TaskError::UnknownMcp { step, server }),
            None => Ok(()),
        }
    }
}

fn check_timeout(key: &'static str, value: f64) -> Result<(), TaskError> {
    if (0.1..=604_800.0).contains(&value) {
        Ok(())
    } else {
        Err(TaskError::Timeout { key, value })
    }
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), TaskError> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(TaskError::Env(name.clone()));
        }
    }
    Ok(())
}

/// A path inside the sandbox as an absolute one.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{WORKDIR}/{path}")
    }
}

/// A task file's absolute path inside the sandbox. Whether the sandbox's user may write there shows when he does.
pub fn path_inside(path: &str) -> Result<String, TaskError> {
    let absolute = absolute(path);
    let is_plain = absolute
        .split('/')
        .skip(1)
        .all(|part| !part.is_empty() && part != "." && part != "..");
    if !is_plain || absolute.contains('\0') {
        return Err(TaskError::Path(path.to_owned()));
    }
    if is_at_or_below(&absolute, VERIFIER_LOGS) {
        return Err(TaskError::SealedPath(path.to_owned()));
    }
    Ok(absolute)
}

/// Whether a file at this absolute path is one of the verifier's tests.
pub fn is_test(path: &str) -> bool {
    is_at_or_below(path, TESTS)
}

fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
