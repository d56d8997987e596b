//! A conversation in the format of OpenCode's `GET /session/:id/message`, built from the proxy's record. It works for
//! every agent, also while the agent runs.

use serde_json::{Map, Value, json};

use rollcage_model::graph::Role;
use rollcage_model::trace::Interpretation;
use rollcage_model::turn::Turn;
use rollcage_sandbox::guest::WORKDIR;

/// The conversation so far: `[{info, parts}…]`, with `session` as its `sessionID`. Calls outside the agent's main
/// conversation, such as titles, are omitted.
pub(super) fn conversation(seen: &Interpretation, session: &str) -> Vec<Value> {
    let path = main_path(seen);
    let answered = path.last().copied();
    let Some(latest) = pending(seen, answered).or(answered) else {
        return Vec::new();
    };
    let mut writer = Writer {
        session,
        path: &path,
        messages: Vec::new(),
        answers: 0,
    };
    for message in &latest.messages {
        writer.add(message, latest);
    }
    if answered.is_some_and(|turn| turn.exchange == latest.exchange)
        && let Some(message) = &latest.message
    {
        writer.add(&message.to_value(), latest);
    }
    writer.messages
}

/// The answered calls of the agent's main conversation, in order. A conversation that was started by a tool call of
/// another one belongs to a subagent and is skipped.
fn main_path(seen: &Interpretation) -> Vec<&Turn> {
    let nodes = &seen.graph.nodes;
    let is_main = |node: &rollcage_model::graph::Node| {
        let is_subagent = nodes
            .get(node.root)
            .is_some_and(|root| root.spawned_by.is_some());
        node.role == Role::Agent && !is_subagent
    };
    let last = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| is_main(node))
        .max_by_key(|(_, node)| node.turn);
    let mut path = Vec::new();
    let mut next = last.map(|(index, _)| index);
    while let Some(node) = next.and_then(|index| nodes.get(index)) {
        path.extend(seen.turns.get(node.turn));
        next = node.before();
    }
    path.reverse();
    path
}

/// A pending call that has more messages than the last answered one.
fn pending<'a>(seen: &'a Interpretation, answered: Option<&Turn>) -> Option<&'a Turn> {
    let (after, known) = answered.map_or((0, 0), |turn| (turn.exchange, turn.messages.len()));
    seen.turns
        .iter()
        .rev()
        .find(|turn| turn.latency_s.is_none() && turn.n_tools > 0 && turn.exchange > after)
        .filter(|turn| turn.messages.len() > known)
}

struct Writer<'a> {
    session: &'a str,
    path: &'a [&'a Turn],
    messages: Vec<Value>,
    /// Assistant messages so far.
    answers: usize,
}

impl Writer<'_> {
    fn add(&mut self, message: &Value, latest: &Turn) {
        match message.get("role").and_then(Value::as_str) {
            Some("user") => self.user(message, latest),
            Some("assistant") => self.assistant(message, latest),
            Some("tool") => self.tool_output(message),
            // Instructions are not part of an OpenCode session.
            _ => {}
        }
    }

    fn user(&mut self, message: &Value, latest: &Turn) {
        let at = self
            .path
            .get(self.answers)
            .map_or(latest.at, |turn| turn.at);
        let id = self.next_id();
        let info = json!({
            "id": id, "sessionID": self.session, "role": "user", "time": {"created": milliseconds(at)},
        });
        let parts = self.text_parts(&id, message.get("content"));
        self.messages.push(json!({"info": info, "parts": parts}));
    }

    fn assistant(&mut self, message: &Value, latest: &Turn) {
        let turn = self.path.get(self.answers).copied().unwrap_or(latest);
        self.answers += 1;
        let id = self.next_id();
        let parent = self
            .messages
            .iter()
            .rev()
            .find(|known| known.pointer("/info/role") == Some(&json!("user")))
            .and_then(|known| known.pointer("/info/id").cloned());
        let usage = turn.usage.unwrap_or_default();
        let created = milliseconds(turn.at);
        let completed = turn
            .latency_s
            .map(|latency| milliseconds(turn.at + latency));
        let info = json!({
            "id": id, "sessionID": self.session, "role": "assistant", "parentID": parent,
            "time": {"created": created, "completed": completed},
            "modelID": turn.model, "providerID": "rollcage", "mode": "build", "agent": "build",
            "path": {"cwd": WORKDIR, "root": WORKDIR},
            "cost": 0, "finish": turn.finish_reason,
            "tokens": {
                "input": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
                "output": usage.completion_tokens, "reasoning": 0,
                "cache": {"read": usage.cached_tokens, "write": 0},
            },
        });
        let mut parts = Vec::new();
        for name in ["reasoning_content", "reasoning"] {
            if let Some(text) = message.get(name).and_then(Value::as_str) {
                parts.push(self.part(&id, parts.len(), json!({"type": "reasoning", "text": text})));
            }
        }
        for part in self.text_parts(&id, message.get("content")) {
            parts.push(self.part(&id, parts.len(), part));
        }
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            let state = json!({
                "status": "running", "input": input_of(call), "time": {"start": completed.unwrap_or(created)},
            });
            let tool = json!({
                "type": "tool", "callID": call.get("id"), "tool": call.pointer("/function/name"), "state": state,
            });
            parts.push(self.part(&id, parts.len(), tool));
        }
        self.messages.push(json!({"info": info, "parts": parts}));
    }

    /// OpenCode stores a tool's output with its call, not as a separate message.
    fn tool_output(&mut self, message: &Value) {
        let wanted = message.get("tool_call_id");
        let end = self
            .path
            .get(self.answers)
            .map(|turn| milliseconds(turn.at));
        for known in self.messages.iter_mut().rev() {
            let parts = known.get_mut("parts").and_then(Value::as_array_mut);
            let call = parts.into_iter().flatten().find(|part| {
                part.get("callID") == wanted && part.get("type") == Some(&json!("tool"))
            });
            let state = call.and_then(|part| part.get_mut("state"));
            if let Some(state) = state.and_then(Value::as_object_mut) {
                state.insert("status".to_owned(), json!("completed"));
                state.insert("output".to_owned(), json!(text_of(message.get("content"))));
                state.insert("title".to_owned(), json!(""));
                state.insert("metadata".to_owned(), json!({}));
                if let Some(time) = state.get_mut("time").and_then(Value::as_object_mut) {
                    let end =
                        end.map_or_else(|| time.get("start").cloned(), |end| Some(json!(end)));
                    time.insert("end".to_owned(), json!(end));
                }
                return;
            }
        }
    }

    fn text_parts(&self, id: &str, content: Option<&Value>) -> Vec<Value> {
        let text = text_of(content);
        if text.is_empty() {
            return Vec::new();
        }
        vec![self.part(id, 0, json!({"type": "text", "text": text}))]
    }

    fn part(&self, message: &str, index: usize, content: Value) -> Value {
        let mut part = Map::new();
        part.insert(
            "id".to_owned(),
            json!(format!("prt_{}_{index}", &message[4..])),
        );
        part.insert("sessionID".to_owned(), json!(self.session));
        part.insert("messageID".to_owned(), json!(message));
        if let Value::Object(content) = content {
            let own = content
                .into_iter()
                .filter(|(name, _)| !matches!(name.as_str(), "id" | "sessionID" | "messageID"));
            part.extend(own);
        }
        Value::Object(part)
    }

    fn next_id(&self) -> String {
        format!("msg_{:06}", self.messages.len() + 1)
    }
}

/// A tool call's arguments as an object; if they are not valid JSON, the text that the model wrote.
fn input_of(call: &Value) -> Value {
    let text = call
        .pointer("/function/arguments")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match serde_json::from_str(text) {
        Ok(Value::Object(input)) => Value::Object(input),
        _ => json!({"raw": text}),
    }
}

fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text"));
            let texts: Vec<_> = texts.filter_map(Value::as_str).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// OpenCode counts time in milliseconds.
fn milliseconds(seconds: f64) -> u64 {
    // Never negative and far below the limit, so the cast loses nothing.
    (seconds * 1000.0) as u64
}
