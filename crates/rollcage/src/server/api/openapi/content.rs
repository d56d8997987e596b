//! What a rollout left: its trace, files, artifacts and logs.

use serde_json::json;

use rollcage_model::export::Format;

use super::parts::{Operation, Paths, bytes, flag, one_of, page_limit, text, whole_number};
use crate::server::api::changes::{ATTEMPTS, ATTEMPTS_MAX, CHANGES, CHANGES_MAX};
use crate::server::api::schemas::schema_of;
use crate::server::api::types::{Artifacts, ChangesPage, Files, NetworkPage};

const BYTES: &str = "application/octet-stream";
const NOT_ENDED: &str = "It has not ended, or its record cannot be read.";

pub(super) fn extend(paths: &mut Paths) {
    paths.add("get", "/v1/rollouts/{id}/trace", trace());
    paths.add("get", "/v1/rollouts/{id}/files", files());
    paths.add("get", "/v1/rollouts/{id}/changes", changes());
    paths.add("get", "/v1/rollouts/{id}/network", network());
    paths.add("get", "/v1/rollouts/{id}/artifacts", artifacts());
    paths.add("get", "/v1/rollouts/{id}/artifacts/{path}", artifact());
    paths.add("get", "/v1/rollouts/{id}/patch", patch());
    paths.add("get", "/v1/rollouts/{id}/logs", logs());
}

fn trace() -> Operation {
    let formats = Format::ALL
        .iter()
        .map(|format| format.as_str())
        .collect::<Vec<_>>();
    let mut format = one_of(&formats);
    format["default"] = json!(Format::default().as_str());
    let about = "The export; `sequences`, `sft` and `turns` are lines of JSON.";
    Operation::of_rollout("rolloutTrace", "Every token of a rollout, for trainers")
        .query("format", "What to export it as.", format)
        .query(
            "include_discarded",
            "Also calls that the agent did not go on from (capture).",
            flag(),
        )
        .query(
            "include_auxiliary",
            "Also rows for calls beside the work, like summaries (sequences).",
            flag(),
        )
        .query(
            "include_asked_again",
            "Also rows for replies that the agent asked for again, like tool calls that were cut (sequences).",
            flag(),
        )
        .query(
            "include_messages",
            "Also messages beside the tokens (capture).",
            flag(),
        )
        .query(
            "arguments",
            "How the arguments of tool calls are written (sft).",
            one_of(&["objects", "strings"]),
        )
        .answers_as(
            200,
            about,
            "application/json",
            json!({"type": ["object", "array"]}),
        )
        .answers_as(200, about, "application/x-ndjson", text())
        .refuses(400, "A parameter is wrong.")
        .refuses(
            409,
            "It holds nothing that may be trained on, or its record cannot be read.",
        )
}

fn files() -> Operation {
    let about = "The list, or the text of one file.";
    Operation::of_rollout("rolloutFiles", "What the work directory held at the end")
        .query(
            "path",
            "One file's text instead of the list: its path, absolute or below the work directory.",
            text(),
        )
        .answers_as(200, about, "application/json", schema_of::<Files>())
        .example(
            200,
            json!({"files": [{"path": "/home/user/workdir/hello.txt", "chars": 6}], "files_extra": []}),
        )
        .answers_as(200, about, "text/plain", text())
        .refuses(400, "A parameter is wrong.")
        .refuses(409, NOT_ENDED)
}

fn changes() -> Operation {
    let answer = json!({
        "files": [{
            "path": "/home/user/workdir/hello.txt", "change": "added", "before": null, "after": "hello\n",
            "is_cut": false,
        }],
        "start": 0, "total": 1, "has_start": true,
    });
    Operation::of_rollout(
        "rolloutChanges",
        "The work directory's files, before the agent and after it",
    )
    .about(
        "Texts as `files` has them: those of the first 32 files down to a depth of 2, each cut to 8000 characters. \
         `patch` has everything, for a task that wants it.",
    )
    .query("start", "The first one's place.", whole_number(0))
    .query("limit", "Files on a page.", page_limit(CHANGES, CHANGES_MAX))
    .answers::<ChangesPage>(200, "A page.")
    .example(200, answer)
    .refuses(400, "A parameter is wrong.")
    .refuses(409, NOT_ENDED)
}

fn network() -> Operation {
    let answer = json!({
        "attempts": [{
            "at": 1767225600.5, "phase": "agent", "kind": "tls", "host": "pypi.org", "port": 443, "verdict": "refused",
            "reason": "not allowed in this phase", "bytes_in": 0, "bytes_out": 0,
        }],
        "start": 0, "total": 1,
    });
    Operation::of_rollout(
        "rolloutNetwork",
        "What was tried to reach, outside of the sandbox",
    )
    .query("start", "The first one's place.", whole_number(0))
    .query(
        "limit",
        "Attempts on a page.",
        page_limit(ATTEMPTS, ATTEMPTS_MAX),
    )
    .answers::<NetworkPage>(200, "A page.")
    .example(200, answer)
    .refuses(400, "A parameter is wrong.")
    .refuses(409, NOT_ENDED)
}

fn artifacts() -> Operation {
    Operation::of_rollout("listArtifacts", "What was kept of the task's `artifacts`")
        .answers::<Artifacts>(200, "The files.")
        .refuses(409, NOT_ENDED)
}

fn artifact() -> Operation {
    Operation::of_rollout("getArtifact", "One artifact, as an attachment")
        .path(
            "path",
            "Its path, as the list has it; may hold slashes.",
            text(),
        )
        .answers_as(200, "The file.", BYTES, bytes())
        .refuses(409, NOT_ENDED)
}

fn patch() -> Operation {
    Operation::of_rollout(
        "getPatch",
        "What the agent changed in the work directory, for a task with `patch`",
    )
    .answers_as(200, "The patch as an attachment.", BYTES, bytes())
    .refuses(409, NOT_ENDED)
}

fn logs() -> Operation {
    Operation::of_rollout(
        "rolloutLogs",
        "What the agent printed, or what the proxy saw",
    )
    .query(
        "name",
        "Which log.",
        one_of(&["agent", "agent_stderr", "proxy"]),
    )
    .answers_as(200, "The end of the log.", "text/plain", text())
    .refuses(400, "A parameter is wrong.")
    .refuses(409, "The proxy's log is there once the rollout has ended.")
}
