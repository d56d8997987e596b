//! What happens to rollouts, as one stream that every reader (progress, server, page) sees in the same order.

use serde::{Deserialize, Serialize};

use crate::ending::Ended;
use crate::id::RolloutId;
use crate::live::{Reply, ReplyKind};
use crate::record::CommandResult;

/// The longest text in an event; more is cut, and the event says so.
pub const TEXT_BYTES_MAX: usize = 16 << 10;
/// The most tool calls of one model call in an event.
const TOOL_CALLS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Event {
    pub rollout: RolloutId,
    /// Unix seconds.
    pub at: f64,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// Waits for a free slot.
    Queued,
    Entered {
        phase: Phase,
    },
    /// A setup or verify command begins.
    CommandStarted {
        phase: Phase,
        number: usize,
        of: usize,
        cmd: String,
    },
    /// A setup or verify command ended.
    Command {
        phase: Phase,
        number: usize,
        of: usize,
        /// As the result has it.
        #[serde(flatten)]
        outcome: CommandResult,
    },
    /// A model call was answered.
    Call {
        exchange: u64,
        status: Option<u16>,
        prompt_tokens: Option<u64>,
        completion_tokens: Option<u64>,
        /// US dollars of all calls so far; missing where the price is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spent_usd: Option<f64>,
        /// What the model said; each text is cut to 16 KiB, with a mark in words.
        #[serde(flatten)]
        said: Said,
    },
    /// The served agent has a session: its own name for the conversation.
    Session {
        serve_session_id: String,
    },
    /// A turn of the served agent begins: the instruction, or a message that came later.
    TurnStarted {
        /// From 1 on.
        number: u64,
    },
    /// What the served agent says and does, as it goes. Text is told about ten times a second, however small its pieces.
    Reply {
        reply: Reply,
    },
    /// The served agent has nothing to do: it waits for a message, for being finalized, or for the end of its time.
    Idle {
        /// Why the last turn failed, if it did.
        error: Option<String>,
    },
    /// The agent is over, and so is everything it started.
    AgentExited {
        /// 128 + the signal's number after a signal; none when it had to be killed.
        exit_code: Option<i32>,
    },
    /// What was kept of the work directory, by path.
    Collected {
        files: Vec<String>,
        /// Listed only: no text, or too large.
        files_extra: Vec<String>,
    },
    Finished {
        ended: Ended,
        reward: Option<f64>,
        wall_s: f64,
        error: Option<String>,
    },
}

impl What {
    /// The event's name, as it is written.
    pub fn name(&self) -> &'static str {
        match self {
            What::Queued => "queued",
            What::Entered { .. } => "entered",
            What::CommandStarted { .. } => "command_started",
            What::Command { .. } => "command",
            What::Call { .. } => "call",
            What::Session { .. } => "session",
            What::TurnStarted { .. } => "turn_started",
            What::Reply { .. } => "reply",
            What::Idle { .. } => "idle",
            What::AgentExited { .. } => "agent_exited",
            What::Collected { .. } => "collected",
            What::Finished { .. } => "finished",
        }
    }
}

impl What {
    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        let content = match self {
            What::Queued
            | What::Entered { .. }
            | What::TurnStarted { .. }
            | What::AgentExited { .. } => 0,
            What::CommandStarted { cmd, .. } => cmd.len(),
            What::Command { outcome, .. } => {
                outcome.cmd.len() + outcome.stdout.len() + outcome.stderr.len()
            }
            What::Call { said, .. } => said.bytes(),
            What::Session { serve_session_id } => serve_session_id.len(),
            What::Reply { reply } => reply_bytes(reply),
            What::Idle { error } | What::Finished { error, .. } => text_bytes(error),
            What::Collected { files, files_extra } => {
                let paths = files.iter().chain(files_extra);
                paths.map(|path| path.len() + size_of::<String>()).sum()
            }
        };
        size_of::<Event>() + content
    }
}

fn text_bytes(text: &Option<String>) -> usize {
    text.as_ref().map_or(0, String::len)
}

fn reply_bytes(reply: &Reply) -> usize {
    let content = match &reply.kind {
        ReplyKind::Delta { text }
        | ReplyKind::Reasoning { text }
        | ReplyKind::Final { text, .. }
        | ReplyKind::Error { message: text, .. } => text.len(),
        // A value takes several times the memory of its text.
        ReplyKind::Tool { input, output, .. } => 4 * input.to_string().len() + text_bytes(output),
        ReplyKind::Permission { patterns, .. } => patterns.iter().map(String::len).sum(),
        ReplyKind::Question { questions, .. } => 4 * questions.to_string().len(),
    };
    reply.trace_id.len() + reply.turn_id.len() + text_bytes(&reply.session_id) + content
}

/// What a model answered in one call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Said {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<SaidToolCall>,
}

/// A tool call that a model asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SaidToolCall {
    pub id: String,
    pub name: String,
    /// As the model wrote them.
    pub arguments: String,
}

impl Said {
    /// Of a parsed answer.
    pub fn of(message: &rollcage_dialect::chat::Message) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| cut(text));
        let reasoning = ["reasoning_content", "reasoning"];
        let mut reasoning = reasoning
            .iter()
            .filter_map(|name| message.other.get(*name)?.as_str());
        let call = |call: &rollcage_dialect::chat::ToolCall| SaidToolCall {
            id: cut(call.id.as_deref().unwrap_or_default()),
            name: cut(&call.name),
            arguments: cut(&call.arguments),
        };
        Said {
            text: message.content.as_deref().and_then(some),
            reasoning: reasoning.find_map(some),
            tool_calls: message
                .tool_calls
                .iter()
                .take(TOOL_CALLS_MAX)
                .map(call)
                .collect(),
        }
    }

    fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter();
        let calls = calls
            .map(|call| size_of_val(call) + call.id.len() + call.name.len() + call.arguments.len());
        text_bytes(&self.text) + text_bytes(&self.reasoning) + calls.sum::<usize>()
    }
}

/// A text that fits into an event.
pub fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    let missing = text[end..].len();
    format!("{}… [{missing} more bytes, see the record]", &text[..end])
}

/// The same reply with texts that fit into an event.
pub fn cut_reply(mut reply: Reply) -> Reply {
    match &mut reply.kind {
        ReplyKind::Delta { text }
        | ReplyKind::Reasoning { text }
        | ReplyKind::Final { text, .. }
        | ReplyKind::Error { message: text, .. } => *text = cut(text),
        ReplyKind::Tool { input, output, .. } => {
            *output = output.as_deref().map(cut);
            let written = input.to_string();
            if written.len() > TEXT_BYTES_MAX {
                *input = cut(&written).into();
            }
        }
        ReplyKind::Permission { .. } | ReplyKind::Question { .. } => {}
    }
    reply
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RolloutPhase")]
pub enum Phase {
    /// The agent is installed and the endpoint is looked at.
    Prepare,
    Sandbox,
    Setup,
    Agent,
    /// Aborted, with the agent dead: the sandbox waits for somebody who wants the grade.
    Kept,
    Verify,
    Collect,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Prepare => "prepare",
            Phase::Sandbox => "sandbox",
            Phase::Setup => "setup",
            Phase::Agent => "agent",
            Phase::Kept => "kept",
            Phase::Verify => "verify",
            Phase::Collect => "collect",
        }
    }
}

#[cfg(test)]
mod tests {
    use rollcage_dialect::chat::{Message, ToolCall};

    use super::*;

    #[test]
    fn a_call_tells_what_was_said_and_cuts_what_is_long() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let message = Message {
            content: Some(long),
            other: [("reasoning_content".to_owned(), "so".into())]
                .into_iter()
                .collect(),
            tool_calls: vec![ToolCall {
                id: Some("c1".to_owned()),
                name: "bash".to_owned(),
                arguments: "{}".to_owned(),
            }],
            ..Message::default()
        };
        let said = Said::of(&message);
        let text = said.text.clone().unwrap();
        assert!(
            text.ends_with("é… [16384 more bytes, see the record]"),
            "{}",
            text.len()
        );
        let event = Event {
            rollout: RolloutId::generate(),
            at: 1.0,
            what: What::Call {
                exchange: 1,
                status: Some(200),
                prompt_tokens: None,
                completion_tokens: Some(3),
                spent_usd: None,
                said,
            },
        };
        let value = serde_json::to_value(&event).unwrap();
        assert_eq!(value["reasoning"], "so");
        assert_eq!(value["tool_calls"][0]["name"], "bash");
        assert_eq!(serde_json::from_value::<Event>(value).unwrap(), event);
        assert!((16 << 10..20 << 10).contains(&event.what.bytes()));
    }
}
