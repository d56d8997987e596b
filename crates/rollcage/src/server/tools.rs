//! The OpenEnv tools: rollouts for trainers and agents. They know nothing about sockets.
//!
//! Every tool answers with JSON in a string, as in the original.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use rollcage_engine::{CommandError, RolloutCommand, RolloutEntry, RolloutLookup};
use rollcage_model::record::RolloutResult;
use rollcage_model::text::chain;
use rollcage_model::view::TraceDetail;

use super::rollouts::arguments::ToolArguments;
use super::rollouts::messages::messages;
use super::rollouts::tokens::{ANSWER_BYTES_MAX, PagedTrace, ResultForm};
use super::rollouts::{Backend, SubmitError, ViewError, catalogue};
use super::tool::{Caller, ClientKind, FinishedRollout, ToolError, ToolInfo, ToolOutput, Tools};

mod answer;
mod follow;
mod live;
mod schema;

/// How long `finalize_rollout` waits by default, in seconds.
const WAIT_S: f64 = 300.0;
/// Longer than any rollout.
const WAIT_S_MAX: f64 = 604_800.0;

/// The tools over one server's rollouts.
pub(crate) struct RolloutTools {
    backend: Arc<Backend>,
    list: Vec<ToolInfo>,
}

impl RolloutTools {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        RolloutTools {
            backend,
            list: schema::tools(),
        }
    }
}

#[async_trait]
impl Tools for RolloutTools {
    fn list(&self) -> &[ToolInfo] {
        &self.list
    }

    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        caller: Caller,
    ) -> Result<ToolOutput, ToolError> {
        let call = ToolCall {
            backend: &self.backend,
            caller,
        };
        match name {
            "run_rollout" => call.run(arguments).await,
            "start_rollout" => call.start(arguments).await,
            "get_state" => call.state(arguments).await.map(json_output),
            "get_messages" => call.messages(arguments).await.map(json_output),
            "send_message" => call.send(arguments).await.map(json_output),
            "abort_rollout" => call.abort(arguments).await.map(json_output),
            "finalize_rollout" => call.finalize(arguments).await,
            "get_trace" => call.trace(arguments).await,
            "subscribe_events" => call.events(arguments).await.map(json_output),
            "list_agents" => {
                no_arguments(name, arguments)?;
                let agents = call.look_up(catalogue::agents).await?;
                Ok(json_output(json!({"agents": agents})))
            }
            "list_endpoints" => no_arguments(name, arguments).map(|()| {
                json_output(json!({"endpoints": catalogue::endpoints(&self.backend.context)}))
            }),
            "list_tasks" => call.tasks(arguments).map(json_output),
            "capabilities" => {
                no_arguments(name, arguments)?;
                call.look_up(catalogue::capabilities).await.map(json_output)
            }
            _ if live::NAMES.contains(&name) => {
                let live = live::LiveCall {
                    backend: &self.backend,
                    caller: &call.caller,
                };
                live.call(name, arguments).await.map(json_output)
            }
            _ => Err(ToolError::NotFound(name.to_owned())),
        }
    }
}

/// A JSON answer as a string.
fn json_output(value: Value) -> ToolOutput {
    ToolOutput {
        value: Value::String(value.to_string()),
        finished: None,
    }
}

fn no_arguments(tool: &str, arguments: Map<String, Value>) -> Result<(), ToolError> {
    ToolArguments::new(tool, arguments, &[])
        .map(|_| ())
        .map_err(ToolError::InvalidArguments)
}

impl From<SubmitError> for ToolError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Arguments(text) => ToolError::InvalidArguments(text),
            SubmitError::Busy(_) | SubmitError::Failed(_) => ToolError::Failed(error.to_string()),
        }
    }
}

impl From<ViewError> for ToolError {
    fn from(error: ViewError) -> Self {
        ToolError::Failed(chain(&error))
    }
}

/// The requested form, or the default for this kind of client.
fn form_for(wanted: Option<TraceDetail>, client: ClientKind) -> ResultForm {
    match (wanted, client) {
        (Some(wanted), _) => ResultForm::View(wanted),
        (None, ClientKind::OpenEnv) => ResultForm::OpenEnv,
        (None, ClientKind::Mcp) => ResultForm::Summary,
    }
}

/// One call of one tool.
struct ToolCall<'a> {
    backend: &'a Arc<Backend>,
    caller: Caller,
}

impl ToolCall<'_> {
    async fn run(&self, mut arguments: Map<String, Value>) -> Result<ToolOutput, ToolError> {
        let wanted = arguments.remove("trace").filter(|value| !value.is_null());
        let wanted = wanted.map(|value| wanted_of(value.as_str().unwrap_or_default()));
        let form = form_for(wanted.transpose()?, self.caller.client);
        let owner = &self.caller.owner;
        let entries = self.backend.submit("run_rollout", owner, arguments).await?;
        for entry in &entries {
            // Fails if the rollout has already ended, which is fine.
            let _ = self.backend.engine.command(entry, RolloutCommand::Finalize);
        }
        follow::until_ended(&entries, self.caller.progress.as_ref()).await;
        let mut results = Vec::new();
        for entry in &entries {
            results.push(self.result(entry).await);
        }
        let finished = results.last().map(|result| finished(result));
        let bytes_max = ANSWER_BYTES_MAX / results.len().max(1);
        let mut texts = Vec::new();
        for result in &results {
            texts.push(self.backend.result_text(result, form, bytes_max).await?);
        }
        let text = match texts.len() {
            1 => texts.remove(0),
            _ => format!("[{}]", texts.join(",")),
        };
        Ok(ToolOutput {
            value: Value::String(text),
            finished,
        })
    }

    /// One page of a result's tokens.
    async fn trace(&self, arguments: Map<String, Value>) -> Result<ToolOutput, ToolError> {
        let wrong = ToolError::InvalidArguments;
        let (id, mut more) = self.id_of("get_trace", arguments, &["form", "offset", "limit"])?;
        let form = more.text("form").map_err(wrong)?;
        let pages = PagedTrace::named(form.as_deref().unwrap_or("sequences")).ok_or_else(|| {
            wrong(format!(
                "argument `form` must be one of {}",
                PagedTrace::NAMES.join(", ")
            ))
        })?;
        let mut place = |name: &str| match more.integer(name).map_err(wrong)?.map(usize::try_from) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(wrong(format!("argument `{name}` must not be negative"))),
        };
        let (offset, limit) = (place("offset")?, place("limit")?);
        let unknown = || ToolError::Failed(format!("unknown rollout_id: {id}"));
        let result = match self.find(&id).await.ok_or_else(unknown)? {
            RolloutLookup::InMemory(entry) if !entry.is_ended() => {
                let text =
                    format!("rollout {id} has not ended: get_messages shows what was said so far");
                return Err(ToolError::Failed(text));
            }
            RolloutLookup::InMemory(entry) => self.result(&entry).await,
            RolloutLookup::Stored(summary) => {
                let stored = self.backend.engine.stored(summary.row.rollout_id).await;
                stored.map_err(|error| ToolError::Failed(chain(&error)))?
            }
        };
        let (offset, limit) = (offset.unwrap_or(0), limit.unwrap_or(usize::MAX).max(1));
        let page = self.backend.page(&result, pages, offset, limit).await?;
        Ok(ToolOutput {
            value: Value::String(page),
            finished: None,
        })
    }

    /// The result of a rollout, or an empty one with the error if it cannot be read.
    async fn result(&self, entry: &RolloutEntry) -> Arc<RolloutResult> {
        match self.backend.engine.wait(entry).await {
            Ok(result) => result,
            Err(error) => {
                let error = chain(&error);
                Arc::new(answer::empty_result(entry.id, &entry.task_id, error))
            }
        }
    }

    async fn start(&self, arguments: Map<String, Value>) -> Result<ToolOutput, ToolError> {
        let owner = &self.caller.owner;
        let entries = self
            .backend
            .submit("start_rollout", owner, arguments)
            .await?;
        let mut handles: Vec<Value> = entries.iter().map(|entry| answer::handle(entry)).collect();
        let answer = match handles.len() {
            1 => handles.remove(0),
            _ => Value::Array(handles),
        };
        Ok(json_output(answer))
    }

    async fn state(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let (id, _) = self.id_of("get_state", arguments, &[])?;
        match self.find(&id).await {
            None => Ok(json!({"rollout_id": id, "status": "unknown"})),
            Some(found) => Ok(answer::state(&self.backend.engine, &found).await),
        }
    }

    async fn messages(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let (id, _) = self.id_of("get_messages", arguments, &[])?;
        match self.find(&id).await {
            None => Ok(json!({
                "rollout_id": id, "messages": [], "status": "unknown", "error": format!("unknown rollout_id: {id}"),
            })),
            Some(found) => Ok(json!(messages(self.backend, &found).await?)),
        }
    }

    async fn send(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let wrong = ToolError::InvalidArguments;
        let (id, mut more) = self.id_of("send_message", arguments, &["text"])?;
        let text = more.required_text("send_message", "text").map_err(wrong)?;
        let refused = |reason: String| json!({"rollout_id": id, "queued": false, "reason": reason});
        Ok(match self.find(&id).await {
            None => refused("unknown".to_owned()),
            Some(RolloutLookup::InMemory(entry)) => {
                let message = RolloutCommand::Message(text);
                match self.backend.engine.command(&entry, message) {
                    Ok(()) => json!({"rollout_id": id, "queued": true}),
                    Err(error) => refused(error.to_string()),
                }
            }
            Some(RolloutLookup::Stored(_)) => refused(CommandError::Over.to_string()),
        })
    }

    async fn abort(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let (id, _) = self.id_of("abort_rollout", arguments, &[])?;
        Ok(match self.find(&id).await {
            None => json!({"rollout_id": id, "aborted": false, "reason": "unknown"}),
            Some(RolloutLookup::InMemory(entry))
                if self
                    .backend
                    .engine
                    .command(&entry, RolloutCommand::Abort)
                    .is_ok() =>
            {
                json!({"rollout_id": id, "aborted": true})
            }
            Some(_) => json!({"rollout_id": id, "aborted": false, "reason": "already done"}),
        })
    }

    async fn finalize(&self, arguments: Map<String, Value>) -> Result<ToolOutput, ToolError> {
        let (id, mut more) = self.id_of("finalize_rollout", arguments, &["wait_s", "trace"])?;
        let wanted = more.text("trace").map_err(ToolError::InvalidArguments)?;
        let wanted = wanted.as_deref().map(wanted_of).transpose()?;
        let form = form_for(wanted, self.caller.client);
        let wait_s = more.number("wait_s").map_err(ToolError::InvalidArguments)?;
        let wait_s = wait_s.unwrap_or(WAIT_S).clamp(0.0, WAIT_S_MAX);
        let result = match self.find(&id).await {
            None => {
                let text = format!("unknown rollout_id: {id}");
                return answer::not_finalized(&id, "", ("unknown", &text), 0);
            }
            Some(RolloutLookup::InMemory(entry)) => {
                let _ = self
                    .backend
                    .engine
                    .command(&entry, RolloutCommand::Finalize);
                let entries = [Arc::clone(&entry)];
                let followed = follow::until_ended(&entries, self.caller.progress.as_ref());
                let limit = std::time::Duration::from_secs_f64(wait_s);
                if tokio::time::timeout(limit, followed).await.is_err() {
                    let text = format!("timeout waiting for rollout_id={id}");
                    return answer::not_finalized(&id, &entry.task_id, ("running", &text), -1);
                }
                self.result(&entry).await
            }
            Some(RolloutLookup::Stored(summary)) => {
                match self.backend.engine.stored(summary.row.rollout_id).await {
                    Ok(result) => result,
                    Err(error) => {
                        let text = chain(&error);
                        let status = ("unknown", text.as_str());
                        return answer::not_finalized(&id, &summary.row.task_id, status, -1);
                    }
                }
            }
        };
        Ok(ToolOutput {
            value: Value::String(
                self.backend
                    .result_text(&result, form, ANSWER_BYTES_MAX)
                    .await?,
            ),
            finished: Some(finished(&result)),
        })
    }

    async fn events(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let (id, mut more) = self.id_of("subscribe_events", arguments, &["after"])?;
        let after = more.integer("after").map_err(ToolError::InvalidArguments)?;
        let after = u64::try_from(after.unwrap_or(0)).unwrap_or_default();
        match self.find(&id).await {
            None => Ok(json!({"rollout_id": id, "status": "unknown", "events": []})),
            Some(found) => answer::events(&self.backend.engine, &found, after)
                .await
                .map_err(ToolError::Failed),
        }
    }

    fn tasks(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let wrong = ToolError::InvalidArguments;
        let names = ["split", "start", "stop"];
        let mut given = ToolArguments::new("list_tasks", arguments, &names).map_err(wrong)?;
        let split = given.text("split").map_err(wrong)?;
        let mut place = |name| {
            let number = given.integer(name).map_err(wrong)?;
            Ok::<_, ToolError>(number.and_then(|number| usize::try_from(number).ok()))
        };
        let (start, stop) = (place("start")?.unwrap_or(0), place("stop")?);
        let tasks = &self.backend.context.tasks;
        Ok(json!(catalogue::tasks(
            tasks,
            split.as_deref(),
            start,
            stop
        )))
    }

    /// The rollout that a call is about, and its other arguments.
    fn id_of(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        more: &[&str],
    ) -> Result<(String, ToolArguments), ToolError> {
        let names = [&["rollout_id"], more].concat();
        let mut given =
            ToolArguments::new(tool, arguments, &names).map_err(ToolError::InvalidArguments)?;
        let id = given
            .required_text(tool, "rollout_id")
            .map_err(ToolError::InvalidArguments)?;
        Ok((id, given))
    }

    /// Runs a lookup that reads from disk on a blocking thread.
    async fn look_up<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Backend) -> T + Send + 'static,
    ) -> Result<T, ToolError> {
        let backend = Arc::clone(self.backend);
        let found = tokio::task::spawn_blocking(move || read(&backend)).await;
        found.map_err(|error| ToolError::Failed(error.to_string()))
    }

    async fn find(&self, id: &str) -> Option<RolloutLookup> {
        let found = self.backend.engine.find(&self.caller.owner, id).await;
        found.ok()
    }
}

fn wanted_of(name: &str) -> Result<TraceDetail, ToolError> {
    let wanted = name.parse::<TraceDetail>();
    wanted.map_err(|error| ToolError::InvalidArguments(error.to_string()))
}

fn finished(result: &RolloutResult) -> FinishedRollout {
    FinishedRollout {
        task_id: result.task_id.clone(),
        sandbox_id: result.sandbox_id.clone(),
        reward: result.reward,
        is_counted: true,
    }
}

#[cfg(test)]
mod tests;
