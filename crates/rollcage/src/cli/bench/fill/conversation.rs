//! Writes a rollout's exchanges: a conversation that grows by a tool call and its result each time, with every token's id
//! and logprob and the most likely alternatives, as vLLM answers. Each prompt starts with the prompt and the completion
//! before it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use rollcage_dialect::sampling::LogprobsMode;
use rollcage_model::exchange::{Encoder, Line, Request, Response};
use serde_json::{Value, json};

use super::words::{Dice, Step};

/// Of the tokens of a long rollout; thousands of short ones would take gigabytes with them.
const ALTERNATIVES: usize = 5;
/// The ids of the tokens that no text is made of lie above.
const VOCABULARY: u64 = 151_000;
const END: &str = "<|im_end|>";
/// Calls of the subagent, and of the branch.
const SIDE_CALLS: usize = 4;
/// After so many calls the agent has its conversation summed up and starts over, since contexts are limited.
const COMPACT_AFTER: usize = 400;

/// What a rollout's conversation is about.
pub(super) struct Subject<'a> {
    pub(super) model: &'a str,
    pub(super) instruction: &'a str,
    pub(super) started_at: f64,
    pub(super) seed: u64,
}

/// A conversation so far, as JSON without the brackets around it, so that adding to it takes no time.
#[derive(Clone)]
struct Talk {
    messages: String,
    prompt: String,
    n_prompt: usize,
}

/// What the model says.
struct Reply<'a> {
    thought: Option<&'a str>,
    words: &'a str,
    tool: Option<(&'a str, &'a Value)>,
}

/// A session of the agent, by its headers.
#[derive(Clone, Copy)]
struct Session {
    name: &'static str,
    parent: Option<&'static str>,
    has_tools: bool,
}

const MAIN: Session = Session {
    name: "ses_main",
    parent: None,
    has_tools: true,
};
/// Titles and summaries.
const BESIDE: Session = Session {
    has_tools: false,
    ..MAIN
};
const SUBAGENT: Session = Session {
    name: "ses_explore",
    parent: Some(MAIN.name),
    has_tools: true,
};

/// Writes so many calls. Twenty and more have one for a title, one that is asked again, a branch, a subagent, and
/// alternatives to each token; hundreds have summaries, too. Returns the time of the end.
pub(super) fn write(path: &Path, subject: &Subject<'_>, calls: usize) -> anyhow::Result<f64> {
    let is_long = calls >= 20;
    let alternatives = if is_long { ALTERNATIVES } else { 0 };
    let mut recording = Recording::create(path, subject, alternatives)?;
    let mut talk = Talk::new(SYSTEM, subject.instruction);
    if is_long {
        let title = Talk::new("Give this conversation a title.", subject.instruction);
        recording.say(&title, BESIDE, &words("Retries with growing waits"))?;
    }
    while recording.exchange + 1 < calls as u64 {
        let number = recording.exchange as usize;
        if is_long && number == calls / 3 {
            recording.step(&talk, MAIN)?;
        }
        if is_long && number == calls / 2 {
            recording.branch(talk.clone())?;
            recording.subagent()?;
        }
        if number > 0 && number.is_multiple_of(COMPACT_AFTER) {
            talk = recording.compact(talk)?;
        }
        talk = recording.step(&talk, MAIN)?;
    }
    recording.say(&talk, MAIN, &words("Everything is done: the tests pass."))?;
    Ok(recording.at)
}

const SYSTEM: &str = "You are a coding agent. Work in /home/user/workdir and use the tools.";

fn words(words: &str) -> Reply<'_> {
    Reply {
        thought: None,
        words,
        tool: None,
    }
}

/// The file of a rollout's exchanges while it is written.
struct Recording<'a> {
    file: File,
    encoder: Encoder,
    subject: &'a Subject<'a>,
    alternatives: usize,
    dice: Dice,
    exchange: u64,
    /// Unix seconds.
    at: f64,
}

impl<'a> Recording<'a> {
    fn create(path: &Path, subject: &'a Subject<'a>, alternatives: usize) -> anyhow::Result<Self> {
        let mut options = File::options();
        options.append(true).create_new(true).mode(0o600);
        let file = options.open(path);
        Ok(Recording {
            file: file.with_context(|| format!("write {}", path.display()))?,
            encoder: Encoder::default(),
            subject,
            alternatives,
            dice: Dice::new(subject.seed),
            exchange: 0,
            at: subject.started_at + 1.5,
        })
    }

    /// One call with a tool call, and the conversation with its result.
    fn step(&mut self, talk: &Talk, session: Session) -> anyhow::Result<Talk> {
        let step = Step::new(&mut self.dice, self.exchange as usize);
        let reply = Reply {
            thought: step.thought,
            words: step.words,
            tool: Some((step.tool, &step.arguments)),
        };
        let pieces = self.say(talk, session, &reply)?;
        let call = call_id(self.exchange);
        let mut talk = talk.clone();
        talk.add_reply(&reply, &pieces, &call);
        talk.add("tool", &step.result, Some(&call));
        Ok(talk)
    }

    /// The same conversation, gone on with in another way and to its end.
    fn branch(&mut self, mut talk: Talk) -> anyhow::Result<()> {
        talk.add("user", "Try it with a queue instead.", None);
        for _ in 1..SIDE_CALLS {
            talk = self.step(&talk, MAIN)?;
        }
        self.say(&talk, MAIN, &words("The queue works, too."))?;
        Ok(())
    }

    /// The conversation that takes the place of this one.
    fn compact(&mut self, mut talk: Talk) -> anyhow::Result<Talk> {
        talk.add("user", "Sum up what was done and what is left.", None);
        let summary = format!(
            "After {} calls the parser and the queue are changed and tested; the retries are left to do.",
            self.exchange
        );
        self.say(&talk, BESIDE, &words(&summary))?;
        let instruction = format!("{}\n\n{summary}", self.subject.instruction);
        Ok(Talk::new(SYSTEM, &instruction))
    }

    fn subagent(&mut self) -> anyhow::Result<()> {
        let mut talk = Talk::new(SYSTEM, "Find every place where a retry is made.");
        for _ in 1..SIDE_CALLS {
            talk = self.step(&talk, SUBAGENT)?;
        }
        self.say(&talk, SUBAGENT, &words("There are three such places."))?;
        Ok(())
    }

    /// Writes one call. Returns the texts of the sampled tokens.
    fn say(
        &mut self,
        talk: &Talk,
        session: Session,
        reply: &Reply<'_>,
    ) -> anyhow::Result<Vec<String>> {
        self.exchange += 1;
        let pieces = reply.pieces();
        let asked_at = self.at;
        let seconds = 0.4 + pieces.len() as f64 * 0.02 + self.dice.share();
        self.at += seconds + self.dice.share() * 2.0;
        let set =
            json!({"logprobs": true, "top_logprobs": self.alternatives, "return_token_ids": true});
        let mut headers = BTreeMap::from([("x-session-id".to_owned(), session.name.to_owned())]);
        let parent = session.parent.map(str::to_owned);
        headers.extend(parent.map(|parent| ("x-parent-session-id".to_owned(), parent)));
        self.append(Line::Request(Request {
            exchange: self.exchange,
            at: asked_at,
            path: "/v1/chat/completions".to_owned(),
            headers,
            set: set.as_object().cloned().unwrap_or_default(),
            logprobs_of: Some(LogprobsMode::Processed),
            body: self.request(talk, session).into(),
            ..Request::default()
        }))?;
        let body = self.answer(talk, reply, &pieces);
        self.append(Line::Response(Response {
            exchange: self.exchange,
            at: asked_at + seconds,
            status: Some(200),
            first_byte_s: Some(0.3),
            total_s: seconds,
            body: body.into(),
            ..Response::default()
        }))?;
        Ok(pieces)
    }

    fn append(&mut self, line: Line) -> anyhow::Result<()> {
        let frame = self.encoder.earlier(&line).frame(line)?;
        let (bytes, _) = self.encoder.encode(frame)?;
        self.file.write_all(&bytes).context("write exchanges")
    }

    fn request(&self, talk: &Talk, session: Session) -> String {
        let tool = |name: &str, about: &str| {
            json!({"type": "function", "function": {
                "name": name, "description": about, "parameters": {"type": "object", "properties": {}},
            }})
        };
        let tools = json!([
            tool("bash", "Runs a command."),
            tool("read", "Reads a file."),
            tool("edit", "Replaces a text in a file."),
        ]);
        let tools = match session.has_tools {
            true => format!("\"tools\":{tools},"),
            false => String::new(),
        };
        let Talk { messages, .. } = talk;
        let model = json!(self.subject.model);
        format!(
            "{{\"model\":{model},\"temperature\":1.0,\"max_tokens\":4096,{tools}\"messages\":[{messages}]}}"
        )
    }

    fn answer(&mut self, talk: &Talk, reply: &Reply<'_>, pieces: &[String]) -> String {
        let sampled: Vec<_> = pieces.iter().map(|piece| id_of(piece)).collect();
        let entries: Vec<_> = pieces
            .iter()
            .map(|piece| self.logprob(piece, pieces))
            .collect();
        let call = call_id(self.exchange);
        let finish = match reply.tool {
            Some(_) => "tool_calls",
            None => "stop",
        };
        let choices = json!([{
            "index": 0, "finish_reason": finish, "message": reply.message(&call), "token_ids": sampled,
            "logprobs": {"content": entries},
        }]);
        let usage = json!({
            "prompt_tokens": talk.n_prompt, "completion_tokens": pieces.len(),
            "total_tokens": talk.n_prompt + pieces.len(),
        });
        let Talk { prompt, .. } = talk;
        let (model, created) = (json!(self.subject.model), self.at as u64);
        let number = self.exchange;
        format!(
            "{{\"id\":\"chatcmpl-{number}\",\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\
             \"prompt_token_ids\":[{prompt}],\"choices\":{choices},\"usage\":{usage}}}"
        )
    }

    /// A sampled token with what else could have been sampled.
    fn logprob(&mut self, piece: &str, others: &[String]) -> Value {
        // Most tokens are nearly certain, and some are not.
        let doubt = self.dice.share().powi(6);
        let own = -4.0 * doubt;
        let entry = |token: &str, logprob: f64| json!({"token": token, "logprob": logprob});
        let mut sampled = entry(piece, own);
        if self.alternatives > 0 {
            let mut top = vec![sampled.clone()];
            for place in 1..self.alternatives {
                let other = self.dice.pick(others);
                let logprob = own - 1.5 * place as f64 - self.dice.share() * (1.0 - doubt) * 6.0;
                top.push(entry(other, logprob));
            }
            sampled["top_logprobs"] = top.into();
        }
        sampled
    }
}

impl Reply<'_> {
    fn message(&self, call: &str) -> Value {
        let mut message = json!({"role": "assistant", "content": self.words});
        if let Some(thought) = self.thought {
            message["reasoning_content"] = json!(thought);
        }
        if let Some((name, arguments)) = self.tool {
            let function = json!({"name": name, "arguments": arguments.to_string()});
            message["tool_calls"] = json!([{"id": call, "type": "function", "function": function}]);
        }
        message
    }

    /// The texts of the tokens that it is sampled as.
    fn pieces(&self) -> Vec<String> {
        let mut raw = String::new();
        if let Some(thought) = self.thought {
            raw += &format!("<think>\n{thought}\n</think>\n\n");
        }
        raw += self.words;
        if let Some((name, arguments)) = self.tool {
            let call = json!({"name": name, "arguments": arguments});
            raw += &format!("\n<tool_call>\n{call}\n</tool_call>");
        }
        let mut pieces = pieces_of(&raw);
        pieces.push(END.to_owned());
        pieces
    }
}

impl Talk {
    fn new(system: &str, instruction: &str) -> Self {
        let mut talk = Talk {
            messages: String::new(),
            prompt: String::new(),
            n_prompt: 0,
        };
        talk.add_message(&json!({"role": "system", "content": system}));
        talk.add_tokens(&pieces_of(&format!("<|im_start|>system\n{system}")));
        talk.add_tokens(&[END.to_owned()]);
        talk.add("user", instruction, None);
        talk
    }

    /// Adds a message and what makes the model reply to it.
    fn add(&mut self, role: &str, text: &str, call: Option<&str>) {
        let mut message = json!({"role": role, "content": text});
        if let Some(call) = call {
            message["tool_call_id"] = json!(call);
        }
        self.add_message(&message);
        self.add_tokens(&pieces_of(&format!("\n<|im_start|>{role}\n{text}")));
        self.add_tokens(&[END.to_owned()]);
        self.add_tokens(&pieces_of("\n<|im_start|>assistant\n"));
    }

    fn add_reply(&mut self, reply: &Reply<'_>, pieces: &[String], call: &str) {
        let mut message = reply.message(call);
        if let Some(members) = message.as_object_mut() {
            // Agents do not send it back.
            members.remove("reasoning_content");
        }
        self.add_message(&message);
        self.add_tokens(pieces);
    }

    fn add_message(&mut self, message: &Value) {
        if !self.messages.is_empty() {
            self.messages.push(',');
        }
        self.messages += &message.to_string();
    }

    fn add_tokens(&mut self, pieces: &[String]) {
        for piece in pieces {
            if !self.prompt.is_empty() {
                self.prompt.push(',');
            }
            self.prompt += &id_of(piece).to_string();
        }
        self.n_prompt += pieces.len();
    }
}

fn call_id(exchange: u64) -> String {
    format!("call_{exchange}")
}

/// A text as tokens: words with the space before them, and what stands between words.
fn pieces_of(text: &str) -> Vec<String> {
    const CHARS_MAX: usize = 8;
    let mut pieces: Vec<String> = Vec::new();
    for character in text.chars() {
        let is_word = character.is_alphanumeric();
        match pieces.last_mut() {
            Some(last) if last.chars().count() < CHARS_MAX && goes_on(last, is_word, character) => {
                last.push(character);
            }
            _ => pieces.push(character.to_string()),
        }
    }
    pieces
}

/// Whether a character belongs to the token before it.
fn goes_on(last: &str, is_word: bool, character: char) -> bool {
    let mut before = last.chars().rev();
    match before.next() {
        Some(' ') => is_word,
        Some(before) => before.is_alphanumeric() == is_word && character != ' ',
        None => false,
    }
}

/// The same text has the same id (FNV-1a).
fn id_of(piece: &str) -> u64 {
    let hash = piece.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash % VOCABULARY
}

#[cfg(test)]
mod tests;
