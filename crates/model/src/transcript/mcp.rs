//! Which tool calls were to an MCP server, by how the agent names such tools. The names of the task's servers are
//! known, and no two of them may share a beginning, so nothing is guessed.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Transcript, TranscriptEntry};
use crate::finding::{Code, Finding};
use crate::turn::Turn;

/// A tool of an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpTool {
    /// As the task names it.
    pub server: String,
    /// As the agent shows it: agents replace letters that the model's API does not allow, and cut what is too long.
    pub tool: String,
}

/// How an agent names the tools of the servers it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct McpNames {
    /// `{server}` and, at its end, `{tool}`.
    pattern: String,
    /// The servers.
    servers: Vec<String>,
}

impl McpNames {
    pub fn new<'a>(pattern: &str, servers: impl IntoIterator<Item = &'a String>) -> Self {
        McpNames {
            pattern: pattern.to_owned(),
            servers: servers.into_iter().cloned().collect(),
        }
    }

    /// The tool that a name means; `None` for the agent's own. No two servers of a task share the beginning of a name.
    pub fn find(&self, shown: &str) -> Option<McpTool> {
        self.servers.iter().find_map(|server| {
            let beginning = self.pattern.replace("{server}", server);
            let beginning = beginning.strip_suffix("{tool}")?;
            let tool = shown
                .get(beginning.len()..)
                .filter(|tool| !tool.is_empty())?;
            is_same(beginning, &shown[..beginning.len()]).then(|| McpTool {
                server: server.clone(),
                tool: tool.to_owned(),
            })
        })
    }

    /// A finding for each server whose tools no turn offers, when there is a turn that offers any.
    pub fn not_offered(&self, turns: &[Turn]) -> Vec<Finding> {
        let tools: Vec<&Value> = turns
            .iter()
            .filter_map(|turn| turn.tools.as_ref()?.as_array())
            .flatten()
            .collect();
        let offered = tools
            .iter()
            .filter_map(|tool| self.find(offered_name(tool)?));
        let offered: HashSet<String> = offered.map(|tool| tool.server).collect();
        let servers = self.servers.iter().filter(|_| !tools.is_empty());
        let missing = servers.filter(|server| !offered.contains(*server));
        missing
            .map(|server| {
                let text = format!(
                    "no tool of the MCP server `{server}` was offered to the model: see the agent's log for why"
                );
                Finding::warn(Code::McpNotOffered, text)
            })
            .collect()
    }
}

/// The name of a tool as a request offers it, in the shapes of chat and of Anthropic.
fn offered_name(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name")
        .or(tool.get("name"))?
        .as_str()
}

/// Whether a name is the other one as agents write it: some change dashes to underscores, some capitals to small letters.
fn is_same(one: &str, other: &str) -> bool {
    let fold = |letter: char| match letter {
        '-' => '_',
        letter => letter.to_ascii_lowercase(),
    };
    one.chars().map(fold).eq(other.chars().map(fold))
}

impl Transcript {
    /// Notes for every call to a server which one it was, unless the agent said so itself.
    pub fn name_mcp(&mut self, names: &McpNames) {
        for entry in &mut self.entries {
            if let TranscriptEntry::ToolCall { name, mcp, .. } = entry {
                let said = mcp.take();
                *mcp = said.or_else(|| names.find(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, shown: &str, expect: Option<(&str, &str)>) {
        let servers = ["my-srv".to_owned(), "Docs".to_owned()];
        let found = McpNames::new(pattern, &servers).find(shown);
        let found = found.map(|found| (found.server, found.tool));
        let expect = expect.map(|(server, tool)| (server.to_owned(), tool.to_owned()));
        assert_eq!(found, expect);
    }

    #[test]
    fn every_agents_names_are_read() {
        let note = Some(("my-srv", "add_note"));
        check("{server}_{tool}", "my-srv_add_note", note);
        check("mcp__{server}__{tool}", "mcp__my-srv__add_note", note);
        check("mcp__{server}__{tool}", "mcp__my_srv__add_note", note);
        check("mcp_{server}_{tool}", "mcp_my-srv_add_note", note);
        check("{server}__{tool}", "docs__find", Some(("Docs", "find")));
        let cut = "mcp_my-srv_a_tool_with_a_very_...name_that_is_too_long";
        let tool = "a_tool_with_a_very_...name_that_is_too_long";
        check("mcp_{server}_{tool}", cut, Some(("my-srv", tool)));
    }

    #[test]
    fn the_agents_own_tools_are_its_own() {
        for shown in ["bash", "docs", "docs_", "mcp__other__x", "é", "docsé_x"] {
            check("{server}_{tool}", shown, None);
        }
        check("mcp__{server}__{tool}", "docs__find", None);
    }
}
