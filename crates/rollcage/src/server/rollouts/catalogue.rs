//! What a client can choose from: agents, endpoints, tasks. Keys are never shown, only whether they are set.

use serde_json::{Value, json};

use super::backend::Backend;
use super::context::RequestContext;
use crate::server::tasks::Tasks;

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

pub(crate) fn tasks(
    tasks: &Tasks,
    split: Option<&str>,
    start: usize,
    stop: Option<usize>,
) -> Value {
    let splits: Vec<_> = tasks
        .splits()
        .map(|(name, count)| json!({"name": name, "num_tasks": count}))
        .collect();
    let listed: Vec<_> = tasks
        .list(split)
        .map(|(split, index, task)| task.to_value(split, index))
        .collect();
    let count = listed.len();
    let stop = stop.unwrap_or(count).min(count);
    let shown = listed.get(start.min(stop)..stop).unwrap_or_default();
    json!({"splits": splits, "num_tasks": count, "tasks": shown})
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
