//! Live agents.

use serde_json::{Value, json};

use rollcage_engine::live::TurnInput;

use super::parts::{Operation, Paths, bytes, page_limit, text, whole_number};
use crate::server::api::live::{TURNS, TURNS_MAX};
use crate::server::api::schemas::{LIVE_REQUEST, named, schema_of};
use crate::server::api::types::live::{
    LiveAgents, LiveFiles, LiveHealth, LiveMessages, LiveTurnPage, TurnAborted, TurnAnswer,
    TurnQueued, TurnReplies,
};
use crate::server::live::LiveAgentView;

const NO_AGENT: &str = "There is no such live agent, or it is not yours.";
const NO_TURN: &str = "There is no such live agent or turn, or it is not yours.";
const BAD_QUERY: &str = "A parameter is wrong.";
const NO_JSON: &str = "The body is not sent as application/json.";
const LATE: &str = "The body did not arrive in time.";
const LARGE: &str = "The body is too large.";
const REPLIES: &str = "Server-sent events, each a `Reply` with its number as `id`: `delta`, `reasoning`, `tool`, \
    `permission`, `question`, `final` and `error`. Ends after `final` or `error`.";
const BYTES: &str = "application/octet-stream";

pub(super) fn extend(paths: &mut Paths) {
    paths.add("get", "/v1/live", list());
    paths.add("post", "/v1/live", start());
    paths.add("get", "/v1/live/{id}", show());
    paths.add("delete", "/v1/live/{id}", remove());
    paths.add("post", "/v1/live/{id}/start", start_again());
    paths.add("post", "/v1/live/{id}/stop", stop());
    paths.add("get", "/v1/live/{id}/health", health());
    paths.add("get", "/v1/live/{id}/logs", logs());
    paths.add("get", "/v1/live/{id}/messages", messages());
    paths.add("get", "/v1/live/{id}/files", files());
    paths.add("get", "/v1/live/{id}/files/{path}", read_file());
    paths.add("put", "/v1/live/{id}/files/{path}", write_file());
    paths.add("get", "/v1/live/{id}/turns", turns());
    paths.add("post", "/v1/live/{id}/turns", create_turn());
    paths.add("get", "/v1/live/{id}/turns/{turn}", show_turn());
    paths.add("get", "/v1/live/{id}/turns/{turn}/events", events());
    paths.add("post", "/v1/live/{id}/turns/{turn}/abort", abort());
    paths.add("post", "/v1/live/{id}/turns/{turn}/answer", answer());
}

fn of_agent(id: &str, summary: &str) -> Operation {
    Operation::new("live", id, summary)
        .path("id", "The agent's id or name.", text())
        .refuses(404, NO_AGENT)
}

fn of_turn(id: &str, summary: &str) -> Operation {
    of_agent(id, summary)
        .path("turn", "The turn.", text())
        .refuses(404, NO_TURN)
}

fn list() -> Operation {
    Operation::new("live", "listLive", "Your live agents")
        .answers::<LiveAgents>(200, "All of them, without their addresses.")
        .example(200, json!({"agents": []}))
}

fn start() -> Operation {
    let request = json!({"name": "helper", "endpoint": "scripted", "solution": ["ls"]});
    Operation::new(
        "live",
        "startLive",
        "Start a live agent; answers once it is healthy",
    )
    .takes(named(LIVE_REQUEST), request)
    .answers::<LiveAgentView>(201, "The agent.")
    .refuses(400, "An argument is wrong.")
    .refuses(404, NO_AGENT)
    .refuses(408, LATE)
    .refuses(413, LARGE)
    .refuses(415, NO_JSON)
    .refuses(429, "You have as many as you may.")
    .refuses(502, "Its sandbox, setup or server failed.")
    .refuses(504, "It was not healthy within `deadline_s`.")
}

fn show() -> Operation {
    of_agent(
        "getLive",
        "One live agent, with the password of its `base_url`",
    )
    .answers::<LiveAgentView>(200, "The agent.")
}

fn remove() -> Operation {
    of_agent(
        "removeLive",
        "Remove a stopped agent with its files and turns",
    )
    .answers_nothing(204, "Done.")
}

fn start_again() -> Operation {
    of_agent(
        "startLiveAgain",
        "Start a stopped agent again with what it had",
    )
    .answers::<LiveAgentView>(200, "The agent.")
    .refuses(502, "Its sandbox, setup or server failed.")
    .refuses(504, "It was not healthy within `deadline_s`.")
}

fn stop() -> Operation {
    of_agent(
        "stopLive",
        "Abort its turns, save its files, end its processes",
    )
    .answers::<LiveAgentView>(200, "The agent.")
}

fn health() -> Operation {
    let healthy =
        json!({"healthy": true, "server": "healthy", "version": "1.1.0", "state": "idle"});
    of_agent("liveHealth", "Whether the agent's server answers")
        .answers::<LiveHealth>(200, "It does.")
        .example(200, healthy)
        .answers::<LiveHealth>(503, "It does not.")
}

fn logs() -> Operation {
    of_agent("liveLogs", "The end of what the agent's server printed").answers_as(
        200,
        "The log.",
        "text/plain",
        text(),
    )
}

fn messages() -> Operation {
    of_agent(
        "liveMessages",
        "The agent's own transcript of a conversation",
    )
    .query(
        "session_id",
        "Which conversation; the latest when not given.",
        text(),
    )
    .answers::<LiveMessages>(200, "As the agent tells it.")
    .example(200, json!({"session_id": null, "messages": []}))
    .refuses(400, BAD_QUERY)
    .refuses(409, "The agent is stopped.")
}

fn files() -> Operation {
    of_agent("listLiveFiles", "What its work directory holds")
        .answers::<LiveFiles>(200, "The files.")
        .example(
            200,
            json!({"files": [{"path": "hello.txt", "kind": "file", "bytes": 6}]}),
        )
        .refuses(409, "The agent is stopped.")
}

fn read_file() -> Operation {
    of_file(
        "readLiveFile",
        "A file of its work directory, as an attachment",
    )
    .answers_as(200, "The file.", BYTES, bytes())
}

fn write_file() -> Operation {
    of_file("writeLiveFile", "Put a file into its work directory")
        .takes_as(BYTES, json!({"schema": bytes()}))
        .answers_nothing(204, "Done.")
        .refuses(408, LATE)
        .refuses(413, LARGE)
}

fn of_file(id: &str, summary: &str) -> Operation {
    of_agent(id, summary)
        .path(
            "path",
            "Below the work directory; may hold slashes.",
            text(),
        )
        .refuses(
            400,
            "The path leads out of the work directory, or names no file.",
        )
        .refuses(409, "The agent is stopped.")
}

fn turns() -> Operation {
    of_agent("listTurns", "Its turns, the newest first")
        .query("offset", "How many to skip.", whole_number(0))
        .query("limit", "Turns on a page.", page_limit(TURNS, TURNS_MAX))
        .answers::<LiveTurnPage>(200, "A page.")
        .example(200, json!({"turns": [], "next_offset": null}))
        .refuses(400, BAD_QUERY)
}

fn create_turn() -> Operation {
    of_agent(
        "createTurn",
        "Say something to the agent; the turn goes on when you go away",
    )
    .takes(
        schema_of::<TurnInput>(),
        json!({"text": "What is in this directory?"}),
    )
    .answers_as(
        200,
        &format!("With `Accept: text/event-stream`. {REPLIES}"),
        "text/event-stream",
        text(),
    )
    .answers::<TurnQueued>(202, "Queued.")
    .example(202, json!({"turn_id": TURN}))
    .refuses(400, "The turn is wrong.")
    .refuses(408, LATE)
    .refuses(409, "The agent is stopped.")
    .refuses(413, LARGE)
    .refuses(415, NO_JSON)
    .refuses(429, "Too many turns wait already.")
}

const TURN: &str = "019a3f0c-8a11-7e0b-bb1e-1a4d5f2c9c31";

fn show_turn() -> Operation {
    of_turn("getTurn", "The replies of a turn so far")
        .answers::<TurnReplies>(200, "The replies.")
        .example(
            200,
            json!({"turn_id": TURN, "ended": false, "replies": [delta()]}),
        )
}

fn delta() -> Value {
    json!({
        "trace_id": TURN, "turn_id": TURN, "seq": 1, "session_id": "ses_1", "kind": "delta", "text": "There",
    })
}

fn events() -> Operation {
    of_turn("turnEvents", "The replies of a turn, live")
        .query(
            "after",
            "Only replies with a higher number.",
            whole_number(0),
        )
        .header(
            "Last-Event-ID",
            "The same as `after`, and stronger.",
            text(),
        )
        .answers_as(200, REPLIES, "text/event-stream", text())
        .refuses(400, BAD_QUERY)
}

fn abort() -> Operation {
    of_turn("abortTurn", "End a turn early")
        .answers::<TurnAborted>(202, "`aborted` is false when it had ended already.")
        .example(202, json!({"turn_id": TURN, "aborted": true}))
}

fn answer() -> Operation {
    of_turn("answerTurn", "Answer a permission request or a question")
        .takes(
            schema_of::<TurnAnswer>(),
            json!({"id": "per_1", "answer": "once"}),
        )
        .answers_nothing(204, "The agent was told.")
        .refuses(400, "The answer is wrong.")
        .refuses(408, LATE)
        .refuses(409, "Nothing with this id waits for an answer.")
        .refuses(413, LARGE)
        .refuses(415, NO_JSON)
}
