//! Grading: runs the verify commands after every process of the agent is dead, and reads the reward.
//!
//! What the agent left may be hostile. Whatever it did to its directories, its disk or its memory, the verify commands
//! decide what that is worth; nothing here fails because of it.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::{CommandResult, RolloutResult};
use rollcage_model::task::{TEST_SCRIPT, Task};
use rollcage_sandbox::guest::{HOME, VERIFIER_LOGS, WORKDIR};
use rollcage_sandbox::{Command, Error, OutputLimit, Sandbox, run};

use crate::layout;
use crate::place::placements;
use crate::plan::Plan;
use crate::services::{ServiceError, Services};
use crate::shell::run_command;
use rollcage_model::text::chain;
use rollcage_model::text::tail;

/// Where verify commands run when the work directory cannot be entered. It always exists, and the agent cannot change
/// it.
const ELSEWHERE: &str = "/";
/// How long to retry while the kernel still charges memory and processes of the dead to the sandbox.
const STARVED_LIMIT: Duration = Duration::from_secs(3);
const STARVED_PAUSE: Duration = Duration::from_millis(20);

/// The outcome of grading.
#[derive(Debug)]
pub(crate) struct Grade {
    /// `None` when the verifier itself failed.
    reward: Option<f64>,
    /// What is wrong with the verifier.
    problem: Option<String>,
}

/// A progress report about one setup or verify command.
pub(crate) enum CommandProgress<'a> {
    Started(&'a str),
    Ended(&'a CommandResult),
}

/// Runs every verify command, whatever its exit code, and reads the reward. Returns what is wrong with the verifier
/// itself, if anything. Everything that one command started is dead before the next one runs, and before the reward is
/// read.
pub(crate) async fn verify(
    sandbox: &dyn Sandbox,
    plan: &Plan,
    env: BTreeMap<String, String>,
    services: &mut Services,
    result: &mut RolloutResult,
    report: impl Fn(usize, usize, CommandProgress<'_>),
) -> Result<Option<String>, Error> {
    sandbox.unseal().await?;
    let task = &plan.task;
    let mut verifier = Verifier {
        sandbox,
        env,
        limit: Duration::from_secs_f64(task.command_timeout_s),
        findings: Vec::new(),
    };
    if let Some(problem) = verifier.place_tests(plan).await? {
        return Ok(Some(problem));
    }
    let script = task.test_script().map(|_| TEST_SCRIPT);
    let commands = task.verify.iter().map(String::as_str).chain(script);
    let of = task.verify.len() + usize::from(script.is_some());
    for (index, command) in commands.enumerate() {
        verifier.start(services, index).await?;
        report(index, of, CommandProgress::Started(command));
        let outcome = verifier.run(command).await?;
        report(index, of, CommandProgress::Ended(&outcome));
        if let Some(text) = not_runnable(index, &outcome) {
            verifier.find(Code::VerifyNotRunnable, text);
        }
        result.verify_results.push(outcome);
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
    }
    let grade = verifier.grade(task, &result.verify_results).await?;
    result.findings.append(&mut verifier.findings);
    result.reward = grade.reward;
    result.graded = grade.reward.is_some();
    Ok(grade.problem)
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
    findings: Vec<Finding>,
}

impl Verifier<'_> {
    fn find(&mut self, code: Code, text: String) {
        // One finding per code is enough.
        if self.findings.iter().all(|finding| finding.code != code) {
            self.findings.push(Finding::warn(code, text));
        }
    }

    /// Writes the task's tests into their directory, which was empty and sealed until now. Returns what is wrong with
    /// them, if anything.
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

    /// The reward: the number that a verify command wrote, otherwise the share of commands that passed. A test script
    /// must write a number, because its exit code is not a grade.
    async fn grade(&mut self, task: &Task, results: &[CommandResult]) -> Result<Grade, Error> {
        let path = format!("{VERIFIER_LOGS}/reward.txt");
        let sandbox = self.sandbox;
        let content = match unstarved(|| sandbox.read_file(&path, 4096)).await {
            Ok(content) => content,
            Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(match task.test_script() {
                    None => share_passed(results),
                    Some(_) => Grade {
                        reward: None,
                        problem: Some(format!("test_script wrote no reward to {path}")),
                    },
                });
            }
            // The memory is used up by files of the agent, so the agent gets the reward for that.
            Err(error) if is_starved(&error) => {
                let text = format!("the reward could not be read, and is 0: {}", chain(&error));
                self.find(Code::VerifierStarved, text);
                return Ok(Grade {
                    reward: Some(0.0),
                    problem: None,
                });
            }
            // Not a readable number; reported as the verifier's error below.
            Err(Error::TooLarge { .. } | Error::NotRegular { .. } | Error::File { .. }) => {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        Ok(parse_reward(&String::from_utf8_lossy(&content)))
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

fn share_passed(results: &[CommandResult]) -> Grade {
    let passed = results.iter().filter(|result| result.exit_code == 0);
    Grade {
        reward: Some(passed.count() as f64 / results.len() as f64),
        problem: None,
    }
}

/// A reward file that is there but holds no finite number is the verifier's error, never a zero.
fn parse_reward(text: &str) -> Grade {
    match text.trim().parse::<f64>() {
        Ok(reward) if reward.is_finite() => Grade {
            reward: Some(reward),
            problem: None,
        },
        _ => {
            let shown: String = text.trim().chars().take(40).collect();
            let problem =
                format!("{VERIFIER_LOGS}/reward.txt must hold one finite number, not `{shown}`");
            Grade {
                reward: None,
                problem: Some(problem),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finite_number_is_a_reward() {
        assert_eq!(parse_reward(" 0.25\n").reward, Some(0.25));
        assert_eq!(parse_reward("-1").reward, Some(-1.0));
        for text in ["", "\n", "nan", "inf", "-inf", "passed", "1.0 2.0"] {
            let grade = parse_reward(text);
            assert_eq!(grade.reward, None, "{text}");
            assert!(grade.problem.is_some(), "{text}");
        }
    }
}
