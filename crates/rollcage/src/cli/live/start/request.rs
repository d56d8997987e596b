//! A request as the arguments of `POST /v1/live`, for `--server`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use rollcage_engine::intake::{KeySource, Upload};
use rollcage_engine::live::{LiveRequest, LiveSandbox};

use crate::{UsageError, settings};

/// Members of a task that mean the same as an argument of the same name.
const SAME: [&str; 13] = [
    "files",
    "setup",
    "setup_user",
    "services",
    "solution",
    "env",
    "timezone",
    "locale",
    "command_timeout_s",
    "limits",
    "network",
    "budget",
    "mode",
];

pub(super) fn server_arguments(request: LiveRequest) -> anyhow::Result<Map<String, Value>> {
    if request.sandbox == LiveSandbox::None {
        let text = "--sandbox none is for this machine, not for a server";
        return Err(UsageError(text.to_owned()).into());
    }
    let rollout = request.rollout;
    let mut given = Map::new();
    let mut task = serde_json::to_value(&rollout.task)?;
    for name in SAME {
        given.insert(name.to_owned(), task[name].take());
    }
    given.insert("task_id".to_owned(), task["id"].take());
    given.insert("agent_options".to_owned(), task["agent"].take());
    // As given: the task's own copy is masked.
    if let Some(servers) = rollout.mcp.get() {
        given.insert("mcp".to_owned(), serde_json::to_value(servers)?);
    }
    let mut uploads = Map::new();
    for (path, upload) in rollout.uploads {
        uploads.insert(path.clone(), uploaded(&path, upload)?);
    }
    given.insert("upload_files".to_owned(), Value::Object(uploads));
    let endpoint = rollout.endpoint;
    let key = match endpoint.key {
        Some(KeySource::Variable(name)) => Some(settings::key(&name, "--api-key-env")?),
        Some(KeySource::Sealed(_)) | None => None,
    };
    let options = rollout.options;
    let more = json!({
        "name": request.name, "models": request.models, "permissions": request.permissions,
        "deadline_s": request.deadline_s, "poll_s": request.poll_s, "idle_s": request.idle_s,
        "turn_timeout_s": request.turn_timeout_s, "agent": rollout.agent, "labels": rollout.labels,
        "endpoint": endpoint.kind, "base_url": endpoint.base_url, "model": endpoint.model,
        "disable_thinking": endpoint.is_thinking_disabled, "dialect": endpoint.dialect,
        "api_key": key.as_ref().map(rollcage_proxy::secret::Secret::expose),
        "max_tokens_cap": options.max_tokens_cap, "top_logprobs": options.top_logprobs,
        "temperature": options.temperature, "sampling": options.sampling, "constrained": options.constrained,
    });
    if let Value::Object(more) = more {
        given.extend(more);
    }
    given.retain(|_, value| !is_nothing(value));
    Ok(given)
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_nothing),
        _ => false,
    }
}

fn uploaded(path: &str, upload: Upload) -> anyhow::Result<Value> {
    match upload {
        Upload::File {
            content,
            is_executable,
        } => Ok(json!({"base64": BASE64_STANDARD.encode(content), "executable": is_executable})),
        Upload::Link { .. } | Upload::Directory => {
            let text =
                format!("{path}: only files can be sent to a server, not links or directories");
            Err(UsageError(text).into())
        }
    }
}
