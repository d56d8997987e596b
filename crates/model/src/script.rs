//! A reference solution as data: what the scripted endpoint plays, step by step.

use serde::{Deserialize, Serialize};

/// One turn of the model. At most one of `run`, `write` and `tool`; with none of them the model only speaks,
/// which ends an agent's loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// Reasoning, sent as `reasoning_content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<String>,
    /// Text before the tool call, or the whole answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub say: Option<String>,
    /// A shell command, played through the agent's shell tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// A path, relative to the work directory, written with `content` through the agent's write tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<String>,
    /// What is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// A tool by the agent's own name for it, called with `arguments`; with `mcp` by that server's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The MCP server whose tool is meant, whatever the agent calls that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<String>,
    /// The tool's arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<serde_json::Map<String, serde_json::Value>>,
}

/// What is wrong with a step.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StepError {
    #[error("solution step {0} does nothing: give it one of `run`, `write`, `tool` or `say`")]
    Empty(usize),
    #[error("solution step {0} has more than one of `run`, `write` and `tool`: split it")]
    Several(usize),
    #[error("solution step {0}: `content` goes with `write`, and `write` with `content`")]
    Content(usize),
    #[error("solution step {0}: `arguments` goes with `tool`")]
    Arguments(usize),
    #[error("solution step {0}: `mcp` names a server and goes with `tool`")]
    Mcp(usize),
}

impl Step {
    /// A step that runs one shell command.
    pub fn shell(command: impl Into<String>) -> Self {
        Step {
            run: Some(command.into()),
            ..Step::default()
        }
    }

    fn check(&self, number: usize) -> Result<(), StepError> {
        let calls = [
            self.run.is_some(),
            self.write.is_some(),
            self.tool.is_some(),
        ];
        match calls.into_iter().filter(|is_set| *is_set).count() {
            0 if self.say.is_none() => return Err(StepError::Empty(number)),
            0 | 1 => {}
            _ => return Err(StepError::Several(number)),
        }
        if self.content.is_some() != self.write.is_some() {
            return Err(StepError::Content(number));
        }
        if self.arguments.is_some() && self.tool.is_none() {
            return Err(StepError::Arguments(number));
        }
        if self.mcp.is_some() && self.tool.is_none() {
            return Err(StepError::Mcp(number));
        }
        Ok(())
    }
}

/// Checks every step; numbers in errors count from 1.
pub fn check(steps: &[Step]) -> Result<(), StepError> {
    steps
        .iter()
        .enumerate()
        .try_for_each(|(index, step)| step.check(index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_action() {
        let both = Step {
            run: Some("ls".into()),
            tool: Some("bash".into()),
            ..Step::default()
        };
        assert_eq!(
            check(&[Step::shell("ls"), both]),
            Err(StepError::Several(2))
        );
        assert_eq!(check(&[Step::default()]), Err(StepError::Empty(1)));
        let torn = Step {
            write: Some("a".into()),
            ..Step::default()
        };
        assert_eq!(check(&[torn]), Err(StepError::Content(1)));
        let stray = Step {
            say: Some("a".into()),
            arguments: Some(serde_json::Map::new()),
            ..Step::default()
        };
        assert_eq!(check(&[stray]), Err(StepError::Arguments(1)));
    }
}
