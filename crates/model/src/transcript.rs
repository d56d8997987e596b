//! What an agent says it did: its own event stream, in any of the formats agents have, as one list of entries.
//!
//! This is the agent's side of the story, and its word on how it ended: exit codes of several agents are 0 after a
//! failure. What the model really said is in the exchanges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod claude;
mod codex;
mod gemini;
mod goose;
mod mcp;
mod mini;
mod opencode;
mod pi;

pub use mcp::{McpNames, McpTool};
pub use opencode::events_of_messages;

/// The shape of an agent's events.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[schemars(rename = "Format")]
#[serde(rename_all = "snake_case")]
pub enum TranscriptFormat {
    /// `opencode run --format json`.
    Opencode,
    /// `claude -p --output-format stream-json`, and Qwen Code's.
    Claude,
    /// `codex exec --json`.
    Codex,
    /// `gemini --output-format stream-json`.
    Gemini,
    /// `goose run --output-format stream-json`.
    Goose,
    /// `pi --mode json`.
    Pi,
    /// mini-swe-agent's trajectory file.
    Mini,
    /// Whatever it prints; only its exit code says how it ended.
    #[default]
    Text,
}

/// One entry of an agent's own account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TranscriptEntry {
    Message {
        role: Speaker,
        text: String,
    },
    Reasoning {
        text: String,
    },
    ToolCall {
        id: String,
        name: String,
        input: Value,
        /// Which server's tool it is, if it is one's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mcp: Option<McpTool>,
    },
    ToolResult {
        id: String,
        output: String,
        is_error: bool,
    },
    /// Also one that it got over.
    Error {
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    User,
    Assistant,
    System,
}

/// How the agent says it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentEnd {
    /// It came to the end of its work.
    Done,
    Failed(String),
    /// It did not say: it was killed, it crashed, or it has no words for it.
    #[default]
    Unsaid,
}

/// What the agent counted itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "AgentUsage")]
pub struct AgentUsage {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Sampled tokens.
    pub output_tokens: u64,
    /// Prompt tokens that were cached.
    pub cached_tokens: u64,
}

/// An agent's own account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    pub entries: Vec<TranscriptEntry>,
    pub usage: Option<AgentUsage>,
    pub cost_usd: Option<f64>,
    pub end: AgentEnd,
}

/// What a result keeps of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Report {
    /// How its events are read; none when it was never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<TranscriptFormat>,
    /// How it names the tools of the task's MCP servers, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_names: Option<McpNames>,
    /// The agent's last words, cut to some length.
    pub last_message: Option<String>,
    /// Its tool calls.
    pub tool_calls: u64,
    /// Those of them that failed.
    pub tool_errors: u64,
    /// Those of the tool calls that went to MCP servers, by server and tool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_calls: BTreeMap<String, BTreeMap<String, u64>>,
    /// The last error that it told of, also one that it got over.
    pub last_error: Option<String>,
    /// What it counted itself.
    pub usage: Option<AgentUsage>,
    /// What it thinks it cost.
    pub cost_usd: Option<f64>,
}

/// Of a message or an error in a report.
const TEXT_CHARS_MAX: usize = 2000;

impl Transcript {
    /// Reads what an agent wrote. Lines that are no events are passed over: agents print warnings between them.
    pub fn read(format: TranscriptFormat, text: &str) -> Self {
        let mut transcript = Transcript::default();
        match format {
            TranscriptFormat::Opencode => opencode::read(events(text), &mut transcript),
            TranscriptFormat::Claude => claude::read(events(text), &mut transcript),
            TranscriptFormat::Codex => codex::read(events(text), &mut transcript),
            TranscriptFormat::Gemini => gemini::read(events(text), &mut transcript),
            TranscriptFormat::Goose => goose::read(events(text), &mut transcript),
            TranscriptFormat::Pi => pi::read(events(text), &mut transcript),
            TranscriptFormat::Mini => mini::read(text, &mut transcript),
            TranscriptFormat::Text => transcript.say(Speaker::Assistant, text.trim()),
        }
        transcript
    }

    pub fn report(&self) -> Report {
        let cut = |text: &String| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
        let count = |is_it: fn(&TranscriptEntry) -> bool| {
            self.entries.iter().filter(|entry| is_it(entry)).count() as u64
        };
        let mut backwards = self.entries.iter().rev();
        let last_message = backwards.find_map(|entry| match entry {
            TranscriptEntry::Message {
                role: Speaker::Assistant,
                text,
            } => Some(cut(text)),
            _ => None,
        });
        let last_error = self.entries.iter().rev().find_map(|entry| match entry {
            TranscriptEntry::Error { text } => Some(cut(text)),
            _ => None,
        });
        let mut mcp_calls: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for entry in &self.entries {
            if let TranscriptEntry::ToolCall { mcp: Some(mcp), .. } = entry {
                let tools = mcp_calls.entry(mcp.server.clone()).or_default();
                *tools.entry(mcp.tool.clone()).or_default() += 1;
            }
        }
        Report {
            format: None,
            mcp_names: None,
            mcp_calls,
            last_message,
            tool_calls: count(|entry| matches!(entry, TranscriptEntry::ToolCall { .. })),
            tool_errors: count(|entry| {
                matches!(entry, TranscriptEntry::ToolResult { is_error: true, .. })
            }),
            last_error,
            usage: self.usage,
            cost_usd: self.cost_usd,
        }
    }

    /// Cuts every text to so many characters, and says of each how many are missing.
    pub fn cut(&mut self, chars_max: usize) {
        for entry in &mut self.entries {
            match entry {
                TranscriptEntry::Message { text, .. }
                | TranscriptEntry::Reasoning { text }
                | TranscriptEntry::Error { text }
                | TranscriptEntry::ToolResult { output: text, .. } => cut(text, chars_max),
                TranscriptEntry::ToolCall { input, .. } => cut_inside(input, chars_max),
            }
        }
    }

    /// Adds text, to the previous message when that has the same speaker: some agents stream word by word.
    fn say_on(&mut self, role: Speaker, more: &str) {
        match self.entries.last_mut() {
            Some(TranscriptEntry::Message { role: before, text }) if *before == role => {
                text.push_str(more)
            }
            _ => self.say(role, more),
        }
    }

    fn say(&mut self, role: Speaker, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.entries.push(TranscriptEntry::Message { role, text });
        }
    }

    fn reason(&mut self, text: &str) {
        if !text.is_empty() {
            let text = text.to_owned();
            self.entries.push(TranscriptEntry::Reasoning { text });
        }
    }

    fn call(&mut self, id: &str, name: &str, input: Value) {
        self.entries.push(TranscriptEntry::ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            input,
            mcp: None,
        });
    }

    fn result(&mut self, id: &str, output: String, is_error: bool) {
        self.entries.push(TranscriptEntry::ToolResult {
            id: id.to_owned(),
            output,
            is_error,
        });
    }

    fn err(&mut self, text: &str) {
        let text = text.to_owned();
        self.entries.push(TranscriptEntry::Error { text });
    }
}

fn cut(text: &mut String, chars_max: usize) {
    if let Some((at, _)) = text.char_indices().nth(chars_max) {
        let missing = text[at..].chars().count();
        text.truncate(at);
        text.push_str(&format!("… {missing} more characters"));
    }
}

fn cut_inside(value: &mut Value, chars_max: usize) {
    match value {
        Value::String(text) => cut(text, chars_max),
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| cut_inside(item, chars_max)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|member| cut_inside(member, chars_max)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Every line that is a JSON object.
fn events(text: &str) -> impl Iterator<Item = Value> + '_ {
    let objects = text.lines().filter(|line| line.starts_with('{'));
    objects.filter_map(|line| serde_json::from_str(line).ok())
}

/// The text at a path; empty when there is none.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_default()
}

fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// A value as text: a string as it is, a list of text blocks joined, anything else as JSON.
fn flat(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) if blocks.iter().all(|block| block.get("text").is_some()) => {
            let texts: Vec<_> = blocks.iter().map(|block| text(block, "/text")).collect();
            texts.join("\n")
        }
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
