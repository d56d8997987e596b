//! Grading: runs the verify commands after everything of the agent is dead, and reads the reward.
//!
//! What the agent left may be hostile. Whatever it did to its directories, its disk or its memory, the verifier gets to say
//! what that is worth; nothing here fails because of it.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::{CommandResult, RolloutResult};
use rollcage_model::task::{TEST_SCRIPT, Task};
use rollcage_sandbox::guest::{HOME, VERIFIER_LOGS, WORKDIR};
use rollcage_sandbox::{Command, Error, OutputLimit, Sandbox, run};

use crate::places;
use crate::plan::Plan;
use crate::shell::run_command;
use rollcage_model::text::chain;
use rollcage_model::text::tail;

/// Where verify commands run when the work directory cannot be entered: it is always there, and never the agent's.
const ELSEWHERE: &str = "/";
/// For the kernel to give back what dead processes held: it counts them for a moment longer.
const STARVED_LIMIT: Duration = Duration::from_secs(3);
const STARVED_PAUSE: Duration = Duration::from_millis(20);

/// What grading found.
#[derive(Debug)]
pub(crate) struct Grade {
    /// `None` when the verifier itself was wrong.
    reward: Option<f64>,
    /// What is wrong with the verifier.
    problem: Option<String>,
}

/// What is told of a verify command.
pub(crate) enum Told<'a> {
    Started(&'a str),
    Ended(&'a CommandResult),
}

/// Runs every verify command, whatever each returns, and reads the reward. The answer is what is wrong with the verifier,
/// if anything. Nothing that one command started is alive when the next one runs, or when the reward is read.
pub(crate) async fn verify(
    sandbox: &dyn Sandbox,
    plan: &Plan,
    env: BTreeMap<String, String>,
    result: &mut RolloutResult,
    tell: impl Fn(usize, usize, Told<'_>),
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
        tell(index, of, Told::Started(command));
        let outcome = verifier.run(command).await?;
        tell(index, of, Told::Ended(&outcome));
        if let Some(text) = not_runnable(index, &outcome) {
            verifier.find(Code::VerifyNotRunnable, text);
        }
        result.verify_results.push(outcome);
        let left = sandbox.kill_all().await?;
        if left > 0 {
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

/// What a shell says of a command that it cannot find or execute: the task's mistake more often than the agent's.
fn not_runnable(index: usize, outcome: &CommandResult) -> Option<String> {
    let code = outcome.exit_code;
    let said = outcome
        .stderr
        .lines()
        .rev()
        .find(|it| !it.trim().is_empty());
    let said = said.map(|line| format!(": {}", tail(line.trim(), 300)));
    matches!(code, 126 | 127).then(|| {
        format!(
            "verify command {} could not be run (exit {code}){}",
            index + 1,
            said.unwrap_or_default()
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
        // One of each says enough.
        if self.findings.iter().all(|finding| finding.code != code) {
            self.findings.push(Finding::warn(code, text));
        }
    }

    /// Puts the task's tests into their directory, which was empty and sealed until now. The answer is what is wrong with
    /// them, if anything.
    async fn place_tests(&mut self, plan: &Plan) -> Result<Option<String>, Error> {
        let files = match places::tests(plan) {
            Ok(files) => files,
            Err(error) => return Ok(Some(chain(&error))),
        };
        for (path, content) in files {
            let sandbox = self.sandbox;
            let write = || sandbox.write_file(&path, 0o755, content.to_vec());
            let mut written = unstarved(write).await;
            if let Err(Error::File { source, .. }) = &written
                && source.kind() == io::ErrorKind::PermissionDenied
            {
                self.open_home().await;
                written = unstarved(write).await;
            }
            match written {
                Ok(()) => {}
                Err(error @ Error::File { .. }) => {
                    return Ok(Some(format!("place the tests: {}", chain(&error))));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Runs one command in the work directory, or elsewhere if the agent left none. `Err` means that the sandbox itself is
    /// broken.
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

    /// The way to the verifier's logs leads through the agent's home, which it may have locked. It owns that, and so do
    /// we: nothing is opened that is not the agent's own.
    async fn open_home(&self) {
        let command = Command {
            argv: ["chmod", "u+rwx", HOME].map(str::to_owned).to_vec(),
            env: self.env.clone(),
            cwd: ELSEWHERE.to_owned(),
            ..Command::default()
        };
        // If this fails, so will what needs it.
        let _ = run(self.sandbox, command, self.limit, OutputLimit::default()).await;
    }

    /// The reward: a number that a verify command wrote, else the share of commands that passed. A test script must write
    /// one: its exit code says nothing.
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
            // There is no memory left in which to read it, and who used that up is graded by it.
            Err(error) if is_starved(&error) => {
                let text = format!("the reward could not be read, and is 0: {}", chain(&error));
                self.find(Code::VerifierStarved, text);
                return Ok(Grade {
                    reward: Some(0.0),
                    problem: None,
                });
            }
            // Not a number, whatever it is; that shows as the verifier's error below.
            Err(Error::TooLarge { .. } | Error::NotRegular { .. } | Error::File { .. }) => {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        Ok(parse_reward(&String::from_utf8_lossy(&content)))
    }
}

/// Tries again for a while what the kernel had no room for.
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

/// Whether something in the sandbox could not be done for want of memory or processes. What is alive in there is the
/// verifier's alone, so it is files of the agent that take up the memory.
fn is_starved(error: &Error) -> bool {
    use io::ErrorKind::{OutOfMemory, WouldBlock};
    match error {
        Error::Spawn { source, .. } | Error::Exec { source, .. } => {
            matches!(source.kind(), OutOfMemory | WouldBlock)
        }
        Error::File { source, .. } => {
            // Without a number: the process that did it was killed.
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
