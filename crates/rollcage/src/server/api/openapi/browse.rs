//! One rollout, call by call and token by token.

use serde_json::json;

use rollcage_model::browse::figures::RolloutFigures;
use rollcage_model::browse::graph::GraphPage;
use rollcage_model::browse::tokens::TokenPage;
use rollcage_model::browse::transcript::TranscriptPage;
use rollcage_model::browse::turn::{TurnDetail, TurnPage};

use super::parts::{Operation, Paths, bytes, flag, one_of, page_limit, text, whole_number};
use crate::server::api::browse::{ENTRIES, Limits, NODES, TOKENS, TURNS};

const NO_TURN: &str = "There is no such rollout or turn, or it is not yours.";

pub(super) fn extend(paths: &mut Paths) {
    paths.add("get", "/v1/rollouts/{id}/turns", turns());
    paths.add("get", "/v1/rollouts/{id}/turns/{turn}", turn());
    paths.add("get", "/v1/rollouts/{id}/turns/{turn}/tokens", tokens());
    paths.add("get", "/v1/rollouts/{id}/turns/{turn}/raw", raw());
    paths.add("get", "/v1/rollouts/{id}/graph", graph());
    paths.add("get", "/v1/rollouts/{id}/figures", figures());
    paths.add("get", "/v1/rollouts/{id}/transcript", transcript());
    paths.add("get", "/v1/rollouts/{id}/page", page());
}

/// An operation on one call.
fn of_turn(id: &str, summary: &str) -> Operation {
    Operation::of_calls(id, summary)
        .path(
            "turn",
            "Counts the rollout's calls from 0.",
            whole_number(0),
        )
        .refuses(400, "A parameter is wrong.")
        .refuses(404, NO_TURN)
}

fn paged(operation: Operation, limits: Limits) -> Operation {
    operation
        .query("start", "The first one's place.", whole_number(0))
        .query(
            "limit",
            "How many at most.",
            page_limit(limits.default, limits.max),
        )
        .refuses(400, "A parameter is wrong.")
}

fn turns() -> Operation {
    let operation = Operation::of_calls(
        "rolloutTurns",
        "The model calls of a rollout, in the order of their requests",
    );
    paged(operation, TURNS)
        .answers::<TurnPage>(200, "A page; one of mode `black_box` shows no calls.")
}

fn turn() -> Operation {
    of_turn("rolloutTurn", "One model call in full, without its tokens")
        .query(
            "messages",
            "Those of the request that are new in this call, or all.",
            one_of(&["new", "all"]),
        )
        .answers::<TurnDetail>(200, "The call.")
}

fn tokens() -> Operation {
    let operation = of_turn(
        "rolloutTokens",
        "The tokens of a model call, as far as the endpoint told them",
    );
    paged(operation, TOKENS)
        .query(
            "part",
            "What was sampled, or what went in.",
            one_of(&["completion", "prompt"]),
        )
        .answers::<TokenPage>(200, "A page.")
        .example(
            200,
            json!({
                "turn": 0, "part": "completion", "start": 0, "total": 1, "is_exact": true,
                "tokens": [{
                    "id": 9707, "text": "Hello", "logprob": -0.105, "mask": 1, "sampled_in": null,
                    "alternatives": [{"id": null, "text": "Hi", "logprob": -2.31}],
                }],
            }),
        )
}

fn raw() -> Operation {
    of_turn("rolloutRaw", "The stored bytes of a model call")
        .query(
            "what",
            "What the agent sent, what the endpoint was sent where that is a translation, or what it answered.",
            one_of(&["request", "sent", "response"]),
        )
        .query("download", "As an attachment.", flag())
        .answers_as(200, "The bytes, as plain text.", "text/plain", text())
}

fn graph() -> Operation {
    let operation = Operation::of_calls(
        "rolloutGraph",
        "How the model calls of a rollout go on from each other",
    );
    paged(operation, NODES)
        .answers::<GraphPage>(200, "A page of calls, and the links that lead to them.")
        .example(
            200,
            json!({
                "start": 0, "total": 2,
                "nodes": [
                    {"turn": 0, "node_id": "n1", "role": "agent", "reason": null, "is_trained": true, "root": 0, "is_subagent": false},
                    {"turn": 1, "node_id": "n2", "role": "agent", "reason": null, "is_trained": true, "root": 0, "is_subagent": false},
                ],
                "edges": [{"from": 0, "to": 1, "link": "continues"}],
            }),
        )
}

fn figures() -> Operation {
    Operation::of_calls(
        "rolloutFigures",
        "What can be counted of a rollout's model calls",
    )
    .answers::<RolloutFigures>(200, "The figures.")
}

fn transcript() -> Operation {
    let operation = Operation::of_calls(
        "rolloutTranscript",
        "What was said in a rollout, with the result of each tool call",
    );
    paged(operation, ENTRIES)
        .about(
            "A conversation that its agent had summed up and started over reads as one. A page ends early where its texts \
             are long: go on from the last entry until there are `total`.",
        )
        .query(
            "conversation",
            "A call of the conversation, such as its first one; without it the agent's own latest.",
            whole_number(0),
        )
        .answers::<TranscriptPage>(200, "A page of one conversation.")
        .refuses(404, NO_TURN)
}

fn page() -> Operation {
    Operation::of_calls(
        "rolloutPage",
        "A rollout saved as one HTML file, which opens without a server",
    )
    .about("As `rollcage show ID --html FILE`: result, calls, tokens and words, without the raw bytes of calls.")
    .answers_as(
        200,
        "The page as an attachment.",
        "application/octet-stream",
        bytes(),
    )
    .refuses(
        404,
        "There is no such rollout, or it is not yours; or this build has no pages.",
    )
    .refuses(409, "It has not ended, or its record cannot be read.")
}
