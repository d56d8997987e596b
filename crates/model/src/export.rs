//! Interpreted rollouts in the formats that trainers and readers take. Every writer streams: what is held in memory
//! grows only with what is new in each turn.
//!
//! Writers know nothing of files; they are given somewhere to write. Exports have the codes of findings and results
//! have their texts, since a text in every line would grow with lines times findings.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::ending::Ended;
use crate::finding::{Code, Finding, RolloutType};
use crate::record::{AgentInfo, RolloutResult};
use crate::sequence::Trained;
use crate::trace::Interpretation;

pub mod atif;
pub mod capture;
mod chat;
mod conversation;
mod lines;
#[cfg(feature = "parquet")]
pub mod parquet;
mod training;

pub(crate) use conversation::new_messages;

#[cfg(test)]
mod tests;

/// What a rollout can be exported as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Rows of stitched ids with masks and logprobs, a line for each: what GRPO and its like train on.
    #[default]
    Sequences,
    /// OpenEnv's `TrainingTrace`, one document.
    TrainingTrace,
    /// OpenEnv's and TRL's trace entries, one document.
    TraceEntries,
    /// The document of OpenEnv's capture proxy.
    Capture,
    /// An ATIF trajectory, one document.
    Atif,
    /// Chats for supervised fine-tuning, a line for each conversation.
    Sft,
    /// Everything there is, a line for each model call, which holds what is new in it.
    Turns,
    /// A table with a row for each of the agent's turns.
    #[cfg(feature = "parquet")]
    Parquet,
}

impl Format {
    pub const ALL: &'static [Format] = &[
        Format::Sequences,
        Format::TrainingTrace,
        Format::TraceEntries,
        Format::Capture,
        Format::Atif,
        Format::Sft,
        Format::Turns,
        #[cfg(feature = "parquet")]
        Format::Parquet,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Format::Sequences => "sequences",
            Format::TrainingTrace => "training-trace",
            Format::TraceEntries => "trace-entries",
            Format::Capture => "capture",
            Format::Atif => "atif",
            Format::Sft => "sft",
            Format::Turns => "turns",
            #[cfg(feature = "parquet")]
            Format::Parquet => "parquet",
        }
    }

    /// What it is for, in one line for people.
    pub fn about(self) -> &'static str {
        match self {
            Format::Sequences => {
                "rows of token ids with masks and logprobs, for GRPO and its like; a line for each"
            }
            Format::TrainingTrace => "OpenEnv's TrainingTrace, one document",
            Format::TraceEntries => "OpenEnv's and TRL's trace entries, one document",
            Format::Capture => "the document of OpenEnv's capture proxy",
            Format::Atif => "an ATIF trajectory, one document",
            Format::Sft => "chats for supervised fine-tuning; a line for each conversation",
            Format::Turns => "everything there is; a line for each model call",
            #[cfg(feature = "parquet")]
            Format::Parquet => "a table with a row for each of the agent's turns",
        }
    }

    /// What a file of the format is called at its end.
    pub fn extension(self) -> &'static str {
        match self {
            Format::TrainingTrace | Format::TraceEntries | Format::Capture | Format::Atif => "json",
            Format::Sequences | Format::Sft | Format::Turns => "jsonl",
            #[cfg(feature = "parquet")]
            Format::Parquet => "parquet",
        }
    }

    /// Whether it holds nothing but what may be trained on.
    pub fn is_training_only(self) -> bool {
        match self {
            Format::Sequences | Format::TrainingTrace | Format::TraceEntries => true,
            Format::Capture | Format::Atif | Format::Sft | Format::Turns => false,
            #[cfg(feature = "parquet")]
            Format::Parquet => true,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name:?} is no format; there are {}", names())]
pub struct UnknownFormat {
    pub name: String,
}

fn names() -> String {
    let names: Vec<&str> = Format::ALL.iter().map(|format| format.as_str()).collect();
    names.join(", ")
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let found = Format::ALL.iter().find(|format| format.as_str() == name);
        found.copied().ok_or_else(|| UnknownFormat {
            name: name.to_owned(),
        })
    }
}

/// What is known of a rollout beside its exchanges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    pub rollout_id: String,
    pub task_id: String,
    /// The same for all rollouts that were asked for together.
    pub group: String,
    pub agent: AgentInfo,
    pub model: String,
    /// `None` for a rollout that was not scored, which is another thing than 0.
    pub reward: Option<f64>,
    pub reward_valid: bool,
    pub ended: Option<Ended>,
    /// Unix seconds.
    pub started_at: f64,
    /// Model calls that a limit answered instead of the model.
    pub budget_stop_count: u64,
}

impl From<&RolloutResult> for Meta {
    fn from(result: &RolloutResult) -> Self {
        Meta {
            rollout_id: result.rollout_id.to_string(),
            task_id: result.task_id.clone(),
            group: result.group.clone(),
            agent: result.agent.clone(),
            model: result.endpoint.model.clone(),
            reward: result.reward,
            reward_valid: result.reward_valid,
            ended: Some(result.ended),
            started_at: result.started_at,
            budget_stop_count: result.budget.stops,
        }
    }
}

/// What every line and document says of its rollout, so that they can be joined with results and with each other.
#[derive(Clone, Copy, Debug, Serialize)]
struct Head<'a> {
    rollout_id: &'a str,
    task_id: &'a str,
    group: &'a str,
    agent: &'a str,
    agent_version: &'a str,
    model: &'a str,
    /// Null for a rollout that was not scored.
    reward: Option<f64>,
    reward_valid: bool,
    ended: Option<&'static str>,
    /// What was found, as codes: the result has the words. A row of a rollout with a hole in it says so.
    #[serde(serialize_with = "write_codes")]
    finding_codes: &'a [Finding],
}

/// The codes that occur in findings, each once.
fn codes(findings: &[Finding]) -> BTreeSet<Code> {
    findings.iter().map(|finding| finding.code).collect()
}

fn write_codes<S: Serializer>(findings: &&[Finding], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(codes(findings))
}

impl<'a> Head<'a> {
    fn new(meta: &'a Meta, seen: &'a Interpretation) -> Self {
        Head {
            rollout_id: &meta.rollout_id,
            task_id: &meta.task_id,
            group: &meta.group,
            agent: &meta.agent.name,
            agent_version: &meta.agent.version,
            model: &meta.model,
            reward: meta.reward,
            reward_valid: meta.reward_valid,
            ended: meta.ended.map(Ended::as_str),
            finding_codes: &seen.findings,
        }
    }

    /// As members of an object that has room for them.
    fn members(self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(members)) => members,
            _ => Map::new(),
        }
    }
}

/// How the arguments of tool calls are written in chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arguments {
    /// As chat templates take them.
    #[default]
    Objects,
    /// As chat completions have them.
    Strings,
}

/// What may be added to the documents that have room for it, or written in another way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Of the chats for fine-tuning.
    pub arguments: Arguments,
    /// Also the paths that the agent did not go on from.
    pub include_discarded: bool,
    /// Of rows for training.
    pub trained: Trained,
    /// Also what was asked and answered, beside the ids.
    pub include_messages: bool,
}

#[derive(Debug, Error)]
pub enum ExportError {
    #[error("rollout {rollout_id} has no tokens that may be trained on: {reason}")]
    NotTrainable { rollout_id: String, reason: String },
    #[error("rollout {rollout_id} has no model call in it")]
    Empty { rollout_id: String },
    #[error("write the export")]
    Write(#[from] std::io::Error),
    #[error("write the export as JSON")]
    Json(#[from] serde_json::Error),
    #[cfg(feature = "parquet")]
    #[error("write the export as Parquet")]
    Parquet(#[from] ::parquet::errors::ParquetError),
}

/// Writes one rollout. A document ends in a line feed too, so that several rollouts make lines of one file; several
/// rollouts in one Parquet file need `parquet::Table`.
pub fn write(
    format: Format,
    seen: &Interpretation,
    meta: &Meta,
    options: Options,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    if format.is_training_only() {
        check_trainable(seen, meta)?;
    }
    match format {
        Format::Sequences => lines::write_sequences(seen, meta, options, out)?,
        Format::TrainingTrace => training::write_trace(seen, meta, out)?,
        Format::TraceEntries => training::write_entries(seen, meta, out)?,
        Format::Capture => capture::write(seen, meta, options, out)?,
        Format::Atif => atif::write(seen, meta, out)?,
        Format::Sft => lines::write_sft(seen, meta, options.arguments, out)?,
        Format::Turns => lines::write_turns(seen, meta, out)?,
        #[cfg(feature = "parquet")]
        Format::Parquet => {
            let mut table = parquet::Table::new(out)?;
            table.push(seen, meta)?;
            table.close()?;
        }
    }
    Ok(())
}

fn check_trainable(seen: &Interpretation, meta: &Meta) -> Result<(), ExportError> {
    if seen.rollout_type == RolloutType::Train {
        return Ok(());
    }
    let fatal = seen
        .findings
        .iter()
        .find(|finding| finding.level == crate::finding::Level::Fatal);
    let reason = fatal.map_or_else(
        || "the endpoint gave no token ids".to_owned(),
        |finding| finding.text.clone(),
    );
    Err(ExportError::NotTrainable {
        rollout_id: meta.rollout_id.clone(),
        reason,
    })
}

/// Serialises an iterator as a list, without collecting it first.
struct Stream<F>(F);

impl<F, I> Serialize for Stream<F>
where
    F: Fn() -> I,
    I: IntoIterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A value as one line.
fn write_line<T: Serialize + ?Sized>(
    value: &T,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}
