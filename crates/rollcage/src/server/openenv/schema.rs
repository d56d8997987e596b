//! The schemas of `/schema`.

use serde_json::{Value, json};

/// JSON Schemas (draft 2020-12) of actions, observations and the state. The observation of a reset has no tool, so it
/// has its own schema.
pub(crate) fn schema() -> Value {
    let metadata = json!({"type": "object", "additionalProperties": true, "title": "Metadata"});
    let done = json!({"type": "boolean", "default": false});
    let reward = json!({
        "anyOf": [{"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {"type": "null"}],
        "default": null,
    });
    let tool_error = json!({
        "type": "object",
        "title": "ToolError",
        "additionalProperties": false,
        "required": ["error_type", "message"],
        "properties": {
            "error_type": {"type": "string", "enum": [
                "execution_error", "invalid_args", "transport_error", "tool_not_found", "timeout",
            ]},
            "message": {"type": "string"},
        },
    });
    json!({
        "action": {
            "type": "object",
            "title": "CallToolAction",
            "additionalProperties": false,
            "required": ["tool_name"],
            "properties": {
                "metadata": metadata,
                "type": {"type": "string", "const": "call_tool", "default": "call_tool"},
                "tool_name": {"type": "string"},
                "arguments": {"type": "object", "additionalProperties": true},
            },
        },
        "observation": {
            "$defs": {"ToolError": tool_error},
            "type": "object",
            "title": "CallToolObservation",
            "additionalProperties": false,
            "required": ["tool_name"],
            "properties": {
                "done": done,
                "reward": reward,
                "metadata": metadata,
                "tool_name": {"type": "string"},
                "result": {"default": null},
                "error": {"anyOf": [{"$ref": "#/$defs/ToolError"}, {"type": "null"}], "default": null},
            },
        },
        "reset_observation": {
            "type": "object",
            "title": "Observation",
            "additionalProperties": false,
            "properties": {"done": done, "reward": reward, "metadata": metadata},
        },
        "state": {
            "type": "object",
            "title": "State",
            "additionalProperties": true,
            "properties": {
                "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "step_count": {"type": "integer", "minimum": 0, "default": 0},
                "rollouts_completed": {"type": "integer", "minimum": 0, "default": 0},
                "last_reward": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": null},
                "last_task_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "last_sandbox_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            },
        },
    })
}
