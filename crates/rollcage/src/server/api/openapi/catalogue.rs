//! What the server offers, and how it is.

use serde_json::json;

use super::parts::{Operation, Paths, text, whole_number};
use crate::server::api::types::{Agents, Endpoints};
use crate::server::ready::ReadyAnswer;
use crate::server::rollouts::catalogue::TaskList;

pub(super) fn extend(paths: &mut Paths) {
    paths.add("get", "/v1/agents", agents());
    paths.add("get", "/v1/endpoints", endpoints());
    paths.add("get", "/v1/tasks", tasks());
    paths.add("get", "/metrics", metrics());
    paths.add("get", "/ready", ready());
}

fn agents() -> Operation {
    Operation::new("server", "listAgents", "The agents that can run")
        .answers::<Agents>(200, "All of them.")
}

fn endpoints() -> Operation {
    Operation::new(
        "server",
        "listEndpoints",
        "Kinds of model endpoints, and whether they are set up",
    )
    .about("Keys are never told, only whether there is one.")
    .answers::<Endpoints>(200, "All of them.")
}

fn tasks() -> Operation {
    let answer = json!({
        "splits": [{"name": "train", "num_tasks": 1}], "num_tasks": 1,
        "tasks": [{
            "id": "hello", "split": "train", "index": 0,
            "instruction": "Write a file hello.txt that holds the word hello.", "has_solution": true,
        }],
    });
    Operation::new("server", "listTasks", "The tasks that this server offers")
        .query("split", "Only tasks of this split.", text())
        .query("start", "The first one.", whole_number(0))
        .query("stop", "The one after the last.", whole_number(0))
        .answers::<TaskList>(200, "The tasks.")
        .example(200, answer)
        .refuses(400, "A parameter is wrong.")
}

fn metrics() -> Operation {
    Operation::new("server", "metrics", "Numbers of this server for Prometheus").answers_as(
        200,
        "The numbers.",
        "text/plain",
        text(),
    )
}

fn ready() -> Operation {
    let unready = "No sandbox can be started, and why; or that it is not known yet (`starting`).";
    Operation::new("server", "ready", "Whether rollouts can run here")
        .about("Needs no token. `/health` says that the process answers.")
        .without_token()
        .answers::<ReadyAnswer>(200, "A sandbox was started.")
        .example(200, json!({"ready": true}))
        .answers::<ReadyAnswer>(503, unready)
        .example(503, json!({"ready": false, "reason": "starting"}))
}
