//! Which replies are not the agent's work, and why.
//!
//! A reply that some later turn continues always counts as work. For the others, where "the same prompt" means the same
//! ids, or the same messages where there are no ids:
//!
//! | what came later | told by session headers | no headers |
//! |---|---|---|
//! | the same prompt, in another session | kept (twins) | – |
//! | the same prompt, and that was gone on from | asked again | asked again, if it began after this one's end; else kept (twins run side by side) |
//! | the same prompt, and that was not gone on from either | asked again | asked again, if this one is empty or broken off; else kept |
//! | the same prompt, for a summary that was used | thrown away | thrown away |
//! | a prompt that goes on from the same reply without this one's question, whose tool calls nobody answered | thrown away | thrown away |
//! | a prompt that holds this one and leaves its reply out | kept | kept |
//! | nothing | kept | kept |

use std::collections::{HashMap, HashSet};

use super::Node;
use super::echo::says_the_same;
use crate::turn::Turn;

/// How many continuations of one reply are looked at, the latest first.
const SIBLINGS_MAX: usize = 8;

/// Why a node is not trained as the agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// It was asked without the tools that the work is done with.
    Beside,
    /// It sums up a conversation, which then began anew from it.
    Summary,
    /// The same was asked again, and this reply was not gone on from.
    AskedAgain,
    /// The agent did not use it, like a tool call where it wanted a summary.
    ThrownAway,
}

impl Aside {
    pub fn as_str(self) -> &'static str {
        match self {
            Aside::Beside => "beside",
            Aside::Summary => "summary",
            Aside::AskedAgain => "asked_again",
            Aside::ThrownAway => "thrown_away",
        }
    }
}

/// What is known of the nodes, each list with one element for each of them.
pub(super) struct NodeFacts<'a> {
    pub(super) nodes: &'a [Node],
    pub(super) turns: Vec<&'a Turn>,
    /// Equal for equal prompts.
    pub(super) prompts: Vec<usize>,
    pub(super) is_continued: Vec<bool>,
    /// The last node that continues it.
    pub(super) last_next: Vec<Option<usize>>,
    pub(super) is_summary: Vec<bool>,
}

impl NodeFacts<'_> {
    fn session(&self, at: usize) -> Option<&str> {
        self.turns[at].harness_session_id.as_deref()
    }

    /// Summaries, and what was asked again or thrown away.
    pub(super) fn asides(&self) -> Vec<Option<Aside>> {
        let mut asides: Vec<Option<Aside>> = self
            .is_summary
            .iter()
            .map(|is_summary| is_summary.then_some(Aside::Summary))
            .collect();
        let mut groups: HashMap<(usize, Option<&str>), Vec<usize>> = HashMap::new();
        for at in 0..self.nodes.len() {
            let group = groups.entry((self.prompts[at], self.session(at)));
            group.or_default().push(at);
        }
        for tries in groups.values().filter(|tries| tries.len() > 1) {
            let has_summary = tries.iter().any(|at| self.is_summary[*at]);
            for at in self.asked_again(tries) {
                asides[at] = Some(match has_summary {
                    true => Aside::ThrownAway,
                    false => Aside::AskedAgain,
                });
            }
        }
        for at in self.thrown_away() {
            asides[at].get_or_insert(Aside::ThrownAway);
        }
        asides
    }

    /// Of the replies to one prompt in one session, the earliest first, those that were asked for again.
    fn asked_again(&self, tries: &[usize]) -> Vec<usize> {
        let Some(&last) = tries.last() else {
            return Vec::new();
        };
        let open = |at: &&usize| !self.is_continued[**at];
        if self.session(last).is_some() {
            let last_next = tries.iter().filter_map(|at| self.last_next[*at]).max();
            let is_passed = |at: &&usize| **at < last || last_next.is_some_and(|next| next > **at);
            return tries
                .iter()
                .filter(open)
                .filter(is_passed)
                .copied()
                .collect();
        }
        // When the last of the later ones began that were gone on from.
        let mut began = f64::NEG_INFINITY;
        let mut asked_again = Vec::new();
        for &at in tries.iter().rev() {
            let turn = self.turns[at];
            if self.is_continued[at] {
                began = began.max(turn.at);
            } else if at != last && (began >= end_of(turn) || is_broken(turn)) {
                asked_again.push(at);
            }
        }
        asked_again
    }

    /// Replies with tool calls that were never answered, while their conversation went on without them and without
    /// the question.
    fn thrown_away(&self) -> Vec<usize> {
        let mut next: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(before) = node.before() {
                next.entry(before).or_default().push(at);
            }
        }
        let left_out = self.nodes.iter().filter_map(|node| node.left_out);
        let left_out: HashSet<usize> = left_out.collect();
        let is_passed = |at: &usize| {
            let before = self.nodes[*at]
                .before()
                .and_then(|before| next.get(&before));
            let later = before.into_iter().flatten().rev();
            let mut later = later.take_while(|other| *other > at).take(SIBLINGS_MAX);
            later.any(|other| {
                self.prompts[*other] != self.prompts[*at]
                    && self.session(*other) == self.session(*at)
                    && self.turns[*other].n_tools > 0
                    && self.turns[*other].at >= end_of(self.turns[*at])
                    && !holds_question(self.turns[*other], self.turns[*at])
            })
        };
        (0..self.nodes.len())
            .filter(|at| !self.is_continued[*at] && has_calls(self.turns[*at]))
            .filter(|at| is_question(self.turns[*at]))
            .filter(|at| !left_out.contains(at))
            .filter(is_passed)
            .collect()
    }
}

/// Unix seconds.
pub(super) fn end_of(turn: &Turn) -> f64 {
    turn.at + turn.latency_s.unwrap_or_default()
}

/// Whether the last message is a question of the agent's, and not a tool's result.
fn is_question(turn: &Turn) -> bool {
    let last = turn.messages.last();
    last.is_some_and(|message| message["role"] == "user")
}

/// Whether one turn's messages include the last message of the other: then its reply may be among them, too, changed
/// beyond recognition.
fn holds_question(turn: &Turn, other: &Turn) -> bool {
    let Some(question) = other.messages.last() else {
        return true;
    };
    let mut messages = turn.messages.iter();
    messages.any(|message| says_the_same(message, question))
}

fn has_calls(turn: &Turn) -> bool {
    let message = turn.message.as_ref();
    message.is_some_and(|message| !message.tool_calls.is_empty())
}

/// Whether no agent could use the reply: it is empty or broken off.
fn is_broken(turn: &Turn) -> bool {
    let text = turn.message.as_ref().and_then(|it| it.content.as_deref());
    let is_empty = text.is_none_or(|text| text.trim().is_empty()) && !has_calls(turn);
    let is_whole = !matches!(
        turn.finish_reason.as_deref(),
        None | Some("abort" | "error")
    );
    is_empty || !is_whole
}
