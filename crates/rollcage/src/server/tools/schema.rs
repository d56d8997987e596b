//! The list of tools: their descriptions and argument schemas.

use serde_json::{Value, json};

use rollcage_model::view::TraceDetail;

use crate::server::live::{start_schema, turn_schema};
use crate::server::rollouts::request_schema::{object, rollout_schema};
use crate::server::rollouts::tokens::PagedTrace;
use crate::server::tool::ToolInfo;

use super::live::LIVE_WAIT_S;

pub(crate) fn tools() -> Vec<ToolInfo> {
    let one = |more: &[(&str, Value)]| {
        let about = "As start_rollout returned it.";
        let id = [(
            "rollout_id",
            json!({"type": "string", "description": about}),
        )];
        object(&[&id, more].concat(), &["rollout_id"])
    };
    let wait_s =
        json!({"type": "number", "default": 300, "description": "How long to wait for its end."});
    let after =
        json!({"type": "integer", "default": 0, "description": "Only events with a higher `seq`."});
    let message = json!({"type": "string", "description": "What the agent is told."});
    let mut with_text = one(&[("text", message)]);
    with_text["required"] = json!(["rollout_id", "text"]);
    let places = [
        (
            "split",
            json!({"type": "string", "default": "", "description": "Only tasks of this split."}),
        ),
        (
            "start",
            json!({"type": "integer", "default": 0, "minimum": 0}),
        ),
        (
            "stop",
            json!({"type": ["integer", "null"], "default": null, "minimum": 0}),
        ),
    ];
    let mut tools = vec![
        tool("run_rollout", RUN, run_schema()),
        tool("start_rollout", START, rollout_schema()),
        tool("get_state", STATE, one(&[])),
        tool("get_messages", MESSAGES, one(&[])),
        tool("send_message", SEND, with_text),
        tool("abort_rollout", ABORT, one(&[])),
        tool(
            "finalize_rollout",
            FINALIZE,
            one(&[("wait_s", wait_s), ("trace", trace())]),
        ),
        tool("get_trace", TRACE, one(&pages())),
        tool("subscribe_events", EVENTS, one(&[("after", after)])),
        tool("list_agents", AGENTS, object(&[], &[])),
        tool("list_endpoints", ENDPOINTS, object(&[], &[])),
        tool("list_tasks", TASKS, object(&places, &[])),
        tool("capabilities", CAPABILITIES, object(&[], &[])),
    ];
    tools.extend(live());
    tools
}

/// The tools of live agents.
fn live() -> [ToolInfo; 4] {
    let id = json!({"type": "string", "description": "As live_start returned it."});
    let wait_s = json!({
        "type": "number", "default": LIVE_WAIT_S,
        "description": "How long to wait for the end of the turn; it goes on after that.",
    });
    let mut turn = turn_schema();
    turn["properties"]["id"] = id.clone();
    turn["properties"]["wait_s"] = wait_s;
    turn["properties"]["turn_id"] = json!({
        "type": ["string", "null"], "default": null,
        "description": "Wait for this turn of before instead of saying something.",
    });
    turn["required"] = json!(["id"]);
    turn["properties"]["text"]["default"] = json!("");
    [
        tool("live_start", LIVE_START, start_schema()),
        tool("live_turn", LIVE_TURN, turn),
        tool("live_list", LIVE_LIST, object(&[], &[])),
        tool("live_stop", LIVE_STOP, object(&[("id", id)], &["id"])),
    ]
}

const LIVE_START: &str = "Start a coding agent that stays: a server in a sandbox of its own, driven turn by turn with \
    live_turn. Returns its `id` once it is healthy. Say which model as for run_rollout.";
const LIVE_TURN: &str = "Say something to a live agent and wait for the end of its work: all replies (text, reasoning, tool \
    calls) and the final `text`, or an `error` with its code. `status` is `running` if it takes longer than `wait_s`: call \
    again with its `turn_id`.";
const LIVE_LIST: &str = "Your live agents: state, turns, model calls and tokens so far.";
const LIVE_STOP: &str = "Stop a live agent: its turn is aborted, its files are saved, its processes end. live_start with its \
    `id` starts it again.";

const AGENTS: &str = "The agents that can run, with the versions that are installed.";
const TASKS: &str = "The tasks that this server offers; run one with `task`.";
const CAPABILITIES: &str =
    "What this server can do: agents, sandboxes, endpoints, splits, formats.";
const RUN: &str = "Run a coding agent on a task in a fresh sandbox, verify what it did, and return the result as JSON: \
    reward, command results, files, logs, and the exact tokens of every model call. Waits for the end. Say what to do \
    (`instruction`, or `task` of this server) and which model (`endpoint`, or `base_url` + `api_key` + `model`, or \
    `model_key`). Whatever goes wrong once it runs is told in the result's `error` and `ended`.";
const START: &str = "As run_rollout, but returns at once with a `rollout_id` for get_state, get_messages, \
    send_message, abort_rollout and finalize_rollout. Where the agent can run as a server it does (`driver`), and waits \
    for messages or finalize_rollout when it is done. With `n` above 1 it returns an array.";
const STATE: &str =
    "Where a rollout stands: status `running` or `done`, its phase, model calls and tokens so far.";
const MESSAGES: &str = "The conversation between agent and model so far, as OpenCode's session messages \
    (`{info, parts}`). Works while the rollout runs and after it.";
const SEND: &str = "Send a message to the agent of a rollout with the driver `serve`, while it works or when it is done: \
    another turn of the same conversation, within the same budget and time.";
const ABORT: &str = "End a rollout's agent early. Its sandbox is kept for a while: finalize_rollout then verifies and \
    collects what the agent left, and returns it as `cancelled`.";
const FINALIZE: &str = "Wait for a rollout's end and return its result, as run_rollout does. May be called again: after \
    `wait_s` seconds the answer has `status` running. An aborted rollout is verified now, unless its sandbox was kept long \
    enough already; `error` says so.";
const TRACE: &str = "The tokens of a rollout that has ended, page by page: `items` from `offset` on, as many as fit, and \
    `next_offset` until there are no more. Rows of `sequences` and calls of `turns` hold what is new in them and refer to \
    earlier ones by number.";
const EVENTS: &str = "What happened to a rollout so far, and the path of a stream of server-sent events that goes on \
    from there.";
const ENDPOINTS: &str = "The kinds of model endpoints, the server's variables that set them up, and whether they are \
    set. Keys are never shown.";

fn tool(name: &'static str, description: &str, input_schema: Value) -> ToolInfo {
    ToolInfo {
        name,
        description: description.to_owned(),
        input_schema,
    }
}

/// The argument `trace` of tools that return a result.
fn trace() -> Value {
    let names: Vec<_> = TraceDetail::ALL
        .iter()
        .map(|wanted| wanted.as_str())
        .collect();
    let about = "How much of the tokens comes with the result: rows for training, every model call, or none. Without it \
        OpenEnv's clients get `proxy_turns` and `training_trace`, and MCP's clients a summary.";
    json!({"anyOf": [{"enum": names}, {"type": "null"}], "default": null, "description": about})
}

fn pages() -> [(&'static str, Value); 3] {
    let form = json!({
        "enum": PagedTrace::NAMES, "default": "sequences",
        "description": "Rows for training, every model call, or the turns of OpenEnv's strict training trace.",
    });
    let offset =
        json!({"type": "integer", "default": 0, "minimum": 0, "description": "The first item."});
    let limit = json!({
        "type": ["integer", "null"], "default": null, "minimum": 1, "description": "The most items wanted at once.",
    });
    [("form", form), ("offset", offset), ("limit", limit)]
}

/// The arguments of `run_rollout`, which returns the result.
fn run_schema() -> Value {
    let mut schema = rollout_schema();
    schema["properties"]["trace"] = trace();
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_is() {
        for tool in tools() {
            assert!(tool.description.len() > 20, "{}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], json!(false));
        }
    }
}
