//! The tool `list_agents`: which agents this program knows.

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::tool::{Answered, Caller, ToolError, ToolInfo, Tools};

const NAME: &str = "list_agents";

/// Tools that need no engine.
pub(crate) struct ListAgents {
    infos: [ToolInfo; 1],
}

impl ListAgents {
    pub(crate) fn new() -> Self {
        ListAgents {
            infos: [ToolInfo {
                name: NAME,
                description: "The names of the agents that can run a task.".to_owned(),
                input_schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
            }],
        }
    }
}

#[async_trait]
impl Tools for ListAgents {
    fn list(&self) -> &[ToolInfo] {
        &self.infos
    }

    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        caller: Caller,
    ) -> Result<Answered, ToolError> {
        let Caller { owner, progress } = caller;
        tracing::debug!(owner, has_listener = progress.is_some(), "a tool is called");
        if name != NAME {
            return Err(ToolError::NotFound(name.to_owned()));
        }
        if let Some(unknown) = arguments.keys().next() {
            let text = format!("{NAME} takes no argument `{unknown}`");
            return Err(ToolError::InvalidArguments(text));
        }
        let names: Vec<&str> = rollcage_engine::agent::all()
            .iter()
            .map(|agent| agent.name())
            .collect();
        Ok(Answered {
            value: json!(names),
            finished: None,
        })
    }
}
