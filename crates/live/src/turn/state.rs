//! What is known of a turn while it lasts: takes events and transcripts, and tells what of them is new. Pure.
//!
//! Of a session's messages only the answers to this turn's prompt count. These are found by their parents: the user message
//! that has the prompt's text, and those that the agent writes itself to go on after it shortened the conversation.

use std::collections::{HashMap, HashSet};

use rollcage_model::live::{ReplyKind, ToolStatus, TurnUsage};
use serde_json::Value;

use super::asked::Asked;
use super::held::{Held, weight};
use super::text::PartText;
use super::tool;
use crate::client::is_id;

/// US dollars; no turn costs more.
const COST_MAX: f64 = 1e9;

#[cfg(test)]
mod tests;

/// Something new.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    Reply(ReplyKind),
    Asked(Asked),
    /// A request was answered, by whomever.
    Settled(String),
}

#[derive(Debug)]
struct Message {
    is_assistant: bool,
    info: Value,
}

impl Message {
    /// It shortens the conversation, and is no part of the answer.
    fn is_summary(&self) -> bool {
        self.info["summary"] == true
    }
}

#[derive(Debug, Default)]
struct TextPart {
    text: PartText,
    is_reasoning: bool,
}

impl TextPart {
    fn reply(&self, more: Option<String>) -> Option<ReplyKind> {
        more.map(|text| match self.is_reasoning {
            true => ReplyKind::Reasoning { text },
            false => ReplyKind::Delta { text },
        })
    }
}

/// Where a part was read.
#[derive(Clone, Copy)]
enum Source {
    /// In the stream, so that the deltas after it follow it.
    Stream,
    Transcript,
}

#[derive(Debug)]
pub(super) struct TurnState {
    session: String,
    prompt: String,
    /// The session's newest message before the turn.
    before: Option<String>,
    /// User messages whose answers belong to the turn.
    prompts: HashSet<String>,
    first_prompt: Option<String>,
    messages: HashMap<String, Message>,
    /// Message ids as they were first seen.
    order: Vec<String>,
    texts: HashMap<String, TextPart>,
    tools: HashMap<String, ToolStatus>,
    /// This session and those of its subagents.
    sessions: HashSet<String>,
    asked: HashSet<String>,
    last_text: String,
    session_error: Option<Value>,
    retry: Option<String>,
    is_idle: bool,
    held: Held,
}

impl TurnState {
    pub(super) fn new(session: &str, prompt: &str, before: Option<String>) -> Self {
        TurnState {
            session: session.to_owned(),
            prompt: prompt.trim().to_owned(),
            before,
            prompts: HashSet::new(),
            first_prompt: None,
            messages: HashMap::new(),
            order: Vec::new(),
            texts: HashMap::new(),
            tools: HashMap::new(),
            sessions: HashSet::from([session.to_owned()]),
            asked: HashSet::new(),
            last_text: String::new(),
            session_error: None,
            retry: None,
            is_idle: false,
            held: Held::default(),
        }
    }

    /// Whether it holds more than any agent says in a turn, so that nothing more of it may be kept.
    pub(super) fn is_full(&self) -> bool {
        self.held.is_full()
    }

    /// Takes one event of the stream.
    pub(super) fn event(&mut self, event: &Value) -> Option<News> {
        let properties = &event["properties"];
        match event["type"].as_str()? {
            "session.created" | "session.updated" => self.subagent(&properties["info"]),
            "permission.asked" => return self.ask(Asked::permission(properties)?, properties),
            "question.asked" => return self.ask(Asked::question(properties)?, properties),
            "permission.replied" | "question.replied" | "question.rejected" => {
                return Some(News::Settled(properties["requestID"].as_str()?.to_owned()));
            }
            kind if properties["sessionID"] == self.session.as_str() => {
                return self.own_event(kind, properties).map(News::Reply);
            }
            _ => {}
        }
        None
    }

    fn own_event(&mut self, kind: &str, properties: &Value) -> Option<ReplyKind> {
        match kind {
            "message.updated" => self.message(&properties["info"]),
            "message.part.updated" => return self.part(&properties["part"], Source::Stream),
            "message.part.delta" if properties["field"] == "text" => {
                let part = self.texts.get_mut(properties["partID"].as_str()?)?;
                if self.held.is_full() {
                    return None;
                }
                let more = part.text.delta(properties["delta"].as_str()?);
                self.held.add_text(more.as_deref());
                return part.reply(more);
            }
            "session.status" => {
                let status = &properties["status"];
                self.retry = match status["type"].as_str() {
                    Some("retry") => status["message"].as_str().map(str::to_owned),
                    // Another attempt is no success yet.
                    Some("busy") => self.retry.take(),
                    _ => None,
                };
            }
            "session.idle" => self.is_idle = true,
            "session.error" => self.session_error = Some(properties["error"].clone()),
            _ => {}
        }
        None
    }

    /// Events may have been missed.
    pub(super) fn gap(&mut self) {
        for part in self.texts.values_mut() {
            part.text.gap();
        }
    }

    /// Takes the end of the transcript, or all of it.
    pub(super) fn transcript(&mut self, messages: &[Value]) -> Vec<ReplyKind> {
        let id_of = |message: &Value| message["info"]["id"].as_str().map(str::to_owned);
        let before = messages
            .iter()
            .position(|message| self.before.is_some() && id_of(message) == self.before);
        let mut replies = Vec::new();
        for message in &messages[before.map_or(0, |at| at + 1)..] {
            self.message(&message["info"]);
            let parts = message["parts"].as_array().map_or(&[][..], Vec::as_slice);
            for part in parts {
                replies.extend(self.part(part, Source::Transcript));
            }
            let is_last = self.last_info().map(|info| &info["id"]) == Some(&message["info"]["id"]);
            if is_last {
                let texts = parts.iter().filter(|part| part["type"] == "text");
                let texts = texts.filter(|part| !is_hidden(part));
                let texts: Vec<&str> = texts.filter_map(|part| part["text"].as_str()).collect();
                // Each is a block of its own.
                self.last_text = texts.join("\n");
            }
        }
        replies
    }

    /// The server says that this message is the answer, so its siblings are too, even where the prompt was not recognised.
    pub(super) fn answered_by(&mut self, message: &Value) {
        if let Some(parent) = message["info"]["parentID"].as_str() {
            self.held.add(parent.len());
            self.prompts.insert(parent.to_owned());
        }
    }

    /// Whether a part of the transcript reaches back to the turn's beginning.
    pub(super) fn reaches_back(&self, messages: &[Value]) -> bool {
        messages.iter().any(|message| {
            let id = message["info"]["id"].as_str();
            id.is_some() && (id == self.before.as_deref() || id == self.first_prompt.as_deref())
        })
    }

    /// What was asked while nobody listened, by which session whosoever.
    pub(super) fn missed(
        &mut self,
        subagents: Vec<String>,
        permissions: &[Value],
        questions: &[Value],
    ) -> Vec<News> {
        for subagent in subagents {
            self.held.add(subagent.len());
            self.sessions.insert(subagent);
        }
        let mut news = Vec::new();
        for permission in permissions {
            news.extend(
                Asked::permission(permission).and_then(|asked| self.ask(asked, permission)),
            );
        }
        for question in questions {
            news.extend(Asked::question(question).and_then(|asked| self.ask(asked, question)));
        }
        news
    }

    /// The last message of the answer.
    pub(super) fn last_info(&self) -> Option<&Value> {
        let last = self
            .answers()
            .filter(|message| !message.is_summary())
            .last();
        last.map(|message| &message.info)
    }

    /// The text of the last message, as the latest transcript has it.
    pub(super) fn last_text(&self) -> &str {
        &self.last_text
    }

    /// Of all messages of the answer together.
    pub(super) fn usage(&self) -> TurnUsage {
        let mut usage = TurnUsage::default();
        for message in self.answers() {
            let tokens = &message.info["tokens"];
            // Numbers in JSON may be written as fractions.
            let count = |value: &Value| value.as_f64().unwrap_or_default().max(0.0) as u64;
            // The agent's own numbers can be anything.
            let add = |sum: &mut u64, value: &Value| *sum = sum.saturating_add(count(value));
            add(&mut usage.input, &tokens["input"]);
            add(&mut usage.output, &tokens["output"]);
            add(&mut usage.reasoning, &tokens["reasoning"]);
            add(&mut usage.cache_read, &tokens["cache"]["read"]);
            add(&mut usage.cache_write, &tokens["cache"]["write"]);
            let cost = usage.cost + message.info["cost"].as_f64().unwrap_or_default();
            usage.cost = cost.clamp(0.0, COST_MAX);
        }
        usage
    }

    /// The server's error about the session, if it reported one.
    pub(super) fn session_error(&self) -> Option<&Value> {
        self.session_error.as_ref()
    }

    /// Why the latest model call failed, while the agent tries it again.
    pub(super) fn retry(&self) -> Option<&str> {
        self.retry.as_deref()
    }

    /// The agent is done with the session, as far as the events tell.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Whether the server has the prompt.
    pub(super) fn is_prompt_seen(&self) -> bool {
        !self.prompts.is_empty()
    }

    /// Whether a tool of the turn failed or was refused, which may end it.
    pub(super) fn has_failed_tool(&self) -> bool {
        let mut statuses = self.tools.values();
        statuses.any(|status| *status == ToolStatus::Error)
    }

    /// How many messages of the session were seen.
    pub(super) fn message_count(&self) -> usize {
        self.order.len()
    }

    /// The messages of the answer, the oldest first.
    fn answers(&self) -> impl Iterator<Item = &Message> {
        let messages = self.order.iter().filter_map(|id| self.messages.get(id));
        messages.filter(|message| self.is_answer(message))
    }

    fn is_answer(&self, message: &Message) -> bool {
        let parent = message.info["parentID"].as_str();
        message.is_assistant && parent.is_some_and(|parent| self.prompts.contains(parent))
    }

    fn message(&mut self, info: &Value) {
        let Some(id) = info["id"].as_str().filter(|_| !self.is_full()) else {
            return;
        };
        let message = Message {
            is_assistant: info["role"] == "assistant",
            info: info.clone(),
        };
        self.held.add(weight(info));
        match self.messages.insert(id.to_owned(), message) {
            Some(before) => self.held.remove(weight(&before.info)),
            None => {
                self.held.add(2 * id.len());
                self.order.push(id.to_owned());
            }
        }
    }

    fn part(&mut self, part: &Value, source: Source) -> Option<ReplyKind> {
        let (id, message_id) = (part["id"].as_str()?, part["messageID"].as_str()?);
        if self.is_full() {
            return None;
        }
        let message = self.messages.get(message_id)?;
        if !message.is_assistant {
            self.user_part(message_id, part);
            return None;
        }
        if message.is_summary() || !self.is_answer(message) || is_hidden(part) {
            return None;
        }
        // The model answers again.
        self.retry = None;
        match part["type"].as_str()? {
            kind @ ("text" | "reasoning") => {
                let whole = part["text"].as_str()?;
                if !self.texts.contains_key(id) {
                    self.held.add(id.len());
                }
                let part = self.texts.entry(id.to_owned()).or_default();
                part.is_reasoning = kind == "reasoning";
                let more = match source {
                    Source::Stream => part.text.streamed(whole),
                    Source::Transcript => part.text.whole(whole),
                };
                self.held.add_text(more.as_deref());
                part.reply(more)
            }
            "tool" => {
                let (status, reply) = tool::reply(part, self.tools.get(id).copied())?;
                self.held.add(id.len() + tool::weight(&reply));
                self.tools.insert(id.to_owned(), status);
                Some(reply)
            }
            _ => None,
        }
    }

    /// A part of a user message: it may be this turn's prompt, which the agent also repeats once the conversation became too
    /// long, or what the agent says to itself after it shortened the conversation.
    fn user_part(&mut self, message_id: &str, part: &Value) {
        let text = part["text"].as_str().unwrap_or_default();
        let is_own = part["type"] == "compaction" || part["synthetic"] == true;
        let is_prompt = part["type"] == "text" && !is_own && text.trim() == self.prompt;
        if is_prompt && self.prompts.is_empty() {
            self.first_prompt = Some(message_id.to_owned());
            // Whatever came until now was about the turn before.
            self.session_error = None;
            self.is_idle = false;
        }
        if is_prompt || is_own && !self.prompts.is_empty() {
            self.held.add(message_id.len());
            self.prompts.insert(message_id.to_owned());
        }
    }

    fn subagent(&mut self, info: &Value) {
        let parent = info["parentID"].as_str();
        if let (Some(id), Some(parent)) = (info["id"].as_str(), parent)
            && self.sessions.contains(parent)
            && is_id(id)
            && self.sessions.insert(id.to_owned())
        {
            self.held.add(id.len());
        }
    }

    fn ask(&mut self, asked: Asked, request: &Value) -> Option<News> {
        let is_ours = self.sessions.contains(request["sessionID"].as_str()?);
        let is_new = is_ours && !self.is_full() && self.asked.insert(asked.id.clone());
        if is_new {
            self.held.add(asked.weight());
        }
        is_new.then_some(News::Asked(asked))
    }
}

/// Text that the agent put there for the model alone.
fn is_hidden(part: &Value) -> bool {
    part["synthetic"] == true || part["ignored"] == true
}
