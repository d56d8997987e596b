//! Puts a conversation together from the requests and replies of its calls: each message once, each tool call with its
//! result.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::text::{content_of, reasoning_of};
use super::transcript::{Entry, Speaker, ToolCallView};
use crate::export::new_messages;
use crate::graph::{arguments_in, arguments_of, calls_in, text_in};
use crate::turn::{Shared, Turn};

const CHANGED: &str = "The agent changed this reply before it sent it back.";
const STARTED_OVER: &str =
    "The agent had the conversation summed up and started over from the summary.";

/// A message, before its texts are copied for somebody who reads it.
pub(super) struct Said<'a> {
    call: usize,
    words: Words<'a>,
    calls: Vec<ToolUse<'a>>,
    note: Option<&'static str>,
}

enum Words<'a> {
    /// Sent by the agent.
    Message(&'a Value),
    /// The model's.
    Reply(&'a Turn),
}

struct ToolUse<'a> {
    id: Option<&'a str>,
    name: &'a str,
    arguments: Arguments<'a>,
    result: Option<&'a Value>,
}

enum Arguments<'a> {
    Text(&'a str),
    Value(&'a Value),
}

impl Arguments<'_> {
    /// Whether a call in a message has the same ones. Those that are no JSON are compared as they were written.
    fn are_those_of(&self, call: &Value) -> bool {
        let value = match self {
            Arguments::Text(text) if call["function"]["arguments"] == **text => return true,
            Arguments::Text(text) => arguments_of(text),
            Arguments::Value(value) => Some((*value).clone()),
        };
        value.is_some() && value == arguments_in(call)
    }
}

/// A conversation so far.
#[derive(Default)]
pub(super) struct Talk<'a> {
    pub(super) said: Vec<Said<'a>>,
    /// Tool calls without a result: where they were said, and which one of those.
    open: Vec<(usize, usize)>,
    /// The addresses of messages that are part of it.
    places: HashSet<usize>,
    call_ids: HashSet<&'a str>,
    texts: HashSet<&'a str>,
}

impl<'a> Talk<'a> {
    /// The first request.
    pub(super) fn begin(&mut self, call: usize, turn: &'a Turn) {
        turn.messages
            .iter()
            .for_each(|message| self.add(call, message));
    }

    /// A request that goes on from another's reply, which the agent may have changed.
    pub(super) fn go_on(
        &mut self,
        call: usize,
        turn: &'a Turn,
        (before, is_changed): (&Turn, bool),
    ) {
        if is_changed {
            self.note(CHANGED);
        }
        for message in new_messages(Some(before), turn) {
            self.add(call, message);
        }
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes the results alone of a request that goes on from another's reply. Only an id proves whose they are.
    pub(super) fn hear(&mut self, before: &Turn, turn: &'a Turn) {
        for message in new_messages(Some(before), turn) {
            if result_id(message).is_some() && self.answer(message) {
                self.places.insert(message.place());
            }
        }
    }

    /// A request that begins anew from a summary: what it has of the old conversation is not said again.
    pub(super) fn start_over(&mut self, call: usize, turn: &'a Turn) {
        self.hear_repeated(turn);
        self.note(STARTED_OVER);
        for message in &turn.messages {
            if !self.is_known(message) {
                self.add(call, message);
            }
        }
    }

    /// Takes the results of open calls that a new conversation has kept together with the calls. Some models use ids
    /// again, so that an id without its call proves nothing here.
    fn hear_repeated(&mut self, turn: &'a Turn) {
        let mut calls: HashMap<&str, &Value> = HashMap::new();
        for message in &turn.messages {
            let made = calls_in(message).filter_map(|call| Some((call["id"].as_str()?, call)));
            calls.extend(made);
            let call = result_id(message).and_then(|id| calls.get(id));
            let is_new = !self.places.contains(&message.place());
            if is_new && call.is_some_and(|call| self.is_open(call)) && self.answer(message) {
                self.places.insert(message.place());
            }
        }
    }

    /// Whether the latest open call of its id is this one, in its name and its arguments, too.
    fn is_open(&self, call: &Value) -> bool {
        let open = self.open.iter().rev();
        let mut open = open.map(|(at, which)| &self.said[*at].calls[*which]);
        let its = open.find(|used| used.id == call["id"].as_str());
        its.is_some_and(|used| {
            used.name == call["function"]["name"] && used.arguments.are_those_of(call)
        })
    }

    fn is_known(&self, message: &'a Shared) -> bool {
        if self.places.contains(&message.place()) {
            return true;
        }
        let is_call = |id: Option<&str>| id.is_some_and(|id| self.call_ids.contains(id));
        match message["role"].as_str() {
            Some("tool") => is_call(message["tool_call_id"].as_str()),
            Some("assistant") => {
                let mut calls = calls_in(message).peekable();
                match calls.peek() {
                    Some(_) => calls.all(|call| is_call(call["id"].as_str())),
                    None => self.texts.contains(text_in(message).as_str()),
                }
            }
            _ => false,
        }
    }

    fn note(&mut self, note: &'static str) {
        if let Some(last) = self.said.last_mut() {
            last.note = Some(note);
        }
    }

    /// The reply of a call, where it has one.
    pub(super) fn reply(&mut self, call: usize, turn: &'a Turn) {
        let Some(message) = &turn.message else {
            return;
        };
        let calls = message.tool_calls.iter().map(|used| ToolUse {
            id: used.id.as_deref(),
            name: &used.name,
            arguments: Arguments::Text(&used.arguments),
            result: None,
        });
        let calls = calls.collect();
        self.texts.extend(message.content.as_deref());
        self.push(Said {
            call,
            words: Words::Reply(turn),
            calls,
            note: None,
        });
    }

    fn add(&mut self, call: usize, message: &'a Shared) {
        self.places.insert(message.place());
        let message: &'a Value = message;
        if message["role"] == "tool" && self.answer(message) {
            return;
        }
        let calls = calls_in(message).map(|used| ToolUse {
            id: used["id"].as_str(),
            name: used["function"]["name"].as_str().unwrap_or_default(),
            arguments: match &used["function"]["arguments"] {
                Value::String(text) => Arguments::Text(text),
                Value::Null => Arguments::Text(""),
                value => Arguments::Value(value),
            },
            result: None,
        });
        let calls = calls.collect();
        self.push(Said {
            call,
            words: Words::Message(message),
            calls,
            note: None,
        });
    }

    fn push(&mut self, said: Said<'a>) {
        let at = self.said.len();
        self.open.extend((0..said.calls.len()).map(|it| (at, it)));
        let ids = said.calls.iter().filter_map(|used| used.id);
        self.call_ids.extend(ids);
        self.said.push(said);
    }

    /// Gives a result to the latest call of its id; one without an id to the first open call without one.
    fn answer(&mut self, result: &'a Value) -> bool {
        let id = id_in(result);
        let is_its = |place: &&(usize, usize)| self.said[place.0].calls[place.1].id == id;
        let mut open = self.open.iter();
        let found = match id {
            Some(_) => open.rfind(is_its),
            None => open.find(is_its),
        };
        let Some(&(at, which)) = found else {
            return false;
        };
        self.open.retain(|place| *place != (at, which));
        self.said[at].calls[which].result = Some(result);
        true
    }
}

impl Said<'_> {
    /// As it is read, at this place of the conversation.
    pub(super) fn entry(&self, at: usize, turns: &[Turn]) -> Entry {
        let mut entry = Entry {
            entry: at,
            speaker: Speaker::Assistant,
            turn: self.call,
            at: turns[self.call].at,
            text: String::new(),
            reasoning: None,
            tool_calls: Vec::new(),
            attachments: 0,
            finish_reason: None,
            note: self.note.map(str::to_owned),
        };
        let other = match self.words {
            Words::Message(message) => {
                let (text, attachments) = content_of(&message["content"]);
                entry.speaker = speaker_of(message);
                entry.text = text.into_owned();
                entry.attachments = attachments;
                message.as_object()
            }
            Words::Reply(turn) => {
                let message = turn.message.as_ref();
                let text = message.and_then(|message| message.content.clone());
                entry.text = text.unwrap_or_default();
                entry.finish_reason.clone_from(&turn.finish_reason);
                message.map(|message| &message.other)
            }
        };
        entry.reasoning = other.and_then(reasoning_of).map(str::to_owned);
        for used in &self.calls {
            let result = used.result.map(|result| content_of(&result["content"]));
            entry.attachments += result.as_ref().map_or(0, |(_, count)| *count);
            entry.tool_calls.push(ToolCallView {
                id: used.id.map(str::to_owned),
                name: used.name.to_owned(),
                arguments: match used.arguments {
                    Arguments::Text(text) => text.to_owned(),
                    Arguments::Value(value) => value.to_string(),
                },
                result: result.map(|(text, _)| text.into_owned()),
            });
        }
        entry
    }
}

/// The id of the call that a message is the result of.
fn result_id(message: &Value) -> Option<&str> {
    id_in(message).filter(|_| message["role"] == "tool")
}

fn id_in(result: &Value) -> Option<&str> {
    result["tool_call_id"].as_str().filter(|id| !id.is_empty())
}

fn speaker_of(message: &Value) -> Speaker {
    match message["role"].as_str() {
        Some("system" | "developer") => Speaker::System,
        Some("assistant") => Speaker::Assistant,
        Some("tool") => Speaker::Tool,
        _ => Speaker::User,
    }
}
