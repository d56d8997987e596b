//! The formats of lines: chats for fine-tuning, and every model call with all that is known of it.

use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value};

use super::conversation::{conversations, turn_of};
use super::{ExportError, Meta, Stream, write_line};
use crate::chat::{Message, Usage};
use crate::graph::{Aside, Tokens};
use crate::trace::{Code, Interpretation};
use crate::turn::{Exactness, Shared, Turn};

#[derive(Serialize)]
struct Chat<'a, M> {
    messages: M,
    tools: Option<&'a Shared>,
    metadata: ChatMeta<'a>,
}

#[derive(Serialize)]
struct ChatMeta<'a> {
    rollout_id: &'a str,
    task_id: &'a str,
    agent: &'a str,
    agent_version: &'a str,
    model: &'a str,
    reward: Option<f64>,
    reward_valid: bool,
    ended: Option<&'static str>,
    /// Counts the rollout's conversations from 0.
    conversation: usize,
    node_ids: Vec<&'a str>,
    finish_reason: Option<&'a str>,
}

/// The last request of a conversation holds all of it but the last reply.
pub(super) fn write_sft(
    seen: &Interpretation,
    meta: &Meta,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    for (conversation, path) in conversations(&seen.graph).iter().enumerate() {
        let Some(&end) = path.nodes.last() else {
            continue;
        };
        let turn = turn_of(seen, end);
        let reply = turn.message.as_ref().map(Message::to_value);
        let messages = Stream(|| {
            let asked = turn.messages.iter().map(|message| &**message);
            asked.chain(reply.as_ref())
        });
        let nodes = path.nodes.iter();
        let chat = Chat {
            messages,
            tools: turn.tools.as_ref(),
            metadata: ChatMeta {
                rollout_id: &meta.rollout_id,
                task_id: &meta.task_id,
                agent: &meta.agent.name,
                agent_version: &meta.agent.version,
                model: turn.model.as_deref().unwrap_or(&meta.model),
                reward: meta.reward,
                reward_valid: meta.reward_valid,
                ended: meta.ended.map(|ended| ended.as_str()),
                conversation,
                node_ids: nodes.map(|at| seen.graph.nodes[*at].id.as_str()).collect(),
                finish_reason: turn.finish_reason.as_deref(),
            },
        };
        write_line(&chat, out)?;
    }
    Ok(())
}

/// One model call. Failed ones have no place in the graph and no role but that.
#[derive(Serialize)]
struct Call<'a> {
    rollout_id: &'a str,
    task_id: &'a str,
    turn: usize,
    node_id: String,
    role: &'static str,
    parent_id: Option<&'a str>,
    root_id: Option<&'a str>,
    /// Why the role is not the agent's: `beside`, `summary`, `asked_again` or `thrown_away`.
    reason: Option<&'static str>,
    retokenised_from: Option<&'a str>,
    /// The reply that the agent changed before it sent it back.
    changed_from: Option<&'a str>,
    /// The reply that the agent left out, though it goes on from the same prompt.
    left_out: Option<&'a str>,
    compacts: Option<&'a str>,
    spawned_by: Option<&'a str>,
    model: Option<&'a str>,
    at: f64,
    latency_s: Option<f64>,
    messages: &'a [Shared],
    tools: Option<&'a Shared>,
    message: Option<Value>,
    finish_reason: Option<&'a str>,
    prompt_token_ids: Option<&'a Tokens>,
    completion_token_ids: Option<&'a [u32]>,
    logprobs: Option<&'a [f64]>,
    /// Why the ids and logprobs are not to be trusted; null where they are.
    not_exact: Option<Code>,
    usage: Option<Usage>,
    upstream_status: Option<u16>,
    upstream_error: Option<&'a Value>,
    harness_session_id: Option<&'a str>,
    parent_session_id: Option<&'a str>,
    sampling_params: &'a Map<String, Value>,
    requested_sampling_params: &'a Map<String, Value>,
}

pub(super) fn write_turns(
    seen: &Interpretation,
    meta: &Meta,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    let mut nodes = vec![None; seen.turns.len()];
    for (at, node) in seen.graph.nodes.iter().enumerate() {
        nodes[node.turn] = Some(at);
    }
    for (index, turn) in seen.turns.iter().enumerate() {
        write_line(&call(seen, meta, index, turn, nodes[index]), out)?;
    }
    Ok(())
}

fn call<'a>(
    seen: &'a Interpretation,
    meta: &'a Meta,
    index: usize,
    turn: &'a Turn,
    node: Option<usize>,
) -> Call<'a> {
    let nodes = &seen.graph.nodes;
    let node = node.map(|at| &nodes[at]);
    let id = |at: usize| nodes[at].id.as_str();
    Call {
        rollout_id: &meta.rollout_id,
        task_id: &meta.task_id,
        turn: index,
        node_id: turn.node_id(),
        role: node.map_or("failed", |node| node.role.as_str()),
        parent_id: node.and_then(|node| node.parent).map(id),
        root_id: node.map(|node| id(node.root)),
        reason: node.and_then(|node| node.aside).map(Aside::as_str),
        retokenised_from: node.and_then(|node| node.retokenised).map(id),
        changed_from: node.and_then(|node| node.changed).map(id),
        left_out: node.and_then(|node| node.left_out).map(id),
        compacts: node.and_then(|node| node.compacts).map(id),
        spawned_by: node.and_then(|node| node.spawned_by).map(id),
        model: turn.model.as_deref(),
        at: turn.at,
        latency_s: turn.latency_s,
        messages: &turn.messages,
        tools: turn.tools.as_ref(),
        message: turn.message.as_ref().map(Message::to_value),
        finish_reason: turn.finish_reason.as_deref(),
        prompt_token_ids: turn.prompt_token_ids.as_ref(),
        completion_token_ids: turn.completion_token_ids.as_deref(),
        logprobs: turn.logprobs.as_deref(),
        not_exact: match turn.exactness {
            Exactness::Exact => None,
            Exactness::NotExact(code) => Some(code),
        },
        usage: turn.usage,
        upstream_status: turn.upstream_status,
        upstream_error: turn.upstream_error.as_ref(),
        harness_session_id: turn.harness_session_id.as_deref(),
        parent_session_id: turn.parent_session_id.as_deref(),
        sampling_params: &turn.sampling,
        requested_sampling_params: &turn.requested_sampling,
    }
}
