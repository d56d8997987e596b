//! The server itself, a browser's sign-in, and what is asked before a rollout is started.

use serde_json::json;

use rollcage_model::task::Task;

use super::parts::{Operation, Paths, text};
use crate::server::api::schemas::{ROLLOUT_REQUEST, named, schema_of};
use crate::server::api::types::{
    CommandLine, EndpointCheck, EndpointQuestion, Presets, ServerInfo, SessionInfo, SignIn,
};

pub(super) fn extend(paths: &mut Paths) {
    paths.add("get", "/v1/server", server());
    paths.add("get", "/v1/session", session());
    paths.add("post", "/v1/session", sign_in());
    paths.add("delete", "/v1/session", sign_out());
    paths.add("get", "/v1/presets", presets());
    paths.add("post", "/v1/endpoints/{kind}/check", check());
    paths.add("post", "/v1/rollouts/command-line", command_line());
    paths.add("get", "/v1/rollouts/{id}/task", task());
}

fn server() -> Operation {
    Operation::new("server", "getServer", "What this server is and can do")
        .about("Where no sandbox can be started, `sandbox.reason` says why.")
        .answers::<ServerInfo>(200, "The server.")
}

fn session() -> Operation {
    let signed_out = json!({"access": "token", "signed_in": false, "owner": null});
    Operation::new("server", "getSession", "Whether this caller may call")
        .about("Needs no token.")
        .without_token()
        .answers::<SessionInfo>(200, "Who the caller is.")
        .example(200, signed_out)
}

fn sign_in() -> Operation {
    let signed_in = json!({"access": "token", "signed_in": true, "owner": "TEAM_TOKEN"});
    Operation::new("server", "signIn", "Sign a browser in")
        .about(
            "Keeps the server's token in a cookie that scripts cannot read, and that counts for requests of the server's \
             own page only. Programs send the token in a header instead.",
        )
        .without_token()
        .takes(
            schema_of::<SignIn>(),
            json!({"token": "0123456789abcdef", "framed": false}),
        )
        .answers::<SessionInfo>(200, "Signed in; the cookie is set.")
        .example(200, signed_in)
        .refuses(400, "The body is wrong.")
        .refuses(401, "It is not a token of this server.")
        .refuses(408, "The body did not arrive in time.")
        .refuses(413, "The body is too large.")
        .refuses(415, "The body is not sent as application/json.")
        .refuses(429, "Too many wrong tokens: try again later.")
}

fn sign_out() -> Operation {
    Operation::new("server", "signOut", "Sign a browser out")
        .without_token()
        .answers::<SessionInfo>(200, "Signed out; the cookie is cleared.")
}

fn presets() -> Operation {
    Operation::new(
        "server",
        "listPresets",
        "Tasks that run at once, without any model",
    )
    .about("The scripted endpoint plays their solutions through the real agent.")
    .answers::<Presets>(200, "All of them.")
}

fn check() -> Operation {
    let found = json!({
        "kind": "vllm", "reachable": true, "error": null, "models": ["Qwen/Qwen3-8B"], "seconds": 0.02,
    });
    Operation::new("server", "checkEndpoint", "Ask an endpoint for its models")
        .about(
            "The address and the key are chosen as for a rollout with the same arguments. An endpoint that does not answer \
             is an answer too.",
        )
        .path("kind", "As `/v1/endpoints` names it.", text())
        .takes(
            schema_of::<EndpointQuestion>(),
            json!({"base_url": "http://gpu.example:8000/v1"}),
        )
        .answers::<EndpointCheck>(200, "What came of it.")
        .example(200, found)
        .refuses(400, "The body is wrong.")
        .refuses(408, "The body did not arrive in time.")
        .refuses(413, "The body is too large.")
}

fn command_line() -> Operation {
    let asked = json!({
        "task_id": "ok", "instruction": "Write ok to a.txt", "verify": ["grep -qx ok a.txt"], "endpoint": "vllm",
    });
    Operation::new(
        "rollouts",
        "rolloutCommandLine",
        "A request for rollouts as the command that does the same",
    )
    .about("Takes what `POST /v1/rollouts` takes, and starts nothing. Keys are never part of the command.")
    .takes(named(ROLLOUT_REQUEST), asked)
    .answers::<CommandLine>(200, "The command.")
    .refuses(400, "An argument is wrong.")
    .refuses(408, "The body did not arrive in time.")
    .refuses(413, "The body is too large.")
    .refuses(415, "The body is sent neither as application/json nor as multipart/form-data.")
}

fn task() -> Operation {
    Operation::of_rollout("rolloutTask", "The task of a rollout")
        .answers::<Task>(200, "The task as it was run.")
        .refuses(409, "The rollout has not started.")
}
