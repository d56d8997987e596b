//! What a client can choose from: agents, endpoints, tasks. Keys are never shown, only whether they are set.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::backend::Backend;
use super::context::RequestContext;
use crate::server::tasks::{TaskRow, Tasks};

pub(crate) fn agents(backend: &Backend) -> Vec<Value> {
    let installed = backend.engine.bundles().list();
    backend
        .context
        .catalogue
        .agents
        .iter()
        .map(|agent| {
            let versions: Vec<_> = installed
                .iter()
                .filter(|bundle| bundle.agent == agent.name())
                .map(|bundle| bundle.version.as_str())
                .collect();
            json!({
                "name": agent.name(),
                "aliases": agent.aliases(),
                "options": rollcage_agents::options(&**agent),
                "drivers": match agent.can_serve() {
                    true => vec!["cli", "serve"],
                    false => vec!["cli"],
                },
                "default_version": agent.source().default_version,
                "installed": versions,
            })
        })
        .collect()
}

pub(crate) fn endpoints(context: &RequestContext) -> Vec<Value> {
    let known = context.catalogue.providers.iter().map(|provider| {
        let value = |names: &[String]| {
            names
                .iter()
                .find_map(|name| context.catalogue.variable(name))
        };
        let model = value(&provider.model_variables).or_else(|| provider.model.clone());
        let has_url = value(&provider.url_variables).is_some() || provider.base_url.is_some();
        let has_key = value(&provider.key_variables).is_some();
        let is_configured =
            has_url && (has_key || provider.placeholder_key.is_some()) && model.is_some();
        json!({
            "kind": provider.name,
            "configured": is_configured,
            "model": model,
            "variables": {
                "base_url": provider.url_variables,
                "api_key": provider.key_variables,
                "model": provider.model_variables,
            },
            "has_key": has_key,
            "default_base_url": provider.base_url,
        })
    });
    let servers = context.catalogue.providers.servers().map(|server| {
        json!({
            "kind": server.name, "configured": true, "model": server.model, "variables": {},
            "has_key": false, "default_base_url": null,
        })
    });
    let scripted = json!({
        "kind": "scripted", "configured": true, "model": rollcage_scripted::MODEL, "variables": {},
        "has_key": false, "default_base_url": null,
    });
    known.chain(servers).chain([scripted]).collect()
}

/// The tasks of a server.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TaskList {
    /// All splits.
    splits: Vec<SplitSize>,
    /// How many there are of the split that was asked for, or of all.
    num_tasks: usize,
    /// Those that were asked for.
    tasks: Vec<TaskRow>,
}

/// A split of tasks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SplitSize {
    /// Names it.
    name: String,
    /// How many tasks it has.
    num_tasks: usize,
}

pub(crate) fn tasks(
    tasks: &Tasks,
    split: Option<&str>,
    start: usize,
    stop: Option<usize>,
) -> TaskList {
    let splits = tasks.splits().map(|(name, count)| SplitSize {
        name: name.to_owned(),
        num_tasks: count,
    });
    let num_tasks = tasks.list(split).count();
    let stop = stop.unwrap_or(num_tasks);
    let shown = tasks
        .list(split)
        .skip(start)
        .take(stop.saturating_sub(start));
    TaskList {
        splits: splits.collect(),
        num_tasks,
        tasks: shown
            .map(|(split, index, task)| task.row(split, index))
            .collect(),
    }
}

pub(crate) fn capabilities(backend: &Backend) -> Value {
    let names = |values: Vec<Value>, key: &str| -> Vec<Value> {
        values
            .into_iter()
            .map(|mut value| value[key].take())
            .collect()
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "agents": names(agents(backend), "name"),
        "sandboxes": ["local"],
        "endpoints": names(endpoints(&backend.context), "kind"),
        "splits": backend.context.tasks.splits().map(|(name, _)| name).collect::<Vec<_>>(),
        "modes": ["transparent_proxy", "black_box"],
        "capture_levels": ["tokens", "logprobs", "text"],
        "trace_formats": rollcage_model::export::Format::ALL.iter().map(|format| format.as_str()).collect::<Vec<_>>(),
    })
}
