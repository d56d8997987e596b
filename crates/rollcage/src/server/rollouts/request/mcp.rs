//! The argument `mcp`: a client's MCP servers for its agent.

use std::collections::BTreeSet;

use serde_json::Value;

use rollcage_model::task::mcp::{McpServer, McpServers};

use super::super::arguments::{ArgumentError, ToolArguments, wrong};

/// Adds a client's servers to those of the task and returns their names. `${NAME}` in headers is refused, since it
/// would give clients the variables of our own environment. Errors never contain a value.
pub(crate) fn read(
    given: &mut ToolArguments,
    servers: &mut McpServers,
) -> Result<BTreeSet<String>, ArgumentError> {
    let mut names = BTreeSet::new();
    let members = match given.value("mcp") {
        None => return Ok(names),
        Some(Value::Object(members)) => members,
        Some(other) => return Err(wrong("mcp", "an object of servers by name", &other)),
    };
    for (name, value) in members {
        let server: Result<McpServer, _> = serde_json::from_value(value);
        let Ok(server) = server else {
            return Err(format!(
                "argument `mcp`: server `{name}` must be an object with `command` and `env`, or `url` and `headers`"
            ));
        };
        if server.has_variables() {
            return Err(format!(
                "argument `mcp`: server `{name}` names a variable (${{…}}) in its headers, which only tasks of the \
                 server's own may do; send the value itself, it is neither shown nor kept"
            ));
        }
        names.insert(name.clone());
        servers.insert(name, server);
    }
    Ok(names)
}
