//! The reward: what a verify command wrote to the file for it, where the task asks for that, else the share of commands
//! that exit with 0.
//!
//! Code under test runs with the rights of the command that runs it, so the file counts only for commands that are meant
//! to write it, as they leave it. Nothing that such code does to the file voids a grade: at worst it is 0.

use std::collections::BTreeMap;

use rollcage_model::finding::Code;
use rollcage_model::record::CommandResult;
use rollcage_model::task::reward::{REWARD_FILE, REWARD_PATH};
use rollcage_model::task::{RewardSource, TEST_SCRIPT, Task};
use rollcage_sandbox::{Error, Sandbox};

use super::counted::Counted;
use super::left::{self, Left};
use super::remark::Remark;
use super::unstarved;
use crate::plan::Plan;
use crate::upload::Upload;

/// More than a number takes.
const FILE_BYTES_MAX: u64 = 4096;
/// What rewards are between, unless a task says otherwise.
const USUAL: [f64; 2] = [0.0, 1.0];
/// Shells report a command that was ended by signal N as 128 + N; there are 64 signals.
const SIGNAL_CODES: std::ops::RangeInclusive<i32> = 129..=192;

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
    pub(super) remarks: Vec<Remark>,
}

/// The reward of one verification, from command to command.
pub(super) struct Reward<'a> {
    /// By command: whether it is one that writes the file.
    asks: Vec<bool>,
    range: Option<[f64; 2]>,
    /// What the last command that wrote anything wrote.
    written: Written,
    /// Whether what was there before a command could not be removed.
    is_stuck: bool,
    counted: Option<Counted<'a>>,
}

impl<'a> Reward<'a> {
    /// `commands` are all of them, in their order.
    pub(super) fn new(plan: &'a Plan, commands: &[&str]) -> Self {
        Reward {
            asks: asking(&plan.task, &plan.uploads, commands),
            range: plan.task.reward_range,
            written: Written::Nothing,
            is_stuck: false,
            counted: Counted::new(plan, commands),
        }
    }

    fn is_asked(&self) -> bool {
        self.asks.contains(&true)
    }

    /// Takes away what earlier commands left.
    pub(super) async fn before(
        &mut self,
        sandbox: &dyn Sandbox,
        index: usize,
    ) -> Result<(), Error> {
        if let Some(counted) = &mut self.counted {
            counted.before(sandbox, index).await?;
        }
        if index == 0 || !self.asks[index] {
            return Ok(());
        }
        self.is_stuck = match unstarved(|| sandbox.remove(REWARD_PATH)).await {
            Ok(()) => false,
            Err(Error::File { .. }) => true,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Takes what a command left, once all of its processes are dead.
    pub(super) async fn after(
        &mut self,
        sandbox: &dyn Sandbox,
        index: usize,
        outcome: &CommandResult,
    ) -> Result<(), Error> {
        let is_ended = outcome.timed_out || SIGNAL_CODES.contains(&outcome.exit_code);
        if let Some(counted) = self.counted.as_mut().filter(|_| !is_ended) {
            counted.after(sandbox, index).await?;
        }
        if !self.asks[index] {
            return Ok(());
        }
        let written = match is_ended {
            true => Written::Ended,
            // An earlier command's code has locked the directory.
            false if self.is_stuck => Written::Useless(Remark {
                code: Code::RewardTampered,
                text: format!("what another command left at {REWARD_PATH} could not be removed"),
            }),
            false => read(sandbox).await?,
        };
        if written != Written::Nothing {
            self.written = written;
        }
        Ok(())
    }

    /// The grade, once all commands have ended. Never more than what the commands that ask for the file wrote to it.
    pub(super) async fn grade(
        mut self,
        sandbox: &dyn Sandbox,
        results: &[CommandResult],
    ) -> Result<Grade, Error> {
        let counted = self.counted.take();
        let mut grade = match self.is_asked() {
            true => self.of_file(),
            false => {
                let passed = results.iter().filter(|result| result.exit_code == 0);
                Grade {
                    reward: passed.count() as f64 / results.len() as f64,
                    remarks: stray(sandbox).await?.into_iter().collect(),
                }
            }
        };
        if let Some(missing) = counted.and_then(Counted::missing) {
            grade.reward = 0.0;
            grade.remarks.push(missing);
        }
        Ok(grade)
    }

    fn of_file(self) -> Grade {
        let none = |remark| Grade {
            reward: 0.0,
            remarks: Vec::from_iter(remark),
        };
        match self.written {
            Written::Number(reward) => within(reward, self.range),
            Written::Useless(remark) => none(Some(remark)),
            Written::Ended => none(None),
            Written::Nothing => none(Some(Remark {
                code: Code::RewardUnreadable,
                text: format!("the verifier wrote no reward to {REWARD_PATH}"),
            })),
        }
    }
}

/// Which commands write the file: those that name it, or a file of the task that does; and the test script. If the task
/// asks for the file and none of them does so, any command may be the one.
fn asking(task: &Task, uploads: &BTreeMap<String, Upload>, commands: &[&str]) -> Vec<bool> {
    let none = vec![false; commands.len()];
    if task.reward == Some(RewardSource::ExitCodes) {
        return none;
    }
    let named = left::named(REWARD_FILE, task, uploads, commands);
    let by_command = commands.iter().zip(named.by_command);
    let asking: Vec<bool> = by_command
        .map(|(command, is_named)| is_named || *command == TEST_SCRIPT)
        .collect();
    match asking.contains(&true) {
        true => asking,
        false if named.anywhere || task.reward == Some(RewardSource::File) => {
            vec![true; commands.len()]
        }
        false => none,
    }
}

async fn read(sandbox: &dyn Sandbox) -> Result<Written, Error> {
    Ok(
        match left::take(sandbox, REWARD_PATH, FILE_BYTES_MAX).await? {
            Left::Nothing => Written::Nothing,
            Left::Content(content) => parse(&String::from_utf8_lossy(&content)),
            Left::Useless(remark) => Written::Useless(remark),
        },
    )
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
            remarks: Vec::new(),
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
        remarks: vec![Remark {
            code: Code::RewardOutOfRange,
            text,
        }],
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
