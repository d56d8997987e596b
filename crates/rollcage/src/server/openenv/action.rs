//! Actions and the observations they lead to.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::OpenEnvServer;
use super::call::CallError;
use super::problem::Fields;
use super::result::{self, ResultFormat};
use super::session::Session;
use crate::server::tool::{ClientKind, ToolError};

/// The action of a step.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    ListTools,
    CallTool {
        name: String,
        arguments: Map<String, Value>,
    },
}

impl Action {
    /// Parses an action; `type` may be omitted for a call.
    pub(crate) fn read(data: &Map<String, Value>) -> Result<Self, Vec<Value>> {
        let mut fields = Fields::new(data, &[]);
        fields.optional_object("metadata");
        if data.get("type").is_some_and(|kind| kind == "list_tools") {
            fields.only(&["type", "metadata"]);
            return fields.finish().map(|()| Action::ListTools);
        }
        fields.literal("type", "call_tool");
        let name = fields.string("tool_name").unwrap_or_default().to_owned();
        let arguments = fields
            .optional_object("arguments")
            .cloned()
            .unwrap_or_default();
        fields.only(&["type", "metadata", "tool_name", "arguments"]);
        fields.finish()?;
        Ok(Action::CallTool { name, arguments })
    }
}

/// The result of a reset or a step, for either transport.
pub(crate) struct Observation {
    pub(crate) observation: Value,
    pub(crate) reward: Option<f64>,
    /// Next to the observation; for a reset only.
    pub(crate) metadata: Option<Value>,
}

impl Observation {
    /// The form for WebSockets, whose clients cannot parse `metadata: null`.
    pub(crate) fn for_socket(self) -> Value {
        let mut data = json!({
            "observation": self.observation,
            "reward": self.reward,
            "done": false,
        });
        if let (Some(members), Some(metadata)) = (data.as_object_mut(), self.metadata) {
            members.insert("metadata".to_owned(), metadata);
        }
        data
    }

    /// The form for HTTP.
    pub(crate) fn for_http(self) -> Value {
        json!({
            "observation": self.observation,
            "reward": self.reward,
            "done": false,
            "metadata": self.metadata,
        })
    }
}

impl OpenEnvServer {
    /// Starts a new episode.
    pub(crate) fn reset(&self, session: &Session, episode_id: Option<String>) -> Observation {
        session.reset(episode_id);
        let message = match self.tools.list().first() {
            Some(tool) => format!("{} ready. Call {}(...) with a task.", self.name, tool.name),
            None => format!("{} ready.", self.name),
        };
        let metadata = json!({"status": "ready", "message": message});
        Observation {
            observation: json!({"metadata": metadata}),
            reward: None,
            metadata: Some(metadata),
        }
    }

    /// Takes one step. The failure of a tool is an observation, not an error.
    pub(crate) async fn step(
        &self,
        session: &Session,
        action: Action,
        limit: Option<Duration>,
    ) -> Observation {
        session.count_step();
        // Graders expect a finite number for every step.
        let mut reward = 0.0;
        let observation = match action {
            Action::ListTools => json!({"metadata": {}, "tools": self.tools_for_step()}),
            Action::CallTool { name, arguments } => {
                let limit = limit.unwrap_or(self.limits.step);
                let caller = (ClientKind::OpenEnv, None);
                let called = self.call(session, &name, arguments, caller, limit).await;
                let (result, error) = match called {
                    Ok(called) => {
                        reward = called.reward.filter(|it| it.is_finite()).unwrap_or(0.0);
                        (
                            result::render(called.value, ResultFormat::Step),
                            Value::Null,
                        )
                    }
                    Err(error) => (Value::Null, tool_error(&name, &error)),
                };
                json!({"metadata": {}, "tool_name": name, "result": result, "error": error})
            }
        };
        Observation {
            observation,
            reward: Some(reward),
            metadata: None,
        }
    }

    fn tools_for_step(&self) -> Vec<Value> {
        let entry = |tool: &crate::server::tool::ToolInfo| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.input_schema,
            })
        };
        self.tools.list().iter().map(entry).collect()
    }
}

/// Exactly two members, and one of five error types: clients refuse anything else.
fn tool_error(name: &str, error: &CallError) -> Value {
    let kind = match error {
        CallError::Tool(ToolError::NotFound(_)) => "tool_not_found",
        CallError::Tool(ToolError::InvalidArguments(_)) => "invalid_args",
        CallError::Tool(ToolError::Failed(_)) | CallError::SessionEnded => "execution_error",
        CallError::TimedOut(_) => "timeout",
    };
    json!({"error_type": kind, "message": error.describe(name)})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Action, Vec<Value>> {
        Action::read(value.as_object().unwrap())
    }

    #[test]
    fn a_call_may_leave_out_its_type() {
        let call = |arguments: Value| Action::CallTool {
            name: "echo".to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
        };
        assert_eq!(read(json!({"tool_name": "echo"})), Ok(call(json!({}))));
        assert_eq!(
            read(
                json!({"type": "call_tool", "tool_name": "echo", "arguments": {"a": 1}, "metadata": {}})
            ),
            Ok(call(json!({"a": 1})))
        );
        assert_eq!(read(json!({"type": "list_tools"})), Ok(Action::ListTools));
    }

    #[test]
    fn invalid_actions_are_refused_with_the_location_of_the_mistake() {
        let loc = |value: Value| read(value).unwrap_err()[0]["loc"].clone();
        assert_eq!(loc(json!({})), json!(["tool_name"]));
        assert_eq!(
            loc(json!({"type": "x", "tool_name": "echo"})),
            json!(["type"])
        );
        assert_eq!(loc(json!({"tool_name": 3})), json!(["tool_name"]));
        assert_eq!(
            loc(json!({"tool_name": "e", "arguments": null})),
            json!(["arguments"])
        );
        assert_eq!(loc(json!({"tool_name": "e", "extra": 1})), json!(["extra"]));
        assert_eq!(
            loc(json!({"type": "list_tools", "tool_name": "e"})),
            json!(["tool_name"])
        );
    }
}
