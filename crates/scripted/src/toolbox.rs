//! Finds the agent's own tool for an action and fills in its arguments.
//!
//! Agents name the same tool differently, so it is looked up by name first and by its schema second. Arguments follow
//! the order of the schema: agents may send them back in that order, and another order would break the token prefix.

use serde_json::{Map, Value};

use super::request::Tool;

const SHELL_NAMES: [&str; 12] = [
    "bash",
    "shell",
    "run_shell_command",
    "exec_command",
    "execute_command",
    "run_command",
    "terminal",
    "execute_bash",
    "run_terminal_cmd",
    "shell_command",
    "run_bash",
    "exec",
];
const COMMAND_PROPERTIES: [&str; 2] = ["command", "cmd"];
const WRITE_NAMES: [&str; 6] = [
    "write",
    "write_file",
    "create_file",
    "write_to_file",
    "writefile",
    "createfile",
];
const PATH_PROPERTIES: [&str; 6] = [
    "filePath",
    "file_path",
    "path",
    "absolute_path",
    "filepath",
    "filename",
];
const CONTENT_PROPERTIES: [&str; 5] = ["content", "text", "contents", "file_text", "file_content"];
const EDIT_NAMES: [&str; 4] = ["edit", "replace", "edit_file", "str_replace"];
const OLD_PROPERTIES: [&str; 5] = ["oldString", "old_string", "before", "oldText", "old_text"];
const NEW_PROPERTIES: [&str; 5] = ["newString", "new_string", "after", "newText", "new_text"];
/// The argument of edit tools that accept several changes at once.
const CHANGES_PROPERTY: &str = "edits";
/// The name of a tool, its argument for the prompt, and other required arguments.
type ErrandTool = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);
/// Tools that start a subagent.
const ERRAND_TOOLS: [ErrandTool; 4] = [
    ("task", "prompt", &[("subagent_type", "general")]),
    ("agent", "prompt", &[("subagent_type", "general-purpose")]),
    ("invoke_agent", "prompt", &[("agent_name", "generalist")]),
    ("spawn_agent", "message", &[]),
];
const AWAIT_NAMES: [&str; 1] = ["wait_agent"];
/// Tools with which some subagents end, instead of with a final text.
const COMPLETE_NAMES: [&str; 1] = ["complete_task"];
const DIRECTORY_PROPERTIES: [&str; 5] = [
    "workdir",
    "cwd",
    "directory",
    "working_directory",
    "dir_path",
];

/// A tool call; `arguments` is compact JSON, as sent back by agents that re-serialise it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// One change of a file.
#[derive(Debug)]
pub(super) struct FileEdit<'a> {
    pub(super) path: &'a str,
    /// Plain words without special characters, as is `after`.
    pub(super) before: &'a str,
    pub(super) after: &'a str,
}

/// Values for required arguments that the script does not specify.
#[derive(Debug)]
pub(super) struct ArgumentDefaults<'a> {
    pub(super) purpose: String,
    pub(super) workdir: &'a str,
}

/// A call that runs a shell command and has a number among its arguments, with exactly these digits; `None` if the
/// shell tool accepts no number.
pub(super) fn shell_with_number(
    tools: &[Tool<'_>],
    command: &str,
    number: &str,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    // Replaced afterwards, because serialisation would normalise the number.
    const STAND_IN: u64 = 987_654_321;
    let takes_number = |tool: &Tool<'_>| {
        let (command, _) = command_property(tool)?;
        let mut properties = tool.properties?.iter();
        let number = properties.find(|(name, schema)| {
            let is_number = is_type(schema, "number") || is_type(schema, "integer");
            is_number && (name.contains("timeout") || name.ends_with("_ms"))
        });
        Some((command, number?.0.clone()))
    };
    let (tool, (command_name, number_name)) = by_name(tools, &SHELL_NAMES, takes_number)?;
    let given = [
        (command_name, command.into()),
        (number_name.as_str(), STAND_IN.into()),
    ];
    let mut call = fill(tool, given.into(), defaults);
    call.arguments = call.arguments.replace(&STAND_IN.to_string(), number);
    Some(call)
}

/// A call that changes a file, with the edit tool or otherwise with the shell.
pub(super) fn edit(
    tools: &[Tool<'_>],
    change: &FileEdit<'_>,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    let path_inside = absolute(change.path, defaults.workdir);
    let one = |tool: &Tool<'_>| {
        let (path, _) = property(tool, &PATH_PROPERTIES)?;
        let (before, _) = property(tool, &OLD_PROPERTIES)?;
        let (after, _) = property(tool, &NEW_PROPERTIES)?;
        Some((path, before, after))
    };
    if let Some((tool, (path, before, after))) = by_name(tools, &EDIT_NAMES, one) {
        let given = [
            (path, path_inside.into()),
            (before, change.before.into()),
            (after, change.after.into()),
        ];
        return Some(fill(tool, given.into(), defaults));
    }
    let several = |tool: &Tool<'_>| {
        let (path, _) = property(tool, &PATH_PROPERTIES)?;
        let items = tool.properties?.get(CHANGES_PROPERTY)?.get("items")?;
        let properties = items.get("properties")?.as_object()?;
        let find = |names: &[&'static str]| {
            let mut names = names.iter().copied();
            names.find(|name| properties.contains_key(*name))
        };
        Some((path, find(&OLD_PROPERTIES)?, find(&NEW_PROPERTIES)?))
    };
    if let Some((tool, (path, before, after))) = by_name(tools, &EDIT_NAMES, several) {
        let mut item = Map::new();
        item.insert(before.to_owned(), change.before.into());
        item.insert(after.to_owned(), change.after.into());
        let items = vec![Value::Object(item)];
        let given = [(path, path_inside.into()), (CHANGES_PROPERTY, items.into())];
        return Some(fill(tool, given.into(), defaults));
    }
    let pattern = quote(&format!("s/{}/{}/", change.before, change.after));
    let command = format!("sed -i {pattern} {}", quote(&path_inside));
    shell(tools, &command, defaults)
}

/// A call that starts a subagent.
pub(super) fn errand(
    tools: &[Tool<'_>],
    words: &str,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    ERRAND_TOOLS.iter().find_map(|(name, property, more)| {
        let has_property = |tool: &Tool<'_>| tool.properties?.contains_key(*property).then_some(());
        let (tool, ()) = by_name(tools, &[name], has_property)?;
        let mut given = vec![(*property, Value::from(words))];
        given.extend(
            more.iter()
                .map(|(name, value)| (*name, Value::from(*value))),
        );
        Some(fill(tool, given, defaults))
    })
}

/// A call that waits for a subagent.
pub(super) fn await_errand(
    tools: &[Tool<'_>],
    id: &str,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    let (tool, ()) = by_name(tools, &AWAIT_NAMES, |_| Some(()))?;
    let given = [("targets", Value::from(vec![id]))];
    Some(fill(tool, given.into(), defaults))
}

/// A call with which a subagent ends, if it needs one.
pub(super) fn complete(tools: &[Tool<'_>], words: &str, workdir: &str) -> Option<ToolCall> {
    let (tool, ()) = by_name(tools, &COMPLETE_NAMES, |_| Some(()))?;
    let defaults = ArgumentDefaults {
        purpose: words.to_owned(),
        workdir,
    };
    Some(fill(tool, Vec::new(), &defaults))
}

/// A call that runs a shell command.
pub(super) fn shell(
    tools: &[Tool<'_>],
    command: &str,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    let by_shape = || {
        tools
            .iter()
            .find_map(|tool| Some((tool, command_property(tool)?)))
    };
    let by_name = by_name(tools, &SHELL_NAMES, command_property);
    let (tool, (name, schema)) = by_name.or_else(by_shape)?;
    let command = if is_type(schema, "array") {
        Value::from(vec!["bash", "-lc", command])
    } else {
        Value::from(command)
    };
    Some(fill(tool, [(name, command)].into(), defaults))
}

/// A call that writes a file, with the write tool or otherwise with the shell.
pub(super) fn write(
    tools: &[Tool<'_>],
    path: &str,
    content: &str,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    let path_inside = absolute(path, defaults.workdir);
    let properties = |tool: &Tool<'_>| {
        let (path, _) = property(tool, &PATH_PROPERTIES)?;
        let (content, _) = property(tool, &CONTENT_PROPERTIES)?;
        Some((path, content))
    };
    match by_name(tools, &WRITE_NAMES, properties) {
        Some((tool, (path_name, content_name))) => {
            let given = [
                (path_name, path_inside.into()),
                (content_name, content.into()),
            ];
            Some(fill(tool, given.into(), defaults))
        }
        None => write_with_shell(tools, path, content, defaults),
    }
}

/// The same with the shell only.
pub(super) fn write_with_shell(
    tools: &[Tool<'_>],
    path: &str,
    content: &str,
    defaults: &ArgumentDefaults<'_>,
) -> Option<ToolCall> {
    let path = absolute(path, defaults.workdir);
    shell(tools, &write_command(&path, content), defaults)
}

/// The agent's name for a tool of an MCP server. Agents combine the two names in different ways, some with the prefix
/// `mcp`, and replace characters that an API does not allow.
pub(super) fn of_server<'a>(tools: &[Tool<'a>], server: &str, tool: &str) -> Option<&'a str> {
    let wanted = plain_name(&format!("{server}_{tool}"));
    let mut names = tools.iter().map(|tool| tool.name);
    names.find(|name| {
        let name = plain_name(name);
        name == wanted || name.strip_prefix("mcp_") == Some(&wanted)
    })
}

/// Lower-case letters and digits, with one underscore for any characters between them.
fn plain_name(name: &str) -> String {
    let small = name.to_ascii_lowercase();
    let words = small.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("_")
}

/// A call with its arguments as compact JSON.
pub(super) fn compact(name: &str, arguments: Map<String, Value>) -> ToolCall {
    ToolCall {
        name: name.into(),
        arguments: Value::Object(arguments).to_string(),
    }
}

/// The first tool with one of the names, in the order of the names, that `fit` accepts. Exact names take precedence
/// over names with a server prefix (`developer__shell`).
fn by_name<'t, 'a, T>(
    tools: &'t [Tool<'a>],
    names: &[&str],
    fit: impl Fn(&Tool<'a>) -> Option<T>,
) -> Option<(&'t Tool<'a>, T)> {
    let whole = |tool: &Tool<'a>| tool.name;
    let last = |tool: &Tool<'a>| tool.name.rsplit("__").next().unwrap_or(tool.name);
    let search = |key: &dyn Fn(&Tool<'a>) -> &'a str| {
        names.iter().find_map(|name| {
            let mut tools = tools.iter();
            tools.find_map(|tool| {
                let is_it = key(tool).eq_ignore_ascii_case(name);
                is_it.then(|| fit(tool))?.map(|fitting| (tool, fitting))
            })
        })
    };
    search(&whole).or_else(|| search(&last))
}

fn command_property<'a>(tool: &Tool<'a>) -> Option<(&'static str, &'a Value)> {
    property(tool, &COMMAND_PROPERTIES)
}

/// The first of the named properties that accepts free text or a list of words. Not an enumeration: editors have a
/// `command` that is `view` or `create`.
fn property<'a>(tool: &Tool<'a>, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
    names.iter().find_map(|name| {
        let schema = tool.properties?.get(*name)?;
        let is_open = schema.get("enum").is_none();
        let is_text = schema.get("type").is_none() || is_type(schema, "string");
        (is_open && (is_text || is_type(schema, "array"))).then_some((*name, schema))
    })
}

fn is_type(schema: &Value, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == wanted,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
        _ => false,
    }
}

fn fill(
    tool: &Tool<'_>,
    mut given: Vec<(&str, Value)>,
    defaults: &ArgumentDefaults<'_>,
) -> ToolCall {
    let mut arguments = Map::new();
    for (name, schema) in tool.properties.into_iter().flatten() {
        if let Some(at) = given.iter().position(|(given, _)| given == name) {
            arguments.insert(name.clone(), given.swap_remove(at).1);
        } else if tool.required.contains(&name.as_str()) {
            arguments.insert(name.clone(), placeholder(name, schema, defaults));
        }
    }
    compact(tool.name, arguments)
}

/// A harmless value for a required argument.
fn placeholder(name: &str, schema: &Value, defaults: &ArgumentDefaults<'_>) -> Value {
    let first_choice = || schema.get("enum")?.as_array()?.first();
    if let Some(value) = schema.get("default").or_else(first_choice) {
        return value.clone();
    }
    if is_type(schema, "null") {
        return Value::Null;
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => false.into(),
        // Long enough in seconds and in milliseconds; zero would end the command at once.
        Some("integer" | "number") if name.contains("timeout") => 120_000.into(),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(0.into()),
        Some("array") => Value::Array(Vec::new()),
        Some("object") => Value::Object(Map::new()),
        _ if DIRECTORY_PROPERTIES.contains(&name) => defaults.workdir.into(),
        _ => defaults.purpose.as_str().into(),
    }
}

fn absolute(path: &str, workdir: &str) -> String {
    if path.starts_with('/') {
        return path.into();
    }
    let relative = path.trim_start_matches("./");
    format!("{}/{relative}", workdir.trim_end_matches('/'))
}

/// A shell command that writes exactly `content`.
fn write_command(path: &str, content: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let folder = if folder.is_empty() { "/" } else { folder };
    let (folder, path) = (quote(folder), quote(path));
    // A here-document always ends in a newline, so other content needs printf.
    if !content.ends_with('\n') {
        return format!(
            "mkdir -p {folder} && printf '%s' {} > {path}",
            quote(content)
        );
    }
    let mut delimiter = String::from("ROLLCAGE_EOF");
    while content.lines().any(|line| line == delimiter) {
        delimiter.push('_');
    }
    format!("mkdir -p {folder} && cat > {path} <<'{delimiter}'\n{content}{delimiter}")
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
