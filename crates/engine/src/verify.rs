//! Grading: runs the verify commands after everything of the agent is dead, and reads the reward.

use std::collections::BTreeMap;

use rollcage_model::record::CommandResult;
use rollcage_sandbox::{Error, Sandbox, VERIFIER_LOGS};

use crate::shell::base_environment;

/// What grading found.
#[derive(Debug)]
pub(crate) struct Grade {
    /// `None` without verify commands, and when the verifier itself was wrong.
    pub(crate) reward: Option<f64>,
    /// What is wrong with the verifier.
    pub(crate) problem: Option<String>,
}

/// The environment of verify commands: no module of the agent's home directory is loaded by itself.
pub(crate) fn environment(extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = base_environment(extra);
    env.insert("PYTHONNOUSERSITE".to_owned(), "1".to_owned());
    env
}

/// The reward: a number that a verify command wrote, else the share of commands that passed.
pub(crate) async fn grade(
    sandbox: &dyn Sandbox,
    results: &[CommandResult],
) -> Result<Grade, Error> {
    if results.is_empty() {
        return Ok(Grade {
            reward: None,
            problem: None,
        });
    }
    let path = format!("{VERIFIER_LOGS}/reward.txt");
    let written = match sandbox.read_file(&path, 4096).await {
        Ok(content) => Some(content),
        Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
        // Not a number, whatever it is; that shows as the verifier's error below.
        Err(Error::TooLarge { .. } | Error::NotRegular { .. } | Error::File { .. }) => {
            Some(Vec::new())
        }
        Err(error) => return Err(error),
    };
    Ok(match written {
        None => {
            let passed = results
                .iter()
                .filter(|result| result.exit_code == 0)
                .count();
            Grade {
                reward: Some(passed as f64 / results.len() as f64),
                problem: None,
            }
        }
        Some(content) => parse_reward(&String::from_utf8_lossy(&content)),
    })
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
