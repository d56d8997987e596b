//! What agent, model and endpoint lack for each other: tools that nobody offered, prompts that do not fit.

use crate::finding::{Code, Finding};
use crate::turn::Turn;

const NAMES_MAX: usize = 20;

/// The tools that replies call and their requests did not offer, each once with the first turn that calls it.
pub(super) fn unknown_tools<'a>(turns: impl Iterator<Item = &'a Turn>) -> Option<Finding> {
    let mut found: Vec<(&str, String)> = Vec::new();
    for turn in turns {
        let Some(offered) = offered(turn) else {
            continue;
        };
        let calls = turn.message.iter().flat_map(|message| &message.tool_calls);
        for call in calls {
            let name = call.name.as_str();
            let is_new = found.iter().all(|(known, _)| *known != name);
            if is_new && !offered.contains(&name) && found.len() < NAMES_MAX {
                found.push((name, turn.node_id()));
            }
        }
    }
    let names: Vec<String> = found
        .iter()
        .map(|(name, node)| format!("`{name}` ({node})"))
        .collect();
    (!names.is_empty()).then(|| {
        let text = format!(
            "replies call tools that the agent did not offer: {}",
            names.join(", ")
        );
        Finding::warn(Code::UnknownTools, text)
    })
}

/// The names of a request's tools; `None` when there is one without, which may go by any.
fn offered(turn: &Turn) -> Option<Vec<&str>> {
    let Some(tools) = &turn.tools else {
        return Some(Vec::new());
    };
    let names = tools.as_array()?.iter().map(|tool| {
        let function = tool.get("function").unwrap_or(tool);
        function.get("name")?.as_str()
    });
    names.collect()
}

/// A prompt that was refused as too long before anything of the same kind was answered. Titles, which offer no tools, are
/// answered whatever the agent's own prompt is like.
pub(super) fn context_too_small(
    turns: &[Turn],
    is_too_long: impl Fn(&Turn) -> bool,
) -> Option<Finding> {
    let at = turns.iter().position(is_too_long)?;
    let has_tools = turns[at].n_tools > 0;
    let is_alike = |turn: &Turn| !has_tools || turn.n_tools > 0;
    if turns[..at]
        .iter()
        .any(|turn| !turn.is_failed() && is_alike(turn))
    {
        return None;
    }
    let text = format!(
        "{}: the agent's first prompt does not fit the model's context: serve it with a larger one",
        turns[at].node_id()
    );
    Some(Finding::warn(Code::ContextTooSmall, text))
}
