//! Grading: runs the verify commands after every process of the agent is dead, and reads the reward.
//!
//! What the agent left may be hostile. Whatever it did to its directories, its disk or its memory, the verify commands
//! decide what that is worth; nothing here fails because of it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::{CommandResult, RolloutResult};
use rollcage_model::task::TEST_SCRIPT;
use rollcage_sandbox::guest::{HOME, WORKDIR};
use rollcage_sandbox::{Command, Error, OutputLimit, Sandbox, run};

use crate::environment::{of_agent, of_verify};
use crate::layout;
use crate::place::placements;
use crate::plan::Plan;
use crate::services::{ServiceError, Services};
use crate::shell::run_command;
use rollcage_model::text::chain;
use rollcage_model::text::tail;

mod counted;
mod guard;
mod home;
mod left;
mod remark;
mod reward;

use remark::Remark;
use reward::{Grade, Reward};

/// Where verify commands run when the work directory cannot be entered. It always exists, and the agent cannot change
/// it.
const ELSEWHERE: &str = "/";
/// How long to retry while the kernel still charges memory and processes of the dead to the sandbox.
const STARVED_LIMIT: Duration = Duration::from_secs(3);
const STARVED_PAUSE: Duration = Duration::from_millis(20);

/// A progress report about one setup or verify command.
pub(crate) enum CommandProgress<'a> {
    Started(&'a str),
    Ended(&'a CommandResult),
}

/// The environments of verification.
pub(crate) struct Environments {
    /// Of verify commands and their services.
    pub(crate) verifier: BTreeMap<String, String>,
    /// Of what they run with `as-agent`.
    pub(crate) agent: BTreeMap<String, String>,
}

impl Environments {
    /// Over the task's variables.
    pub(crate) fn of(plan: &Plan, variables: &BTreeMap<String, String>) -> Environments {
        let trust = &plan.task.verify_trust;
        Environments {
            verifier: of_verify(variables, trust, &guard::named_modules(plan)),
            agent: of_agent(variables),
        }
    }
}

/// Runs every verify command, whatever its exit code, and finds the reward. Returns what is wrong with the verifier itself,
/// if anything. Everything that one command started is dead before the next one runs, and before what it left of a reward
/// is taken; and each finds HOME and tests as no other command left them.
pub(crate) async fn verify(
    sandbox: &dyn Sandbox,
    plan: &Plan,
    env: Environments,
    services: &mut Services,
    result: &mut RolloutResult,
    report: impl Fn(usize, usize, CommandProgress<'_>),
) -> Result<Option<String>, Error> {
    sandbox.unseal(env.agent).await?;
    let task = &plan.task;
    let mut verifier = Verifier {
        sandbox,
        env: env.verifier,
        limit: Duration::from_secs_f64(task.command_timeout_s),
        named: home::named(plan),
        findings: Vec::new(),
    };
    let script = task.test_script().map(|_| TEST_SCRIPT);
    let commands: Vec<&str> = task
        .verify
        .iter()
        .map(String::as_str)
        .chain(script)
        .collect();
    let mut reward = Reward::new(plan, &commands);
    for (index, command) in commands.iter().enumerate() {
        let unplaced = verifier.make_ready(plan, index).await?;
        if let Some(problem) = unplaced.filter(|_| index == 0) {
            return Ok(Some(problem));
        }
        reward.before(sandbox, index).await?;
        verifier.start(services, index).await?;
        report(index, commands.len(), CommandProgress::Started(command));
        let outcome = verifier.run(command).await?;
        report(index, commands.len(), CommandProgress::Ended(&outcome));
        if let Some(text) = not_runnable(index, &outcome) {
            verifier.find(Code::VerifyNotRunnable, text);
        }
        for finding in services.ended(&format!("verify command {} ran", index + 1)) {
            verifier.find(finding.code, finding.text);
        }
        let left = sandbox.kill_all().await?;
        services.settle().await;
        // Beside services it cannot be told whose a process was.
        if left > 0 && services.is_empty() {
            let text = format!(
                "verify command {} left {left} processes, which were ended: what later commands need must be one command \
                 with them",
                index + 1
            );
            verifier.find(Code::VerifyLeftProcesses, text);
        }
        for (code, text) in guard::found(sandbox).await? {
            verifier.find(code, text);
        }
        reward.after(sandbox, index, &outcome).await?;
        result.verify_results.push(outcome);
    }
    let Grade { reward, remarks } = reward.grade(sandbox, &result.verify_results).await?;
    let problems = remarks
        .into_iter()
        .map(|remark| verifier.note(plan, remark));
    let problem = problems.fold(None, Option::or);
    result.findings.append(&mut verifier.findings);
    result.graded = problem.is_none();
    result.reward = problem.is_none().then_some(reward);
    Ok(problem)
}

/// Describes a command that the shell could not find or execute: more often the task's mistake than the agent's.
fn not_runnable(index: usize, outcome: &CommandResult) -> Option<String> {
    let code = outcome.exit_code;
    let message = outcome
        .stderr
        .lines()
        .rev()
        .find(|it| !it.trim().is_empty());
    let message = message.map(|line| format!(": {}", tail(line.trim(), 300)));
    matches!(code, 126 | 127).then(|| {
        format!(
            "verify command {} could not be run (exit {code}){}",
            index + 1,
            message.unwrap_or_default()
        )
    })
}

struct Verifier<'a> {
    sandbox: &'a dyn Sandbox,
    env: BTreeMap<String, String>,
    limit: Duration,
    /// What the author names of the agent's home.
    named: Vec<PathBuf>,
    findings: Vec<Finding>,
}

impl Verifier<'_> {
    fn find(&mut self, code: Code, text: String) {
        // One finding per code is enough.
        if self.findings.iter().all(|finding| finding.code != code) {
            self.findings.push(Finding::warn(code, text));
        }
    }

    /// Notes what there is to say about a reward. Returns it where it is the verifier's own fault: no policy ran that
    /// could have spoiled the reward.
    fn note(&mut self, plan: &Plan, remark: Remark) -> Option<String> {
        let is_spoiled = remark.is_spoiled();
        if is_spoiled && plan.agent.dialect().is_none() {
            return Some(remark.text);
        }
        let consequence = if is_spoiled { ": the reward is 0" } else { "" };
        self.find(remark.code, format!("{}{consequence}", remark.text));
        None
    }

    /// Gives a command a home and tests of its own. Returns why there are no tests, if so.
    async fn make_ready(&mut self, plan: &Plan, index: usize) -> Result<Option<String>, Error> {
        let sandbox = self.sandbox;
        if index > 0 {
            sandbox.renew().await?;
        }
        match unstarved(|| sandbox.lay_home(self.named.clone())).await {
            Ok(()) => {}
            Err(error @ Error::Gone { .. }) => return Err(error),
            // By something that the agent left: the command decides what that is worth.
            Err(error) => {
                let text = format!("HOME of verify commands is incomplete: {}", chain(&error));
                self.find(Code::VerifierStarved, text);
            }
        }
        self.place_tests(plan).await
    }

    /// Writes the task's tests into their directory, which is empty. Returns what is wrong with them, if anything.
    async fn place_tests(&mut self, plan: &Plan) -> Result<Option<String>, Error> {
        let files = match layout::tests(plan) {
            Ok(files) => files,
            Err(error) => return Ok(Some(chain(&error))),
        };
        for placement in placements(files, 0o755) {
            let (sandbox, placement) = (self.sandbox, placement?);
            let write = || placement.run(sandbox);
            let mut written = unstarved(write).await;
            if let Err(Error::File { source, .. }) = &written
                && source.kind() == io::ErrorKind::PermissionDenied
            {
                self.open_home().await;
                written = unstarved(write).await;
            }
            match written {
                Ok(()) => {}
                Err(error @ (Error::File { .. } | Error::Invalid { .. })) => {
                    return Ok(Some(format!("place the tests: {}", chain(&error))));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Starts the services before a command. Whatever keeps them from getting ready may be the agent's doing, so the command
    /// runs in any case.
    async fn start(&mut self, services: &mut Services, index: usize) -> Result<(), Error> {
        let mut started = services.start(self.sandbox, &self.env, WORKDIR).await;
        if let Err(ServiceError::Sandbox(Error::Directory { .. })) = &started {
            self.open_home().await;
            started = services.start(self.sandbox, &self.env, WORKDIR).await;
        }
        let why = match started {
            Ok(()) => return Ok(()),
            Err(ServiceError::NotReady(why)) => why,
            Err(ServiceError::Sandbox(error @ Error::Directory { .. })) => chain(&error),
            Err(ServiceError::Sandbox(error)) if is_starved(&error) => chain(&error),
            Err(ServiceError::Sandbox(error)) => return Err(error),
        };
        let text = format!(
            "verify command {} ran without its services: {why}",
            index + 1
        );
        self.find(Code::ServiceNotReady, text);
        Ok(())
    }

    /// Runs one command in the work directory, or in [`ELSEWHERE`] if the agent left it unusable. `Err` means that the
    /// sandbox itself is broken.
    async fn run(&mut self, command: &str) -> Result<CommandResult, Error> {
        let mut ran = self.run_in(command, WORKDIR).await;
        if let Err(error @ Error::Directory { .. }) = &ran {
            let why = chain(error);
            self.open_home().await;
            ran = self.run_in(command, WORKDIR).await;
            let mut place = WORKDIR;
            if matches!(ran, Err(Error::Directory { .. })) {
                ran = self.run_in(command, ELSEWHERE).await;
                place = ELSEWHERE;
            }
            let text = format!("the agent left it so ({why}); verify commands ran in {place}");
            self.find(Code::WorkdirUnusable, text);
        }
        match ran {
            Err(error) if is_starved(&error) => {
                let stderr = chain(&error);
                let text = format!("a verify command could not be run: {stderr}");
                self.find(Code::VerifierStarved, text);
                Ok(CommandResult {
                    cmd: command.to_owned(),
                    exit_code: -1,
                    stdout: String::new(),
                    stderr,
                    duration_s: 0.0,
                    timed_out: false,
                })
            }
            ran => ran,
        }
    }

    async fn run_in(&self, command: &str, cwd: &str) -> Result<CommandResult, Error> {
        let (sandbox, limit) = (self.sandbox, self.limit);
        unstarved(|| run_command(sandbox, command, self.env.clone(), cwd, limit)).await
    }

    /// Makes the home directory accessible again: the verifier's logs are below it, and the agent may have locked it.
    /// This runs as the agent's user, so it opens nothing that the agent could not.
    async fn open_home(&self) {
        let command = Command {
            argv: ["chmod", "u+rwx", HOME].map(str::to_owned).to_vec(),
            env: self.env.clone(),
            cwd: ELSEWHERE.to_owned(),
            ..Command::default()
        };
        // A failure shows in the operation that is retried next.
        let _ = run(self.sandbox, command, self.limit, OutputLimit::default()).await;
    }
}

/// Retries for a while what the kernel had no memory or process slot for.
async fn unstarved<T, F: Future<Output = Result<T, Error>>>(
    work: impl Fn() -> F,
) -> Result<T, Error> {
    let deadline = Instant::now() + STARVED_LIMIT;
    loop {
        match work().await {
            Err(error) if is_starved(&error) && Instant::now() < deadline => {
                tokio::time::sleep(STARVED_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Whether an operation failed for lack of memory or process slots. Only the verifier's processes are alive by then, so
/// it is files of the agent that take up the memory.
fn is_starved(error: &Error) -> bool {
    use io::ErrorKind::{OutOfMemory, WouldBlock};
    match error {
        Error::Spawn { source, .. } | Error::Exec { source, .. } => {
            matches!(source.kind(), OutOfMemory | WouldBlock)
        }
        Error::File { source, .. } => {
            // No errno: the process that did the operation was killed.
            source.kind() == OutOfMemory || source.raw_os_error().is_none()
        }
        _ => false,
    }
}
