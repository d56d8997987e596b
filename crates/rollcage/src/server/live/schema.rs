//! The JSON Schemas of what starts an agent and of what drives a turn, for the tools and for OpenAPI.

use serde_json::{Value, json};

use super::{DEADLINE_S, IDLE_S, NOT_OF_LIVE, POLL_S, TURN_TIMEOUT_S};
use crate::server::rollouts::request_schema::{object, rollout_schema};

/// The arguments of `POST /v1/live` and `live_start`.
pub(crate) fn start_schema() -> Value {
    let mut schema = rollout_schema();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| !NOT_OF_LIVE.contains(&name.as_str()));
        for (name, property) in own() {
            properties.insert(name.to_owned(), property);
        }
    }
    schema
}

fn own() -> [(&'static str, Value); 8] {
    let seconds = |default: f64, about: &str| json!({"type": "number", "default": default, "exclusiveMinimum": 0, "description": about});
    [
        (
            "id",
            json!({"type": ["string", "null"], "default": null, "description": "A stopped agent to start again with what it had; a new one when not given."}),
        ),
        (
            "name",
            json!({"type": "string", "default": "", "description": "Your name for the agent."}),
        ),
        (
            "models",
            json!({"type": ["array", "null"], "items": {"type": "string"}, "default": null, "description": "More model names that turns may ask for, besides `model`."}),
        ),
        ("permissions", permissions()),
        (
            "deadline_s",
            seconds(
                DEADLINE_S,
                "How long the agent's server may take to become healthy.",
            ),
        ),
        (
            "poll_s",
            seconds(POLL_S, "The pause between two looks at it."),
        ),
        (
            "idle_s",
            seconds(
                IDLE_S,
                "Without a turn for so long the agent is saved and put to sleep; its next turn wakes it.",
            ),
        ),
        (
            "turn_timeout_s",
            seconds(TURN_TIMEOUT_S, "The limit of a turn that names none."),
        ),
    ]
}

fn permissions() -> Value {
    json!({
        "enum": ["allow", "reject", "ask"], "default": "allow",
        "description": "What is done when the agent asks for permission: allow it, refuse it, or ask the caller and refuse what nobody answers in time.",
    })
}

/// What a turn takes, beside the agent's id.
pub(crate) fn turn_schema() -> Value {
    let text =
        |about: &str| json!({"type": ["string", "null"], "default": null, "description": about});
    let mut permissions = permissions();
    permissions["default"] = Value::Null;
    permissions["enum"] = json!(["allow", "reject", "ask", null]);
    object(
        &[
            (
                "text",
                json!({"type": "string", "description": "What to say to the agent."}),
            ),
            (
                "session_id",
                text("The conversation to go on with; the agent's latest when not given."),
            ),
            (
                "is_new_session",
                json!({"type": "boolean", "default": false, "description": "Begin a new conversation."}),
            ),
            (
                "trace_id",
                text("Your name for what the turn belongs to; stands in every reply."),
            ),
            (
                "timeout_s",
                json!({"type": ["number", "null"], "default": null, "description": "The turn's limit in seconds."}),
            ),
            ("permissions", permissions),
            (
                "model",
                text("One of the agent's models; its first when not given."),
            ),
        ],
        &["text"],
    )
}
