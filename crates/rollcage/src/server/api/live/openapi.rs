//! The routes of live agents as OpenAPI path items.

use serde_json::{Map, Value, json};

use crate::server::api::openapi::{content, listed, object, problem, query};
use crate::server::live::{start_schema, turn_schema};

const NO_AGENT: &str = "There is no such live agent, or it is not yours.";
const NO_TURN: &str = "There is no such live agent or turn, or it is not yours.";
const REPLIES: &str = "Server-sent events `delta`, `reasoning`, `tool`, `permission`, `question`, `final` and `error`, each a reply with its number as `id`; ends after `final` or `error`.";

/// Adds the path items.
pub(in crate::server::api) fn add_paths(paths: &mut Map<String, Value>) {
    let mut add = |path: &str, item: Value| {
        paths.insert(format!("/v1/live{path}"), item);
    };
    let id = parameter("id");
    add(
        "",
        json!({"get": operation("listLive", "Your live agents", listed("agents"), None), "post": start()}),
    );
    let remove = no_content(
        "removeLive",
        "Remove a stopped agent with its files and turns",
    );
    add(
        "/{id}",
        json!({"parameters": [id], "get": one("getLive", "One live agent, with the password of its `base_url`", agent()), "delete": remove}),
    );
    for (name, method, item) in [
        (
            "start",
            "post",
            one(
                "startLiveAgain",
                "Start a stopped agent again with what it had",
                agent(),
            ),
        ),
        (
            "stop",
            "post",
            one(
                "stopLive",
                "Abort its turns, save its files, end its processes",
                agent(),
            ),
        ),
        ("health", "get", health()),
        (
            "logs",
            "get",
            one(
                "liveLogs",
                "The end of what the agent's server printed",
                content("The log.", "text/plain", json!({"type": "string"})),
            ),
        ),
        ("messages", "get", messages()),
        (
            "files",
            "get",
            one(
                "listLiveFiles",
                "What its work directory holds",
                listed("files"),
            ),
        ),
    ] {
        add(
            &format!("/{{id}}/{name}"),
            json!({"parameters": [id], (method): item}),
        );
    }
    add_turn_paths(paths);
}

/// Turns and files.
fn add_turn_paths(paths: &mut Map<String, Value>) {
    let mut add = |path: &str, item: Value| {
        paths.insert(format!("/v1/live{path}"), item);
    };
    let (id, turn) = (parameter("id"), parameter("turn"));
    add(
        "/{id}/files/{path}",
        json!({"parameters": [id, parameter("path")], "get": read_file(), "put": write_file()}),
    );
    add(
        "/{id}/turns",
        json!({"parameters": [id], "get": turns(), "post": create_turn()}),
    );
    add(
        "/{id}/turns/{turn}",
        json!({"parameters": [id, turn], "get": operation("getTurn", "The replies of a turn so far", object("The replies.", json!({"turn_id": {"type": "string"}, "ended": {"type": "boolean"}, "replies": {"type": "array", "items": {"type": "object"}}})), Some(NO_TURN))}),
    );
    for (name, method, item) in [
        ("events", "get", events()),
        ("abort", "post", abort()),
        ("answer", "post", answer()),
    ] {
        add(
            &format!("/{{id}}/turns/{{turn}}/{name}"),
            json!({"parameters": [id, turn], (method): item}),
        );
    }
}

fn parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
}

fn operation(name: &str, summary: &str, good: Value, missing: Option<&str>) -> Value {
    let mut item = json!({
        "operationId": name, "summary": summary, "tags": ["live"], "responses": {"200": good},
    });
    if let Some(missing) = missing {
        item["responses"]["404"] = problem(missing);
    }
    item
}

fn one(name: &str, summary: &str, good: Value) -> Value {
    operation(name, summary, good, Some(NO_AGENT))
}

fn no_content(name: &str, summary: &str) -> Value {
    let mut item = one(name, summary, Value::Null);
    item["responses"] = json!({"204": {"description": "Done."}, "404": problem(NO_AGENT)});
    item
}

fn agent() -> Value {
    let properties = json!({
        "id": {"type": "string"}, "name": {"type": "string"},
        "state": {"enum": ["starting", "idle", "busy", "sleeping", "unhealthy", "stopped", "failed"]},
        "base_url": {"type": ["string", "null"]}, "username": {"type": "string"}, "password": {"type": "string"},
        "session_id": {"type": ["string", "null"]}, "records": {"type": "array", "items": {"type": "string"}},
    });
    object("The agent.", properties)
}

fn body(schema: Value) -> Value {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

fn start() -> Value {
    let mut item = operation(
        "startLive",
        "Start a live agent; answers once it is healthy",
        Value::Null,
        None,
    );
    item["requestBody"] = body(start_schema());
    item["responses"] = json!({
        "201": agent(), "400": problem("An argument is wrong."), "429": problem("You have as many as you may."),
        "502": problem("Its sandbox, setup or server failed."), "504": problem("It was not healthy within `deadline_s`."),
    });
    item
}

fn health() -> Value {
    let properties = json!({
        "healthy": {"type": "boolean"}, "server": {"type": "string"}, "version": {"type": ["string", "null"]},
        "state": {"type": "string"},
    });
    let mut item = one(
        "liveHealth",
        "Whether the agent's server answers",
        object("It does.", properties.clone()),
    );
    item["responses"]["503"] = object("It does not.", properties);
    item
}

fn messages() -> Value {
    let mut item = one(
        "liveMessages",
        "The agent's own transcript of a conversation",
        listed("messages"),
    );
    let about = "Which conversation; the latest when not given.";
    item["parameters"] = json!([query("session_id", about, json!({"type": "string"}))]);
    item
}

fn read_file() -> Value {
    let bytes = json!({"type": "string", "format": "binary"});
    let good = content(
        "The file as an attachment.",
        "application/octet-stream",
        bytes,
    );
    one("readLiveFile", "A file of its work directory", good)
}

fn write_file() -> Value {
    let mut item = no_content("writeLiveFile", "Put a file into its work directory");
    item["requestBody"] = json!({"required": true, "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}});
    item
}

fn turns() -> Value {
    let mut item = one("listTurns", "Its turns, the newest first", listed("turns"));
    let number = |least: u64| json!({"type": "integer", "minimum": least});
    item["parameters"] = json!([
        query("offset", "How many to skip.", number(0)),
        query("limit", "Turns on a page.", number(1)),
    ]);
    item
}

fn create_turn() -> Value {
    let mut item = one(
        "createTurn",
        "Say something to the agent; the turn goes on when you go away",
        content(
            &format!("With `Accept: text/event-stream`. {REPLIES}"),
            "text/event-stream",
            json!({"type": "string"}),
        ),
    );
    item["requestBody"] = body(turn_schema());
    item["responses"]["202"] = object("Queued.", json!({"turn_id": {"type": "string"}}));
    item["responses"]["400"] = problem("The turn is wrong.");
    item["responses"]["409"] = problem("The agent is stopped.");
    item["responses"]["429"] = problem("Too many turns wait already.");
    item
}

fn events() -> Value {
    let good = content(REPLIES, "text/event-stream", json!({"type": "string"}));
    let mut item = operation(
        "turnEvents",
        "The replies of a turn, live",
        good,
        Some(NO_TURN),
    );
    let about = "Only replies with a higher number; the header `Last-Event-ID` says the same.";
    item["parameters"] = json!([query(
        "after",
        about,
        json!({"type": "integer", "minimum": 0})
    )]);
    item
}

fn abort() -> Value {
    let properties = json!({"turn_id": {"type": "string"}, "aborted": {"type": "boolean"}});
    let mut item = operation("abortTurn", "End a turn early", Value::Null, Some(NO_TURN));
    item["responses"] = json!({
        "202": object("`aborted` is false when it had ended already.", properties), "404": problem(NO_TURN),
    });
    item
}

fn answer() -> Value {
    let schema = json!({
        "type": "object", "required": ["id", "answer"],
        "properties": {
            "id": {"type": "string", "description": "Of the reply that asks."},
            "answer": {"enum": ["once", "always", "reject", "choose"]},
            "message": {"type": "string", "description": "What the agent is told, with `reject`."},
            "answers": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}, "description": "With `choose`: the labels or words for each question."},
        },
    });
    let mut item = no_content("answerTurn", "Answer a permission request or a question");
    item["requestBody"] = body(schema);
    item["responses"]["400"] = problem("The answer is wrong.");
    item["responses"]["409"] = problem("Nothing with this id waits for an answer.");
    item
}
