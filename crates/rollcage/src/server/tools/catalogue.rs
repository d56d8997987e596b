//! What there is: agents, endpoints, tasks. Keys are never shown, only whether there is one.

use serde_json::{Value, json};

use rollcage_engine::{agent, endpoint};

use crate::server::backend::{Backend, Surroundings};
use crate::server::tasks::Tasks;

pub(crate) fn agents(backend: &Backend) -> Vec<Value> {
    let installed = backend.service.engine().bundles().list();
    let agents = agent::all().into_iter();
    agents
        .map(|agent| {
            let versions: Vec<_> = installed
                .iter()
                .filter(|bundle| bundle.agent == agent.name())
                .map(|bundle| bundle.version.as_str())
                .collect();
            json!({
                "name": agent.name(),
                "default_version": agent.source().default_version,
                "installed": versions,
            })
        })
        .collect()
}

pub(crate) fn endpoints(around: &Surroundings) -> Vec<Value> {
    let known = endpoint::kinds().map(|kind| {
        let is_set = |name: &str| around.variable(name).is_some();
        let model = around
            .variable(kind.model_variable)
            .or_else(|| kind.model.map(str::to_owned));
        let is_configured = (is_set(kind.url_variable) || kind.base_url.is_some())
            && (is_set(kind.key_variable) || !kind.needs_key)
            && model.is_some();
        json!({
            "kind": kind.name,
            "configured": is_configured,
            "model": model,
            "variables": {
                "base_url": kind.url_variable,
                "api_key": kind.key_variable,
                "model": kind.model_variable,
            },
            "has_key": is_set(kind.key_variable),
            "default_base_url": kind.base_url,
        })
    });
    let scripted = json!({
        "kind": "scripted", "configured": true, "model": rollcage_engine::scripted::MODEL, "variables": {},
        "has_key": false, "default_base_url": null,
    });
    known.chain([scripted]).collect()
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
        "endpoints": names(endpoints(&backend.around), "kind"),
        "splits": backend.around.tasks.splits().map(|(name, _)| name).collect::<Vec<_>>(),
        "modes": ["transparent_proxy", "black_box"],
        "capture_levels": ["tokens", "logprobs", "text"],
        "trace_formats": rollcage_model::export::Format::ALL.iter().map(|format| format.as_str()).collect::<Vec<_>>(),
    })
}
