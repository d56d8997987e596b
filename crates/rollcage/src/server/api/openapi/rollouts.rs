//! Rollouts: start, list, show, follow, talk to, end, delete.

use serde_json::{Value, json};

use rollcage_model::view::TraceDetail;

use super::parts::{Operation, Paths, one_of, text, whole_number};
use crate::server::api::schemas::{ROLLOUT_REQUEST, named, schema_of};
use crate::server::api::types::{
    Cancelled, Created, EndedRollout, Finalized, MessageQueued, NewMessage, RolloutProgress,
};
use crate::server::rollouts::messages::RolloutMessages;

const ID: &str = "019a3f0c-7d52-7c11-9d5e-0f2f6d0f9a10";

pub(super) fn extend(paths: &mut Paths) {
    paths.add("post", "/v1/rollouts", create());
    paths.add("get", "/v1/rollouts/{id}", show());
    paths.add("delete", "/v1/rollouts/{id}", delete());
    paths.add("post", "/v1/rollouts/{id}/cancel", cancel());
    paths.add("post", "/v1/rollouts/{id}/finalize", finalize());
    paths.add("get", "/v1/rollouts/{id}/messages", messages());
    paths.add("post", "/v1/rollouts/{id}/messages", send_message());
    paths.add("get", "/v1/rollouts/{id}/events", events());
}

fn create() -> Operation {
    let request = json!({
        "task_id": "hello",
        "instruction": "Write a file hello.txt that holds the word hello.",
        "verify": ["grep -qx hello hello.txt"],
        "agent": "opencode",
        "endpoint": "scripted",
        "solution": ["echo hello > hello.txt"],
    });
    let answer = json!({"rollout_id": ID, "rollout_ids": [ID], "group": ID, "status": "queued"});
    Operation::new("rollouts", "createRollouts", "Start one rollout, or a group of them")
        .about("Takes what the tool `run_rollout` takes, and answers at once. The header `Location` names the (first) rollout.")
        .takes(named(ROLLOUT_REQUEST), request)
        .takes_as("multipart/form-data", json!({"schema": form()}))
        .answers::<Created>(202, "Taken on; nothing of it has run yet.")
        .example(202, answer)
        .refuses(400, "An argument is wrong.")
        .refuses(403, "A web page sent a form.")
        .refuses(408, "The body did not arrive in time.")
        .refuses(413, "The body is too large.")
        .refuses(415, "The body is sent neither as application/json nor as multipart/form-data.")
        .refuses(429, "The queue is full: try again later.")
        .refuses(503, "The server is shutting down.")
}

fn form() -> Value {
    json!({
        "type": "object", "required": ["request"],
        "properties": {
            "request": {
                "type": "string", "contentMediaType": "application/json", "contentSchema": named(ROLLOUT_REQUEST),
                "description": "The object that would be the body otherwise.",
            },
            "files": {
                "type": "array", "items": {"type": "string", "format": "binary"},
                "description": "Files of any bytes; the file name of each part is its path inside.",
            },
        },
    })
}

fn show() -> Operation {
    let details = TraceDetail::ALL.map(TraceDetail::as_str);
    let mut trace = one_of(&details);
    trace["default"] = json!(TraceDetail::default().as_str());
    let either = json!({"anyOf": [schema_of::<EndedRollout>(), schema_of::<RolloutProgress>()]});
    Operation::of_record("getRollout", "One rollout")
        .query(
            "trace",
            "How much of the tokens comes with a result: rows for training, every model call, or none.",
            trace,
        )
        .answers_as(
            200,
            "The whole result with `status: ended`, or where the rollout stands.",
            "application/json",
            either,
        )
        .refuses(400, "A parameter is wrong.")
}

fn delete() -> Operation {
    Operation::of_rollout(
        "deleteRollout",
        "Delete an ended rollout and everything kept of it",
    )
    .answers_nothing(204, "Deleted.")
    .refuses(
        403,
        "It was run on the server's own machine and is not yours.",
    )
    .refuses(409, "It has not ended: cancel it first.")
}

fn cancel() -> Operation {
    Operation::of_rollout(
        "cancelRollout",
        "End a rollout early; it still gets its result",
    )
    .answers::<Cancelled>(202, "`cancelled` is false when it had ended already.")
    .example(202, json!({"rollout_id": ID, "cancelled": true}))
    .refuses(409, "Another process runs it.")
}

fn finalize() -> Operation {
    Operation::of_rollout(
        "finalizeRollout",
        "Verify and collect as soon as the agent has nothing to do, or now if it was aborted",
    )
    .answers::<Finalized>(202, "`finalized` is false when it had ended already.")
    .example(202, json!({"rollout_id": ID, "finalized": true}))
    .refuses(409, "Another process runs it.")
}

fn messages() -> Operation {
    Operation::of_calls("rolloutMessages", "The conversation so far, as OpenCode tells it")
        .about("OpenCode's own messages (`{info, parts}`) where it runs as a server, otherwise made from the model calls.")
        .answers::<RolloutMessages>(200, "The messages.")
}

fn send_message() -> Operation {
    Operation::of_rollout(
        "sendMessage",
        "Send a message to the agent of a rollout with the driver `serve`",
    )
    .about("Another turn of its conversation.")
    .takes(
        schema_of::<NewMessage>(),
        json!({"text": "Now write a test for it."}),
    )
    .answers::<MessageQueued>(202, "It is said as soon as the turns before it are over.")
    .example(202, json!({"rollout_id": ID, "queued": true}))
    .refuses(400, "The body is wrong.")
    .refuses(
        409,
        "It has ended, takes no messages, or too many wait already.",
    )
    .refuses(413, "The body is too large.")
    .refuses(415, "The body is not sent as application/json.")
    .refuses(422, "The body has other members.")
}

fn events() -> Operation {
    let about = "Server-sent events, each an `Event` with its number as `id`: `queued`, `entered`, `command_started`, \
        `command`, `call`, `session`, `turn_started`, `reply`, `idle`, `agent_exited`, `collected` and `finished`. Ends after \
        `finished`.";
    Operation::of_rollout("rolloutEvents", "What happens to a rollout, live")
        .query(
            "after",
            "Only events with a higher number.",
            whole_number(0),
        )
        .header(
            "Last-Event-ID",
            "The same as `after`, and stronger.",
            text(),
        )
        .answers_as(200, about, "text/event-stream", text())
        .refuses(400, "A parameter is wrong.")
        .refuses(409, "Another process runs it.")
}
