//! Conversations as agents send them, for the tests beside this file.

use serde_json::{Value, json};

use crate::exchange::{Exchange, Request, Response};
use crate::finding::Code;
use crate::graph::Role;
use crate::trace::{Interpretation, interpret};

/// A conversation between an agent and a model whose tokens are its messages.
pub(super) struct Talk {
    pub(super) messages: Vec<Value>,
    pub(super) n_tools: usize,
    pub(super) session: Option<&'static str>,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) at: f64,
}

pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub(super) fn text(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// A reply with one call.
pub(super) fn call(id: &str, name: &str, arguments: &str) -> Value {
    calls(Value::Null, &[(id, name, arguments)])
}

pub(super) fn calls(content: impl Into<Value>, calls: &[(&str, &str, &str)]) -> Value {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, name, arguments)| {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": content.into(), "tool_calls": calls})
}

pub(super) fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

/// Two ids for each message, other ones for other words. As in chat templates, call ids do not count.
fn ids_of(messages: &[Value]) -> Vec<u32> {
    let id = |message: &Value, start: u32| {
        let hash = |hash: u32, byte: u8| hash.wrapping_mul(31) ^ u32::from(byte);
        rendered(message).bytes().fold(start, hash) % 1_000_000
    };
    let ids = messages.iter().flat_map(|it| [id(it, 7), id(it, 77)]);
    ids.collect()
}

fn rendered(message: &Value) -> String {
    let said = ["role", "reasoning_content", "content"].map(|name| message[name].as_str());
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| &call["function"]);
    let calls = calls.map(|function| format!("{}{}", function["name"], function["arguments"]));
    format!(
        "{:?}{:?}",
        said.map(Option::unwrap_or_default),
        calls.collect::<Vec<_>>()
    )
}

impl Talk {
    pub(super) fn new(messages: &[Value]) -> Self {
        Talk {
            messages: messages.to_vec(),
            n_tools: 2,
            session: None,
            exchanges: Vec::new(),
            at: 100.0,
        }
    }

    /// Asks with what was said so far; the agent has not sent the reply back yet.
    pub(super) fn ask(&mut self, reply: &Value) -> &mut Self {
        let messages = self.messages.clone();
        self.ask_with(&messages, reply)
    }

    pub(super) fn ask_with(&mut self, messages: &[Value], reply: &Value) -> &mut Self {
        let number = self.exchanges.len() as u64 + 1;
        let (prompt, sampled) = (ids_of(messages), ids_of(std::slice::from_ref(reply)));
        let entries: Vec<Value> = sampled
            .iter()
            .map(|_| json!({"token": "x", "logprob": -0.5}))
            .collect();
        let tools = vec![json!({"type": "function"}); self.n_tools];
        let asked = json!({"messages": messages, "tools": tools, "temperature": 1});
        let body = json!({
            "choices": [{"finish_reason": "stop", "message": reply, "token_ids": sampled, "logprobs": {"content": entries}}],
            "prompt_token_ids": prompt,
            "usage": {"prompt_tokens": prompt.len(), "completion_tokens": sampled.len()},
        });
        let session = self
            .session
            .map(|it| ("x-session-id".to_owned(), it.to_owned()));
        self.exchanges.push(Exchange {
            request: Request {
                exchange: number,
                at: self.at,
                headers: session.into_iter().collect(),
                body: asked.to_string().into(),
                ..Request::default()
            },
            response: Some(Response {
                exchange: number,
                status: Some(200),
                body: body.to_string().into(),
                at: self.at + 1.0,
                total_s: 1.0,
                ..Response::default()
            }),
            sent: None,
        });
        self.at += 2.0;
        self
    }

    pub(super) fn say(&mut self, messages: &[Value]) -> &mut Self {
        self.messages.extend_from_slice(messages);
        self
    }

    /// Nodes as `id role` with what they go on from in other words, and their reasons.
    #[track_caller]
    pub(super) fn check(&self, expect: &str) -> Interpretation {
        let seen = interpret(&self.exchanges);
        assert_eq!(show(&seen), expect);
        let mut backwards = self.exchanges.clone();
        backwards.reverse();
        assert_eq!(show(&interpret(&backwards)), expect);
        let trained: Vec<&str> = seen
            .training_trace
            .iter()
            .flat_map(|trace| &trace.turns)
            .map(|turn| turn.node_id.as_str())
            .collect();
        let nodes = seen.graph.nodes.iter();
        let agents = nodes.filter(|node| node.role == Role::Agent).count();
        assert_eq!(trained.len(), agents, "{trained:?}");
        seen
    }
}

pub(super) fn show(seen: &Interpretation) -> String {
    let nodes = &seen.graph.nodes;
    let id = |at: usize| nodes[at].id.as_str();
    let shown: Vec<String> = nodes
        .iter()
        .map(|node| {
            let links = [
                ("<", node.parent),
                ("~", node.retokenised),
                ("!", node.changed),
                ("?", node.left_out),
            ];
            let links = links
                .iter()
                .filter_map(|(mark, at)| Some(format!("{mark}{}", id((*at)?))));
            let links: String = links.collect();
            let role = node
                .aside
                .map_or(node.role.as_str(), |aside| aside.as_str());
            format!("{}{links} {role}", node.id)
        })
        .collect();
    shown.join(", ")
}

pub(super) fn told(seen: &Interpretation, code: Code) -> Vec<&str> {
    let findings = seen.findings.iter();
    let findings = findings.filter(|finding| finding.code == code);
    findings.map(|finding| finding.text.as_str()).collect()
}
