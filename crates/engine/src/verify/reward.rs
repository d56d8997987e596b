//! The reward: what a verify command wrote to the file for it, where the task asks for that, else the share of commands
//! that exit with 0.
//!
//! Code under test runs with the rights of the command that runs it, so the file counts only for commands that are meant
//! to write it, as they leave it. Nothing that such code does to the file voids a grade: at worst it is 0.

use std::collections::BTreeMap;
use std::io;

use rollcage_model::finding::Code;
use rollcage_model::record::CommandResult;
use rollcage_model::task::reward::{REWARD_FILE, REWARD_PATH};
use rollcage_model::task::{RewardSource, TEST_SCRIPT, Task};
use rollcage_model::text::chain;
use rollcage_sandbox::{EntryKind, Error, FileStatus, Sandbox};

use super::{is_starved, unstarved};
use crate::plan::Plan;
use crate::upload::Upload;

/// More than a number takes.
const FILE_BYTES_MAX: u64 = 4096;
/// What rewards are between, unless a task says otherwise.
const USUAL: [f64; 2] = [0.0, 1.0];
/// The owner's write permission.
const OWNER_WRITES: u32 = 0o200;
/// Shells report a command that was ended by signal N as 128 + N; there are 64 signals.
const SIGNAL_CODES: std::ops::RangeInclusive<i32> = 129..=192;

/// Something to say about a reward.
#[derive(Debug, PartialEq)]
pub(super) struct Remark {
    pub(super) code: Code,
    pub(super) text: String,
}

impl Remark {
    /// Whether there is no reward for this reason, so that it is 0.
    pub(super) fn is_spoiled(&self) -> bool {
        matches!(
            self.code,
            Code::RewardUnreadable | Code::RewardTampered | Code::VerifierStarved
        )
    }
}

/// What one command left in the file.
#[derive(Debug, PartialEq)]
enum Written {
    Nothing,
    Number(f64),
    /// Something else: the reward is 0.
    Useless(Remark),
    /// The command was ended from outside, so that what it left may not be its own.
    Ended,
}

/// The outcome of grading.
#[derive(Debug, PartialEq)]
pub(super) struct Grade {
    pub(super) reward: f64,
    pub(super) remark: Option<Remark>,
}

/// The reward of one verification, from command to command.
pub(super) struct Reward {
    /// By command: whether it is one that writes the file.
    asks: Vec<bool>,
    range: Option<[f64; 2]>,
    /// What the last command that wrote anything wrote.
    written: Written,
}

impl Reward {
    /// `commands` are all of them, in their order.
    pub(super) fn new(plan: &Plan, commands: &[&str]) -> Reward {
        Reward {
            asks: asking(&plan.task, &plan.uploads, commands),
            range: plan.task.reward_range,
            written: Written::Nothing,
        }
    }

    fn is_asked(&self) -> bool {
        self.asks.contains(&true)
    }

    /// Takes away what earlier commands left.
    pub(super) async fn before(&self, sandbox: &dyn Sandbox, index: usize) -> Result<(), Error> {
        if index == 0 || !self.asks[index] {
            return Ok(());
        }
        match unstarved(|| sandbox.remove(REWARD_PATH)).await {
            // If it is still there, it is what the command leaves.
            Ok(()) | Err(Error::File { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes what a command left, once all of its processes are dead.
    pub(super) async fn after(
        &mut self,
        sandbox: &dyn Sandbox,
        index: usize,
        outcome: &CommandResult,
    ) -> Result<(), Error> {
        if !self.asks[index] {
            return Ok(());
        }
        let is_ended = outcome.timed_out || SIGNAL_CODES.contains(&outcome.exit_code);
        let written = match is_ended {
            true => Written::Ended,
            false => read(sandbox).await?,
        };
        if written != Written::Nothing {
            self.written = written;
        }
        Ok(())
    }

    /// The grade, once all commands have ended. Never more than what the commands that ask for the file wrote to it.
    pub(super) async fn grade(
        self,
        sandbox: &dyn Sandbox,
        results: &[CommandResult],
    ) -> Result<Grade, Error> {
        if !self.is_asked() {
            let passed = results.iter().filter(|result| result.exit_code == 0);
            return Ok(Grade {
                reward: passed.count() as f64 / results.len() as f64,
                remark: stray(sandbox).await?,
            });
        }
        Ok(match self.written {
            Written::Number(reward) => within(reward, self.range),
            Written::Useless(remark) => Grade {
                reward: 0.0,
                remark: Some(remark),
            },
            Written::Ended => Grade {
                reward: 0.0,
                remark: None,
            },
            Written::Nothing => Grade {
                reward: 0.0,
                remark: Some(Remark {
                    code: Code::RewardUnreadable,
                    text: format!("the verifier wrote no reward to {REWARD_PATH}"),
                }),
            },
        })
    }
}

/// Which commands write the file: those that name it, or a file of the task that does; and the test script. If the task
/// asks for the file and none of them does so, any command may be the one.
fn asking(task: &Task, uploads: &BTreeMap<String, Upload>, commands: &[&str]) -> Vec<bool> {
    let none = vec![false; commands.len()];
    if task.reward == Some(RewardSource::ExitCodes) {
        return none;
    }
    let names_it = |text: &str| text.contains(REWARD_FILE);
    let uploads = uploads.iter().filter(|(_, upload)| match upload {
        Upload::File { content, .. } => names_it(&String::from_utf8_lossy(content)),
        Upload::Link { .. } | Upload::Directory => false,
    });
    let texts = task.files.iter().filter(|(_, text)| names_it(text));
    let paths = texts
        .map(|(path, _)| path)
        .chain(uploads.map(|(path, _)| path));
    let scripts: Vec<&str> = paths
        .map(|path| path.rsplit('/').next().unwrap_or(path))
        .collect();
    let asks = |command: &&str| {
        *command == TEST_SCRIPT
            || names_it(command)
            || scripts.iter().any(|script| command.contains(script))
    };
    let asking: Vec<bool> = commands.iter().map(asks).collect();
    let is_asked = task.reward == Some(RewardSource::File)
        || !scripts.is_empty()
        || task.author_texts().any(names_it);
    match asking.contains(&true) {
        true => asking,
        false if is_asked => vec![true; commands.len()],
        false => none,
    }
}

async fn read(sandbox: &dyn Sandbox) -> Result<Written, Error> {
    let status = match unstarved(|| sandbox.stat(REWARD_PATH)).await {
        Ok(None) => return Ok(Written::Nothing),
        Ok(Some(status)) => status,
        Err(error) => return unreadable(error),
    };
    if let Some(why) = tampered(&status) {
        return Ok(Written::Useless(Remark {
            code: Code::RewardTampered,
            text: format!("{REWARD_PATH} {why}"),
        }));
    }
    match unstarved(|| sandbox.read_file(REWARD_PATH, FILE_BYTES_MAX)).await {
        Ok(content) => Ok(parse(&String::from_utf8_lossy(&content))),
        Err(error) => unreadable(error),
    }
}

/// `Err` means that the sandbox itself is broken.
fn unreadable(error: Error) -> Result<Written, Error> {
    let code = match &error {
        // The memory is used up by files of the agent, so the agent gets the reward for that.
        error if is_starved(error) => Code::VerifierStarved,
        Error::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Written::Nothing);
        }
        Error::TooLarge { .. } | Error::NotRegular { .. } | Error::File { .. } => {
            Code::RewardUnreadable
        }
        _ => return Err(error),
    };
    Ok(Written::Useless(Remark {
        code,
        text: format!("the reward could not be read ({})", chain(&error)),
    }))
}

/// Why a file cannot be what a verifier wrote as it would.
fn tampered(status: &FileStatus) -> Option<&'static str> {
    match status.kind {
        EntryKind::Directory => Some("is a directory"),
        EntryKind::Symlink => Some("is a link"),
        EntryKind::Other => Some("is no regular file"),
        EntryKind::File if status.links != 1 => Some("has several names"),
        EntryKind::File if status.mode & OWNER_WRITES == 0 => {
            Some("cannot be written to by its owner")
        }
        EntryKind::File => None,
    }
}

fn parse(text: &str) -> Written {
    match text.trim().parse::<f64>() {
        Ok(reward) if reward.is_finite() => Written::Number(reward),
        _ => {
            let shown: String = text.trim().chars().take(40).collect();
            Written::Useless(Remark {
                code: Code::RewardUnreadable,
                text: format!("{REWARD_PATH} must hold one finite number, not `{shown}`"),
            })
        }
    }
}

fn within(reward: f64, range: Option<[f64; 2]>) -> Grade {
    let [low, high] = range.unwrap_or(USUAL);
    if (low..=high).contains(&reward) {
        return Grade {
            reward,
            remark: None,
        };
    }
    let (counted, text) = match range {
        Some(_) => (
            0.0,
            format!("the verifier wrote {reward}, which is not between {low} and {high}: it is 0"),
        ),
        None => (
            reward,
            format!(
                "the verifier wrote {reward}, and it counts as written; `reward_range` says between which bounds rewards are"
            ),
        ),
    };
    Grade {
        reward: counted,
        remark: Some(Remark {
            code: Code::RewardOutOfRange,
            text,
        }),
    }
}

/// A reward that nobody asked for, most likely written by code under test. Whatever else stands there is nothing.
async fn stray(sandbox: &dyn Sandbox) -> Result<Option<Remark>, Error> {
    match unstarved(|| sandbox.stat(REWARD_PATH)).await {
        Ok(Some(_)) => {}
        Ok(None) | Err(Error::File { .. } | Error::Spawn { .. }) => return Ok(None),
        Err(error) => return Err(error),
    }
    let text = format!(
        "something was written to {REWARD_PATH}, which does not count because the task does not ask for it: \
         `reward = \"file\"` asks for it"
    );
    Ok(Some(Remark {
        code: Code::RewardNotAskedFor,
        text,
    }))
}

#[cfg(test)]
mod tests;
