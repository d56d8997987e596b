//! `rollcage show`.

mod transcript;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use rollcage_engine::result::{proxy_turns, stored};
use rollcage_engine::store::{Store, StoreError};
use rollcage_model::browse::Reading;
use rollcage_model::id::RolloutId;
use rollcage_model::record::{CommandResult, RolloutResult, RolloutTurn};
use rollcage_model::task::WORKDIR;
use rollcage_model::trace::Facts;
use rollcage_model::transcript::Transcript;
use rollcage_model::view::{TraceDetail, View};

use super::trace::TraceName;
use crate::saved::{self, Saving, Viewer};
use crate::server::api::whole_answers;
use crate::server::web;
use crate::{Outcome, output, report, settings, text};

/// Show one rollout: how it ended, its commands, and what agent and model said to each other.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The rollout's id, its beginning or its end
    #[arg(value_name = "ID")]
    id: String,

    /// Print the whole result as JSON
    #[arg(long)]
    json: bool,

    /// How much of the tokens goes with --json
    #[arg(long, value_enum, default_value_t = TraceName::Sequences, value_name = "FORM")]
    trace: TraceName,

    /// Show the agent's own account instead: what it says that it said, thought and did, and what it counted. With
    /// --json it is the member `agent_transcript`
    #[arg(long)]
    transcript: bool,

    /// Do not cut long messages
    #[arg(long)]
    full: bool,

    /// Save everything about it as one HTML file, which opens in a browser without a server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "transcript", "full"])]
    html: Option<PathBuf>,
}

/// Lines shown of a message without --full; system prompts can have hundreds.
const LINES_MAX: usize = 12;
/// Characters shown of a line.
const WIDTH_MAX: usize = 400;
/// Characters of each text of a transcript in JSON.
const CHARS_MAX: usize = 4000;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let store = settings::store()?;
    let id = store
        .find(&arguments.id)
        .map_err(|error| crate::UsageError(error.to_string()))?;
    let result = match stored(&store, id) {
        Err(StoreError::Running(_)) if arguments.html.is_none() && !arguments.transcript => {
            return running(&store, id, arguments);
        }
        read => read?,
    };
    if let Some(path) = &arguments.html {
        return save(&store, &result, path);
    }
    let account = match arguments.transcript {
        true => store.transcript(&result)?,
        false => None,
    };
    let lines_max = arguments.lines_max();
    let mut out = output::stdout();
    if arguments.json {
        let wanted = TraceDetail::from(arguments.trace);
        let view = match wanted {
            TraceDetail::None => View::bare(&result),
            TraceDetail::Sequences | TraceDetail::Turns => {
                View::new(&result, &store.interpret_result(&result)?, wanted)
            }
        };
        write_json(&mut out, &view, account, arguments)?;
        return Ok(Outcome::Success);
    }
    let seen = store.interpret_result(&result)?;
    let result = seen.complete(&result);
    report::one(&mut out, &result)?;
    timings(&mut out, &result)?;
    if arguments.transcript {
        match account {
            Some(account) => transcript::show(&mut out, &account, lines_max)?,
            None => writeln!(out, "\nthe agent was never started, so it has told nothing")?,
        }
        return Ok(Outcome::Success);
    }
    commands(&mut out, "setup", &result.setup_results, lines_max)?;
    conversation(&mut out, proxy_turns(&seen), lines_max)?;
    commands(&mut out, "verify", &result.verify_results, lines_max)?;
    if !result.files.is_empty() {
        let names: Vec<_> = result
            .files
            .keys()
            .chain(&result.files_extra)
            .map(|path| within_workdir(path))
            .collect();
        writeln!(out, "\nfiles  {}", text::line(&names.join(", "), 400))?;
    }
    Ok(Outcome::Success)
}

impl Arguments {
    /// How many lines of each message are shown.
    fn lines_max(&self) -> usize {
        match self.full {
            true => usize::MAX,
            false => LINES_MAX,
        }
    }
}

/// A rollout that has not ended: what lists have of it, and what was said so far.
fn running(store: &Store, id: RolloutId, arguments: &Arguments) -> anyhow::Result<Outcome> {
    let summary = store.summary(id).ok_or(StoreError::Running(id))?;
    let mut out = output::stdout();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&summary)?)?;
        return Ok(Outcome::Success);
    }
    let row = &summary.row;
    let time = text::duration(row.wall_s);
    writeln!(out, "{}  running  {time}", row.task_id)?;
    let model = text::line(&row.model, 60);
    writeln!(out, "  agent    {}, model {model}", row.agent)?;
    let seen = store.interpret(id)?;
    conversation(&mut out, proxy_turns(&seen), arguments.lines_max())?;
    Ok(Outcome::Success)
}

/// Saves a rollout as a page.
fn save(store: &Store, result: &RolloutResult, path: &Path) -> anyhow::Result<Outcome> {
    let viewer = Viewer::new(web::file)?;
    let exchanges = store.exchanges(result.rollout_id);
    let bytes = match std::fs::read(&exchanges) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.with_context(|| format!("read {}", exchanges.display()))?,
    };
    let reading = Reading::new(bytes.into(), &Facts::from(result), false);
    let saving = Saving {
        store,
        result,
        reading: &reading,
        others: &whole_answers(store, result)?,
    };
    let mut page = Vec::new();
    saved::write(&saving, &viewer, &mut page)?;
    std::fs::write(path, &page).with_context(|| format!("write {}", path.display()))?;
    let size = text::bytes(page.len() as u64);
    writeln!(output::stdout(), "{} ({size})", path.display())?;
    Ok(Outcome::Success)
}

/// The path relative to the work directory, where most files are; others stay absolute.
fn within_workdir(path: &str) -> &str {
    let inside = path.strip_prefix(WORKDIR);
    inside
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(path)
}

/// The result, with the agent's transcript if that was requested.
fn write_json(
    out: &mut impl Write,
    view: &View<'_>,
    account: Option<Transcript>,
    arguments: &Arguments,
) -> anyhow::Result<()> {
    let mut value = serde_json::to_value(view)?;
    if arguments.transcript {
        let account = account.map(|mut account| {
            if !arguments.full {
                account.cut(CHARS_MAX);
            }
            account
        });
        value["agent_transcript"] = serde_json::to_value(account)?;
    }
    serde_json::to_writer(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}

fn timings(out: &mut impl Write, result: &RolloutResult) -> std::io::Result<()> {
    let timings = &result.timings;
    let first = timings
        .first_call_s
        .map(|seconds| format!(" (first call after {})", text::duration(seconds)));
    writeln!(
        out,
        "  timings  sandbox {}, setup {}, agent {}{}, verify {}, collect {}",
        text::duration(timings.sandbox_s),
        text::duration(timings.setup_s),
        text::duration(timings.agent_s),
        first.unwrap_or_default(),
        text::duration(timings.verify_s),
        text::duration(timings.collect_s),
    )
}

fn commands(
    out: &mut impl Write,
    name: &str,
    results: &[CommandResult],
    lines_max: usize,
) -> std::io::Result<()> {
    for result in results {
        let late = if result.timed_out { ", timed out" } else { "" };
        writeln!(out, "\n{name}  {}", text::block(&result.cmd))?;
        writeln!(
            out,
            "  exit {}{late}, {}",
            result.exit_code,
            text::duration(result.duration_s)
        )?;
        for stream in [&result.stdout, &result.stderr] {
            indented(out, stream, lines_max)?;
        }
    }
    Ok(())
}

/// Every model call: the new messages of its request, then the answer.
fn conversation(
    out: &mut impl Write,
    turns: impl Iterator<Item = RolloutTurn>,
    lines_max: usize,
) -> std::io::Result<()> {
    let mut seen: Vec<Value> = Vec::new();
    for turn in turns {
        let empty = Vec::new();
        let messages = turn
            .request
            .get("messages")
            .and_then(Value::as_array)
            .unwrap_or(&empty);
        let known = messages
            .iter()
            .zip(&seen)
            .take_while(|(now, before)| now == before)
            .count();
        for message in &messages[known..] {
            // The next request repeats the model's own message, which was already shown as its answer.
            if known == 0 || message.get("role").and_then(Value::as_str) != Some("assistant") {
                said(out, message, lines_max)?;
            }
        }
        seen.clone_from(messages);
        answered(out, &turn, lines_max)?;
    }
    Ok(())
}

fn answered(out: &mut impl Write, turn: &RolloutTurn, lines_max: usize) -> std::io::Result<()> {
    let tokens = format!(
        "{} + {} tokens",
        turn.prompt_tokens,
        turn.completion_token_ids.len()
    );
    let finish = turn.finish_reason.as_deref().unwrap_or("no finish");
    writeln!(
        out,
        "\n#{} {} ({tokens}, {finish}, {})",
        turn.turn,
        turn.role,
        text::duration(turn.latency_s)
    )?;
    if let Some(error) = &turn.upstream_error {
        writeln!(out, "  error {}", text::line(&error.to_string(), 400))?;
    }
    match turn.response.get("message") {
        Some(message) if message.is_object() => body(out, message, lines_max),
        _ => Ok(()),
    }
}

fn said(out: &mut impl Write, message: &Value, lines_max: usize) -> std::io::Result<()> {
    writeln!(
        out,
        "\n{}",
        text::line(
            message.get("role").and_then(Value::as_str).unwrap_or("?"),
            40
        )
    )?;
    body(out, message, lines_max)
}

fn body(out: &mut impl Write, message: &Value, lines_max: usize) -> std::io::Result<()> {
    if let Some(reasoning) = message.get("reasoning_content").and_then(Value::as_str) {
        writeln!(out, "  (thinks)")?;
        indented(out, reasoning, lines_max)?;
    }
    match message.get("content") {
        Some(Value::String(text)) => indented(out, text, lines_max)?,
        Some(Value::Array(parts)) => {
            for part in parts {
                let text = part
                    .get("text")
                    .and_then(Value::as_str)
                    .map_or_else(|| part.to_string(), str::to_owned);
                indented(out, &text, lines_max)?;
            }
        }
        _ => {}
    }
    for call in message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let name = call
            .pointer("/function/name")
            .and_then(Value::as_str)
            .unwrap_or("?");
        let arguments = call
            .pointer("/function/arguments")
            .and_then(Value::as_str)
            .unwrap_or_default();
        called(out, name, arguments, lines_max)?;
    }
    Ok(())
}

fn called(
    out: &mut impl Write,
    name: &str,
    arguments: &str,
    lines_max: usize,
) -> std::io::Result<()> {
    let width = if lines_max == usize::MAX {
        usize::MAX
    } else {
        WIDTH_MAX
    };
    writeln!(
        out,
        "  → {}({})",
        text::line(name, 80),
        text::line(arguments, width)
    )
}

fn indented(out: &mut impl Write, content: &str, lines_max: usize) -> std::io::Result<()> {
    let clean = text::block(content);
    let lines: Vec<_> = clean.trim_end().lines().collect();
    for line in lines.iter().take(lines_max) {
        match line.char_indices().nth(WIDTH_MAX) {
            Some((end, _)) if lines_max != usize::MAX => writeln!(out, "  {}…", &line[..end])?,
            _ => writeln!(out, "  {line}")?,
        }
    }
    if lines.len() > lines_max {
        writeln!(
            out,
            "  … {} more lines (--full shows them)",
            lines.len() - lines_max
        )?;
    }
    Ok(())
}
