//! What an agent's server is started with: its command, environment and files.

use std::collections::BTreeMap;

use rollcage_agents::{Agent, LaunchRequest, ModelAccess};
use rollcage_live::Provider;
use rollcage_live::config::config_text;
use rollcage_model::live::PermissionPolicy;
use rollcage_sandbox::guest::{HOME, WORKDIR};
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
/// Nothing of the project is read, neither its configuration nor its instructions.
const NO_PROJECT: &str = "OPENCODE_DISABLE_PROJECT_CONFIG";
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

impl ServerLaunch {
    /// For an agent that sees this machine's files: by itself it reads instructions and configuration of every directory
    /// above its own, up to the root of a repository or of the machine. Only the instructions in its own directory are
    /// left, unless the task sets the variable otherwise.
    pub(super) fn stay_in_directory(&mut self) -> Result<(), LiveError> {
        if self.env.contains_key(NO_PROJECT) {
            return Ok(());
        }
        self.env.insert(NO_PROJECT.to_owned(), "1".to_owned());
        let own = format!("{WORKDIR}/AGENTS.md");
        for (path, text) in &mut self.files {
            if path.ends_with(AGENT_CONFIG) {
                let mut config = read(text)?;
                if let Value::Object(config) = &mut config {
                    let list = config.entry("instructions").or_insert_with(|| json!([]));
                    if let Value::Array(list) = list {
                        list.push(json!(own));
                    }
                }
                *text = write(&config)?;
            }
        }
        Ok(())
    }
}

fn read(config: &str) -> Result<Value, LiveError> {
    serde_json::from_str(config).map_err(unreadable)
}

fn write(config: &Value) -> Result<String, LiveError> {
    serde_json::to_string_pretty(config).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> LiveError {
    LiveError::Start(format!("the agent's configuration is not JSON: {error}"))
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
    let models = models(&plan.endpoint.model, request);
    for (path, text) in &mut files {
        if path.ends_with(AGENT_CONFIG) {
            *text = adapted(text, request.permissions, &models)?;
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

/// The agent's own configuration, which is for a rollout, as a live agent needs it.
fn adapted(config: &str, policy: PermissionPolicy, models: &[String]) -> Result<String, LiveError> {
    let mut config = read(config)?;
    give_variants(&mut config, models);
    set_permissions(&mut config, policy);
    write(&config)
}

/// A rollout has one model: what its `effort` means holds for the others, too.
fn give_variants(config: &mut Value, models: &[String]) {
    let known = ["provider", PROVIDER, "models"];
    let known = known
        .into_iter()
        .try_fold(config, |value, name| value.get_mut(name));
    let (Some(Value::Object(known)), Some((first, more))) = (known, models.split_first()) else {
        return;
    };
    let variants = known.get(first).and_then(|model| model.get("variants"));
    if let Some(variants) = variants.cloned() {
        let given = |name: &String| (name.clone(), json!({"variants": variants}));
        known.extend(more.iter().map(given));
    }
}

/// For a rollout it allows everything and asks nobody.
fn set_permissions(config: &mut Value, policy: PermissionPolicy) {
    let question = match policy {
        PermissionPolicy::Allow => return,
        PermissionPolicy::Ask => "allow",
        PermissionPolicy::Reject => "deny",
    };
    let mut rules = json!({"*": "allow", "question": question});
    for name in ASKED {
        rules[name] = json!("ask");
    }
    if let Value::Object(config) = config {
        config.insert("permission".to_owned(), rules);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_asked_only_where_somebody_is_there() {
        let config = r#"{"permission": {"*": "allow", "question": "deny"}, "model": "m"}"#;
        let read = |policy| -> Value {
            serde_json::from_str(&adapted(config, policy, &[]).unwrap()).unwrap()
        };
        let allowed = read(PermissionPolicy::Allow);
        assert_eq!(allowed["permission"]["bash"], Value::Null);
        let asked = read(PermissionPolicy::Ask);
        assert_eq!(asked["permission"]["bash"], "ask");
        assert_eq!(asked["permission"]["question"], "allow");
        assert_eq!(asked["model"], "m");
        let rejected = read(PermissionPolicy::Reject);
        assert_eq!(rejected["permission"]["edit"], "ask");
        assert_eq!(rejected["permission"]["question"], "deny");
    }
    #[test]
    fn effort_holds_for_every_model() {
        let config = r#"{"provider": {"rollcage": {"models": {"a/b": {"limit": 1, "variants": {"low": {}}}}}}}"#;
        let models = ["a/b", "c"].map(str::to_owned);
        let read = |config: &str| -> Value {
            let text = adapted(config, PermissionPolicy::Allow, &models).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(
            read(config)["provider"]["rollcage"]["models"],
            json!({"a/b": {"limit": 1, "variants": {"low": {}}}, "c": {"variants": {"low": {}}}})
        );
        let plain = r#"{"provider": {"rollcage": {"models": {"a/b": {}}}}}"#;
        assert_eq!(read(plain), serde_json::from_str::<Value>(plain).unwrap());
    }
}
