//! The API described as OpenAPI 3.1 path items, which `openenv` merges into the whole document.

use serde_json::{Map, Value, json};

use rollcage_model::export::Format;
use rollcage_model::view::TraceDetail;

use crate::server::rollouts::request_schema::rollout_schema;

mod lists;

/// Path items by path.
pub(super) fn paths() -> Map<String, Value> {
    let mut paths = Map::new();
    let mut add = |path: &str, item: Value| {
        paths.insert(path.to_owned(), item);
    };
    add(
        "/v1/rollouts",
        json!({"get": lists::list(), "post": create()}),
    );
    add(
        "/v1/rollouts/{id}",
        json!({"parameters": [id()], "get": show(), "delete": delete()}),
    );
    for (name, method, item) in [
        ("cancel", "post", cancel()),
        ("events", "get", events()),
        ("trace", "get", trace()),
        ("files", "get", files()),
        ("artifacts", "get", artifacts()),
        ("finalize", "post", finalize()),
        ("patch", "get", patch()),
        ("logs", "get", logs()),
    ] {
        add(
            &format!("/v1/rollouts/{{id}}/{name}"),
            json!({"parameters": [id()], (method): item}),
        );
    }
    add(
        "/v1/rollouts/{id}/messages",
        json!({"parameters": [id()], "get": messages(), "post": send_message()}),
    );
    let path =
        json!({"name": "path", "in": "path", "required": true, "schema": {"type": "string"}});
    add(
        "/v1/rollouts/{id}/artifacts/{path}",
        json!({"parameters": [id(), path], "get": artifact()}),
    );
    add(
        "/v1/agents",
        json!({"get": get("listAgents", "The agents that can run", &[], listed("agents"))}),
    );
    add(
        "/v1/endpoints",
        json!({"get": get("listEndpoints", "Kinds of model endpoints and whether they are set up; never their keys", &[], listed("endpoints"))}),
    );
    add(
        "/v1/tasks",
        json!({"get": get("listTasks", "The tasks that this server offers", &task_places(), listed("tasks"))}),
    );
    add(
        "/metrics",
        json!({"get": get("metrics", "Numbers of this server for Prometheus", &[], content("The numbers.", "text/plain", json!({"type": "string"})))}),
    );
    add("/ready", json!({"get": ready()}));
    paths.extend(lists::paths());
    paths
}

/// Which of a server's tasks are listed.
fn task_places() -> [Value; 3] {
    [
        query(
            "split",
            "Only tasks of this split.",
            json!({"type": "string"}),
        ),
        query(
            "start",
            "The first one.",
            json!({"type": "integer", "minimum": 0}),
        ),
        query(
            "stop",
            "The one after the last.",
            json!({"type": "integer", "minimum": 0}),
        ),
    ]
}

fn ready() -> Value {
    let properties = json!({"ready": {"type": "boolean"}, "reason": {"type": "string"}});
    let about = "No sandbox can be started, and why; or that it is not known yet (`starting`).";
    json!({
        "operationId": "ready", "tags": ["rollouts"],
        "summary": "Whether rollouts can run here; needs no token. `/health` says that the process answers",
        "responses": {
            "200": object("A sandbox was started.", properties.clone()), "503": object(about, properties),
        },
    })
}

fn id() -> Value {
    json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string", "format": "uuid"}})
}

pub(super) fn query(name: &str, about: &str, schema: Value) -> Value {
    json!({"name": name, "in": "query", "required": false, "description": about, "schema": schema})
}

/// A response with a body.
pub(super) fn content(about: &str, media_type: &str, schema: Value) -> Value {
    let mut media = Map::new();
    media.insert(media_type.to_owned(), json!({"schema": schema}));
    json!({"description": about, "content": media})
}

pub(super) fn problem(about: &str) -> Value {
    let error = json!({
        "type": "object", "required": ["error"],
        "properties": {"error": {
            "type": "object", "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }},
    });
    content(about, "application/json", error)
}

pub(super) fn object(about: &str, properties: Value) -> Value {
    content(
        about,
        "application/json",
        json!({"type": "object", "properties": properties}),
    )
}

pub(super) fn listed(name: &str) -> Value {
    let mut properties = Map::new();
    properties.insert(
        name.to_owned(),
        json!({"type": "array", "items": {"type": "object"}}),
    );
    object("What there is.", properties.into())
}

fn get(operation: &str, summary: &str, parameters: &[Value], good: Value) -> Value {
    json!({
        "operationId": operation, "summary": summary, "tags": ["rollouts"], "parameters": parameters,
        "responses": {"200": good, "400": problem("A parameter is wrong.")},
    })
}

/// Like [`get`], for one rollout, which may not exist.
fn get_one(operation: &str, summary: &str, parameters: &[Value], good: Value) -> Value {
    let mut item = get(operation, summary, parameters, good);
    item["responses"]["404"] = problem("There is no such rollout, or it is not yours.");
    item
}

fn create() -> Value {
    let ids = json!({
        "rollout_id": {"type": "string"}, "status": {"const": "queued"},
        "rollout_ids": {"type": "array", "items": {"type": "string"}}, "group": {"type": "string"},
    });
    json!({
        "operationId": "createRollouts", "tags": ["rollouts"],
        "summary": "Start one rollout, or a group of n; takes what the tool run_rollout takes",
        "requestBody": {"required": true, "content": {
            "application/json": {"schema": rollout_schema()}, "multipart/form-data": {"schema": form()},
        }},
        "responses": {
            "202": object("Taken on; nothing of it has run yet.", ids),
            "400": problem("An argument is wrong."),
            "408": problem("The body did not arrive in time."),
            "413": problem("The body is too large."),
            "415": problem("The body is sent neither as application/json nor as multipart/form-data."),
            "429": problem("The queue is full: try again later."),
            "503": problem("The server is shutting down."),
        },
    })
}

fn form() -> Value {
    let files = json!({
        "type": "array", "items": {"type": "string", "format": "binary"},
        "description": "Files of any bytes; the file name of each part is its path inside.",
    });
    json!({
        "type": "object", "required": ["request"],
        "properties": {"request": {"type": "string", "description": "The JSON object."}, "files": files},
    })
}

fn show() -> Value {
    let properties = json!({
        "rollout_id": {"type": "string"}, "status": {"enum": ["queued", "running", "ended"]},
        "ended": {"type": ["string", "null"]}, "phase": {"type": "string"}, "reward": {"type": ["number", "null"]},
        "calls": {"type": "integer"},
    });
    let about = "The whole result with `status: ended`, or where the rollout stands.";
    let names: Vec<_> = TraceDetail::ALL
        .iter()
        .map(|wanted| wanted.as_str())
        .collect();
    let trace = query(
        "trace",
        "How much of the tokens comes with a result: rows for training, every model call, or none.",
        json!({"enum": names, "default": TraceDetail::default().as_str()}),
    );
    get_one(
        "getRollout",
        "One rollout",
        &[trace],
        object(about, properties),
    )
}

fn delete() -> Value {
    json!({
        "operationId": "deleteRollout", "summary": "Delete an ended rollout and everything kept of it", "tags": ["rollouts"],
        "responses": {
            "204": {"description": "Deleted."},
            "403": problem("It was run on the server's own machine and is not yours."),
            "404": problem("There is no such rollout, or it is not yours."),
            "409": problem("It has not ended: cancel it first."),
        },
    })
}

fn cancel() -> Value {
    let answer = json!({"rollout_id": {"type": "string"}, "cancelled": {"type": "boolean"}});
    json!({
        "operationId": "cancelRollout", "summary": "End a rollout early; it still gets its result", "tags": ["rollouts"],
        "responses": {
            "202": object("`cancelled` is false when it had ended already.", answer),
            "404": problem("There is no such rollout, or it is not yours."),
            "409": problem("Another process runs it."),
        },
    })
}

fn messages() -> Value {
    let properties = json!({
        "rollout_id": {"type": "string"}, "status": {"enum": ["running", "done"]},
        "serve_session_id": {"type": ["string", "null"]},
        "messages": {"type": "array", "items": {"type": "object"}},
        "error": {"type": "string"}, "note": {"type": "string"},
    });
    let about = "As OpenCode's session messages (`{info, parts}`): its own where it runs as a server, otherwise made from the model calls.";
    get_one(
        "rolloutMessages",
        "The conversation so far",
        &[],
        object(about, properties),
    )
}

fn send_message() -> Value {
    let message = json!({
        "type": "object", "required": ["text"], "additionalProperties": false,
        "properties": {"text": {"type": "string"}},
    });
    let answer = json!({"rollout_id": {"type": "string"}, "queued": {"type": "boolean"}});
    json!({
        "operationId": "sendMessage", "tags": ["rollouts"],
        "summary": "Send a message to the agent of a rollout with the driver `serve`: another turn of its conversation",
        "requestBody": {"required": true, "content": {"application/json": {"schema": message}}},
        "responses": {
            "202": object("It is said as soon as the turns before it are over.", answer),
            "400": problem("The body is wrong."),
            "404": problem("There is no such rollout, or it is not yours."),
            "409": problem("It has ended, takes no messages, or too many wait already."),
        },
    })
}

fn finalize() -> Value {
    let answer = json!({"rollout_id": {"type": "string"}, "finalized": {"type": "boolean"}});
    json!({
        "operationId": "finalizeRollout", "tags": ["rollouts"],
        "summary": "Verify and collect as soon as the agent has nothing to do, or now if it was aborted",
        "responses": {
            "202": object("`finalized` is false when it had ended already.", answer),
            "404": problem("There is no such rollout, or it is not yours."),
            "409": problem("Another process runs it."),
        },
    })
}

fn events() -> Value {
    let parameters = [query(
        "after",
        "Only events with a higher number; the header `Last-Event-ID` says the same.",
        json!({"type": "integer", "minimum": 0}),
    )];
    let about = "Server-sent events `queued`, `entered`, `command_started`, `command`, `call`, `session`, `turn_started`, `reply`, `idle`, `agent_exited`, `collected` and `finished`, numbered; ends after `finished`.";
    get_one(
        "rolloutEvents",
        "What happens to a rollout, live",
        &parameters,
        content(about, "text/event-stream", json!({"type": "string"})),
    )
}

fn trace() -> Value {
    let formats: Vec<_> = Format::ALL.iter().map(|format| format.as_str()).collect();
    let parameters = [
        query(
            "format",
            "What to export it as.",
            json!({"enum": formats, "default": Format::default().as_str()}),
        ),
        query(
            "include_discarded",
            "Also calls that the agent did not go on from (capture).",
            json!({"type": "boolean"}),
        ),
        query(
            "include_auxiliary",
            "Also rows for calls beside the work, like summaries (sequences).",
            json!({"type": "boolean"}),
        ),
        query(
            "include_messages",
            "Also messages beside the tokens (capture).",
            json!({"type": "boolean"}),
        ),
        query(
            "arguments",
            "How the arguments of tool calls are written (sft).",
            json!({"enum": ["objects", "strings"], "default": "objects"}),
        ),
    ];
    let good = json!({
        "description": "The export; `sequences`, `sft` and `turns` are lines of JSON.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    });
    let mut item = get_one(
        "rolloutTrace",
        "Every token of a rollout, for trainers",
        &parameters,
        good,
    );
    item["responses"]["409"] = problem("It holds nothing that may be trained on.");
    item
}

fn files() -> Value {
    let parameters = [query(
        "path",
        "One file's text instead of the list: its path, absolute or below the work directory.",
        json!({"type": "string"}),
    )];
    let good = json!({
        "description": "The list, or the text of one file.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/plain": {"schema": {"type": "string"}}},
    });
    let mut item = get_one(
        "rolloutFiles",
        "What the work directory held at the end",
        &parameters,
        good,
    );
    item["responses"]["409"] = problem("It has not ended.");
    item
}

fn artifacts() -> Value {
    let mut item = get_one(
        "listArtifacts",
        "What was kept of the task's `artifacts`",
        &[],
        listed("artifacts"),
    );
    item["responses"]["409"] = problem("It has not ended.");
    item
}

fn artifact() -> Value {
    let bytes = json!({"type": "string", "format": "binary"});
    let good = content(
        "The file as an attachment.",
        "application/octet-stream",
        bytes,
    );
    let mut item = get_one("getArtifact", "One of them, by its path", &[], good);
    item["responses"]["409"] = problem("The rollout has not ended.");
    item
}

fn patch() -> Value {
    let bytes = json!({"type": "string", "format": "binary"});
    let good = content(
        "The patch as an attachment.",
        "application/octet-stream",
        bytes,
    );
    let about = "What the agent changed in the work directory, for a task with `patch`";
    let mut item = get_one("getPatch", about, &[], good);
    item["responses"]["409"] = problem("It has not ended.");
    item
}

fn logs() -> Value {
    let parameters = [query(
        "name",
        "Which log.",
        json!({"enum": ["agent", "agent_stderr", "proxy"], "default": "agent"}),
    )];
    let good = content(
        "The end of the log.",
        "text/plain",
        json!({"type": "string"}),
    );
    let mut item = get_one(
        "rolloutLogs",
        "What the agent printed, or what the proxy saw",
        &parameters,
        good,
    );
    item["responses"]["409"] = problem("The proxy's log is there once the rollout has ended.");
    item
}
