//! The server's description of itself: metadata, schemas, the OpenAPI document and a page for people.

use std::fmt::Write;

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use super::Mode;

/// Built once, at the start.
pub(crate) struct Documents {
    pub(crate) metadata: Bytes,
    pub(crate) schema: Bytes,
    pub(crate) openapi: Bytes,
    pub(crate) page: Bytes,
}

impl Documents {
    pub(crate) fn new(name: &str, mode: Mode, extra_paths: Map<String, Value>) -> Self {
        let metadata = json!({
            "name": name,
            "description": "Real coding agents as sandboxed rollouts, with every token kept",
            "readme_content": null,
            "version": env!("CARGO_PKG_VERSION"),
            "author": null,
            "documentation_url": null,
        });
        let openapi = openapi(mode, extra_paths);
        let page = page(name, &openapi);
        Documents {
            metadata: metadata.to_string().into(),
            schema: schema().to_string().into(),
            openapi: openapi.to_string().into(),
            page: page.into(),
        }
    }
}

/// JSON Schemas (draft 2020-12) of actions, observations and the state. The observation of a reset has no tool, so it
/// has its own schema.
fn schema() -> Value {
    let metadata = json!({"type": "object", "additionalProperties": true, "title": "Metadata"});
    let done = json!({"type": "boolean", "default": false});
    let reward = json!({
        "anyOf": [{"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {"type": "null"}],
        "default": null,
    });
    let tool_error = json!({
        "type": "object",
        "title": "ToolError",
        "additionalProperties": false,
        "required": ["error_type", "message"],
        "properties": {
            "error_type": {"type": "string", "enum": [
                "execution_error", "invalid_args", "transport_error", "tool_not_found", "timeout",
            ]},
            "message": {"type": "string"},
        },
    });
    json!({
        "action": {
            "type": "object",
            "title": "CallToolAction",
            "additionalProperties": false,
            "required": ["tool_name"],
            "properties": {
                "metadata": metadata,
                "type": {"type": "string", "const": "call_tool", "default": "call_tool"},
                "tool_name": {"type": "string"},
                "arguments": {"type": "object", "additionalProperties": true},
            },
        },
        "observation": {
            "$defs": {"ToolError": tool_error},
            "type": "object",
            "title": "CallToolObservation",
            "additionalProperties": false,
            "required": ["tool_name"],
            "properties": {
                "done": done,
                "reward": reward,
                "metadata": metadata,
                "tool_name": {"type": "string"},
                "result": {"default": null},
                "error": {"anyOf": [{"$ref": "#/$defs/ToolError"}, {"type": "null"}], "default": null},
            },
        },
        "reset_observation": {
            "type": "object",
            "title": "Observation",
            "additionalProperties": false,
            "properties": {"done": done, "reward": reward, "metadata": metadata},
        },
        "state": {
            "type": "object",
            "title": "State",
            "additionalProperties": true,
            "properties": {
                "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "step_count": {"type": "integer", "minimum": 0, "default": 0},
                "rollouts_completed": {"type": "integer", "minimum": 0, "default": 0},
                "last_reward": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": null},
                "last_task_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "last_sandbox_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            },
        },
    })
}

/// What a route expects in its body.
#[derive(Clone, Copy)]
enum RequestBody {
    Nothing,
    Object,
    /// A split and these numbers.
    Split(&'static [&'static str]),
}

type RouteRow = (&'static str, &'static str, &'static str, RequestBody);

/// Method, path, summary, body.
#[rustfmt::skip]
const ROUTES: [RouteRow; 10] = [
    ("get", "/health", "Whether the server lives", RequestBody::Nothing),
    ("get", "/metadata", "What this environment is", RequestBody::Nothing),
    ("get", "/schema", "JSON Schemas of action, observation and state", RequestBody::Nothing),
    ("post", "/mcp", "JSON-RPC 2.0: tools, sessions, and the Model Context Protocol", RequestBody::Object),
    ("get", "/list_environments", "The names of the environments here", RequestBody::Nothing),
    ("get", "/{env_name}/splits", "The splits of its tasks", RequestBody::Nothing),
    ("post", "/{env_name}/tasks", "All tasks of a split", RequestBody::Split(&[])),
    ("post", "/{env_name}/num_tasks", "How many tasks a split has", RequestBody::Split(&[])),
    ("post", "/{env_name}/task", "One task of a split", RequestBody::Split(&["index"])),
    ("post", "/{env_name}/task_range", "Some tasks of a split", RequestBody::Split(&["start", "stop"])),
];

/// In simulation mode only.
#[rustfmt::skip]
const CONTROL_ROUTES: [RouteRow; 3] = [
    ("post", "/reset", "Reset an environment made for this request", RequestBody::Object),
    ("post", "/step", "Take a step in an environment made for this request", RequestBody::Object),
    ("get", "/state", "The state of a fresh environment", RequestBody::Nothing),
];

impl RequestBody {
    fn schema(self) -> Option<Value> {
        match self {
            RequestBody::Nothing => None,
            RequestBody::Object => Some(json!({"type": "object"})),
            RequestBody::Split(numbers) => {
                let mut properties = json!({"split": {"type": "string"}});
                for name in numbers {
                    properties[name] = json!({"type": "integer"});
                }
                Some(json!({
                    "type": "object",
                    "required": ["split"],
                    "properties": properties,
                    "additionalProperties": false,
                }))
            }
        }
    }
}

fn openapi(mode: Mode, extra_paths: Map<String, Value>) -> Value {
    let control: &[RouteRow] = match mode {
        Mode::Simulation => &CONTROL_ROUTES,
        Mode::Production => &[],
    };
    let mut paths = Map::new();
    for (method, path, summary, reads) in ROUTES.iter().chain(control).copied() {
        let mut operation = json!({
            "summary": summary,
            "responses": {"200": {
                "description": "Successful Response",
                "content": {"application/json": {"schema": {}}},
            }},
        });
        if let Some(schema) = reads.schema() {
            operation["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
        }
        if path.starts_with("/{env_name}/") {
            operation["parameters"] = json!([{
                "name": "env_name", "in": "path", "required": true, "schema": {"type": "string"},
            }]);
        }
        paths.insert(path.to_owned(), json!({method: operation}));
    }
    paths.extend(extra_paths);
    json!({
        "openapi": "3.1.0",
        "info": {"title": "OpenEnv Environment HTTP API", "version": "1.0.0"},
        "paths": paths,
    })
}

/// A page without scripts and external resources.
fn page(name: &str, openapi: &Value) -> String {
    let mut rows = String::new();
    let paths = openapi["paths"].as_object();
    for (path, operations) in paths.into_iter().flatten() {
        // A path item may also hold parameters that are common to all of its methods.
        let operations = operations.as_object().into_iter().flatten();
        for (method, operation) in operations.filter(|(name, _)| *name != "parameters") {
            let summary = operation["summary"].as_str().unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
                escape(&method.to_uppercase()),
                escape(path),
                escape(summary)
            );
        }
    }
    let name = escape(name);
    format!(
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}}
td{{padding:.2rem 1rem .2rem 0;vertical-align:top}}pre{{background:#8882;padding:1rem;overflow:auto}}</style></head>
<body><h1>{name}</h1>
<p>An OpenEnv 0.10 environment served by Rollcage. Connect with OpenEnv's client:</p>
<pre>from openenv.core.mcp_client import MCPToolClient

with MCPToolClient(base_url="http://HOST:PORT").sync() as env:
    env.reset()
    print([tool.name for tool in env.list_tools()])</pre>
<p>or with any client of the Model Context Protocol at <code>/mcp</code>. WebSockets: <code>/ws</code> (reset, step,
state, mcp, close) and <code>/mcp</code> (JSON-RPC). Machines read <a href="/openapi.json">openapi.json</a>.</p>
<table>{rows}</table></body></html>
"#
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn production_lists_no_control_routes() {
        let has = |mode, path: &str| openapi(mode, Map::new())["paths"].get(path).is_some();
        for path in ["/reset", "/step", "/state"] {
            assert!(has(Mode::Simulation, path));
            assert!(!has(Mode::Production, path));
        }
    }

    #[test]
    fn additional_routes_are_listed_too() {
        let extra = json!({"/v1/x": {"parameters": [], "get": {"summary": "a < b"}}});
        let extra = extra.as_object().unwrap().clone();
        let documents = Documents::new("env", Mode::Simulation, extra);
        let page = String::from_utf8(documents.page.to_vec()).unwrap();
        assert_eq!(page.matches("/v1/x").count(), 1, "a row for its method");
        assert!(page.contains("a &lt; b"));
    }
}
