//! The drill: a long conversation with what breaks the way from one turn to the next, played through the agent's own
//! tools to see what it makes of it.
//!
//! An agent may replace or drop a reply that it cannot use, and asks again after one that broke off, so the place in the
//! drill does not follow from the conversation: the endpoint counts. The n-th request of a conversation gets the n-th
//! reply, and each key, which is one rollout, has counts of its own.

use serde_json::Value;

pub use rollcage_model::drill::Part;
use rollcage_model::task::Task;

use super::player::{self, PlayError, Reply};
use super::request::{ChatRequest, Tool};
use super::toolbox::{self, Call, Change, Filler};

const INSTRUCTION: &str =
    "Write drill.txt, change it, look at it in many ways, and write done.txt.";
/// What the main conversation sends a subagent to do, and by which its conversation is known.
const ERRAND: &str = "Run the errand of the drill: list the files here.";
const FILE: &str = "drill.txt";
/// With a blank at the end of a line, which some agents take away.
const CONTENT: &str = "one \ntwo\n";
const CHANGED: &str = "one \nthree\n";
const LAST_WORD: &str = "The drill is done.";
const ERRAND_DONE: &str = "The errand is done.";
const STRAY_TOOL: &str = "look_around";

/// Which parts are played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drill {
    parts: Vec<Part>,
}

impl Drill {
    /// All of it but for these parts.
    pub fn without(parts: &[Part]) -> Self {
        let rest = Part::ALL.into_iter();
        Drill {
            parts: rest.filter(|part| !parts.contains(part)).collect(),
        }
    }

    /// What an agent is told to do, and how it is seen that it did.
    pub fn task(&self, id: String) -> Task {
        Task {
            id,
            instruction: INSTRUCTION.to_owned(),
            verify: vec![
                format!("grep -qx three {FILE}"),
                "grep -qx done done.txt".to_owned(),
            ],
            agent_timeout_s: Some(180.0),
            ..Task::default()
        }
    }

    /// Every reply of a conversation, in order.
    fn entries(&self, conversation: Conversation) -> Vec<(Part, Fate)> {
        if conversation == Conversation::Errand {
            return [Part::LastCommand, Part::LastWord]
                .map(|part| (part, Fate::Whole))
                .into();
        }
        let parts = self.parts.iter();
        let entries = parts.flat_map(|part| {
            let first = match part {
                Part::ServerError => Some(Fate::Refused),
                Part::BrokenStream => Some(Fate::BrokenOff),
                _ => None,
            };
            let last = match part {
                Part::CutCall => Fate::Cut,
                _ => Fate::Whole,
            };
            first.into_iter().chain([last]).map(|fate| (*part, fate))
        });
        entries.collect()
    }
}

/// Which conversation of a rollout a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conversation {
    Main,
    /// The subagent's.
    Errand,
    /// A request without tools, such as one for a title. It never uses up a part.
    Aside,
}

/// What becomes of a reply on its way to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Whole,
    /// The token limit ends it in the middle of a call.
    Cut,
    /// There is an error in its place.
    Refused,
    BrokenOff,
}

/// What was played for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    pub part: Part,
    pub conversation: Conversation,
    pub fate: Fate,
}

/// The conversation that a request goes on with.
pub(super) fn conversation(request: &ChatRequest) -> Conversation {
    let is_listing = request.says(player::LISTING);
    if request.offered().is_empty() && !is_listing {
        return Conversation::Aside;
    }
    match request.was_asked(ERRAND) {
        true => Conversation::Errand,
        false => Conversation::Main,
    }
}

/// The reply at a place of the drill, and the place of the next one. Parts that the agent has no tool for are left out.
pub(super) fn next(
    request: &ChatRequest,
    (drill, workdir): (&Drill, &str),
    conversation: Conversation,
    place: usize,
) -> Result<(Reply, Played, usize), PlayError> {
    let entries = drill.entries(conversation);
    let rest = entries.iter().enumerate().skip(place);
    for (at, (part, fate)) in rest {
        let scene = Scene {
            request,
            tools: &request.offered(),
            filler: Filler {
                purpose: format!("Part `{part}` of the drill"),
                workdir,
            },
        };
        let reply = match conversation {
            Conversation::Aside => Some(player::speak(player::ASIDE)),
            Conversation::Main if scene.tools.is_empty() => listing(*part, *fate),
            Conversation::Main | Conversation::Errand => {
                scene.reply((*part, *fate), conversation)?
            }
        };
        if let Some(reply) = reply {
            let (part, fate) = (*part, *fate);
            let played = Played {
                part,
                conversation,
                fate,
            };
            return Ok((reply, played, at + 1));
        }
    }
    // An agent that asks on after the last word hears it again.
    let played = Played {
        part: Part::LastWord,
        conversation,
        fate: Fate::Whole,
    };
    Ok((player::speak(LAST_WORD), played, entries.len()))
}

/// What a reply is made from.
struct Scene<'a> {
    request: &'a ChatRequest,
    tools: &'a [Tool<'a>],
    filler: Filler<'a>,
}

impl Scene<'_> {
    /// Nothing where the agent has no tool for this part.
    fn reply(
        &self,
        (part, fate): (Part, Fate),
        conversation: Conversation,
    ) -> Result<Option<Reply>, PlayError> {
        let workdir = self.filler.workdir;
        let reply = match part {
            Part::Write => {
                calls([self.need(toolbox::write(self.tools, FILE, CONTENT, &self.filler))?])
            }
            Part::Edit => {
                let change = Change {
                    path: FILE,
                    before: "two",
                    after: "three",
                };
                calls([self.need(toolbox::edit(self.tools, &change, &self.filler))?])
            }
            Part::ChangeDirectory => calls([self.shell(&format!("cd {workdir} && cat {FILE}"))?]),
            Part::Float => calls([self.shell_with("5000.0")?]),
            Part::Exponent => calls([self.shell_with("7e3")?]),
            Part::Parallel => calls([self.shell("echo the one")?, self.shell("echo the other")?]),
            Part::TextBefore => says(
                "Now I look at it. \n",
                self.shell(&format!("wc -l {FILE}"))?,
            ),
            Part::BlankText => says("\n\n", self.shell("ls")?),
            Part::BrokenArguments => {
                let mut call = self.shell("echo broken")?;
                call.arguments.pop();
                calls([call])
            }
            Part::UnknownTool => calls([Call {
                name: STRAY_TOOL.to_owned(),
                arguments: r#"{"path":"."}"#.to_owned(),
            }]),
            Part::CutCall => says(
                "Once more.",
                self.shell("echo a command that is cut in the middle")?,
            ),
            Part::ServerError => calls([self.shell("echo after the error")?]),
            // Asked again, an engine samples something else. Without text, after which goose does not ask again.
            Part::BrokenStream if fate == Fate::BrokenOff => {
                calls([self.shell("echo a stream that breaks off")?])
            }
            Part::BrokenStream => calls([self.shell("echo after the broken stream")?]),
            Part::Errand => {
                let Some(call) = toolbox::errand(self.tools, ERRAND, &self.filler) else {
                    return Ok(None);
                };
                calls([call])
            }
            Part::Await => {
                let Some(call) = self.awaiting() else {
                    return Ok(None);
                };
                calls([call])
            }
            Part::LastCommand if conversation == Conversation::Errand => calls([self.shell("ls")?]),
            Part::LastCommand => calls([self.shell("echo done > done.txt")?]),
            Part::LastWord => self.last_word(conversation),
        };
        Ok(Some(reply))
    }

    fn need(&self, call: Option<Call>) -> Result<Call, PlayError> {
        call.ok_or_else(|| PlayError::NoShell {
            step: 1,
            offered: player::names(self.tools),
        })
    }

    fn shell(&self, command: &str) -> Result<Call, PlayError> {
        self.need(toolbox::shell(self.tools, command, &self.filler))
    }

    /// With a number among the arguments where the tool takes one, else in the command.
    fn shell_with(&self, number: &str) -> Result<Call, PlayError> {
        let command = format!("echo {number}");
        match toolbox::shell_with_number(self.tools, &command, number, &self.filler) {
            Some(call) => Ok(call),
            None => self.shell(&command),
        }
    }

    /// A call that waits for the subagent which the last result but those of waiting calls names.
    fn awaiting(&self) -> Option<Call> {
        let results: Vec<_> = self.request.results().collect();
        let ids = results.iter().rev().filter_map(|text| {
            let value: Value = serde_json::from_str(text).ok()?;
            Some(value.get("agent_id")?.as_str()?.to_owned())
        });
        let id = ids.take(1).next()?;
        toolbox::await_errand(self.tools, &id, &self.filler)
    }

    fn last_word(&self, conversation: Conversation) -> Reply {
        if conversation == Conversation::Errand {
            let call = toolbox::complete(self.tools, ERRAND_DONE, self.filler.workdir);
            return match call {
                Some(call) => calls([call]),
                None => player::speak(ERRAND_DONE),
            };
        }
        Reply {
            calls: player::submission(self.request, self.filler.workdir)
                .into_iter()
                .collect(),
            ..player::speak(LAST_WORD)
        }
    }
}

/// What an agent without tools is told, which asks for files: one without a name has it ask again.
fn listing(part: Part, fate: Fate) -> Option<Reply> {
    let text = match part {
        Part::TextBefore => format!("Here it is. \n\n```\n{CONTENT}```\n"),
        Part::ServerError => format!("\n\n```\n{CONTENT}```"),
        Part::BrokenStream if fate == Fate::BrokenOff => format!("{FILE}\n```\n{CONTENT}```"),
        Part::BrokenStream => format!("Once more:\n\n```\n{CONTENT}```"),
        Part::LastWord => {
            format!("{FILE}\n```\n{CHANGED}```\n\ndone.txt\n```\ndone\n```\n\n{LAST_WORD}")
        }
        _ => return None,
    };
    Some(player::speak(&text))
}

fn calls<const COUNT: usize>(calls: [Call; COUNT]) -> Reply {
    Reply {
        calls: calls.into(),
        ..Reply::default()
    }
}

fn says(text: &str, call: Call) -> Reply {
    Reply {
        calls: vec![call],
        ..player::speak(text)
    }
}

#[cfg(test)]
mod tests;
