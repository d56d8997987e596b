//! What a client can choose from: agents, endpoints, tasks. Keys are never shown, only whether they are set.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use rollcage_agents::Agent;
use rollcage_endpoints::choice::EndpointRequest;

use super::backend::Backend;
use super::context::RequestContext;
use crate::server::tasks::{TaskRow, Tasks};

/// An agent that can run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct AgentView {
    /// As `agent` names it.
    pub(crate) name: String,
    /// Other names.
    pub(crate) aliases: Vec<String>,
    /// What can be set with `agent_options`.
    pub(crate) options: Value,
    /// How it can be run: `cli`, `serve`.
    pub(crate) drivers: Vec<String>,
    /// The version that is installed when none is named.
    pub(crate) default_version: String,
    /// The versions that are there.
    pub(crate) installed: Vec<String>,
}

/// A kind of endpoint.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct EndpointView {
    /// As `endpoint` names it.
    pub(crate) kind: String,
    /// Whether a rollout can use it without more arguments.
    pub(crate) configured: bool,
    /// The model that is asked when none is named; null where the endpoint is asked what it serves.
    pub(crate) model: Option<String>,
    /// The server's variables that set it up.
    pub(crate) variables: EndpointVariables,
    /// Whether the server has a key for it; never the key.
    pub(crate) has_key: bool,
    /// Where it is when no variable says so.
    pub(crate) default_base_url: Option<String>,
    /// Whether `thinking` and `disable_thinking` do something there.
    pub(crate) supports_thinking: bool,
}

/// The names of variables.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct EndpointVariables {
    /// For the address.
    pub(crate) base_url: Vec<String>,
    /// For the key.
    pub(crate) api_key: Vec<String>,
    /// For the model.
    pub(crate) model: Vec<String>,
}

pub(crate) fn agents(backend: &Backend) -> Vec<AgentView> {
    let installed = backend.engine.bundles().list();
    let view = |agent: &Arc<dyn Agent>| AgentView {
        name: agent.name().to_owned(),
        aliases: agent.aliases().iter().map(ToString::to_string).collect(),
        options: json!(rollcage_agents::options(&**agent)),
        drivers: match agent.can_serve() {
            true => vec!["cli".to_owned(), "serve".to_owned()],
            false => vec!["cli".to_owned()],
        },
        default_version: agent.source().default_version.to_string(),
        installed: installed
            .iter()
            .filter(|bundle| bundle.agent == agent.name())
            .map(|bundle| bundle.version.clone())
            .collect(),
    };
    backend
        .context
        .catalogue
        .agents()
        .iter()
        .map(view)
        .collect()
}

pub(crate) fn endpoints(context: &RequestContext) -> Vec<EndpointView> {
    let known = context.catalogue.providers.iter().map(|provider| {
        let value = |names: &[String]| {
            names
                .iter()
                .find_map(|name| context.catalogue.variable(name))
        };
        let model = value(&provider.model_variables).or_else(|| provider.model.clone());
        let has_key = value(&provider.key_variables).is_some();
        // As a request that names nothing but the kind. A server of one's own needs no model: it is asked what it serves.
        let request = EndpointRequest {
            kind: Some(provider.name.clone()),
            ..EndpointRequest::default()
        };
        let catalogue = &context.catalogue;
        let chosen = request.resolve_among(&catalogue.providers, |name| catalogue.variable(name));
        EndpointView {
            kind: provider.name.clone(),
            configured: chosen.is_ok(),
            model,
            variables: EndpointVariables {
                base_url: provider.url_variables.clone(),
                api_key: provider.key_variables.clone(),
                model: provider.model_variables.clone(),
            },
            has_key,
            default_base_url: provider.base_url.clone(),
            supports_thinking: provider.supports_thinking(),
        }
    });
    let ours = |kind: &str, model: Option<String>| EndpointView {
        kind: kind.to_owned(),
        configured: true,
        model,
        variables: EndpointVariables::default(),
        has_key: false,
        default_base_url: None,
        supports_thinking: false,
    };
    let servers = context.catalogue.providers.servers();
    let servers = servers.map(|server| EndpointView {
        supports_thinking: server.has_token_ids || server.is_thinking_disabled,
        ..ours(&server.name, server.model.clone())
    });
    let scripted = ours("scripted", Some(rollcage_scripted::MODEL.to_owned()));
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
    let agents = agents(backend).into_iter().map(|agent| agent.name);
    let endpoints = endpoints(&backend.context).into_iter();
    let endpoints = endpoints.map(|endpoint| endpoint.kind);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "agents": agents.collect::<Vec<_>>(),
        "sandboxes": ["local"],
        "endpoints": endpoints.collect::<Vec<_>>(),
        "splits": backend.context.tasks.splits().map(|(name, _)| name).collect::<Vec<_>>(),
        "modes": ["transparent_proxy", "black_box"],
        "capture_levels": ["tokens", "logprobs", "text"],
        "trace_formats": rollcage_model::export::Format::ALL.iter().map(|format| format.as_str()).collect::<Vec<_>>(),
    })
}
