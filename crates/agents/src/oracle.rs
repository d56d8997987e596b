//! The oracle: plays a task's reference solution in the sandbox without a model, which shows that the task can be
//! solved. Like `nop` it also runs tasks with MCP servers, to show what their verify commands are worth; a solution
//! that calls a tool is refused.

use rollcage_model::transcript::TranscriptFormat;

use crate::bundle::{Bundle, Origin, Source};

use super::{Agent, Events, Launch, LaunchError, LaunchRequest, WarmUp, WireDialect};

/// Runs every `run` and `write` step, each in a shell of its own as an agent would.
pub struct Oracle {
    source: Source,
}

impl Oracle {
    pub fn new() -> Self {
        Oracle {
            source: Source {
                agent: "oracle".to_owned(),
                default_version: String::new(),
                origin: Origin::Nothing,
                list: None,
            },
        }
    }
}

impl Default for Oracle {
    fn default() -> Self {
        Self::new()
    }
}

impl Agent for Oracle {
    fn name(&self) -> &str {
        "oracle"
    }

    fn title(&self) -> &str {
        "plays the task's solution without a model"
    }

    fn source(&self) -> &Source {
        &self.source
    }

    fn dialect(&self) -> Option<WireDialect> {
        None
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        let mut script = String::new();
        for (index, step) in request.task.solution.iter().enumerate() {
            let number = index + 1;
            if let Some(tool) = &step.tool {
                return Err(LaunchError::Tool {
                    step: number,
                    tool: tool.clone(),
                });
            }
            if let Some(text) = &step.say {
                script.push_str(&format!("printf '%s\\n' {}\n", quote(text)));
            }
            if let Some(command) = &step.run {
                let command = quote(command);
                script.push_str(&format!(
                    "echo '[step {number}]'\n/bin/bash -c {command} < /dev/null\n"
                ));
                // As with an agent, the next step runs whatever the exit code of this one.
                script.push_str(&format!("echo \"[step {number}: exit $?]\"\n"));
            }
            if let (Some(path), Some(content)) = (&step.write, &step.content) {
                let path = quote(path);
                script.push_str(&format!(
                    "mkdir -p \"$(dirname -- {path})\" && printf '%s' {} > {path} || exit 1\n",
                    quote(content)
                ));
            }
        }
        script.push_str("exit 0\n");
        // On standard input, where the length is not limited.
        Ok(Launch {
            argv: ["/bin/bash", "--noprofile", "--norc", "-s"]
                .map(str::to_owned)
                .to_vec(),
            env: request.task.agent.env.clone(),
            stdin: script,
            ..Launch::default()
        })
    }

    fn home_files(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn warm_up(&self, _bundle: &Bundle) -> Option<WarmUp> {
        None
    }

    fn events(&self) -> Events {
        Events {
            format: TranscriptFormat::Text,
            file: None,
        }
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
