//! OpenEnv's routes in the OpenAPI document. Their requests are read member by member and answered as the original does,
//! so their schemas are written by hand, as those of `/schema` are.

use serde_json::{Map, Value, json};

use super::Mode;
use super::schema::schema;

/// The document with OpenEnv's routes and their schemas.
pub(crate) fn extended(mut document: Value, mode: Mode) -> Value {
    for (name, schema) in schemas() {
        document["components"]["schemas"][name] = schema;
    }
    let always = information().into_iter().chain(tasks()).chain(of_page());
    for (route, method, operation) in always {
        document["paths"][route][method] = operation.0;
    }
    if mode == Mode::Simulation {
        for (route, method, operation) in control() {
            document["paths"][route][method] = operation.0;
        }
    }
    document
}

type Row = (&'static str, &'static str, Operation);

fn information() -> Vec<Row> {
    let names = json!({"type": "array", "items": {"type": "string"}});
    let health = operation("health", "Whether the process answers; needs no token")
        .answers(named("Health"), json!({"status": "healthy"}))
        .without_token();
    let metadata = operation("metadata", "What this environment is")
        .answers(named("EnvironmentMetadata"), Value::Null);
    let schema = operation("schemas", "JSON Schemas of action, observation and state")
        .answers(named("EnvironmentSchemas"), Value::Null);
    let list = operation("listEnvironments", "The names of the environments here")
        .answers(names, json!(["opencode_env"]));
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let mcp = operation(
        "mcp",
        "JSON-RPC 2.0: tools, sessions, and the Model Context Protocol",
    )
    .takes(named("JsonRpcRequest"), request)
    .answers(named("JsonRpcAnswer"), Value::Null);
    vec![
        ("/health", "get", health),
        ("/metadata", "get", metadata),
        ("/schema", "get", schema),
        ("/list_environments", "get", list),
        ("/mcp", "post", mcp),
    ]
}

/// The Task API.
fn tasks() -> Vec<Row> {
    let of_env = |id: &str, summary: &str| {
        operation(id, summary)
            .path("env_name", "One of `/list_environments`.")
            .refuses(404, "There is no such environment.")
            .refuses(501, "This server has no tasks.")
    };
    let of_split = |id: &str, summary: &str, query: &str, example: Value| {
        of_env(id, summary)
            .takes(named(query), example)
            .refuses(400, "There is no such split or task.")
            .refuses_members()
    };
    let split = json!({"split": "train"});
    let one = json!({"split": "train", "index": 0});
    let some = json!({"split": "train", "start": 0, "stop": 10});
    let splits = json!({"type": "array", "items": named("TaskSplit")});
    let list = of_env("listSplits", "The splits of its tasks")
        .answers(splits, json!([{"name": "train", "type": "train"}]));
    let all = of_split(
        "tasksOfSplit",
        "All tasks of a split",
        "SplitQuery",
        split.clone(),
    )
    .answers(named("SplitTasks"), Value::Null);
    let count = of_split(
        "countTasks",
        "How many tasks a split has",
        "SplitQuery",
        split,
    )
    .answers(named("TaskCount"), json!({"num_tasks": 12}));
    let task = of_split("taskOfSplit", "One task of a split", "TaskQuery", one)
        .answers(named("OneTask"), Value::Null);
    let range = of_split("taskRange", "Some tasks of a split", "TaskRangeQuery", some)
        .answers(named("TaskRange"), Value::Null);
    vec![
        ("/{env_name}/splits", "get", list),
        ("/{env_name}/tasks", "post", all),
        ("/{env_name}/num_tasks", "post", count),
        ("/{env_name}/task", "post", task),
        ("/{env_name}/task_range", "post", range),
    ]
}

/// In simulation mode only.
fn control() -> [Row; 3] {
    let call = json!({"action": {"tool_name": "list_agents", "arguments": {}}, "timeout_s": 60});
    let reset = operation("reset", "Reset an environment made for this request")
        .takes(
            named("ResetRequest"),
            json!({"episode_id": "episode-1", "seed": 1}),
        )
        .answers(named("ResetAnswer"), Value::Null)
        .refuses_members();
    let step = operation(
        "step",
        "Take a step in an environment made for this request",
    )
    .takes(named("StepRequest"), call)
    .answers(named("StepAnswer"), Value::Null)
    .refuses_members();
    let state = operation("state", "The state of a fresh environment")
        .answers(named("EnvironmentState"), Value::Null);
    [
        ("/reset", "post", reset),
        ("/step", "post", step),
        ("/state", "get", state),
    ]
}

/// Of one environment that is kept, for a page.
fn of_page() -> [Row; 4] {
    let call = json!({"action": {"tool_name": "list_agents", "arguments": {}}});
    let metadata = operation("webMetadata", "What this environment is, for a page")
        .answers(named("EnvironmentMetadata"), Value::Null);
    let state = operation("webState", "The state of the caller's own environment")
        .answers(named("EnvironmentState"), Value::Null);
    let reset = operation("webReset", "Reset the caller's own environment")
        .takes(
            named("ResetRequest"),
            json!({"episode_id": "episode-1", "seed": 1}),
        )
        .answers(named("ResetAnswer"), Value::Null)
        .refuses_members();
    let step = operation("webStep", "Take a step in the caller's own environment")
        .takes(named("StepRequest"), call)
        .answers(named("StepAnswer"), Value::Null)
        .refuses_members();
    [
        ("/web/metadata", "get", metadata),
        ("/web/state", "get", state),
        ("/web/reset", "post", reset),
        ("/web/step", "post", step),
    ]
}

struct Operation(Value);

fn operation(id: &str, summary: &str) -> Operation {
    Operation(json!({
        "operationId": id, "summary": summary, "tags": ["openenv"], "parameters": [], "responses": {},
    }))
}

impl Operation {
    fn without_token(mut self) -> Self {
        self.0["security"] = json!([]);
        self
    }

    fn path(mut self, name: &str, about: &str) -> Self {
        self.0["parameters"] = json!([{
            "name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string"},
        }]);
        self
    }

    fn takes(mut self, schema: Value, example: Value) -> Self {
        let media = json!({"schema": schema, "example": example});
        self.0["requestBody"] = json!({"required": true, "content": {"application/json": media}});
        self.refuses(413, "The body is too large.")
    }

    fn answers(mut self, schema: Value, example: Value) -> Self {
        let mut media = json!({"schema": schema});
        if !example.is_null() {
            media["example"] = example;
        }
        self.0["responses"]["200"] = json!({
            "description": "Successful Response", "content": {"application/json": media},
        });
        self
    }

    fn refuses(mut self, status: u16, about: &str) -> Self {
        self.0["responses"][status.to_string()] = json!({
            "description": about, "content": {"application/json": {"schema": named("Detail")}},
        });
        self
    }

    fn refuses_members(mut self) -> Self {
        self.0["responses"]["422"] = json!({
            "description": "Members of the body are wrong or missing.",
            "content": {"application/json": {"schema": named("Problems")}},
        });
        self
    }
}

fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An object with these members, all of which are there.
fn object(about: &str, members: Value) -> Value {
    let names: Vec<_> = members
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .collect();
    json!({"type": "object", "description": about, "required": names, "properties": members})
}

fn schemas() -> Map<String, Value> {
    let text = || json!({"type": "string"});
    let maybe_text = || json!({"type": ["string", "null"]});
    let mut schemas = Map::new();
    let mut add = |name: &str, schema: Value| schemas.insert(name.to_owned(), schema);
    let detail = json!({"detail": text()});
    add("Detail", object("Why a request was refused.", detail));
    let problem = json!({
        "type": "object", "required": ["type", "loc", "msg"],
        "properties": {
            "type": text(), "msg": text(),
            "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
        },
    });
    let problems = json!({"detail": {"type": "array", "items": problem}});
    add(
        "Problems",
        object("What is wrong with a body, in Pydantic's form.", problems),
    );
    let health = json!({"status": {"type": "string", "const": "healthy"}});
    add("Health", object("That the process answers.", health));
    let metadata = json!({
        "name": text(), "description": text(), "readme_content": maybe_text(), "version": text(),
        "author": maybe_text(), "documentation_url": maybe_text(),
    });
    add(
        "EnvironmentMetadata",
        object("What an environment is.", metadata),
    );
    let schema = json!({"type": "object", "description": "A JSON Schema of draft 2020-12."});
    let members = json!({
        "action": schema, "observation": schema, "reset_observation": schema, "state": schema,
    });
    add(
        "EnvironmentSchemas",
        object("What the environment takes and answers.", members),
    );
    add_control(&mut schemas);
    add_tasks(&mut schemas);
    add_rpc(&mut schemas);
    schemas
}

fn add_control(schemas: &mut Map<String, Value>) {
    let mut served = schema();
    let mut take = |name: &str| served[name].take();
    let mut observation = take("observation");
    let mut action = take("action");
    action["description"] = json!("A call of a tool.");
    observation["description"] = json!("What came of a call.");
    // Answers have `done` and `reward` beside the observation, and leave out what is not set.
    observation["required"] = json!([]);
    schemas.insert(
        "ToolError".to_owned(),
        observation["$defs"]["ToolError"].take(),
    );
    observation["properties"]["error"]["anyOf"][0] = named("ToolError");
    if let Some(members) = observation.as_object_mut() {
        members.remove("$defs");
    }
    let reward = observation["properties"]["reward"].clone();
    let metadata = json!({"type": ["object", "null"], "additionalProperties": true});
    let answer = |observed: &str| {
        json!({
            "type": "object", "description": "What the environment shows.",
            "required": ["observation", "reward", "done"],
            "properties": {
                "observation": named(observed), "reward": reward, "done": {"type": "boolean"}, "metadata": metadata,
            },
        })
    };
    let name = json!({"type": ["string", "null"], "maxLength": 255, "default": null});
    let reset = json!({
        "type": "object", "description": "How an episode begins.",
        "properties": {
            "seed": {"type": ["integer", "null"], "minimum": 0, "default": null}, "episode_id": name,
        },
    });
    let step = json!({
        "type": "object", "description": "A step.", "required": ["action"],
        "properties": {
            "action": named("CallToolAction"),
            "timeout_s": {"type": ["number", "null"], "exclusiveMinimum": 0, "default": null},
            "request_id": name,
        },
    });
    for (name, schema) in [
        ("ResetAnswer", answer("ResetObservation")),
        ("StepAnswer", answer("CallToolObservation")),
        ("ResetObservation", take("reset_observation")),
        ("EnvironmentState", take("state")),
        ("ResetRequest", reset),
        ("StepRequest", step),
        ("CallToolAction", action),
        ("CallToolObservation", observation),
    ] {
        schemas.insert(name.to_owned(), schema);
    }
}

fn add_tasks(schemas: &mut Map<String, Value>) {
    let number = json!({"type": ["integer", "null"], "default": null});
    let query = |more: Value, required: &[&str]| {
        let mut properties =
            json!({"split": {"type": "string", "description": "One of `splits`."}});
        for (name, schema) in more.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        json!({
            "type": "object", "description": "Which tasks.", "required": required, "properties": properties,
            "additionalProperties": false,
        })
    };
    let kinds = json!({"type": "string", "enum": ["train", "validation", "test"]});
    // Of the routes beside OpenEnv's: a task as its file has it.
    let tasks = json!({"type": "array", "items": named("Task")});
    for (name, schema) in [
        ("SplitQuery", query(json!({}), &["split"])),
        (
            "TaskQuery",
            query(json!({"index": {"type": "integer"}}), &["split", "index"]),
        ),
        (
            "TaskRangeQuery",
            query(json!({"start": number, "stop": number}), &["split"]),
        ),
        (
            "TaskSplit",
            object(
                "A split of tasks.",
                json!({"name": {"type": "string"}, "type": kinds}),
            ),
        ),
        (
            "SplitTasks",
            object(
                "The tasks of a split.",
                json!({"tasks": tasks, "env_name": {"type": "string"}}),
            ),
        ),
        (
            "TaskRange",
            object("Some tasks of a split.", json!({"tasks": tasks})),
        ),
        ("OneTask", object("A task.", json!({"task": named("Task")}))),
        (
            "TaskCount",
            object(
                "How many there are.",
                json!({"num_tasks": {"type": "integer", "minimum": 0}}),
            ),
        ),
    ] {
        schemas.insert(name.to_owned(), schema);
    }
}

fn add_rpc(schemas: &mut Map<String, Value>) {
    let version = json!({"type": "string", "const": "2.0"});
    let request = json!({
        "type": "object", "description": "A request, or without an id and with a method `notifications/…` a notification.",
        "required": ["jsonrpc", "method"], "additionalProperties": false,
        "properties": {
            "jsonrpc": version, "method": {"type": "string"}, "params": {"type": "object"},
            "id": {"type": ["string", "integer", "null"]},
        },
    });
    let answer = json!({
        "type": "object", "description": "A result or an error.", "required": ["jsonrpc", "id"],
        "properties": {
            "jsonrpc": version, "id": {"type": ["string", "integer", "null"]},
            "result": {"description": "What the method answers."},
            "error": {
                "type": "object", "required": ["code", "message"],
                "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
            },
        },
    });
    schemas.insert("JsonRpcRequest".to_owned(), request);
    schemas.insert("JsonRpcAnswer".to_owned(), answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn production_lists_no_control_routes() {
        let has = |mode, path: &str| extended(json!({}), mode)["paths"].get(path).is_some();
        for path in ["/reset", "/step", "/state"] {
            assert!(has(Mode::Simulation, path));
            assert!(!has(Mode::Production, path));
        }
    }
}
