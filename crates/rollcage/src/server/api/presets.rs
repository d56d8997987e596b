//! Tasks that run at once, without any model: the scripted endpoint plays their solutions through the real agent.

use serde_json::{Map, Value, json};

use rollcage_model::task::{Task, TaskError};

use super::types::Preset;

/// Id, title, what one sees, and the task file.
#[rustfmt::skip]
const PRESETS: [(&str, &str, &str, &str); 4] = [
    (
        "hello", "Hello", "The smallest task: one file is written and checked twice. Three calls, full reward.",
        include_str!("../../../../../examples/hello.toml"),
    ),
    (
        "fix-the-bug", "Fix the bug", "A function is repaired; four checks that the agent never saw grade it. Full reward.",
        include_str!("../../../../../examples/fix-the-bug.toml"),
    ),
    (
        "sales-report", "Sales report", "A longer conversation with reasoning, edits and a repair, which misses one of four checks.",
        include_str!("../../../presets/sales-report.toml"),
    ),
    (
        "gives-up", "Gives up", "A failure to look at: the model stops before the work is done. No reward.",
        include_str!("../../../presets/gives-up.toml"),
    ),
];

/// All presets, as requests.
pub(super) fn presets() -> Result<Vec<Preset>, TaskError> {
    let preset = |(id, title, about, file): &(&str, &str, &str, &str)| {
        Ok(Preset {
            id: (*id).to_owned(),
            title: (*title).to_owned(),
            about: (*about).to_owned(),
            request: request(id, &Task::from_toml(file)?),
        })
    };
    PRESETS.iter().map(preset).collect()
}

/// What a form has of the task, without what is as it is by default.
fn request(id: &str, task: &Task) -> Map<String, Value> {
    let all = json!({
        "task_id": id, "instruction": task.instruction.trim(), "setup": task.setup, "verify": task.verify,
        "files": task.files, "solution": task.solution, "endpoint": "scripted", "agent": "opencode",
    });
    let is_set = |value: &Value| match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    };
    let Value::Object(members) = all else {
        return Map::new();
    };
    members
        .into_iter()
        .filter(|(_, value)| is_set(value))
        .collect()
}
