//! The agent's work as conversations: paths by messages, so that a prompt in other tokens does not split them.

use serde_json::Value;

use crate::graph::{Graph, Role, echo_of};
use crate::trace::Interpretation;
use crate::turn::{Shared, Turn};

/// Nodes from the first request to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conversation {
    pub(super) nodes: Vec<usize>,
}

/// One for each of the agent's requests that no later one continues, in the order of those requests.
pub(super) fn conversations(graph: &Graph) -> Vec<Conversation> {
    let is_agent = |at: &usize| graph.nodes[*at].role == Role::Agent;
    let mut is_continued = vec![false; graph.nodes.len()];
    let agents = || (0..graph.nodes.len()).filter(is_agent);
    for before in agents().filter_map(|at| graph.nodes[at].before()) {
        is_continued[before] = true;
    }
    let ends = agents().filter(|at| !is_continued[*at]);
    ends.map(|end| Conversation {
        nodes: path(graph, end),
    })
    .collect()
}

fn path(graph: &Graph, end: usize) -> Vec<usize> {
    let mut nodes: Vec<usize> =
        std::iter::successors(Some(end), |&at| graph.nodes[at].before()).collect();
    nodes.reverse();
    nodes
}

pub(super) fn turn_of(seen: &Interpretation, node: usize) -> &Turn {
    &seen.turns[seen.graph.nodes[node].turn]
}

pub(super) fn is_system(message: &Value) -> bool {
    matches!(message["role"].as_str(), Some("system" | "developer"))
}

/// The messages of a turn that are neither in the request nor in the reply of the turn before. Leading system messages are
/// re-rendered by some agents and do not count.
pub(crate) fn new_messages<'a>(before: Option<&Turn>, turn: &'a Turn) -> Vec<&'a Shared> {
    let lead = |turn: &Turn| {
        let messages = turn.messages.iter();
        messages.take_while(|message| is_system(message)).count()
    };
    let Some(before) = before else {
        return turn.messages.iter().collect();
    };
    // A reply may have come back as several messages, with results between them.
    let echo = echo_of(before, turn);
    let asked = before.messages.len() - lead(before);
    let first = echo.first().copied().unwrap_or(lead(turn) + asked);
    let new = turn.messages.iter().enumerate().skip(first);
    new.filter(|(at, _)| !echo.contains(at))
        .map(|(_, message)| message)
        .collect()
}

/// The text of a message's content, where it is text alone.
pub(super) fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part["type"].as_str() {
                Some("text") => part["text"].as_str(),
                _ => None,
            });
            texts.collect()
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}
