//! Flags of `rollcage run` that define a task, or override parts of the given one. They have the same names as in task
//! files, tools and REST.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use rollcage_model::network::{HostEntry, Network, NotAHost, NotAPhase, Phase, Policy};
use rollcage_model::script::Step;
use rollcage_model::task::reward::parse_range;
use rollcage_model::task::{
    AgentDriver, CountedTests, Mode, RequiredTests, RewardSource, Service, SetupUser, Task,
    TaskError, VerifyTrust,
};

use super::options::{text_or_file, variable};
use crate::UsageError;
use crate::task_file::{self, LoadedTask};

#[derive(clap::Args)]
#[command(next_help_heading = "Task made here")]
pub(super) struct InlineTask {
    /// What the agent should do
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,

    /// A command to run before the agent (repeatable)
    #[arg(
        long,
        alias = "setup-shell",
        value_name = "CMD",
        requires = "instruction"
    )]
    setup: Vec<String>,

    /// A program that runs beside the agent: started after the setup commands, ended with the agent (repeatable)
    #[arg(long, value_name = "CMD", requires = "instruction")]
    services: Vec<String>,

    /// A program that runs beside the verify commands, started anew for each of them (repeatable)
    #[arg(long, value_name = "CMD", requires = "instruction")]
    verify_services: Vec<String>,

    /// A command that checks the work; exit 0 passes (repeatable)
    #[arg(long, value_name = "CMD", requires = "instruction")]
    verify: Vec<String>,

    /// A script that checks the work: it runs as /home/user/tests/test.sh and writes the reward to
    /// /home/user/logs/verifier/reward.txt (`@FILE` reads it from a file)
    #[arg(long, value_name = "TEXT|@FILE", requires = "instruction")]
    test_script: Option<String>,

    /// A command of the reference solution, for the scripted model (repeatable)
    #[arg(long, value_name = "CMD", requires = "instruction")]
    solution: Vec<String>,

    /// The task's name in results
    #[arg(long, value_name = "ID", requires = "instruction")]
    task_id: Option<String>,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Task, made here or given")]
pub(super) struct TaskOverrides {
    /// Files to keep with the record when the verify commands have run, of any bytes: a pattern of paths below the work
    /// directory, such as 'out/**' or '*.bin' (repeatable)
    #[arg(long, value_name = "GLOB")]
    artifacts: Vec<String>,

    /// Keep what the agent changed in the work directory, as a patch with the record: workdir.patch
    #[arg(long)]
    patch: bool,

    /// Where the reward comes from: `file` is the number in /home/user/logs/verifier/reward.txt, `exit_codes` the share of
    /// verify commands that exit with 0. Without it the file counts for a test script, and where the task's commands or
    /// files name reward.txt
    #[arg(long, value_name = "file|exit_codes", value_parser = reward)]
    reward: Option<RewardSource>,

    /// The least and the greatest reward: what a verifier writes beyond them counts as 0
    #[arg(long, value_name = "MIN,MAX", value_parser = reward_range, allow_hyphen_values = true)]
    reward_range: Option<RewardRange>,

    /// Tests that must have passed, or the reward is 0: how many, or the name of one (repeatable)
    #[arg(long, value_name = "N|TEST")]
    tests_passed: Vec<String>,

    /// The report of them that a verify command writes to /home/user/logs/verifier: JUnit's XML (junit.xml, the default) or
    /// CTRF's JSON
    #[arg(long, value_name = "NAME.xml|NAME.json")]
    tests_report: Option<String>,

    /// What of the agent's the verify commands obey: `home` (start files and settings), `modules` (Python modules under names
    /// that others have), `pytest` (settings and plugins), `git` (the repository's configuration), `hooks` (of git); repeatable
    #[arg(long, value_name = "home|modules|pytest|git|hooks", value_parser = verify_trust)]
    verify_trust: Vec<VerifyTrust>,

    /// The agent's time, in seconds
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS")]
    agent_timeout_s: Option<f64>,

    /// How the agent is run: its command, to its exit (the default), or its server, as a conversation
    #[arg(long, value_name = "cli|serve", value_parser = driver)]
    driver: Option<AgentDriver>,

    #[command(flatten)]
    place: PlaceOverrides,
}

/// What concerns the sandbox and the model, and so live agents as well.
#[derive(clap::Args)]
#[command(next_help_heading = "Sandbox and budget")]
pub(crate) struct PlaceOverrides {
    /// One more file in the sandbox: its path there, absolute or below the work directory, and its text (`@FILE` copies
    /// a file, or a directory with all that is in it). Below /home/user/tests it arrives when the agent is dead
    /// (repeatable)
    #[arg(long, alias = "upload-files", value_name = "PATH=TEXT|PATH=@FILE")]
    files: Vec<String>,

    /// The time of each setup and verify command, in seconds
    #[arg(long, value_name = "SECONDS")]
    command_timeout_s: Option<f64>,

    /// What the sandbox may use at most: memory_mb, disk_mb, file_mb, shm_mb (sizes in MiB), pids, cpus; and how much
    /// of its artifacts is kept: artifacts_mb
    #[arg(long, value_name = "NAME=N,…", value_delimiter = ',')]
    limits: Vec<String>,

    /// What the rollout may spend on its model: calls, prompt_tokens, completion_tokens, usd, idle_s
    #[arg(long, value_name = "NAME=N,…", value_delimiter = ',')]
    budget: Vec<String>,

    /// Who runs setup commands: root's installs are the system's, and apt-get works
    #[arg(long, value_name = "user|root", value_parser = setup_user)]
    setup_user: Option<SetupUser>,

    /// Before the agent starts, remove from the work directory's Git repositories what their HEAD does not reach: branches,
    /// stashes, reflogs and objects
    #[arg(long)]
    git_strip: bool,

    /// What a phase may reach: PHASE is setup, agent or verify; POLICY is none, open (the web, ssh and git on public
    /// addresses), allowlist (what --allow-host lists) or hosts by commas (repeatable). Setup commands have `open`, the
    /// agent and verify commands `none` when nothing else is said; the model is always reached
    #[arg(long, value_name = "PHASE=POLICY")]
    network: Vec<String>,

    /// A host that phases with a network may reach: HOST, HOST:PORT, *.DOMAIN, ADDRESS, ADDRESS/BITS or a preset (@pip,
    /// @npm, @cargo, @apt, @git, @openai …). The agent has a network then, unless the task or --network says `none`
    /// (repeatable)
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<HostEntry>,

    /// The time zone inside, such as Europe/Berlin
    #[arg(long, value_name = "NAME")]
    timezone: Option<String>,

    /// The locale inside, such as de_DE.UTF-8
    #[arg(long, value_name = "NAME")]
    locale: Option<String>,

    /// black_box asks the endpoint for no tokens and lists no calls
    #[arg(long, value_name = "transparent_proxy|black_box", value_parser = mode)]
    mode: Option<Mode>,
}

fn setup_user(text: &str) -> Result<SetupUser, String> {
    let known = SetupUser::ALL
        .into_iter()
        .find(|user| user.as_str() == text);
    known.ok_or_else(|| "must be user or root".to_owned())
}

fn driver(text: &str) -> Result<AgentDriver, String> {
    let mut known = AgentDriver::ALL.into_iter();
    let known = known.find(|driver| driver.as_str() == text);
    known.ok_or_else(|| "must be cli or serve".to_owned())
}

fn reward(text: &str) -> Result<RewardSource, String> {
    let mut known = RewardSource::ALL.into_iter();
    let known = known.find(|source| source.as_str() == text);
    known.ok_or_else(|| "must be file or exit_codes".to_owned())
}

fn verify_trust(text: &str) -> Result<VerifyTrust, String> {
    let mut known = VerifyTrust::ALL.into_iter();
    let known = known.find(|trust| trust.as_str() == text);
    known.ok_or_else(|| "must be home, modules, pytest, git or hooks".to_owned())
}

/// A type of its own: clap takes an array for several values.
#[derive(Clone, Copy)]
pub(crate) struct RewardRange(pub(crate) [f64; 2]);

pub(crate) fn reward_range(text: &str) -> Result<RewardRange, TaskError> {
    parse_range(text).map(RewardRange)
}

fn mode(text: &str) -> Result<Mode, String> {
    let known = Mode::ALL.into_iter().find(|mode| mode.as_str() == text);
    known.ok_or_else(|| "must be transparent_proxy or black_box".to_owned())
}

impl InlineTask {
    /// Loads the task file, or builds a task from these flags.
    pub(super) fn load(&self, path: Option<&Path>) -> anyhow::Result<LoadedTask> {
        if let Some(path) = path {
            return task_file::load(path);
        }
        let script = self.test_script.as_deref().map(text_or_file).transpose()?;
        let task = Task {
            id: self.task_id.clone().unwrap_or_else(|| "inline".to_owned()),
            instruction: self.instruction.clone().unwrap_or_default(),
            setup: self.setup.clone(),
            services: self.services.iter().map(Service::new).collect(),
            verify_services: self.verify_services.iter().map(Service::new).collect(),
            verify: self.verify.clone(),
            test_script: script,
            solution: self.solution.iter().map(Step::shell).collect(),
            ..Task::default()
        };
        Ok(LoadedTask {
            task,
            uploads: BTreeMap::new(),
        })
    }
}

impl TaskOverrides {
    /// Applies flags, which take precedence over the task.
    pub(super) fn apply(&self, loaded: &mut LoadedTask) -> anyhow::Result<()> {
        let task = &mut loaded.task;
        task.artifacts.extend(self.artifacts.clone());
        task.patch |= self.patch;
        task.verify_trust.extend(self.verify_trust.clone());
        task.reward = self.reward.or(task.reward);
        task.reward_range = self.reward_range.map(|range| range.0).or(task.reward_range);
        self.count_tests(task)?;
        task.agent_timeout_s = self.agent_timeout_s.or(task.agent_timeout_s);
        task.driver = self.driver.or(task.driver);
        self.place.apply(loaded)
    }

    fn count_tests(&self, task: &mut Task) -> anyhow::Result<()> {
        if !self.tests_passed.is_empty() {
            let passed = RequiredTests::read(&self.tests_passed);
            match &mut task.tests {
                Some(tests) => tests.passed = passed,
                None => task.tests = Some(CountedTests::new(passed)),
            }
        }
        if let Some(report) = &self.tests_report {
            let tests = task.tests.as_mut();
            let tests = tests.ok_or_else(|| {
                UsageError("--tests-report needs --tests-passed, or a task with `tests`".to_owned())
            })?;
            tests.report.clone_from(report);
        }
        Ok(())
    }
}

impl PlaceOverrides {
    /// Applies flags, which take precedence over the task.
    pub(crate) fn apply(&self, loaded: &mut LoadedTask) -> anyhow::Result<()> {
        let LoadedTask { task, uploads } = loaded;
        for pair in &self.files {
            let (path, text) = variable("--files", pair)?;
            match text.strip_prefix('@') {
                None => {
                    task.files.insert(path, text);
                }
                Some(source) => {
                    let added = task_file::add_upload(uploads, &path, Path::new(source));
                    added.map_err(|why| UsageError(format!("--files {why}")))?;
                    task.upload.insert(path, source.to_owned());
                }
            }
        }
        task.command_timeout_s = self.command_timeout_s.unwrap_or(task.command_timeout_s);
        task.limits = with_numbers("--limits", &task.limits, &self.limits)?;
        task.budget = with_numbers("--budget", &task.budget, &self.budget)?;
        task.timezone = self.timezone.clone().or(task.timezone.take());
        task.locale = self.locale.clone().or(task.locale.take());
        task.mode = self.mode.unwrap_or(task.mode);
        task.setup_user = self.setup_user.unwrap_or(task.setup_user);
        task.git_strip |= self.git_strip;
        self.change_network(&mut task.network)?;
        Ok(())
    }

    fn change_network(&self, network: &mut Network) -> anyhow::Result<()> {
        for pair in &self.network {
            let wrong = |why: String| UsageError(format!("--network {pair}: {why}"));
            let (phase, policy) = variable("--network", pair)?;
            let phase: Phase = phase
                .parse()
                .map_err(|error: NotAPhase| wrong(error.to_string()))?;
            let policy: Policy = policy
                .parse()
                .map_err(|error: NotAHost| wrong(error.to_string()))?;
            network.set(phase, policy);
        }
        network.allow_hosts.extend(self.allow_host.clone());
        if !self.allow_host.is_empty() && network.agent.is_none() {
            network.agent = Some(Policy::Allowlist(Vec::new()));
        }
        Ok(())
    }
}

/// A copy of a table of numbers with some of them replaced.
fn with_numbers<T: Serialize + DeserializeOwned>(
    flag: &str,
    table: &T,
    pairs: &[String],
) -> anyhow::Result<T> {
    let wrong = |why: String| UsageError(format!("{flag}: {why}"));
    let mut members: Map<String, Value> = serde_json::from_value(serde_json::to_value(table)?)?;
    for pair in pairs {
        let (name, text) = variable(flag, pair)?;
        let number = serde_json::from_str(&text)
            .ok()
            .filter(Value::is_number)
            .ok_or_else(|| wrong(format!("`{name}` must be a number")))?;
        members.insert(name, number);
    }
    let table = serde_json::from_value(members.into());
    Ok(table.map_err(|error| wrong(error.to_string()))?)
}
