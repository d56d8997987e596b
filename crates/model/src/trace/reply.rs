//! Findings about replies: in what form the agent sent them back, and why some are not trained.

use std::collections::HashSet;

use serde_json::Value;

use super::change::describe;
use crate::finding::{Code, Finding};
use crate::graph::{Aside, Graph, Node, Role, echo_of};
use crate::turn::Turn;

/// How many replies get a finding each.
const TOLD_MAX: usize = 100;
/// How many nodes are named in one finding.
const NAMES_MAX: usize = 20;
const TEXT_MAX: usize = 300;

/// The finding about the reply that this node continues, if there is one.
pub(super) fn of_node(turns: &[Turn], graph: &Graph, node: &Node) -> Option<Finding> {
    if let Some(before) = node.retokenised {
        let text = format!(
            "{} goes on from {} by its messages but not by its tokens, so it is trained as a row of its own",
            node.id, graph.nodes[before].id
        );
        return Some(Finding::warn(Code::Retokenised, text));
    }
    if let Some(before) = node.changed {
        let before = &graph.nodes[before];
        let (reply, turn) = (&turns[before.turn], &turns[node.turn]);
        let echo = echo_of(reply, turn);
        let echo: Vec<&Value> = echo.iter().map(|at| &*turn.messages[*at]).collect();
        let changes = reply
            .message
            .as_ref()
            .map(|message| describe(message, &echo));
        let head = format!(
            "{}: the agent sent the reply back changed: {}",
            before.id,
            changes.unwrap_or_default()
        );
        let tail = format!("; {} goes on from it as a row of its own", node.id);
        let text = shorten(head, TEXT_MAX - tail.len()) + &tail;
        return Some(Finding::info(Code::ReplyChanged, text));
    }
    let before = &graph.nodes[node.left_out?];
    let text = format!(
        "{}: the agent left the reply out and went on with a message of its own in {}; both are trained, as rows of their own",
        before.id, node.id
    );
    (before.role == Role::Agent).then(|| Finding::warn(Code::ReplyChanged, text))
}

fn shorten(mut text: String, max: usize) -> String {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max.saturating_sub('…'.len_utf8()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or_default());
    text.push('…');
    text
}

/// One for each reply, as far as there are not too many.
pub(super) fn limit(findings: &mut Vec<Finding>) {
    let mut n_changed = 0;
    findings.retain(|finding| {
        n_changed += usize::from(finding.code == Code::ReplyChanged);
        finding.code != Code::ReplyChanged || n_changed <= TOLD_MAX
    });
    if n_changed > TOLD_MAX {
        let text = format!(
            "{} more replies were sent back changed",
            n_changed - TOLD_MAX
        );
        findings.push(Finding::info(Code::ReplyChanged, text));
    }
}

/// What was discarded, with the reason of each.
pub(super) fn discarded(turns: &[Turn], graph: &Graph, findings: &mut Vec<Finding>) {
    let ids = |aside: Aside| -> Vec<&str> {
        let nodes = graph.nodes.iter();
        let nodes = nodes.filter(|node| node.role == Role::Discarded && node.aside == Some(aside));
        nodes.map(|node| node.id.as_str()).collect()
    };
    let reasons = [
        (Aside::AskedAgain, "asked for again and not gone on from"),
        (Aside::ThrownAway, "thrown away by the agent"),
    ];
    let told: Vec<String> = reasons
        .iter()
        .map(|(aside, reason)| (ids(*aside), reason))
        .filter(|(ids, _)| !ids.is_empty())
        .map(|(ids, reason)| format!("{}: {reason}", names(&ids)))
        .collect();
    if !told.is_empty() {
        let text = format!("{}; not trained", told.join("; "));
        findings.push(Finding::warn(Code::DiscardedTurns, text));
    }
    let summed_up: HashSet<usize> = graph
        .nodes
        .iter()
        .filter(|node| node.aside == Some(Aside::Summary))
        .filter_map(Node::before)
        .collect();
    let thrown = graph.nodes.iter();
    let thrown = thrown.filter(|node| node.aside == Some(Aside::ThrownAway));
    for node in thrown.take(TOLD_MAX) {
        let wanted = match node
            .before()
            .is_some_and(|before| summed_up.contains(&before))
        {
            true => " where it wanted a summary",
            false => "",
        };
        let calls = turns[node.turn]
            .message
            .iter()
            .flat_map(|it| &it.tool_calls);
        let calls: Vec<&str> = calls.map(|call| call.name.as_str()).collect();
        let what = match calls.as_slice() {
            [] => "a text".to_owned(),
            calls => format!("a call of {}", names(calls)),
        };
        let text = format!(
            "{}: the agent did not use the reply, {what}{wanted}",
            node.id
        );
        findings.push(Finding::warn(
            Code::ReplyThrownAway,
            shorten(text, TEXT_MAX),
        ));
    }
}

fn names(names: &[&str]) -> String {
    let mut shown = names[..names.len().min(NAMES_MAX)].join(", ");
    if names.len() > NAMES_MAX {
        shown += &format!(" and {} more", names.len() - NAMES_MAX);
    }
    shown
}
