//! What a task asks of its agent, beside the instruction, and what an agent asks of a rollout.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{SandboxLimits, Task, TaskBudget, TaskError, check_env};

/// What a task asks of its agent, beside the instruction. Not every agent can do all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentOptions {
    /// In place of the agent's own system prompt.
    pub system_prompt: Option<String>,
    /// Added to what the agent knows, as its users' own notes are.
    pub instructions: Option<String>,
    /// How much the model should think, in the agent's own words.
    pub effort: Option<String>,
    /// The only tools it has, by the agent's own names.
    pub tools: Option<Vec<String>>,
    /// Tools that it does not have, by the agent's own names.
    pub disabled_tools: Vec<String>,
    /// Keep the agent's own log of this level, in its own words, with the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// Added to the environment of the agent alone.
    pub env: BTreeMap<String, String>,
    /// Merged over the agent's own configuration file.
    pub config: Map<String, Value>,
}

/// What a task says for an option that an agent's manifest spells out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionValue<'a> {
    Text(&'a str),
    List(&'a [String]),
}

fn text(value: &Option<String>) -> Option<OptionValue<'_>> {
    value.as_deref().map(OptionValue::Text)
}

impl AgentOptions {
    /// All that a task may set.
    pub const NAMES: &[&str] = &[
        "system_prompt",
        "instructions",
        "effort",
        "tools",
        "disabled_tools",
        "log_level",
        "env",
        "config",
    ];

    /// Those that are set and that a manifest spells out, by name.
    pub fn set(&self) -> impl Iterator<Item = (&'static str, OptionValue<'_>)> {
        let disabled = Some(self.disabled_tools.as_slice()).filter(|list| !list.is_empty());
        let all = [
            ("system_prompt", text(&self.system_prompt)),
            ("instructions", text(&self.instructions)),
            ("effort", text(&self.effort)),
            ("tools", self.tools.as_deref().map(OptionValue::List)),
            ("disabled_tools", disabled.map(OptionValue::List)),
            ("log_level", text(&self.log_level)),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }

    pub(super) fn check(&self) -> Result<(), TaskError> {
        if self.tools.as_ref().is_some_and(Vec::is_empty) {
            return Err(TaskError::NoTools);
        }
        if self.tools.is_some() && !self.disabled_tools.is_empty() {
            return Err(TaskError::BothTools);
        }
        // They are joined with commas, and become arguments.
        let is_wrong = |name: &&String| {
            name.trim().is_empty()
                || name.starts_with('-')
                || name.contains(|letter: char| letter == ',' || letter.is_control())
        };
        let names = self.tools.iter().flatten().chain(&self.disabled_tools);
        if let Some(name) = names.into_iter().find(is_wrong) {
            return Err(TaskError::Tool(name.clone()));
        }
        // A date of TOML has no counterpart in what is merged, and comes as a table with this key.
        if has_key(&self.config, "$__toml_private_datetime") {
            return Err(TaskError::Date);
        }
        check_env(&self.env)
    }
}

/// Merges an object into another: objects key by key, while anything else replaces what was there.
pub fn merge(object: &mut Map<String, Value>, addition: &Map<String, Value>) {
    for (key, value) in addition {
        match (object.get_mut(key), value) {
            (Some(Value::Object(inner)), Value::Object(addition)) => merge(inner, addition),
            _ => {
                object.insert(key.clone(), value.clone());
            }
        }
    }
}

fn has_key(object: &Map<String, Value>, key: &str) -> bool {
    let is_inside = |value: &Value| match value {
        Value::Object(inner) => has_key(inner, key),
        Value::Array(items) => items
            .iter()
            .any(|item| item.as_object().is_some_and(|inner| has_key(inner, key))),
        _ => false,
    };
    object.contains_key(key) || object.values().any(is_inside)
}

/// Limits of an agent's rollouts, for tasks that do not set them; `None` leaves the general default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentLimits {
    pub agent_timeout_s: Option<f64>,
    pub calls: Option<u64>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub usd: Option<f64>,
    pub idle_s: Option<f64>,
    pub memory_mb: Option<u64>,
    pub pids: Option<u64>,
    pub cpus: Option<f64>,
    pub disk_mb: Option<u64>,
    pub file_mb: Option<u64>,
    pub shm_mb: Option<u64>,
}

impl AgentLimits {
    /// What a type cannot say: the same as for a task.
    pub fn check(&self) -> Result<(), TaskError> {
        let mut task = Task {
            instruction: "x".to_owned(),
            ..Task::default()
        };
        task.limit(self);
        task.check()
    }
}

impl Task {
    /// Takes an agent's limits where the task has none of its own.
    pub fn limit(&mut self, limits: &AgentLimits) {
        let (budget, sandbox) = (self.budget, self.limits);
        self.agent_timeout_s = self.agent_timeout_s.or(limits.agent_timeout_s);
        self.budget = TaskBudget {
            calls: budget.calls.or(limits.calls),
            prompt_tokens: budget.prompt_tokens.or(limits.prompt_tokens),
            completion_tokens: budget.completion_tokens.or(limits.completion_tokens),
            usd: budget.usd.or(limits.usd),
            idle_s: budget.idle_s.or(limits.idle_s),
        };
        self.limits = SandboxLimits {
            memory_mb: sandbox.memory_mb.or(limits.memory_mb),
            pids: sandbox.pids.or(limits.pids),
            cpus: sandbox.cpus.or(limits.cpus),
            disk_mb: sandbox.disk_mb.or(limits.disk_mb),
            file_mb: sandbox.file_mb.or(limits.file_mb),
            shm_mb: sandbox.shm_mb.or(limits.shm_mb),
            artifacts_mb: sandbox.artifacts_mb,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_checked() {
        let read = |text: &str| Task::from_toml(&format!("instruction = 'a'\n[agent]\n{text}"));
        let task = read(
            "disabled_tools = ['Bash(git *)']\nenv = { A = '$HOME' }\n\
             config = { a = { b = [1, true] } }",
        )
        .unwrap();
        let set: Vec<_> = task.agent.set().map(|(name, _)| name).collect();
        assert_eq!(set, ["disabled_tools"]);
        assert_eq!(task.agent.env["A"], "$HOME");
        assert_eq!(task.agent.config["a"], serde_json::json!({"b": [1, true]}));
        let error = |text: &str| read(text).unwrap_err().to_string();
        assert!(error("tools = []").contains("at least one tool"));
        let both = error("tools = ['a']\ndisabled_tools = ['b']");
        assert!(both.contains("not both"), "{both}");
        for name in ["", "a,b", "-x", "a\\n"] {
            let text = format!("disabled_tools = [\"{name}\"]");
            assert!(error(&text).contains("is no name of a tool"), "{name}");
        }
        assert!(error("env = { 'A=B' = '' }").contains("environment variable `A=B`"));
        assert!(error("config = { a = [{ since = 2026-01-02 }] }").contains("a date"));
    }

    #[test]
    fn an_agents_limits_stand_behind_the_tasks() {
        let limits = AgentLimits {
            agent_timeout_s: Some(60.0),
            calls: Some(5),
            idle_s: Some(3.0),
            memory_mb: Some(512),
            ..AgentLimits::default()
        };
        let mut task = Task::from_toml("instruction = 'a'\n[budget]\ncalls = 9").unwrap();
        task.limit(&limits);
        assert_eq!(task.agent_timeout_s(), 60.0);
        assert_eq!(
            (task.budget.calls, task.budget.idle_s),
            (Some(9), Some(3.0))
        );
        assert_eq!((task.limits.memory_mb, task.limits.pids), (Some(512), None));
        limits.check().unwrap();
        let wrong = AgentLimits {
            pids: Some(1),
            ..limits
        };
        assert!(wrong.check().unwrap_err().to_string().contains("`pids`"));
    }
}
