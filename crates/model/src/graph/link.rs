//! Finds parents: known sequences are looked up by a running hash over the child's prompt, then compared in full, so
//! the cost is linear in a turn's length and no two are linked by a chance of hashing.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use crate::turn::Turn;

pub(super) struct Links {
    pub(super) parents: Vec<Option<usize>>,
    pub(super) retokenised: Vec<Option<usize>>,
    /// Equal for turns with the same prompt.
    pub(super) prompts: Vec<usize>,
}

impl Links {
    /// Expects the turns in the order of their exchanges.
    pub(super) fn new(turns: &[&Turn]) -> Self {
        let views: Vec<View<'_>> = turns.iter().map(|turn| View::new(turn)).collect();
        let by_tokens = Index::new(&views, |view| view.tokens());
        let by_messages = Index::new(&views, |view| Some((&view.messages, view.reply.as_slice())));
        let mut links = Links {
            parents: Vec::new(),
            retokenised: Vec::new(),
            prompts: Vec::new(),
        };
        for (at, child) in views.iter().enumerate() {
            // Neither kind of link ever goes from fewer messages to more, and each makes messages or tokens grow:
            // that is why there are no cycles.
            let n_messages = |other: usize| views[other].messages.len();
            let tokens = child.turn.prompt_token_ids.as_deref();
            let exact = tokens.and_then(|prompt| {
                by_tokens.longest(prompt, at, |other| {
                    n_messages(other) <= child.messages.len()
                })
            });
            let told =
                |allowed: &dyn Fn(usize) -> bool| by_messages.longest(&child.messages, at, allowed);
            let said = told(&|other| tokens.is_none() || views[other].tokens().is_none());
            let parent = match (exact, said) {
                (Some(exact), Some(said)) if n_messages(said) > n_messages(exact) => Some(said),
                (exact, said) => exact.or(said),
            };
            let whole = told(&|_| true);
            let is_longer =
                |said: &usize| parent.is_none_or(|parent| n_messages(*said) > n_messages(parent));
            links.retokenised.push(whole.filter(is_longer));
            links.parents.push(parent);
            let same = views[..at]
                .iter()
                .position(|other| other.has_prompt_of(child));
            links.prompts.push(same.unwrap_or(at));
        }
        links
    }
}

/// What of a turn is compared.
struct View<'a> {
    turn: &'a Turn,
    /// The messages in one form of writing, without the system messages that lead them: agents re-render those.
    messages: Vec<String>,
    system: Vec<String>,
    reply: Vec<String>,
}

impl<'a> View<'a> {
    fn new(turn: &'a Turn) -> Self {
        let is_system =
            |message: &&Value| matches!(message["role"].as_str(), Some("system" | "developer"));
        let n_system = turn.messages.iter().take_while(is_system).count();
        let (system, messages) = turn.messages.split_at(n_system);
        let reply = turn
            .message
            .iter()
            .map(|message| canonical(&message.to_value()))
            .collect();
        View {
            turn,
            messages: messages.iter().map(canonical).collect(),
            system: system.iter().map(canonical).collect(),
            reply,
        }
    }

    fn tokens(&self) -> Option<(&[u32], &[u32])> {
        Some((
            self.turn.prompt_token_ids.as_deref()?,
            self.turn.completion_token_ids.as_deref()?,
        ))
    }

    fn has_prompt_of(&self, other: &View<'_>) -> bool {
        match (&self.turn.prompt_token_ids, &other.turn.prompt_token_ids) {
            (Some(left), Some(right)) => left == right,
            _ => self.messages == other.messages && self.system == other.system,
        }
    }
}

/// Prompts with their replies, by length and hash.
struct Index<'a, T> {
    entries: HashMap<(usize, u64), Vec<Entry<'a, T>>>,
    lengths: Vec<usize>,
}

struct Entry<'a, T> {
    at: usize,
    prompt: &'a [T],
    reply: &'a [T],
}

impl<'a, T: Hash + PartialEq> Index<'a, T> {
    fn new<'v: 'a, P: AsRef<[T]> + ?Sized + 'a>(
        views: &'v [View<'v>],
        parts: impl Fn(&'v View<'v>) -> Option<(&'a P, &'a [T])>,
    ) -> Self {
        let mut entries: HashMap<_, Vec<Entry<'a, T>>> = HashMap::new();
        for (at, view) in views.iter().enumerate() {
            // A turn that added nothing cannot be told from its own prompt.
            if let Some((prompt, reply)) = parts(view).filter(|(_, reply)| !reply.is_empty()) {
                let prompt = prompt.as_ref();
                let length = prompt.len() + reply.len();
                let hash = prompt.iter().chain(reply).fold(0, extend);
                entries
                    .entry((length, hash))
                    .or_default()
                    .push(Entry { at, prompt, reply });
            }
        }
        let mut lengths: Vec<usize> = entries.keys().map(|(length, _)| *length).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Index { entries, lengths }
    }

    /// The entry that is the longest prefix of `prompt`. Among equals the last one before `child` counts: the agent
    /// asked again and went on from what it got then.
    fn longest(
        &self,
        prompt: &[T],
        child: usize,
        is_allowed: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut hashes = Vec::new();
        let (mut hash, mut done) = (0, 0);
        for &length in self
            .lengths
            .iter()
            .take_while(|&&length| length <= prompt.len())
        {
            hash = prompt[done..length].iter().fold(hash, extend);
            done = length;
            hashes.push((length, hash));
        }
        hashes.iter().rev().find_map(|key| {
            let entries = self.entries.get(key)?.iter();
            let fitting = entries.filter(|entry| {
                let (head, tail) = prompt[..key.0].split_at(entry.prompt.len());
                entry.at != child
                    && is_allowed(entry.at)
                    && head == entry.prompt
                    && tail == entry.reply
            });
            let found: Vec<usize> = fitting.map(|entry| entry.at).collect();
            found
                .iter()
                .rev()
                .find(|&&at| at < child)
                .or(found.first())
                .copied()
        })
    }
}

fn extend<T: Hash>(hash: u64, item: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash.hash(&mut hasher);
    item.hash(&mut hasher);
    hasher.finish()
}

/// One way to write what agents write in many: roles, texts and tool calls with their arguments as values. Call ids,
/// reasoning and cache marks are left out, since agents change or drop them.
fn canonical(message: &Value) -> String {
    let content = match &message["content"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(|part| part["type"] == "text") => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        other => sorted(other).to_string(),
    };
    let calls: Vec<Value> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(canonical_call)
        .collect();
    serde_json::json!([message["role"], content, calls]).to_string()
}

fn canonical_call(call: &Value) -> Value {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
        other => other.clone(),
    };
    serde_json::json!([function["name"], sorted(&arguments)])
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .filter(|(name, _)| *name != "cache_control")
                .map(|(name, value)| (name.clone(), sorted(value)))
                .collect();
            members.sort_by(|left, right| left.0.cmp(&right.0));
            Value::Object(members.into_iter().collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
