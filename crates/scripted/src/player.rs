//! Chooses the scripted model's next reply. Pure: the position in the script follows from the conversation alone, so a
//! retried request gets the same step again and any number of rollouts can play one script at once.

use rollcage_model::script::Step;

use super::Script;
use super::request::{ChatRequest, Tool};
use super::toolbox::{self, ArgumentDefaults, ToolCall};

/// The reply to a request without tools, such as one for a title. It does not use up a step.
pub(super) const ASIDE: &str = "Scripted task";
/// The reply after the last step.
const FAREWELL: &str = "Done.";
/// mini-swe-agent expects a command that prints this when the work is done; to it, an answer without a call is an
/// error.
const SUBMIT: &str = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";
/// Part of the error of write tools that refuse to overwrite a file that was not read before.
const REFUSAL: &str = "has not been read";
/// Aider's name for the format in which it expects files; it offers no tools.
pub(super) const LISTING: &str = "*file listing*";

/// One answer of the model, before tokenization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) reasoning: Option<String>,
    pub(super) content: Option<String>,
    /// Several are parallel calls.
    pub(super) calls: Vec<ToolCall>,
}

/// The agent lacks a tool that the script needs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum PlayError {
    #[error(
        "step {step} of the script runs a shell command, but no offered tool does that; offered: {offered}"
    )]
    NoShell { step: usize, offered: String },
    #[error(
        "step {step} of the script writes {path}, but no offered tool writes files or runs shell commands; \
         offered: {offered}"
    )]
    NoWrite {
        step: usize,
        path: String,
        offered: String,
    },
    #[error(
        "step {step} of the script does something else than writing a file or speaking, and this agent offers no tools"
    )]
    OnlyFiles { step: usize },
    #[error(
        "step {step} of the script calls `{tool}` of the MCP server `{server}`, which is not offered; offered: {offered}"
    )]
    NoMcp {
        step: usize,
        server: String,
        tool: String,
        offered: String,
    },
    #[error("step {step} of the script calls `{tool}`, which is not offered; offered: {offered}")]
    NotOffered {
        step: usize,
        tool: String,
        offered: String,
    },
}

/// The next reply in a conversation.
pub(super) fn next(request: &ChatRequest, script: &Script) -> Result<Reply, PlayError> {
    let tools = request.offered();
    if tools.is_empty() && request.mentions(LISTING) {
        return list_files(request, script);
    }
    if tools.is_empty() {
        return Ok(speak(ASIDE));
    }
    let refused = request.results().map(|text| text.contains(REFUSAL));
    let refused: Vec<bool> = refused.collect();
    // A refused step is played again, through the shell.
    let turn = request
        .turns()
        .saturating_sub(refused.iter().filter(|is_refused| **is_refused).count());
    let is_repeat = refused.last() == Some(&true);
    let mut reply = match script.steps.get(turn) {
        None => speak(FAREWELL),
        Some(step) => Reply {
            reasoning: step.think.clone(),
            content: step.say.clone(),
            calls: call(step, (turn + 1, is_repeat), &tools, &script.workdir)?
                .into_iter()
                .collect(),
        },
    };
    if reply.calls.is_empty() {
        reply.calls.extend(submission(request, &script.workdir));
    }
    Ok(reply)
}

/// The call that ends the work, for an agent that does not accept a final text.
pub(super) fn submission(request: &ChatRequest, workdir: &str) -> Option<ToolCall> {
    let defaults = ArgumentDefaults {
        purpose: FAREWELL.to_owned(),
        workdir,
    };
    let is_wanted = request.mentions(SUBMIT);
    let command = format!("echo {SUBMIT}");
    is_wanted.then(|| toolbox::shell(&request.offered(), &command, &defaults))?
}

/// The whole solution in one answer, as aider expects it: the full content of every file.
fn list_files(request: &ChatRequest, script: &Script) -> Result<Reply, PlayError> {
    let mut answer = String::new();
    for (index, step) in script.steps.iter().enumerate() {
        if step.run.is_some() || step.tool.is_some() {
            return Err(PlayError::OnlyFiles { step: index + 1 });
        }
        if let (Some(path), Some(content)) = (&step.write, &step.content) {
            let end = if content.ends_with('\n') { "" } else { "\n" };
            answer.push_str(&format!("{path}\n```\n{content}{end}```\n\n"));
        }
        if let Some(text) = &step.say {
            answer.push_str(text);
            answer.push('\n');
        }
    }
    let mut said = request
        .messages
        .iter()
        .filter(|message| message.is_assistant());
    let is_said = said.any(|message| message.text().trim() == answer.trim());
    Ok(speak(if is_said { FAREWELL } else { answer.trim_end() }))
}

pub(super) fn speak(text: &str) -> Reply {
    Reply {
        content: Some(text.into()),
        ..Reply::default()
    }
}

/// The tool call of a step, if it has one; `number` counts from 1. A repeated call uses only the shell.
fn call(
    step: &Step,
    (number, is_repeat): (usize, bool),
    tools: &[Tool<'_>],
    workdir: &str,
) -> Result<Option<ToolCall>, PlayError> {
    let defaults = ArgumentDefaults {
        purpose: format!("Step {number} of the reference solution"),
        workdir,
    };
    let call = if let Some(command) = &step.run {
        let call = toolbox::shell(tools, command, &defaults);
        Some(call.ok_or_else(|| PlayError::NoShell {
            step: number,
            offered: names(tools),
        })?)
    } else if let Some(path) = &step.write {
        let content = step.content.as_deref().unwrap_or_default();
        let call = if is_repeat {
            toolbox::write_with_shell(tools, path, content, &defaults)
        } else {
            toolbox::write(tools, path, content, &defaults)
        };
        Some(call.ok_or_else(|| PlayError::NoWrite {
            step: number,
            path: path.clone(),
            offered: names(tools),
        })?)
    } else if let (Some(server), Some(tool)) = (&step.mcp, &step.tool) {
        let name = toolbox::of_server(tools, server, tool);
        let name = name.ok_or_else(|| PlayError::NoMcp {
            step: number,
            server: server.clone(),
            tool: tool.clone(),
            offered: names(tools),
        })?;
        let arguments = step.arguments.clone().unwrap_or_default();
        Some(toolbox::compact(name, arguments))
    } else if let Some(name) = &step.tool {
        if !tools.iter().any(|tool| tool.name == name) {
            return Err(PlayError::NotOffered {
                step: number,
                tool: name.clone(),
                offered: names(tools),
            });
        }
        let arguments = step.arguments.clone().unwrap_or_default();
        Some(toolbox::compact(name, arguments))
    } else {
        None
    };
    Ok(call)
}

pub(super) fn names(tools: &[Tool<'_>]) -> String {
    let names: Vec<_> = tools.iter().map(|tool| tool.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::request;
    use super::*;

    fn play(steps: Vec<Step>, messages: Value, tools: Value) -> Result<Reply, PlayError> {
        let body = json!({"messages": messages, "tools": tools}).to_string();
        let request = request::parse(body.as_bytes()).unwrap();
        next(&request, &Script::new(steps))
    }

    fn bash() -> Value {
        json!([{"type": "function", "function": {"name": "bash", "parameters": {
            "properties": {"command": {"type": "string"}}, "required": ["command"]}}}])
    }

    #[test]
    fn the_position_in_the_script_follows_from_the_conversation() {
        let steps = || {
            let think = Some("Hm.".to_owned());
            vec![
                Step::shell("ls"),
                Step {
                    think,
                    say: Some("All there.".into()),
                    ..Step::default()
                },
            ]
        };
        let call = ToolCall {
            name: "bash".into(),
            arguments: r#"{"command":"ls"}"#.into(),
        };
        let first = play(steps(), json!([{"role": "user", "content": "go"}]), bash()).unwrap();
        assert_eq!(
            first,
            Reply {
                calls: vec![call],
                ..Reply::default()
            }
        );

        let second = json!([{"role": "user"}, {"role": "assistant"}, {"role": "tool"}]);
        let reply = play(steps(), second, bash()).unwrap();
        let spoken = Reply {
            reasoning: Some("Hm.".into()),
            ..speak("All there.")
        };
        assert_eq!(reply, spoken);

        let third = json!([{"role": "assistant"}, {"role": "user"}, {"role": "assistant"}, {"role": "user"}]);
        assert_eq!(play(steps(), third, bash()).unwrap(), speak("Done."));
    }

    #[test]
    fn a_refused_write_is_repeated_with_the_shell() {
        let write = Step {
            write: Some("a".into()),
            content: Some("b".into()),
            ..Step::default()
        };
        let tools = json!([bash()[0], {"type": "function", "function": {"name": "write_file", "parameters": {
            "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}}}}]);
        let name = |messages| {
            let steps = vec![write.clone(), Step::shell("ls")];
            let call = play(steps, messages, tools.clone())
                .unwrap()
                .calls
                .remove(0);
            (call.name, call.arguments)
        };
        assert_eq!(name(json!([])).0, "write_file");
        let refused = [
            json!({"role": "assistant"}),
            json!({"role": "tool", "content": "File a has not been read in this session."}),
        ];
        let again = name(json!(refused));
        assert_eq!(again.0, "bash");
        assert!(
            again.1.contains("printf '%s' 'b' > '/home/user/workdir/a'"),
            "{}",
            again.1
        );
        let done = [
            json!({"role": "assistant"}),
            json!({"role": "tool", "content": "ok"}),
        ];
        let next = name(json!([refused, done].concat()));
        assert_eq!(next.1, r#"{"command":"ls"}"#);
    }

    #[test]
    fn an_agent_that_expects_a_submission_gets_one() {
        let messages =
            json!([{"role": "user", "content": "… `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`"}]);
        let step = Step {
            say: Some("All done.".into()),
            ..Step::default()
        };
        let reply = play(vec![step], messages, bash()).unwrap();
        assert_eq!(reply.content.as_deref(), Some("All done."));
        let arguments = reply.calls[0].arguments.clone();
        assert_eq!(
            arguments,
            r#"{"command":"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}"#
        );
    }

    #[test]
    fn a_request_without_tools_gets_a_title_and_no_step() {
        let reply = play(
            vec![Step::shell("ls")],
            json!([{"role": "user"}]),
            Value::Null,
        );
        assert_eq!(reply, Ok(speak("Scripted task")));
    }

    #[test]
    fn an_agent_that_expects_listings_gets_the_whole_solution() {
        let write = Step {
            write: Some("a.py".into()),
            content: Some("x = 1\n".into()),
            ..Step::default()
        };
        let asked = json!([{"role": "system", "content": "use this *file listing* format"}]);
        let reply = play(vec![write.clone()], asked.clone(), Value::Null).unwrap();
        assert_eq!(reply, speak("a.py\n```\nx = 1\n```"));
        let again = json!([asked[0], {"role": "assistant", "content": "a.py\n```\nx = 1\n```"}]);
        let again = play(vec![write], again, Value::Null).unwrap();
        assert_eq!(again, speak("Done."));
        let refused = play(vec![Step::shell("ls")], asked, Value::Null);
        assert_eq!(refused, Err(PlayError::OnlyFiles { step: 1 }));
    }

    #[test]
    fn a_missing_tool_is_named_with_the_offered_ones() {
        let tools = json!([{"function": {"name": "read"}}, {"function": {"name": "glob"}}]);
        let message = |step| {
            play(vec![step], json!([]), tools.clone())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            message(Step::shell("ls")),
            "step 1 of the script runs a shell command, but no offered tool does that; offered: read, glob",
        );
        assert_eq!(
            message(Step {
                tool: Some("todo".into()),
                ..Step::default()
            }),
            "step 1 of the script calls `todo`, which is not offered; offered: read, glob",
        );
        let write = Step {
            write: Some("a".into()),
            content: Some("b".into()),
            ..Step::default()
        };
        assert!(message(write).starts_with("step 1 of the script writes a, but no offered tool"));
    }

    #[test]
    fn a_tool_of_an_mcp_server_is_found_under_any_naming_scheme() {
        let step = Step {
            mcp: Some("my-srv".into()),
            tool: Some("add.note".into()),
            ..Step::default()
        };
        let offer = |names: &[&str]| {
            let tools = names.iter();
            let tools = tools.map(|name| json!({"function": {"name": name}}));
            let tools = Value::Array(tools.collect());
            let reply = play(vec![step.clone()], json!([]), tools);
            reply.map(|mut reply| reply.calls.remove(0).name)
        };
        for name in [
            "my-srv_add_note",
            "mcp__my-srv__add_note",
            "mcp__my_srv__add_note",
            "mcp_my-srv_add.note",
            "my-srv__add.note",
        ] {
            let offered = ["bash", "add_note", "other_my-srv_add_note", name];
            assert_eq!(offer(&offered).as_deref(), Ok(name));
        }
        assert_eq!(
            offer(&["bash", "add_note"]).unwrap_err().to_string(),
            "step 1 of the script calls `add.note` of the MCP server `my-srv`, which is not offered; offered: bash, \
             add_note",
        );
    }

    #[test]
    fn a_named_tool_gets_exactly_its_arguments() {
        let arguments = json!({"z": 1, "a": "é"}).as_object().cloned();
        let step = Step {
            tool: Some("bash".into()),
            arguments,
            ..Step::default()
        };
        let call = play(vec![step], json!([]), bash()).unwrap().calls.remove(0);
        assert_eq!(call.arguments, r#"{"z":1,"a":"é"}"#);
    }
}
