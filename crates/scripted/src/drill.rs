//! The drill: a long conversation of unusual and failing replies, played through the agent's own tools, to find out
//! which of them break the token prefix from one turn to the next.
//!
//! An agent may change or drop a reply that it cannot use, and retries after one that broke off. So the position in the
//! drill cannot be derived from the conversation; the endpoint counts instead. The n-th request of a conversation gets
//! the n-th reply, with separate counts for each key, that is, for each rollout.

use serde_json::Value;

pub use rollcage_model::drill::Part;
use rollcage_model::task::Task;

use super::player::{self, PlayError, Reply};
use super::request::{ChatRequest, Tool};
use super::toolbox::{self, ArgumentDefaults, FileEdit, ToolCall};

const INSTRUCTION: &str =
    "Write drill.txt, change it, look at it in many ways, and write done.txt.";
/// The subagent's prompt, which also identifies its conversation.
const ERRAND: &str = "Run the errand of the drill: list the files here.";
const FILE: &str = "drill.txt";
/// With trailing white space, which some agents strip.
const CONTENT: &str = "one \ntwo\n";
const CHANGED: &str = "one \nthree\n";
const LAST_WORD: &str = "The drill is done.";
const ERRAND_DONE: &str = "The errand is done.";
const STRAY_TOOL: &str = "look_around";

/// The parts to play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drill {
    parts: Vec<Part>,
}

impl Drill {
    /// All parts except these.
    pub fn without(parts: &[Part]) -> Self {
        let rest = Part::ALL.into_iter();
        Drill {
            parts: rest.filter(|part| !parts.contains(part)).collect(),
        }
    }

    /// The task for the agent, with its verification.
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

    /// The replies of a conversation, in order.
    fn entries(&self, conversation: Conversation) -> Vec<(Part, Delivery)> {
        if conversation == Conversation::Errand {
            return [Part::LastCommand, Part::LastWord]
                .map(|part| (part, Delivery::Whole))
                .into();
        }
        let parts = self.parts.iter();
        let entries = parts.flat_map(|part| {
            let first = match part {
                Part::ServerError => Some(Delivery::Refused),
                Part::BrokenStream => Some(Delivery::BrokenOff),
                _ => None,
            };
            let last = match part {
                Part::CutCall => Delivery::Cut,
                _ => Delivery::Whole,
            };
            first
                .into_iter()
                .chain([last])
                .map(|delivery| (*part, delivery))
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
    /// A request without tools, such as one for a title. It does not advance the drill.
    Aside,
}

/// How a reply reaches the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    /// Truncated by the token limit in the middle of a call.
    Cut,
    /// Replaced with an error.
    Refused,
    BrokenOff,
}

/// The reply that was played for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayedPart {
    pub part: Part,
    pub conversation: Conversation,
    pub delivery: Delivery,
}

/// The conversation that a request belongs to.
pub(super) fn conversation(request: &ChatRequest) -> Conversation {
    let is_listing = request.mentions(player::LISTING);
    if request.offered().is_empty() && !is_listing {
        return Conversation::Aside;
    }
    match request.is_instructed(ERRAND) {
        true => Conversation::Errand,
        false => Conversation::Main,
    }
}

/// The reply at a position of the drill, and the next position. Parts that the agent has no tool for are skipped.
pub(super) fn next(
    request: &ChatRequest,
    (drill, workdir): (&Drill, &str),
    conversation: Conversation,
    place: usize,
) -> Result<(Reply, PlayedPart, usize), PlayError> {
    let entries = drill.entries(conversation);
    let rest = entries.iter().enumerate().skip(place);
    for (at, (part, delivery)) in rest {
        let context = DrillContext {
            request,
            tools: &request.offered(),
            defaults: ArgumentDefaults {
                purpose: format!("Part `{part}` of the drill"),
                workdir,
            },
        };
        let reply = match conversation {
            Conversation::Aside => Some(player::speak(player::ASIDE)),
            Conversation::Main if context.tools.is_empty() => listing(*part, *delivery),
            Conversation::Main | Conversation::Errand => {
                context.reply((*part, *delivery), conversation)?
            }
        };
        if let Some(reply) = reply {
            let (part, delivery) = (*part, *delivery);
            let played = PlayedPart {
                part,
                conversation,
                delivery,
            };
            return Ok((reply, played, at + 1));
        }
    }
    // After the last reply, it is repeated.
    let played = PlayedPart {
        part: Part::LastWord,
        conversation,
        delivery: Delivery::Whole,
    };
    Ok((player::speak(LAST_WORD), played, entries.len()))
}

/// Context for creating a reply.
struct DrillContext<'a> {
    request: &'a ChatRequest,
    tools: &'a [Tool<'a>],
    defaults: ArgumentDefaults<'a>,
}

impl DrillContext<'_> {
    /// `None` if the agent has no tool for this part.
    fn reply(
        &self,
        (part, delivery): (Part, Delivery),
        conversation: Conversation,
    ) -> Result<Option<Reply>, PlayError> {
        let workdir = self.defaults.workdir;
        let reply = match part {
            Part::Write => {
                calls([self.need(toolbox::write(self.tools, FILE, CONTENT, &self.defaults))?])
            }
            Part::Edit => {
                let change = FileEdit {
                    path: FILE,
                    before: "two",
                    after: "three",
                };
                calls([self.need(toolbox::edit(self.tools, &change, &self.defaults))?])
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
            Part::UnknownTool => calls([ToolCall {
                name: STRAY_TOOL.to_owned(),
                arguments: r#"{"path":"."}"#.to_owned(),
            }]),
            Part::CutCall => says(
                "Once more.",
                self.shell("echo a command that is cut in the middle")?,
            ),
            Part::ServerError => calls([self.shell("echo after the error")?]),
            // On a retry an engine samples something else. No text, because goose does not retry after text.
            Part::BrokenStream if delivery == Delivery::BrokenOff => {
                calls([self.shell("echo a stream that breaks off")?])
            }
            Part::BrokenStream => calls([self.shell("echo after the broken stream")?]),
            Part::Errand => {
                let Some(call) = toolbox::errand(self.tools, ERRAND, &self.defaults) else {
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

    fn need(&self, call: Option<ToolCall>) -> Result<ToolCall, PlayError> {
        call.ok_or_else(|| PlayError::NoShell {
            step: 1,
            offered: player::names(self.tools),
        })
    }

    fn shell(&self, command: &str) -> Result<ToolCall, PlayError> {
        self.need(toolbox::shell(self.tools, command, &self.defaults))
    }

    /// With the number as an argument if the tool accepts one, otherwise in the command.
    fn shell_with(&self, number: &str) -> Result<ToolCall, PlayError> {
        let command = format!("echo {number}");
        match toolbox::shell_with_number(self.tools, &command, number, &self.defaults) {
            Some(call) => Ok(call),
            None => self.shell(&command),
        }
    }

    /// A call that waits for the subagent that the latest result with an `agent_id` names.
    fn awaiting(&self) -> Option<ToolCall> {
        let results: Vec<_> = self.request.results().collect();
        let ids = results.iter().rev().filter_map(|text| {
            let value: Value = serde_json::from_str(text).ok()?;
            Some(value.get("agent_id")?.as_str()?.to_owned())
        });
        let id = ids.take(1).next()?;
        toolbox::await_errand(self.tools, &id, &self.defaults)
    }

    fn last_word(&self, conversation: Conversation) -> Reply {
        if conversation == Conversation::Errand {
            let call = toolbox::complete(self.tools, ERRAND_DONE, self.defaults.workdir);
            return match call {
                Some(call) => calls([call]),
                None => player::speak(ERRAND_DONE),
            };
        }
        Reply {
            calls: player::submission(self.request, self.defaults.workdir)
                .into_iter()
                .collect(),
            ..player::speak(LAST_WORD)
        }
    }
}

/// The reply for an agent without tools that expects file listings. A listing without a file name makes it ask again.
fn listing(part: Part, delivery: Delivery) -> Option<Reply> {
    let text = match part {
        Part::TextBefore => format!("Here it is. \n\n```\n{CONTENT}```\n"),
        Part::ServerError => format!("\n\n```\n{CONTENT}```"),
        Part::BrokenStream if delivery == Delivery::BrokenOff => {
            format!("{FILE}\n```\n{CONTENT}```")
        }
        Part::BrokenStream => format!("Once more:\n\n```\n{CONTENT}```"),
        Part::LastWord => {
            format!("{FILE}\n```\n{CHANGED}```\n\ndone.txt\n```\ndone\n```\n\n{LAST_WORD}")
        }
        _ => return None,
    };
    Some(player::speak(&text))
}

fn calls<const COUNT: usize>(calls: [ToolCall; COUNT]) -> Reply {
    Reply {
        calls: calls.into(),
        ..Reply::default()
    }
}

fn says(text: &str, call: ToolCall) -> Reply {
    Reply {
        calls: vec![call],
        ..player::speak(text)
    }
}

#[cfg(test)]
mod tests;
