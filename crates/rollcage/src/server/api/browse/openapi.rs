//! The routes of one rollout's calls as OpenAPI path items.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use rollcage_model::browse::figures::RolloutFigures;
use rollcage_model::browse::graph::GraphPage;
use rollcage_model::browse::tokens::TokenPage;
use rollcage_model::browse::transcript::TranscriptPage;
use rollcage_model::browse::turn::{TurnDetail, TurnPage};

use super::{ENTRIES, Limits, NODES, TOKENS, TURNS};
use crate::server::api::openapi::{content, problem, query};
use crate::server::api::schemas::schema_of;

pub(in crate::server::api) fn add_paths(paths: &mut Map<String, Value>) {
    let id = json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string", "format": "uuid"}});
    let turn = json!({
        "name": "turn", "in": "path", "required": true, "schema": {"type": "integer", "minimum": 0},
        "description": "Counts the rollout's calls from 0.",
    });
    let mut add = |path: &str, parameters: &[&Value], item: Value| {
        let path = format!("/v1/rollouts/{{id}}/{path}");
        paths.insert(path, json!({"parameters": parameters, "get": item}));
    };
    add("turns", &[&id], turns());
    add("turns/{turn}", &[&id, &turn], detail());
    add("turns/{turn}/tokens", &[&id, &turn], tokens());
    add("turns/{turn}/raw", &[&id, &turn], raw());
    add("graph", &[&id], graph());
    add("figures", &[&id], figures());
    add("transcript", &[&id], transcript());
}

fn get(operation: &str, summary: &str, parameters: &[Value], good: Value) -> Value {
    json!({
        "operationId": operation, "summary": summary, "tags": ["rollouts"], "parameters": parameters,
        "responses": {
            "200": good, "400": problem("A parameter is wrong."),
            "404": problem("There is no such rollout or turn, or it is not yours."),
        },
    })
}

fn page<T: JsonSchema>(about: &str) -> Value {
    content(about, "application/json", schema_of::<T>())
}

fn start() -> Value {
    let schema = json!({"type": "integer", "minimum": 0, "default": 0});
    query("start", "The first one's place.", schema)
}

fn limit(limits: Limits) -> Value {
    let schema =
        json!({"type": "integer", "minimum": 1, "maximum": limits.max, "default": limits.default});
    query("limit", "How many at most.", schema)
}

fn turns() -> Value {
    get(
        "rolloutTurns",
        "The model calls of a rollout, in the order of their requests",
        &[start(), limit(TURNS)],
        page::<TurnPage>("A page of calls. One of mode `black_box` shows none."),
    )
}

fn detail() -> Value {
    let messages = query(
        "messages",
        "Those that are new in this call, or all of the request's.",
        json!({"enum": ["new", "all"], "default": "new"}),
    );
    get(
        "rolloutTurn",
        "One model call in full, without its tokens",
        &[messages],
        page::<TurnDetail>("The call."),
    )
}

fn tokens() -> Value {
    let part = query(
        "part",
        "What was sampled, or what went in.",
        json!({"enum": ["completion", "prompt"], "default": "completion"}),
    );
    get(
        "rolloutTokens",
        "The tokens of a model call: ids, texts, logprobs, masks and alternatives, as far as the endpoint told them",
        &[part, start(), limit(TOKENS)],
        page::<TokenPage>("A page of tokens."),
    )
}

fn raw() -> Value {
    let parameters = [
        query(
            "what",
            "What the agent sent, what the endpoint was sent where that is a translation, or what it answered.",
            json!({"enum": ["request", "sent", "response"], "default": "request"}),
        ),
        query(
            "download",
            "As an attachment.",
            json!({"type": "boolean", "default": false}),
        ),
    ];
    get(
        "rolloutRaw",
        "The stored bytes of a model call",
        &parameters,
        content(
            "The bytes, as plain text.",
            "text/plain",
            json!({"type": "string"}),
        ),
    )
}

fn graph() -> Value {
    get(
        "rolloutGraph",
        "How the model calls of a rollout go on from each other",
        &[start(), limit(NODES)],
        page::<GraphPage>("A page of calls, and the links that lead to them."),
    )
}

fn figures() -> Value {
    get(
        "rolloutFigures",
        "What can be counted of a rollout's model calls",
        &[],
        page::<RolloutFigures>("The figures."),
    )
}

fn transcript() -> Value {
    let conversation = query(
        "conversation",
        "A call of the conversation, such as its first one; without it the agent's own latest.",
        json!({"type": "integer", "minimum": 0}),
    );
    get(
        "rolloutTranscript",
        "What was said in a rollout, with each tool call's result; on through the summaries that the agent made",
        &[conversation, start(), limit(ENTRIES)],
        page::<TranscriptPage>(
            "A page of one conversation; it ends early where its texts are long.",
        ),
    )
}
