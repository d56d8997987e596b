//! The routes over many rollouts: lists, counts, figures, and the stream of all events.

use serde_json::json;

use rollcage_engine::SortKey;
use rollcage_model::browse::figures::FiguresPage;
use rollcage_model::browse::rollout::{Facets, RolloutPage, Status, Verdict};

use super::parts::{Operation, Paths, one_of, page_limit, text, whole_number};
use crate::server::api::listing::{LIMIT, LIMIT_MAX};
use crate::server::api::schemas::schema_of;
use crate::server::api::stream::WATCHED_MAX;
use crate::server::api::types::StreamMessage;

pub(super) fn extend(paths: &mut Paths) {
    paths.add("get", "/v1/rollouts", list());
    paths.add("get", "/v1/rollouts/facets", facets());
    paths.add("get", "/v1/figures", figures());
    paths.add("get", "/v1/events", events());
}

fn list() -> Operation {
    let keys = SortKey::ALL.map(SortKey::as_str);
    let mut order = one_of(&["asc", "desc"]);
    order["default"] = json!("desc");
    filtered(
        "listRollouts",
        "Rollouts, the newest first unless they are sorted otherwise",
    )
    .query(
        "sort",
        "What to sort by; those without a value come last. `started_at` in descending order is by age, the newest first.",
        one_of(&keys),
    )
    .query("order", "Of `sort`.", order)
    .query(
        "cursor",
        "The `next_cursor` of the page before; not with another `sort` or `order` than the default.",
        text(),
    )
    .query("offset", "How many come before the page.", whole_number(0))
    .query("limit", "Rollouts on a page.", page_limit(LIMIT, LIMIT_MAX))
    .answers::<RolloutPage>(200, "A page.")
}

fn facets() -> Operation {
    filtered(
        "countRollouts",
        "How many rollouts match, by what they have",
    )
    .answers::<Facets>(
        200,
        "How many there are; of tasks, agents, models and groups at most 1,000 values.",
    )
}

fn figures() -> Operation {
    filtered(
        "figures",
        "Rewards, pass@k, tokens and cost over the rollouts that match",
    )
    .query(
        "by",
        "What rollouts are put together by: some of `task`, `agent`, `model` and `group`, with commas between them.",
        text(),
    )
    .query("start", "The first combination's place.", whole_number(0))
    .query("limit", "Combinations on a page.", page_limit(LIMIT, LIMIT_MAX))
    .answers::<FiguresPage>(200, "A page.")
}

fn events() -> Operation {
    let about = "Server-sent events: `hello` at first, and again when lists are to be read again; `row` for each rollout that waits or runs, and whenever one changes; `removed`; `event` with what happens to watched ones, whose id is what `Last-Event-ID` resumes from; `beat` after each 15 seconds without another: a connection without one is dead.";
    Operation::new(
        "rollouts",
        "streamEvents",
        "What happens to all rollouts, live, on one connection",
    )
    .query(
        "watch",
        "A rollout whose events are wanted, and the number of the last one that is known: `ID:SEQ`. May be given more than once.",
        json!({"type": "array", "items": {"type": "string"}, "maxItems": WATCHED_MAX}),
    )
    .answers_as(200, about, "text/event-stream", schema_of::<StreamMessage>())
    .refuses(400, "A parameter is wrong.")
}

/// With the filters that all of them take; all conditions hold together.
fn filtered(id: &str, summary: &str) -> Operation {
    let statuses = json!({"enum": [Status::Queued, Status::Running, Status::Ended]});
    let verdicts = json!({"enum": [
        Verdict::Pass, Verdict::Partial, Verdict::Fail, Verdict::Invalid, Verdict::Open,
    ]});
    let labels = json!({"type": "array", "items": {"type": "string"}});
    let since = "Started at or after: Unix seconds, or a time such as 2026-05-01T12:00:00Z.";
    let any =
        "A part of the id, task, agent, model, group, a label or the error, whatever its case.";
    let label = "Only rollouts with this label: NAME=VALUE. May be given more than once.";
    let ended = "`running`, or how they ended, such as `completed`.";
    Operation::new("rollouts", id, summary)
        .query("task", "Only rollouts of this task id.", text())
        .query("agent", "Only rollouts of this agent.", text())
        .query("model", "Only rollouts of this model.", text())
        .query("group", "Only rollouts of this group.", text())
        .query("status", "Only those that wait, run or are over.", statuses)
        .query(
            "verdict",
            "Only those whose reward comes to this.",
            verdicts,
        )
        .query("ended", ended, text())
        .query("label", label, labels)
        .query("q", any, text())
        .query("since", since, text())
        .query("until", "Started before, as `since`.", text())
        .refuses(400, "A parameter is wrong.")
}
