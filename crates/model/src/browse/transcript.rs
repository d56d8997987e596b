//! What was said in a rollout, as people read it: messages in order, each tool call with its result.

use schemars::JsonSchema;
use serde::Serialize;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The agent's own instructions.
    System,
    /// The task, or the agent in the user's place.
    User,
    /// The model.
    Assistant,
    /// A result whose call is not in the conversation.
    Tool,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Entry {
    /// Counts the conversation's entries from 0.
    pub entry: usize,
    /// Who speaks.
    pub speaker: Speaker,
    /// The call that it is the reply of, or that sent it first.
    pub turn: usize,
    /// Unix seconds, when that call was made.
    pub at: f64,
    /// What was said.
    pub text: String,
    /// What the model thought.
    pub reasoning: Option<String>,
    /// What the model called.
    pub tool_calls: Vec<ToolCallView>,
    /// Images and files that are not shown.
    pub attachments: usize,
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// The reply was changed, or the conversation was started over, before what follows: in words.
    pub note: Option<String>,
}

/// A tool call and what came back.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ToolCallView {
    /// Its id.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// As the model wrote them, which may be no JSON.
    pub arguments: String,
    /// What the tool answered; null while it has not.
    pub result: Option<String>,
}

/// A conversation of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Conversation {
    /// Its first call.
    pub root: usize,
    /// `agent`, `subagent`, `auxiliary` or `discarded`.
    pub kind: String,
    /// The start of what was asked first.
    pub title: String,
    /// Its calls.
    pub turns: usize,
}

/// A page of one conversation.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TranscriptPage {
    /// From `start` on.
    pub entries: Vec<Entry>,
    /// The first one's place.
    pub start: usize,
    /// How many there are.
    pub total: usize,
    /// The conversation that is shown: its first call; null when there is none yet.
    pub root: Option<usize>,
    /// All conversations, the agent's own first.
    pub conversations: Vec<Conversation>,
}

impl Entry {
    /// About what it takes in an answer.
    pub(super) fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter().map(|call| {
            let result = call.result.as_ref().map_or(0, String::len);
            call.arguments.len() + result
        });
        let reasoning = self.reasoning.as_ref().map_or(0, String::len);
        self.text.len() + reasoning + calls.sum::<usize>()
    }
}
