//! Whole rollouts without a kernel: sandboxes in memory, and time that is paused.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::bundle::Registry;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_sandbox::Command;
use rollcage_testkit::agent::{ShellAgent, empty_bundle};
use rollcage_testkit::sandbox::{CommandBehaviour, FakeSandboxes, shell_text};
use tokio_util::sync::CancellationToken;

use crate::intake::{Catalogue, ResolvedRollout};
use crate::{Engine, EngineLimits, EngineOptions, RolloutEntry};

mod endings;
mod files;
mod queue;
mod services;

/// An engine with fake sandboxes, in which a function decides what each command does.
struct Lab {
    directory: tempfile::TempDir,
    sandboxes: FakeSandboxes,
    engine: Engine,
}

/// The command that starts the agent in these tests.
const AGENT: &str = "agent";

impl Lab {
    async fn new(play: fn(&str) -> CommandBehaviour) -> Self {
        let limits = EngineLimits {
            slots: 4,
            owner_slots: 4,
            queue_max: 4,
            keep_aborted: Duration::from_secs(60),
            ..EngineLimits::default()
        };
        Lab::with(limits, play).await
    }

    async fn with(limits: EngineLimits, play: fn(&str) -> CommandBehaviour) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sandboxes = FakeSandboxes::new(move |command| played(command, play));
        let options = EngineOptions {
            home: directory.path().join("home"),
            registry: Registry::at("http://127.0.0.1:9/"),
            sandboxes: Arc::new(sandboxes.clone()),
            catalogue: Arc::new(Catalogue::built_in()),
            limits,
            listener: None,
            on_install: None,
        };
        Lab {
            engine: Engine::open(options).await.unwrap(),
            directory,
            sandboxes,
        }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// A rollout of an agent that uses no model.
    fn rollout(&self, task: Task) -> ResolvedRollout {
        let bundle = self.directory.path().join("bundle");
        let (agent, ready) = (ShellAgent::shared(AGENT), empty_bundle(bundle));
        ResolvedRollout::new(task, agent, ready, Endpoint::none())
    }

    fn start(&self, task: Task) -> Arc<RolloutEntry> {
        let mut entries = self.engine.submit(self.rollout(task), 1).unwrap();
        entries.remove(0)
    }

    async fn run(&self, task: Task) -> RolloutResult {
        self.end_of(self.start(task)).await
    }

    async fn end_of(&self, entry: Arc<RolloutEntry>) -> RolloutResult {
        let mut ended = None;
        let deliver = |result| ended = Some(result);
        let cancel = CancellationToken::new();
        self.engine.deliver(vec![entry], cancel, deliver).await;
        ended.unwrap()
    }

    /// Returns once an operation was requested of a sandbox.
    async fn until_asked(&self, what: &str) {
        while !self.asked(what) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn asked(&self, what: &str) -> bool {
        self.place(what).is_some()
    }

    fn place(&self, what: &str) -> Option<usize> {
        let asked = self.sandboxes.operations();
        asked.iter().position(|line| line.contains(what))
    }
}

/// Passes a command to the test's function by a short name: the agent by [`AGENT`], setup and verify commands by their
/// text.
fn played(command: &Command, play: fn(&str) -> CommandBehaviour) -> CommandBehaviour {
    let text = shell_text(command).unwrap_or_default();
    let own = ["for process in /proc", "# Looks into the Git"];
    if own.iter().any(|script| text.starts_with(script)) {
        return CommandBehaviour::prints("");
    }
    play(text.lines().last().unwrap_or_default())
}

/// A task with a setup and a verify command.
fn task() -> Task {
    Task {
        id: "test".to_owned(),
        instruction: "go".to_owned(),
        setup: vec!["setup".to_owned()],
        verify: vec!["verify".to_owned()],
        agent_timeout_s: Some(600.0),
        command_timeout_s: 60.0,
        ..Task::default()
    }
}
