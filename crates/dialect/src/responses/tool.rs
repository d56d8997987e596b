//! Translates tools. Chat has only functions, so a freeform tool becomes a function with one string parameter, and a
//! tool in a namespace gets a combined name. `OriginalTool` maps a function back to the original tool.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// The original tool behind a function offered to chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OriginalTool {
    pub(super) kind: ToolKind,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolKind {
    Function,
    Custom,
}

#[derive(Default)]
pub(super) struct OfferedTools {
    pub(super) offered: Vec<Value>,
    /// By function name; only for functions that are not the original tool of the same name.
    pub(super) originals: HashMap<String, OriginalTool>,
}

impl OfferedTools {
    /// Tools that cannot be translated are dropped without failing the request: agents offer more than they need.
    pub(super) fn read(request: &Map<String, Value>, dropped: &mut Vec<String>) -> Self {
        let mut tools = OfferedTools::default();
        let list = request.get("tools").and_then(Value::as_array);
        // For some models Codex sends its tools in the input.
        let items = request.get("input").and_then(Value::as_array);
        let items = items.into_iter().flatten();
        let more = items.filter(|item| item["type"] == "additional_tools");
        let more = more.filter_map(|item| item["tools"].as_array());
        for tool in list.into_iter().chain(more).flatten() {
            match (tool["type"].as_str(), tool["tools"].as_array()) {
                (Some("namespace"), Some(members)) => {
                    let mut about = tool["description"].as_str().unwrap_or_default();
                    for member in members {
                        tools.offer(member, tool["name"].as_str(), about, dropped);
                        // Only once, since it may be long.
                        about = "";
                    }
                }
                _ => tools.offer(tool, None, "", dropped),
            }
        }
        tools
    }

    fn offer(
        &mut self,
        tool: &Value,
        namespace: Option<&str>,
        about: &str,
        dropped: &mut Vec<String>,
    ) {
        let type_name = tool["type"].as_str().unwrap_or_default();
        let (kind, name) = match (type_name, tool["name"].as_str()) {
            ("function", Some(name)) => (ToolKind::Function, name),
            ("custom", Some(name)) => (ToolKind::Custom, name),
            _ => return dropped.push(format!("tool {type_name}")),
        };
        let offered_name = qualified_name(namespace, name);
        let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
        let parameters = match kind {
            ToolKind::Function => tool.get("parameters").filter(|it| it.is_object()).cloned(),
            ToolKind::Custom => {
                description.push_str(&grammar(&tool["format"]));
                Some(input_schema())
            }
        };
        if !about.is_empty() {
            description = format!("{about}\n\n{description}");
        }
        let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        let mut function = json!({
            "name": offered_name,
            "description": description,
            "parameters": parameters,
        });
        if tool["strict"] == true {
            function["strict"] = true.into();
        }
        self.offered
            .push(json!({"type": "function", "function": function}));
        if kind == ToolKind::Custom || namespace.is_some() {
            let original = OriginalTool {
                kind,
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            };
            self.originals.insert(offered_name, original);
        }
    }

    pub(super) fn choice(
        &self,
        request: &Map<String, Value>,
        dropped: &mut Vec<String>,
    ) -> Option<Value> {
        let choice = request.get("tool_choice")?;
        if choice.is_string() {
            return Some(choice.clone());
        }
        let named = choice["name"].as_str().map(|name| {
            let name = qualified_name(choice["namespace"].as_str(), name);
            json!({"type": "function", "function": {"name": name}})
        });
        match choice["type"].as_str()? {
            "function" | "custom" => named,
            "allowed_tools" => Some(choice["mode"].clone()),
            other => {
                dropped.push(format!("tool_choice {other}"));
                None
            }
        }
    }
}

/// The function name of a tool in a namespace: `mcp__my_srv` and `add_note` give `mcp__my_srv__add_note`.
pub(super) fn qualified_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

fn input_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The tool's whole input, as plain text."}},
        "required": ["input"],
        "additionalProperties": false,
    })
}

fn grammar(format: &Value) -> String {
    match (format["syntax"].as_str(), format["definition"].as_str()) {
        (Some(syntax), Some(definition)) => {
            format!("\n\nThe input follows this {syntax} grammar:\n{definition}")
        }
        _ => String::new(),
    }
}

pub(super) fn custom_arguments(input: &str) -> String {
    json!({ "input": input }).to_string()
}

/// The input in a call's arguments. Arguments in any other format are themselves taken as the input, so nothing is
/// lost.
pub(super) fn custom_input(arguments: &str) -> String {
    let value = serde_json::from_str::<Value>(arguments).unwrap_or_default();
    let input = value.get("input").unwrap_or(&value);
    input.as_str().unwrap_or(arguments).to_owned()
}
