//! The routes over many rollouts: lists, counts, figures, and the stream of all events.

use serde_json::{Map, Value, json};

use rollcage_engine::SortKey;
use rollcage_model::browse::figures::FiguresPage;
use rollcage_model::browse::rollout::{Facets, RolloutPage, Status, Verdict};

use super::super::listing::{LIMIT, LIMIT_MAX};
use super::super::schemas::schema_of;
use super::super::stream::WATCHED_MAX;
use super::super::types::StreamMessage;
use super::{content, get, query};

/// Path items by path.
pub(super) fn paths() -> Map<String, Value> {
    let mut paths = Map::new();
    paths.insert("/v1/rollouts/facets".to_owned(), json!({"get": facets()}));
    paths.insert("/v1/figures".to_owned(), json!({"get": figures()}));
    paths.insert("/v1/events".to_owned(), json!({"get": events()}));
    paths
}

/// `GET /v1/rollouts`.
pub(super) fn list() -> Value {
    let mut parameters = filters();
    let keys = SortKey::ALL.map(SortKey::as_str);
    parameters.extend([
        query(
            "sort",
            "What to sort by; those without a value come last. By age, the newest first, when it is not given.",
            json!({"enum": keys}),
        ),
        query(
            "order",
            "Of `sort`; of `started_at` where there is none.",
            json!({"enum": ["asc", "desc"], "default": "desc"}),
        ),
        query(
            "cursor",
            "The `next_cursor` of the page before; for lists that are not sorted.",
            json!({"type": "string"}),
        ),
        query(
            "offset",
            "How many come before the page.",
            json!({"type": "integer", "minimum": 0}),
        ),
        limit("Rollouts on a page."),
    ]);
    let page = content("A page.", "application/json", schema_of::<RolloutPage>());
    get(
        "listRollouts",
        "Rollouts, the newest first unless they are sorted otherwise",
        &parameters,
        page,
    )
}

fn facets() -> Value {
    let about = "How many there are; of tasks, agents, models and groups at most 1,000 values.";
    get(
        "countRollouts",
        "How many rollouts match, by what they have",
        &filters(),
        content(about, "application/json", schema_of::<Facets>()),
    )
}

fn figures() -> Value {
    let mut parameters = filters();
    parameters.extend([
        query(
            "by",
            "What rollouts are put together by: some of `task`, `agent`, `model` and `group`, with commas between them.",
            json!({"type": "string"}),
        ),
        query(
            "start",
            "The first combination's place.",
            json!({"type": "integer", "minimum": 0, "default": 0}),
        ),
        limit("Combinations on a page."),
    ]);
    let page = content("A page.", "application/json", schema_of::<FiguresPage>());
    get(
        "rolloutFigures",
        "Rewards, pass@k, tokens and cost over the rollouts that match",
        &parameters,
        page,
    )
}

fn events() -> Value {
    let watch = json!({
        "name": "watch", "in": "query", "required": false,
        "description": "A rollout whose events are wanted, and the number of the last one that is known: `ID:SEQ`. May be given more than once.",
        "schema": {"type": "array", "items": {"type": "string"}, "maxItems": WATCHED_MAX},
    });
    let about = "Server-sent events: `hello` at first, and again when lists are to be read again; `row` for each rollout that waits or runs, and whenever one changes; `removed`; `event` with what happens to watched ones. Its id is what `Last-Event-ID` resumes from.";
    get(
        "streamEvents",
        "What happens to all rollouts, live, on one connection",
        &[watch],
        content(about, "text/event-stream", schema_of::<StreamMessage>()),
    )
}

fn limit(about: &str) -> Value {
    let schema = json!({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT});
    query("limit", about, schema)
}

/// What all of them take; all conditions hold together.
fn filters() -> Vec<Value> {
    let text = || json!({"type": "string"});
    let label = json!({
        "name": "label", "in": "query", "required": false,
        "description": "Only rollouts with this label: NAME=VALUE. May be given more than once.",
        "schema": {"type": "array", "items": {"type": "string"}},
    });
    let verdicts = [
        Verdict::Pass,
        Verdict::Partial,
        Verdict::Fail,
        Verdict::Invalid,
        Verdict::Open,
    ];
    vec![
        query("task", "Only rollouts of this task id.", text()),
        query("agent", "Only rollouts of this agent.", text()),
        query("model", "Only rollouts of this model.", text()),
        query("group", "Only rollouts of this group.", text()),
        query(
            "status",
            "Only those that wait, run or are over.",
            json!({"enum": [Status::Queued, Status::Running, Status::Ended]}),
        ),
        query(
            "verdict",
            "Only those whose reward comes to this.",
            json!({"enum": verdicts}),
        ),
        query(
            "ended",
            "`running`, or how they ended, such as `completed`.",
            text(),
        ),
        label,
        query(
            "q",
            "A part of the id, task, agent, model, group, a label or the error, whatever its case.",
            text(),
        ),
        query(
            "since",
            "Started at or after: Unix seconds, or a time such as 2026-05-01T12:00:00Z.",
            text(),
        ),
        query("until", "Started before, as `since`.", text()),
    ]
}
