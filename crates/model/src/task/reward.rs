//! Where a task's reward comes from, and between which bounds it lies.

use serde::{Deserialize, Serialize};

use super::{Task, TaskError};

/// The name of the file that a verify command may write the reward to. Who names it in a task, asks for it.
pub const REWARD_FILE: &str = "reward.txt";
/// Where it is inside a sandbox.
pub const REWARD_PATH: &str = "/home/user/logs/verifier/reward.txt";

/// Where the reward comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardSource {
    /// The number in `/home/user/logs/verifier/reward.txt`, whatever the exit codes are.
    File,
    /// The share of verify commands that exit with 0.
    ExitCodes,
}

impl RewardSource {
    pub const ALL: [RewardSource; 2] = [RewardSource::File, RewardSource::ExitCodes];

    pub fn as_str(self) -> &'static str {
        match self {
            RewardSource::File => "file",
            RewardSource::ExitCodes => "exit_codes",
        }
    }
}

impl Task {
    /// The texts that its author wrote for others than the agent: commands and files.
    pub fn author_texts(&self) -> impl Iterator<Item = &str> {
        let services = self.services.iter().chain(&self.verify_services);
        let services = services.flat_map(|service| [Some(&service.run), service.ready.as_ref()]);
        let commands = self.setup.iter().chain(&self.verify);
        let files = self.files.iter().flat_map(|(path, text)| [path, text]);
        let texts = commands.chain(services.flatten()).chain(files);
        texts.map(String::as_str).chain(self.test_script())
    }
}

/// Reads bounds such as `0,1`.
pub fn parse_range(text: &str) -> Result<[f64; 2], TaskError> {
    let ends = text.split_once(',').and_then(|(low, high)| {
        let end = |text: &str| text.trim().parse::<f64>().ok();
        Some([end(low)?, end(high)?])
    });
    let range = ends.ok_or(TaskError::RewardRange)?;
    check_range(Some(range))?;
    Ok(range)
}

pub(super) fn check_range(range: Option<[f64; 2]>) -> Result<(), TaskError> {
    match range {
        Some([low, high]) if !(low.is_finite() && high.is_finite() && low < high) => {
            Err(TaskError::RewardRange)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_finite_ends_in_order() {
        assert_eq!(parse_range("0,1").unwrap(), [0.0, 1.0]);
        assert_eq!(parse_range("-1, 1.5").unwrap(), [-1.0, 1.5]);
        for wrong in ["", "1", "1,0", "0,0", "0,inf", "nan,1", "0,1,2", "a,b"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_that_an_author_writes_is_among_the_texts() {
        let task = Task::from_toml(
            "instruction = 'i'\nsetup = ['s']\nverify = ['v']\nservices = [{run = 'r', ready = 'y'}]\n\
             verify_services = ['w']\ntest_script = 't'\nfiles = {'p' = 'c'}",
        )
        .unwrap();
        let mut texts: Vec<&str> = task.author_texts().collect();
        texts.sort_unstable();
        assert_eq!(texts, ["c", "p", "r", "s", "t", "v", "w", "y"]);
    }
}
