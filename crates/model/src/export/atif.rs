//! ATIF 1.8, Harbor's format for trajectories: what was said step by step, with the engine's ids where they are exact.
//!
//! The agent's first conversation is the trajectory, on through the compactions it made; its subagents and other
//! branches are embedded. Auxiliary and discarded calls are counted in the totals alone.

use std::io::Write;

use serde_json::{Value, json};

use super::conversation::{Conversation, conversations, new_messages, turn_of};
use super::{ExportError, Head, Meta, write_line};
use crate::graph::Role;
use crate::trace::Interpretation;

mod model;
mod step;

use model::{Agent, FinalMetrics, Trajectory};
use step::Steps;

/// The version that is written.
pub const SCHEMA_VERSION: &str = "ATIF-v1.8";

/// One document of one line.
pub fn write(
    seen: &Interpretation,
    meta: &Meta,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    let empty = || ExportError::Empty {
        rollout_id: meta.rollout_id.clone(),
    };
    let mut parts = chains(seen).into_iter();
    let main = parts.next().ok_or_else(empty)?;
    let mut steps = steps_of(seen, &main);
    let mut embedded = Vec::new();
    for part in parts {
        let id = trajectory_id(seen, meta, &part);
        let spawner = part
            .first()
            .and_then(|root| seen.graph.nodes[*root].spawned_by);
        if let Some(spawner) = spawner {
            steps.refer(seen, spawner, part.first().copied(), &id);
        }
        let kind = if spawner.is_some() {
            "subagent"
        } else {
            "branch"
        };
        let own = steps_of(seen, &part);
        let extra = json!({ "kind": kind });
        embedded.push(trajectory(seen, meta, &part, own, extra));
    }
    let mut whole = trajectory(seen, meta, &main, steps, extra(seen, meta));
    whole.final_metrics = Some(final_metrics(seen, &whole));
    whole.subagent_trajectories = embedded;
    write_line(&whole, out)
}

/// Conversations, each going on through its compactions; the main one first.
fn chains(seen: &Interpretation) -> Vec<Vec<usize>> {
    let graph = &seen.graph;
    let mut chains: Vec<Vec<usize>> = Vec::new();
    let mut conversations: Vec<Conversation> = conversations(graph);
    conversations.sort_by(|left, right| left.nodes.cmp(&right.nodes));
    for Conversation { nodes } in conversations {
        let compacted = nodes.first().and_then(|root| graph.nodes[*root].compacts);
        let whole = compacted.and_then(|end| {
            let ends = |chain: &&mut Vec<usize>| chain.last() == Some(&end);
            chains.iter_mut().find(ends)
        });
        match whole {
            Some(chain) => chain.extend(nodes),
            None => chains.push(nodes),
        }
    }
    // The first request that no other session started is the task's own; of its branches the last one went on.
    let is_spawned = |chain: &Vec<usize>| {
        let root = chain.first().map(|root| &graph.nodes[*root]);
        root.is_none_or(|root| root.spawned_by.is_some())
    };
    chains.sort_by_key(|chain| {
        let last = chain.last().copied().unwrap_or_default();
        (is_spawned(chain), chain.first().copied(), usize::MAX - last)
    });
    chains
}

fn steps_of(seen: &Interpretation, nodes: &[usize]) -> Steps {
    let mut steps = Steps::default();
    let mut before = None;
    for &node in nodes {
        let turn = turn_of(seen, node);
        // After a compaction the conversation begins anew.
        if seen.graph.nodes[node].compacts.is_some() {
            before = None;
        }
        for message in new_messages(before, turn) {
            steps.add_message(message);
        }
        steps.add_reply(node, turn);
        before = Some(turn);
    }
    steps
}

fn trajectory_id(seen: &Interpretation, meta: &Meta, nodes: &[usize]) -> String {
    let node = |at: Option<&usize>| at.map_or("", |at| seen.graph.nodes[*at].id.as_str());
    // Branches share their first node, never their last.
    format!("{}:{}", meta.rollout_id, node(nodes.last()))
}

fn trajectory(
    seen: &Interpretation,
    meta: &Meta,
    nodes: &[usize],
    steps: Steps,
    extra: Value,
) -> Trajectory {
    let last = nodes.last().map(|node| turn_of(seen, *node));
    let tools = last.and_then(|turn| turn.tools.clone());
    let tools = tools.filter(|tools| {
        let list = tools.as_array();
        list.is_some_and(|list| list.iter().all(Value::is_object))
    });
    let known = |text: &str| match text {
        "" => "unknown".to_owned(),
        text => text.to_owned(),
    };
    Trajectory {
        schema_version: SCHEMA_VERSION,
        session_id: meta.rollout_id.clone(),
        trajectory_id: trajectory_id(seen, meta, nodes),
        agent: Agent {
            name: known(&meta.agent.name),
            version: known(&meta.agent.version),
            model_name: last
                .and_then(|turn| turn.model.clone())
                .or_else(|| Some(meta.model.clone()).filter(|name| !name.is_empty())),
            tool_definitions: tools,
        },
        steps: steps.finish(),
        final_metrics: None,
        extra,
        subagent_trajectories: Vec::new(),
    }
}

fn extra(seen: &Interpretation, meta: &Meta) -> Value {
    let findings: Vec<String> = seen.findings.iter().map(ToString::to_string).collect();
    let own = json!({
        "capture_level": seen.capture_level,
        "rollout_type": seen.rollout_type,
        "findings": findings,
    });
    let mut extra = Head::new(meta, seen).members();
    if let Value::Object(own) = own {
        extra.extend(own);
    }
    extra.into()
}

fn final_metrics(seen: &Interpretation, whole: &Trajectory) -> FinalMetrics {
    let count = |role: Role| {
        let nodes = seen.graph.nodes.iter();
        nodes.filter(|node| node.role == role).count()
    };
    FinalMetrics {
        total_prompt_tokens: seen.usage.prompt_tokens,
        total_completion_tokens: seen.usage.completion_tokens,
        total_cached_tokens: seen.usage.cached_tokens,
        total_steps: whole.steps.len(),
        extra: json!({
            "calls": seen.usage.calls,
            "trainable_tokens": seen.n_trainable_tokens,
            "auxiliary_calls": count(Role::Auxiliary),
            "discarded_calls": count(Role::Discarded),
            "failed_calls": seen.turns.len() - seen.graph.nodes.len(),
        }),
    }
}
