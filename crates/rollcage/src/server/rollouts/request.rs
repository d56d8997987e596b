//! The arguments of `run_rollout`, `start_rollout` and `POST /v1/rollouts`: those of both original variants and our
//! own, parsed into a [`RolloutRequest`].

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use rollcage_endpoints::check::EndpointError;
use rollcage_engine::intake::{ModelOptions, RequestError, RequestOrigin, RolloutRequest};
use rollcage_engine::network::NetworkError;
use rollcage_model::script::Step;
use rollcage_model::task::{
    AgentDriver, Mode, RewardSource, SandboxLimits, SetupUser, Task, TaskBudget,
};

use super::arguments::{ArgumentError, ToolArguments, integer_of, wrong};
use super::context::RequestContext;
use crate::server::tasks::TaskEntry;
use crate::task_file::LoadedTask;

mod endpoint;
mod files;
mod mcp;
mod options;
mod rights;

/// All arguments, in the order in which errors list them.
pub(crate) const NAMES: &[&str] = &[
    "instruction",
    "setup",
    "services",
    "verify_services",
    "verify",
    "files",
    "upload_files",
    "artifacts",
    "patch",
    "env",
    "timezone",
    "locale",
    "mcp",
    "task",
    "task_id",
    "agent",
    "agent_options",
    "driver",
    "sandbox",
    "endpoint",
    "base_url",
    "api_key",
    "model",
    "dialect",
    "model_key",
    "vllm_url",
    "hf_token",
    "thinking",
    "disable_thinking",
    "temperature",
    "sampling",
    "constrained",
    "max_tokens_cap",
    "top_logprobs",
    "mode",
    "budget",
    "limits",
    "network",
    "agent_timeout_s",
    "command_timeout_s",
    "solution",
    "n",
    "group",
    "labels",
    "setup_shell",
    "setup_user",
    "test_script",
    "reward",
    "reward_range",
    "tests",
    "git_strip",
    "verify_trust",
    "template",
];

/// The members of `budget`.
pub(crate) const BUDGET: &[&str] = &[
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "usd",
    "idle_s",
];

/// The members of `limits`.
pub(crate) const LIMITS: &[&str] = &[
    "memory_mb",
    "pids",
    "cpus",
    "disk_mb",
    "file_mb",
    "shm_mb",
    "artifacts_mb",
];

/// The tool whose rollouts are followed and messaged: their agents run as servers where they can.
const FOLLOWED: &str = "start_rollout";
/// The most rollouts of one call.
pub(crate) const COUNT_MAX: i64 = 1000;
const COMMAND_BYTES_MAX: usize = 120_000;

/// A request, and the number of rollouts.
pub(crate) struct RolloutArguments {
    pub(crate) request: RolloutRequest,
    pub(crate) count: usize,
}

/// Parses the arguments; nothing is started or fetched. Checks that need a resolved request come later.
pub(crate) fn read(
    tool: &str,
    values: Map<String, Value>,
    context: &RequestContext,
) -> Result<RolloutArguments, ArgumentError> {
    let mut given = ToolArguments::new(tool, values, NAMES)?;
    match given.text("sandbox")?.as_deref() {
        None | Some("local") => {}
        Some(other) => return Err(format!("unknown sandbox `{other}`: there is local")),
    }
    let read = read_given(tool, &mut given, context)?;
    if read.request.task.instruction.trim().is_empty() {
        return Err("instruction is required".to_owned());
    }
    Ok(read)
}

/// Parses what is left of the arguments, for callers that take more than those of a rollout.
pub(crate) fn read_given(
    tool: &str,
    given: &mut ToolArguments,
    context: &RequestContext,
) -> Result<RolloutArguments, ArgumentError> {
    let is_unchanged = given.has("task") && given.names().all(rights::leaves_unchanged);
    let agent = given.text("agent")?;
    let agent = agent.unwrap_or_else(|| "opencode".to_owned());
    let chosen = rollcage_agents::choose(context.catalogue.agents(), &agent);
    let (chosen, _) = chosen.map_err(|error| error.to_string())?;
    let has_default = given.has("solution") || chosen.dialect().is_none();
    let endpoint = endpoint::read(given, has_default, &context.catalogue)?;
    let (LoadedTask { mut task, uploads }, mcp) = read_task(given, context)?;
    check_commands(&task)?;
    read_budget(given, &mut task.budget)?;
    read_limits(given, &mut task.limits)?;
    replace(&mut task.network, given.parsed("network")?);
    options::read(given, &mut task.agent)?;
    let driver = choice(given, "driver", &AgentDriver::ALL, AgentDriver::as_str)?;
    task.driver = driver.or(task.driver);
    if tool == FOLLOWED && task.driver.is_none() && chosen.can_serve() {
        task.driver = Some(AgentDriver::Serve);
    }
    let options = read_options(given)?;
    // In the original a template makes sandboxes start faster. Ours always start from a prepared agent.
    given.text("template")?;
    let count = match given.integer("n")?.unwrap_or(1) {
        count @ 1..=COUNT_MAX => usize::try_from(count).unwrap_or(1),
        _ => return Err(format!("argument `n` must be between 1 and {COUNT_MAX}")),
    };
    let request = RolloutRequest {
        group: given.text("group")?,
        labels: given.text_map("labels")?.unwrap_or_default(),
        uploads,
        agent,
        endpoint,
        options,
        origin: RequestOrigin::Client { mcp, is_unchanged },
        ..RolloutRequest::new(task)
    };
    Ok(RolloutArguments { request, count })
}

/// Rewords the engine's errors, which name flags, for clients, which use arguments.
pub(crate) fn explain(error: RequestError) -> ArgumentError {
    match error {
        RequestError::Endpoint(EndpointError::NoBaseUrl { kind, variable }) => {
            format!(
                "endpoint `{kind}` has no base_url: give `base_url`, or set {variable} on the server"
            )
        }
        RequestError::Endpoint(EndpointError::NoKey { kind, variable }) => format!(
            "endpoint `{kind}` has no api_key: give `api_key`, or set {variable} on the server; the server's own key goes \
             to its own URL only"
        ),
        RequestError::Endpoint(EndpointError::NoModel { kind, variable }) => {
            format!("endpoint `{kind}` has no model: give `model`, or set {variable} on the server")
        }
        RequestError::NoSolution => {
            "the scripted endpoint plays a `solution`, and there is none: give one".to_owned()
        }
        RequestError::NoPrice { .. } => {
            "a budget in dollars needs the model's price: add it to prices.toml on the server"
                .to_owned()
        }
        error @ (RequestError::Sampling(_)
        | RequestError::Constrained
        | RequestError::Group
        | RequestError::Labels
        | RequestError::TopLogprobs) => format!("argument {error}"),
        error @ RequestError::Network(NetworkError::Client(_)) => format!(
            "{error}; a task of this server keeps its own network only where a client changes nothing of it and brings no model"
        ),
        error => chain(&error),
    }
}

/// The task: one of the server's, overridden by the arguments, or one built from the arguments alone; and the names of
/// the MCP servers that come from the client.
fn read_task(
    given: &mut ToolArguments,
    context: &RequestContext,
) -> Result<(LoadedTask, BTreeSet<String>), ArgumentError> {
    let mut loaded = match given.value("task") {
        Some(value) => find_task(&value, context)?
            .load()
            .map_err(|error| format!("{error:#}"))?,
        None => LoadedTask {
            task: Task::default(),
            uploads: Default::default(),
        },
    };
    let task = &mut loaded.task;
    replace(&mut task.id, given.text("task_id")?);
    replace(&mut task.instruction, given.text("instruction")?);
    replace(&mut task.setup, given.texts("setup")?);
    replace(&mut task.services, given.parsed("services")?);
    replace(&mut task.verify_services, given.parsed("verify_services")?);
    replace(&mut task.verify, given.texts("verify")?);
    replace(&mut task.artifacts, given.texts("artifacts")?);
    replace(&mut task.patch, given.flag("patch")?);
    let timeout = given.number("agent_timeout_s")?;
    task.agent_timeout_s = timeout.or(task.agent_timeout_s);
    replace(
        &mut task.command_timeout_s,
        given.number("command_timeout_s")?,
    );
    replace(
        &mut task.mode,
        choice(given, "mode", &Mode::ALL, Mode::as_str)?,
    );
    let user = choice(given, "setup_user", &SetupUser::ALL, SetupUser::as_str)?;
    replace(&mut task.setup_user, user);
    let source = choice(given, "reward", &RewardSource::ALL, RewardSource::as_str)?;
    task.reward = source.or(task.reward);
    task.reward_range = given.parsed("reward_range")?.or(task.reward_range);
    task.tests = given.parsed("tests")?.or(task.tests.take());
    replace(&mut task.git_strip, given.flag("git_strip")?);
    replace(&mut task.verify_trust, given.parsed("verify_trust")?);
    task.setup.extend(given.text("setup_shell")?);
    task.test_script = given.text("test_script")?.or(task.test_script.take());
    files::read(given, &mut loaded)?;
    let task = &mut loaded.task;
    task.env.extend(given.text_map("env")?.unwrap_or_default());
    task.timezone = given.text("timezone")?.or(task.timezone.take());
    task.locale = given.text("locale")?.or(task.locale.take());
    let clients_own = mcp::read(given, &mut task.mcp)?;
    if let Some(value) = given.value("solution") {
        task.solution = read_solution(value)?;
    }
    Ok((loaded, clients_own))
}

/// A command is passed as one argument of a process, which the kernel limits to 128 KiB.
fn check_commands(task: &Task) -> Result<(), ArgumentError> {
    let services = task.services.iter().chain(&task.verify_services);
    let services = services.flat_map(|it| [Some(&it.run), it.ready.as_ref()]);
    let commands = task.setup.iter().chain(&task.verify);
    let mut commands = commands.chain(services.flatten());
    if commands.any(|command| command.len() > COMMAND_BYTES_MAX) {
        return Err(format!(
            "a command is longer than {COMMAND_BYTES_MAX} bytes: put what it needs into upload_files"
        ));
    }
    Ok(())
}

fn replace<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

/// One of a few values, by its name.
fn choice<T: Copy>(
    given: &mut ToolArguments,
    name: &str,
    all: &[T],
    as_str: fn(T) -> &'static str,
) -> Result<Option<T>, ArgumentError> {
    let Some(text) = given.text(name)? else {
        return Ok(None);
    };
    let known = all.iter().copied().find(|value| as_str(*value) == text);
    let names: Vec<_> = all.iter().map(|value| as_str(*value)).collect();
    let wrong = || format!("argument `{name}` must be {}", names.join(" or "));
    known.map(Some).ok_or_else(wrong)
}

/// An id, an index, or `{"id"}` / `{"index"}` with a `"split"`.
fn find_task<'a>(
    value: &Value,
    context: &'a RequestContext,
) -> Result<&'a TaskEntry, ArgumentError> {
    let tasks = &context.tasks;
    let no_index = "a task's index must be an integer from 0";
    let index_of = |value: &Value| {
        let index = integer_of(value).and_then(|index| usize::try_from(index).ok());
        index.ok_or_else(|| no_index.to_owned())
    };
    match value {
        Value::String(id) => tasks.by_id(None, id),
        Value::Number(_) => tasks.by_index(None, index_of(value)?),
        Value::Object(members) => {
            let mut given = ToolArguments::new("task", members.clone(), &["id", "index", "split"])?;
            let split = given.text("split")?;
            match (given.text("id")?, given.value("index")) {
                (Some(id), None) => tasks.by_id(split.as_deref(), &id),
                (None, Some(index)) => tasks.by_index(split.as_deref(), index_of(&index)?),
                _ => Err("argument `task` needs either `id` or `index`".to_owned()),
            }
        }
        other => Err(wrong("task", "an id, an index or an object", other)),
    }
}

/// Steps as in a task file; a string is a shell command.
fn read_solution(value: Value) -> Result<Vec<Step>, ArgumentError> {
    let Value::Array(items) = value else {
        return Err(wrong("solution", "an array of steps", &value));
    };
    let step = |(index, item): (usize, Value)| match item {
        Value::String(command) => Ok(Step::shell(command)),
        item => serde_json::from_value(item)
            .map_err(|error| format!("solution step {}: {error}", index + 1)),
    };
    items.into_iter().enumerate().map(step).collect()
}

fn read_budget(given: &mut ToolArguments, budget: &mut TaskBudget) -> Result<(), ArgumentError> {
    let Some(mut given) = given.object("budget", BUDGET)? else {
        return Ok(());
    };
    let mut count = |name: &str| match given.integer(name)?.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(count)) if count > 0 => Ok(Some(count)),
        Some(_) => Err(format!("budget `{name}` must be at least 1")),
    };
    budget.calls = count("calls")?.or(budget.calls);
    budget.prompt_tokens = count("prompt_tokens")?.or(budget.prompt_tokens);
    budget.completion_tokens = count("completion_tokens")?.or(budget.completion_tokens);
    budget.usd = given.number("usd")?.or(budget.usd);
    budget.idle_s = given.number("idle_s")?.or(budget.idle_s);
    Ok(())
}

fn read_limits(given: &mut ToolArguments, limits: &mut SandboxLimits) -> Result<(), ArgumentError> {
    let Some(mut given) = given.object("limits", LIMITS)? else {
        return Ok(());
    };
    for (name, place) in [
        ("memory_mb", &mut limits.memory_mb),
        ("pids", &mut limits.pids),
        ("disk_mb", &mut limits.disk_mb),
        ("file_mb", &mut limits.file_mb),
        ("shm_mb", &mut limits.shm_mb),
        ("artifacts_mb", &mut limits.artifacts_mb),
    ] {
        if let Some(number) = given.integer(name)? {
            let number = u64::try_from(number);
            let number = number.map_err(|_| format!("limit `{name}` must be at least 1"))?;
            *place = Some(number);
        }
    }
    limits.cpus = given.number("cpus")?.or(limits.cpus);
    Ok(())
}

fn read_options(given: &mut ToolArguments) -> Result<ModelOptions, ArgumentError> {
    let default = ModelOptions::default();
    let top_logprobs = given.integer("top_logprobs")?.map(u32::try_from);
    let top_logprobs = top_logprobs.unwrap_or(Ok(default.top_logprobs));
    let cap = given.integer("max_tokens_cap")?;
    Ok(ModelOptions {
        max_tokens_cap: cap.unwrap_or(default.max_tokens_cap),
        top_logprobs: top_logprobs.map_err(|_| explain(RequestError::TopLogprobs))?,
        temperature: given.number("temperature")?,
        sampling: given.text("sampling")?,
        constrained: given.text("constrained")?,
        upstream_patience_s: None,
    })
}

fn chain(error: &dyn std::error::Error) -> String {
    rollcage_model::text::chain(error)
}

#[cfg(test)]
mod tests;
