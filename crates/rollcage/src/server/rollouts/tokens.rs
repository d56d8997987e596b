//! Results with their tokens, as the tools return them: in OpenEnv's own form as far as it fits into one answer, in
//! ours, or as a summary; and traces page by page.

use serde::Serialize;
use serde_json::{Value, json};

use rollcage_engine::result::proxy_turns;
use rollcage_engine::store::Store;
use rollcage_model::call::{self, Call};
use rollcage_model::finding::{Code, Finding, RolloutType};
use rollcage_model::record::RolloutResult;
use rollcage_model::sequence;
use rollcage_model::trace::{Interpretation, SCHEMA_VERSION};
use rollcage_model::view::{TraceDetail, View};

use super::error::ViewError;

/// For one answer. A message contains its text twice, and OpenEnv's clients refuse messages over 100 MiB.
pub(crate) const ANSWER_BYTES_MAX: usize = 32 << 20;
/// For one page, unless a single item is larger. Pages are large because each of them reads the whole record again.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// How a result is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultForm {
    /// The original's form: its turns, and the strict trace.
    OpenEnv,
    /// Our form, with the requested tokens.
    View(TraceDetail),
    /// For the model of an MCP client, whose context is limited.
    Summary,
}

/// A result as JSON. Reads the record unless no tokens are requested.
pub(crate) fn text(
    store: &Store,
    result: &RolloutResult,
    form: ResultForm,
    bytes_max: usize,
) -> Result<String, ViewError> {
    match form {
        ResultForm::Summary => Ok(summary(result).to_string()),
        ResultForm::View(TraceDetail::None) => json_of(&View::bare(result)),
        ResultForm::View(wanted) => {
            json_of(&View::new(result, &store.interpret_result(result)?, wanted))
        }
        ResultForm::OpenEnv => openenv(result, &store.interpret_result(result)?, bytes_max),
    }
}

fn json_of(value: &impl Serialize) -> Result<String, ViewError> {
    Ok(serde_json::to_string(value)?)
}

/// What a model needs to continue, and where to get the rest.
fn summary(result: &RolloutResult) -> Value {
    let commands = |list: &[rollcage_model::record::CommandResult]| -> Vec<Value> {
        let command = |it: &rollcage_model::record::CommandResult| json!({"cmd": it.cmd, "exit_code": it.exit_code, "timed_out": it.timed_out});
        list.iter().map(command).collect()
    };
    json!({
        "rollout_id": result.rollout_id, "task_id": result.task_id, "group": result.group,
        "ended": result.ended, "error": result.error, "retryable": result.retryable,
        "graded": result.graded, "reward": result.reward, "reward_valid": result.reward_valid,
        "rollout_type": result.rollout_type, "capture_level": result.capture_level,
        "agent": {"name": result.agent.name, "version": result.agent.version},
        "model": result.endpoint.model, "usage": result.usage, "wall_s": result.wall_s,
        "setup_results": commands(&result.setup_results), "verify_results": commands(&result.verify_results),
        "files": result.files.keys().collect::<Vec<_>>(), "files_extra": result.files_extra,
        "last_message": result.agent_report.last_message, "findings": result.findings,
        "more": "finalize_rollout with trace=none returns the whole result, get_trace its tokens page by page",
    })
}

/// How much of the conversation each turn of the original's form contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageScope {
    /// All of it, as in the original.
    Whole,
    /// The new messages, and a reference to the repeated ones.
    New,
}

/// The original's form. If it does not fit, parts are omitted step by step, and a finding says where to get them.
fn openenv(
    result: &RolloutResult,
    seen: &Interpretation,
    bytes_max: usize,
) -> Result<String, ViewError> {
    let result = &*seen.complete(result);
    let head = json_of(&View::bare(result))?;
    // Leaves room for the finding.
    let room = bytes_max.saturating_sub(escaped(&head) + 1000);
    let is_train = seen.rollout_type == RolloutType::Train;
    if let Some(turns) = turns_text(seen, MessageScope::Whole, room)? {
        let trace = match is_train {
            true => trace_text(seen, room - escaped(&turns))?,
            false => Some("null".to_owned()),
        };
        return match trace {
            Some(trace) => Ok(join(&head, &turns, &trace)),
            None => without_trace(result, &turns, ""),
        };
    }
    let note = "; `proxy_turns` have only the new messages of each request";
    if let Some(turns) = turns_text(seen, MessageScope::New, room)? {
        return without_trace(result, &turns, note);
    }
    without_trace(result, "[]", "; so are `proxy_turns`")
}

fn without_trace(result: &RolloutResult, turns: &str, note: &str) -> Result<String, ViewError> {
    let mut result = result.clone();
    let text = format!(
        "the calls in full are larger than one answer can be, so `training_trace` is null: get_trace returns it page by page{note}"
    );
    let finding = Finding::warn(Code::TraceTooLarge, text);
    result.findings.push(finding);
    Ok(join(&json_of(&View::bare(&result))?, turns, "null"))
}

/// A result without tokens in the original's form.
pub(crate) fn openenv_without_calls(result: &RolloutResult) -> Result<String, ViewError> {
    Ok(join(&json_of(&View::bare(result))?, "[]", "null"))
}

fn join(head: &str, turns: &str, trace: &str) -> String {
    let head = head.strip_suffix('}').unwrap_or(head);
    format!("{head},\"proxy_turns\":{turns},\"training_trace\":{trace}}}")
}

/// `None` if it does not fit into `room`.
fn turns_text(
    seen: &Interpretation,
    scope: MessageScope,
    room: usize,
) -> Result<Option<String>, ViewError> {
    match scope {
        MessageScope::Whole => list_text(proxy_turns(seen), room),
        MessageScope::New => {
            let turns = proxy_turns(seen).zip(call::calls(seen));
            let turns = turns.map(|(mut turn, call)| {
                turn.request["messages"] = json!(call.messages.new);
                turn.request["messages_repeated"] = repeated(seen, &call);
                turn
            });
            list_text(turns, room)
        }
    }
}

/// Which messages a request repeats, by the turn numbers of the original's form.
fn repeated(seen: &Interpretation, call: &Call) -> Value {
    let messages = &call.messages;
    let turn = messages.parent.map(|parent| seen.turns[parent].exchange);
    json!({"turn": turn, "shared": messages.shared, "repeats": messages.repeats})
}

fn trace_text(seen: &Interpretation, room: usize) -> Result<Option<String>, ViewError> {
    let turns = list_text(seen.training_turns(), room)?;
    Ok(turns.map(|turns| format!("{{\"schema_version\":{SCHEMA_VERSION},\"turns\":{turns}}}")))
}

/// A list as JSON, built item by item so that one that is too large is abandoned early.
fn list_text<T: Serialize>(
    items: impl Iterator<Item = T>,
    room: usize,
) -> Result<Option<String>, ViewError> {
    let mut text = "[".to_owned();
    let mut taken = 2;
    for item in items {
        let item = json_of(&item)?;
        taken += escaped(&item) + 1;
        if taken > room {
            return Ok(None);
        }
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&item);
    }
    text.push(']');
    Ok(Some(text))
}

/// The length of JSON text after it is embedded as a string in other JSON.
fn escaped(json: &str) -> usize {
    let marks = json.bytes().filter(|byte| matches!(byte, b'"' | b'\\'));
    json.len() + marks.count()
}

/// The kinds of traces that `get_trace` returns in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PagedTrace {
    Sequences,
    Turns,
    TrainingTrace,
}

impl PagedTrace {
    pub(crate) const NAMES: [&str; 3] = ["sequences", "turns", "training_trace"];

    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "sequences" => Some(PagedTrace::Sequences),
            "turns" => Some(PagedTrace::Turns),
            "training_trace" => Some(PagedTrace::TrainingTrace),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            PagedTrace::Sequences => "sequences",
            PagedTrace::Turns => "turns",
            PagedTrace::TrainingTrace => "training_trace",
        }
    }
}

/// One page: items from `offset` on, up to `limit` and the page size, but at least one.
pub(crate) fn page(
    store: &Store,
    result: &RolloutResult,
    pages: PagedTrace,
    offset: usize,
    limit: usize,
) -> Result<String, ViewError> {
    let seen = store.interpret_result(result)?;
    let (total, items) = match pages {
        PagedTrace::Sequences => {
            let rows = sequence::rows(&seen);
            (rows.len(), page_of(rows.into_iter(), offset, limit)?)
        }
        PagedTrace::Turns => {
            let items = page_of(call::calls(&seen), offset, limit)?;
            (seen.turns.len(), items)
        }
        PagedTrace::TrainingTrace => {
            let items = page_of(seen.training_turns(), offset, limit)?;
            (seen.trained().count(), items)
        }
    };
    let next = offset.saturating_add(items.len());
    let head = json!({
        "rollout_id": result.rollout_id, "form": pages.name(), "schema_version": SCHEMA_VERSION,
        "rollout_type": result.rollout_type, "total": total, "offset": offset,
        "next_offset": (next < total).then_some(next), "findings": seen.complete(result).findings,
    });
    let head = head.to_string();
    let head = head.strip_suffix('}').unwrap_or(&head);
    Ok(format!("{head},\"items\":[{}]}}", items.join(",")))
}

fn page_of<T: Serialize>(
    items: impl Iterator<Item = T>,
    offset: usize,
    limit: usize,
) -> Result<Vec<String>, ViewError> {
    let mut page: Vec<String> = Vec::new();
    let mut taken = 0;
    for item in items.skip(offset).take(limit) {
        let item = json_of(&item)?;
        taken += escaped(&item) + 1;
        if taken > PAGE_BYTES_MAX && !page.is_empty() {
            break;
        }
        page.push(item);
    }
    Ok(page)
}

#[cfg(test)]
mod tests;
