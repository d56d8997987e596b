//! Compaction: conversations that an agent had summarised and started over. Agents differ in how they ask for the summary
//! (with tools or without, with the conversation as messages or as text) and in where they put it; what all of them do is
//! to send it back at the start of a new conversation.

use std::collections::{HashMap, VecDeque};

use super::Node;
use super::echo::text_in;
use crate::turn::Turn;

/// How many of a session's last replies a new conversation may have begun from.
const RECENT_MAX: usize = 8;
/// How many messages at either end of a new conversation a summary is looked for in.
const MESSAGES_MAX: usize = 8;
/// A shorter text may be there by chance, unless it was asked for as a summary, or without tools.
const TEXT_MIN: usize = 40;
/// What a question for a summary has in it, in small letters.
const SUMMARY_WORDS: [&str; 3] = ["summar", "sum up", "compact"];

/// A reply that is a summary, and the node that starts over from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compaction {
    pub(super) summary: usize,
    pub(super) fresh: usize,
    /// The last node of the conversation that was summed up.
    pub(super) working: usize,
}

/// `is_fresh`: nodes that continue no earlier conversation. `has_worked_on`: nodes that one with tools continues.
pub(super) fn compactions(
    nodes: &[Node],
    turns: &[Turn],
    is_fresh: &[bool],
    has_worked_on: &[bool],
) -> Vec<Compaction> {
    #[derive(Default)]
    struct Seen {
        /// With what was the last working node then.
        replies: VecDeque<(usize, Option<usize>)>,
        working: Option<usize>,
    }
    let mut sessions: HashMap<Option<&str>, Seen> = HashMap::new();
    let mut found = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let turn = &turns[node.turn];
        let seen = sessions
            .entry(turn.harness_session_id.as_deref())
            .or_default();
        if is_fresh[at] && turn.n_tools > 0 && !seen.replies.is_empty() {
            let begun = Beginning::new(turn);
            let mut replies = seen.replies.iter().rev();
            let compaction = replies.find_map(|&(summary, working)| {
                let working = nodes[summary].before().or(working)?;
                let is_it = begun.repeats(&turns[nodes[summary].turn]);
                is_it.then_some(Compaction {
                    summary,
                    fresh: at,
                    working,
                })
            });
            found.extend(compaction);
        }
        if !has_worked_on[at] && may_sum_up(node, turn) {
            seen.replies.push_back((at, seen.working));
            if seen.replies.len() > RECENT_MAX {
                seen.replies.pop_front();
            }
        }
        if turn.n_tools > 0 {
            seen.working = Some(at);
        }
    }
    found
}

/// Whether a reply can be a summary: a text, asked for by the last message. With tools it must also end a conversation,
/// since a subagent that answers at once is none.
fn may_sum_up(node: &Node, turn: &Turn) -> bool {
    let reply = turn.message.as_ref();
    let is_text = reply.is_some_and(|reply| {
        let text = reply.content.as_deref().unwrap_or_default();
        reply.tool_calls.is_empty() && !text.trim().is_empty()
    });
    let is_asked = turn
        .messages
        .last()
        .is_some_and(|message| message["role"] == "user");
    is_text && (turn.n_tools == 0 || is_asked && node.before().is_some())
}

/// What a new conversation says at its ends.
struct Beginning {
    text: String,
}

impl Beginning {
    fn new(turn: &Turn) -> Self {
        let n_leading = super::echo::n_leading(&turn.messages);
        let n_first = n_leading + MESSAGES_MAX;
        let n_last = turn.messages.len().saturating_sub(MESSAGES_MAX);
        let messages = turn.messages.iter().enumerate();
        let ends = messages.filter(|(at, _)| *at < n_first || *at >= n_last);
        let texts: Vec<String> = ends.map(|(_, it)| collapse(&text_in(it))).collect();
        Beginning {
            text: texts.join("\n"),
        }
    }

    /// Whether it holds what the reply says, or what the reply has in a pair of tags.
    fn repeats(&self, reply: &Turn) -> bool {
        let text = reply.message.as_ref().and_then(|it| it.content.as_deref());
        let text = text.unwrap_or_default();
        let whole = collapse(text);
        let is_asked_for = asks_for_summary(reply);
        let is_short = |text: &str| text.len() < TEXT_MIN;
        let may_be_short = reply.n_tools == 0 || is_asked_for;
        let is_whole = (may_be_short || !is_short(&whole)) && self.holds(&whole);
        let parts = tagged(text).map(collapse);
        let mut parts = parts.filter(|part| is_asked_for || !is_short(part));
        is_whole || parts.any(|part| self.holds(&part))
    }

    /// In whole words.
    fn holds(&self, part: &str) -> bool {
        let is_word = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
        let (first, last) = (part.chars().next(), part.chars().next_back());
        let mut places = self.text.match_indices(part);
        places.any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let behind = self.text[at + part.len()..].chars().next();
            let is_cut = is_word(before) && is_word(first) || is_word(last) && is_word(behind);
            first.is_some() && !is_cut
        })
    }
}

/// Whether the last message asks for a summary.
fn asks_for_summary(turn: &Turn) -> bool {
    let question = turn.messages.last().map(|message| text_in(message));
    let question = question.unwrap_or_default().to_lowercase();
    SUMMARY_WORDS.iter().any(|word| question.contains(word))
}

/// One space for each run of white space: agents reformat summaries.
fn collapse(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

/// What stands between `<name>` and `</name>`, for each pair that is in no other.
fn tagged(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (_, opened) = rest.split_once('<')?;
            rest = opened;
            let (name, inner) = opened.split_once('>')?;
            let is_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '-');
            if name.is_empty() || !name.chars().all(is_name) {
                continue;
            }
            if let Some((inner, after)) = inner.split_once(&format!("</{name}>")) {
                rest = after;
                return Some(inner);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{collapse, tagged};

    #[test]
    fn what_stands_in_tags_is_found_once() {
        let found = |text: &str| -> Vec<String> { tagged(text).map(collapse).collect() };
        assert_eq!(found("a < b <c"), Vec::<String>::new());
        assert_eq!(
            found("<analysis>\n x\n</analysis>\n\n<summary> a <b>c</b>\n d</summary> e"),
            ["x", "a <b>c</b> d"]
        );
        assert_eq!(found("<open> <x y> <in>z</in>"), ["z"]);
    }
}
