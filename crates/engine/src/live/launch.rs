//! What an agent's server is started with: its command, environment and files.

use std::collections::BTreeMap;

use rollcage_agents::{Agent, LaunchRequest, ModelAccess};
use rollcage_live::Provider;
use rollcage_live::config::config_text;
use rollcage_model::live::PermissionPolicy;
use rollcage_sandbox::guest::HOME;
use serde_json::{Value, json};

use super::{LiveError, LiveRequest};
use crate::environment;
use crate::plan::Plan;

/// The provider's name in model names.
pub(super) const PROVIDER: &str = "rollcage";
/// Merged with [`AGENT_CONFIG`], which has the same provider and everything that the task's options add.
const USER_CONFIG: &str = ".config/opencode/opencode.json";
const AGENT_CONFIG: &str = ".config/opencode/rollcage.json";
/// A rollout ends when its context is full; a conversation goes on with a summary.
const NO_COMPACTION: &str = "OPENCODE_DISABLE_AUTOCOMPACT";
/// What is asked for where somebody is to be asked.
const ASKED: [&str; 5] = [
    "bash",
    "edit",
    "webfetch",
    "external_directory",
    "doom_loop",
];

/// A server to start, with paths as in a sandbox.
pub(super) struct ServerLaunch {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) files: Vec<(String, String)>,
    pub(super) variant: Option<String>,
}

/// Refuses agents that cannot be kept running.
pub(super) fn check(agent: &dyn Agent) -> Result<(), LiveError> {
    match agent.can_serve() {
        true => Ok(()),
        false => Err(LiveError::NoServer {
            agent: agent.name().to_owned(),
            able: rollcage_agents::able(&|agent| agent.can_serve()),
        }),
    }
}

/// `variables` are the task's; the agent's own override them.
pub(super) fn server(
    plan: &Plan,
    request: &LiveRequest,
    access: &ModelAccess,
    variables: &BTreeMap<String, String>,
) -> Result<ServerLaunch, LiveError> {
    check(&*plan.agent)?;
    let launch = plan.agent.serve(&LaunchRequest {
        task: &plan.task,
        access,
        bundle: &plan.ready.bundle,
    });
    let wrong = |error: &dyn std::error::Error| LiveError::Start(error.to_string());
    let Some(launch) = launch else {
        return Err(LiveError::Start("the agent has no server".to_owned()));
    };
    let launch = launch.map_err(|error| wrong(&error))?;
    let mut env = environment::of_agent(variables);
    env.extend(launch.env);
    env.remove(NO_COMPACTION);
    let mut files = launch.files;
    for (path, text) in &mut files {
        if path.ends_with(AGENT_CONFIG) {
            *text = with_permissions(text, request.permissions)?;
        }
    }
    let config = config_text(&provider(plan, request, access)).map_err(|error| wrong(&error))?;
    files.push((format!("{HOME}/{USER_CONFIG}"), config));
    Ok(ServerLaunch {
        argv: launch.argv,
        env,
        files,
        variant: launch.variant,
    })
}

pub(super) fn provider(plan: &Plan, request: &LiveRequest, access: &ModelAccess) -> Provider {
    Provider {
        name: PROVIDER.to_owned(),
        base_url: access.base_url.clone(),
        key: access.key.clone(),
        models: models(&plan.endpoint.model, request),
    }
}

/// The endpoint's model, and those that were asked for besides.
pub(super) fn models(model: &str, request: &LiveRequest) -> Vec<String> {
    let more = request.models.iter().filter(|name| *name != model);
    std::iter::once(model.to_owned())
        .chain(more.cloned())
        .collect()
}

/// The agent's own configuration allows everything and asks nobody, as a rollout needs it.
fn with_permissions(config: &str, policy: PermissionPolicy) -> Result<String, LiveError> {
    if policy == PermissionPolicy::Allow {
        return Ok(config.to_owned());
    }
    let unreadable = |error: serde_json::Error| {
        LiveError::Start(format!("the agent's configuration is not JSON: {error}"))
    };
    let mut config: Value = serde_json::from_str(config).map_err(unreadable)?;
    let question = match policy {
        PermissionPolicy::Ask => "allow",
        PermissionPolicy::Allow | PermissionPolicy::Reject => "deny",
    };
    let mut rules = json!({"*": "allow", "question": question});
    for name in ASKED {
        rules[name] = json!("ask");
    }
    config["permission"] = rules;
    serde_json::to_string_pretty(&config).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_asked_only_where_somebody_is_there() {
        let config = r#"{"permission": {"*": "allow", "question": "deny"}, "model": "m"}"#;
        let read = |policy| -> Value {
            serde_json::from_str(&with_permissions(config, policy).unwrap()).unwrap()
        };
        assert_eq!(
            read(PermissionPolicy::Allow)["permission"]["bash"],
            Value::Null
        );
        let asked = read(PermissionPolicy::Ask);
        assert_eq!(asked["permission"]["bash"], "ask");
        assert_eq!(asked["permission"]["question"], "allow");
        assert_eq!(asked["model"], "m");
        let rejected = read(PermissionPolicy::Reject);
        assert_eq!(rejected["permission"]["edit"], "ask");
        assert_eq!(rejected["permission"]["question"], "deny");
    }
}
