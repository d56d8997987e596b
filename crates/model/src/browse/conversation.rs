//! Which conversations a rollout has, and what was said in one of them.

use std::collections::BTreeMap;

use super::Reading;
use super::said::{Said, Talk};
use super::text::{content_of, line_of};
use super::transcript::{Conversation, TranscriptPage};

/// A page ends early where its texts are longer.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Of what was asked first.
const TITLE_CHARS: usize = 120;
/// In the order of the list.
const KINDS: [&str; 4] = ["agent", "subagent", "auxiliary", "discarded"];

impl Reading {
    /// A page of one conversation: the latest that the given call is part of, or the agent's own latest. `None` where there
    /// is no such call.
    pub fn transcript(
        &self,
        conversation: Option<usize>,
        start: usize,
        limit: usize,
    ) -> Option<TranscriptPage> {
        self.transcript_within(conversation, start, limit, PAGE_BYTES_MAX)
    }

    /// The same without pages.
    pub fn whole_transcript(&self, conversation: Option<usize>) -> Option<TranscriptPage> {
        self.transcript_within(conversation, 0, usize::MAX, usize::MAX)
    }

    fn transcript_within(
        &self,
        conversation: Option<usize>,
        start: usize,
        limit: usize,
        bytes_max: usize,
    ) -> Option<TranscriptPage> {
        let conversations = self.conversations();
        let first = match conversation {
            Some(call) if call >= self.seen.turns.len() => return None,
            Some(call) => Some(call),
            None => self.latest_of(&conversations),
        };
        let path = first.map(|first| self.path_through(first));
        let path = path.unwrap_or_default();
        let said = self.said(&path);
        let mut entries = Vec::new();
        let mut bytes = 0;
        for (at, said) in said.iter().enumerate().skip(start).take(limit) {
            let entry = said.entry(at, &self.seen.turns);
            bytes += entry.bytes();
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Some(TranscriptPage {
            entries,
            start,
            total: said.len(),
            root: path.first().copied(),
            conversations,
        })
    }

    /// The root of the conversation of the first kind that went on last.
    fn latest_of(&self, conversations: &[Conversation]) -> Option<usize> {
        let kind = &conversations.first()?.kind;
        let calls = 0..self.seen.turns.len();
        // A later call takes the place of an earlier one.
        let last: BTreeMap<usize, usize> = calls.map(|turn| (self.root(turn), turn)).collect();
        let own = conversations.iter().filter(|it| it.kind == *kind);
        own.map(|it| it.root).max_by_key(|root| last.get(root))
    }

    fn conversations(&self) -> Vec<Conversation> {
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for turn in 0..self.seen.turns.len() {
            members.entry(self.root(turn)).or_default().push(turn);
        }
        let is_answered = |turns: &Vec<usize>| turns.iter().any(|turn| self.node(*turn).is_some());
        let any_answered = members.values().any(is_answered);
        // Failed calls are of interest where there is nothing else.
        members.retain(|_, turns| {
            let is_open = turns.iter().any(|turn| self.is_pending(*turn));
            is_answered(turns) || is_open || !any_answered
        });
        let mut found: Vec<Conversation> = members
            .iter()
            .map(|(root, turns)| Conversation {
                root: *root,
                kind: self.kind(*root, turns).to_owned(),
                title: self.title(*root),
                turns: turns.len(),
            })
            .collect();
        found.sort_by_key(|it| KINDS.iter().position(|kind| *kind == it.kind));
        found
    }

    fn kind(&self, root: usize, turns: &[usize]) -> &'static str {
        let first = &self.seen.turns[root];
        let roles: Vec<&str> = turns.iter().map(|turn| self.role(*turn)).collect();
        let is_answered = turns.iter().any(|turn| self.node(*turn).is_some());
        let is_subagent = first.parent_session_id.is_some() && !is_answered;
        if self.is_subagent(root) || is_subagent {
            KINDS[1]
        } else if roles.contains(&KINDS[0]) || !is_answered && first.n_tools > 0 {
            KINDS[0]
        } else if roles.contains(&KINDS[2]) || !is_answered {
            KINDS[2]
        } else {
            KINDS[3]
        }
    }

    fn title(&self, root: usize) -> String {
        let mut messages = self.seen.turns[root].messages.iter();
        let asked = messages.find(|message| message["role"] == "user");
        let asked = asked.map(|message| content_of(&message["content"]).0);
        line_of(&asked.unwrap_or_default(), TITLE_CHARS)
    }

    /// The calls from the first one of a conversation through the given one to the latest that goes on from it, the agent's
    /// where there is a choice.
    fn path_through(&self, call: usize) -> Vec<usize> {
        let mut is_next = vec![false; self.seen.turns.len()];
        is_next[call] = true;
        for turn in call + 1..is_next.len() {
            is_next[turn] = self
                .before(turn)
                .any()
                .is_some_and(|before| is_next[before]);
        }
        let next = || (0..is_next.len()).rev().filter(|turn| is_next[*turn]);
        let is_own = |turn: &usize| self.is_agents(*turn) || self.node(*turn).is_none();
        let last = next().find(is_own).or_else(|| next().next());
        let line = std::iter::successors(last, |turn| self.before(*turn).any());
        let mut path: Vec<usize> = line.take(is_next.len()).collect();
        path.reverse();
        path
    }

    /// Everything that was said on a path.
    fn said(&self, path: &[usize]) -> Vec<Said<'_>> {
        let mut talk = Talk::default();
        let mut before: Option<usize> = None;
        for &call in path {
            let turn = &self.seen.turns[call];
            let is_anew = self.before(call).call.is_none();
            match before {
                Some(before) if is_anew => {
                    self.hear_beside(&mut talk, before);
                    talk.start_over(call, turn);
                }
                Some(before) => {
                    let is_changed = self.node(call).is_some_and(|node| node.changed.is_some());
                    talk.go_on(call, turn, (&self.seen.turns[before], is_changed));
                }
                None => talk.begin(call, turn),
            }
            talk.reply(call, turn);
            before = Some(call);
        }
        if let Some(last) = before {
            self.hear_beside(&mut talk, last);
        }
        talk.said
    }

    /// Results that were sent by calls beside the path alone, which go on from this call, too: one that asked for a
    /// summary, or one that failed.
    fn hear_beside<'a>(&'a self, talk: &mut Talk<'a>, before: usize) {
        if talk.has_open() {
            let calls = 0..self.seen.turns.len();
            for call in calls.filter(|call| self.before(*call).call == Some(before)) {
                talk.hear(&self.seen.turns[before], &self.seen.turns[call]);
            }
        }
    }
}
