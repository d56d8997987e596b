use super::graph::edge;
use super::*;
use crate::browse::graph::Link;
use crate::browse::transcript::{Entry, Speaker};

/// Entries as `turn speaker: text [tool -> result]`.
fn show(entries: &[Entry]) -> Vec<String> {
    let line = |entry: &Entry| {
        let speaker = match entry.speaker {
            Speaker::System => "system",
            Speaker::User => "user",
            Speaker::Assistant => "assistant",
            Speaker::Tool => "tool",
        };
        let calls = entry.tool_calls.iter().map(|call| {
            let result = call.result.as_deref().unwrap_or("?");
            format!(" [{} {} -> {result}]", call.name, call.arguments)
        });
        let calls: String = calls.collect();
        let note = entry.note.as_ref().map_or("", |_| " !");
        format!("{} {speaker}: {}{calls}{note}", entry.turn, entry.text)
    };
    entries.iter().map(line).collect()
}

fn all(reading: &Reading) -> Vec<String> {
    show(&reading.transcript(None, 0, 1000).unwrap().entries)
}

#[test]
fn a_conversation_reads_as_one_with_results_at_their_calls() {
    let reading = read(&work());
    assert_eq!(
        all(&reading),
        [
            "0 system: be good",
            "0 user: do it",
            "0 assistant:  [bash {\"a\":1} -> one]",
            "1 assistant:  [bash no JSON -> two]",
            "2 assistant: done",
        ]
    );
    let page = reading.transcript(None, 3, 1).unwrap();
    assert_eq!((page.start, page.total, page.entries[0].entry), (3, 5, 3));
    assert_eq!(page.entries[0].at, 20.0);
    let last = reading.transcript(None, 4, 9).unwrap().entries;
    assert_eq!(last[0].finish_reason.as_deref(), Some("stop"));
}

#[test]
fn what_a_running_call_was_sent_is_there_before_its_reply() {
    let mut calls = work();
    calls[2].is_open = true;
    assert_eq!(
        all(&read_running(&calls))[3..],
        ["1 assistant:  [bash no JSON -> two]"]
    );
    calls[1].is_open = true;
    assert_eq!(
        all(&read_running(&calls[..2]))[2..],
        ["0 assistant:  [bash {\"a\":1} -> one]"]
    );
    calls[0].is_open = true;
    assert_eq!(
        all(&read_running(&calls[..1])),
        ["0 system: be good", "0 user: do it"]
    );
}

#[test]
fn a_changed_reply_and_a_result_without_a_call_are_told() {
    let [first, mut second, _] = work();
    second.messages[2] = uses("c1", "{\"a\":2}");
    second.messages.push(result("gone", "stray"));
    second.prompt = vec![1, 2, 3, 41, 51, 6];
    assert_eq!(
        all(&read(&[first, second]))[2..],
        [
            "0 assistant:  [bash {\"a\":1} -> one] !",
            "1 tool: stray",
            "1 assistant:  [bash no JSON -> ?]",
        ]
    );
}

const SUMMARY: &str = "The first thing was done, and the second thing is still to be done.";

/// Asks for the summary of a conversation, which is sent along.
fn summed(messages: &[Value]) -> Asked {
    let sum_up = said("user", "Sum up what was done.");
    let mut summed = asked(
        &[messages, &[sum_up]].concat(),
        &[1, 2, 3, 4, 5, 6, 7, 8],
        said("assistant", SUMMARY),
        &[11, 12],
    );
    summed.has_tools = false;
    summed
}

/// Starts over from the summary and what is kept of the conversation.
fn fresh(kept: &[Value]) -> Asked {
    asked(
        &[&[said("system", "be good"), said("user", SUMMARY)], kept].concat(),
        &[50, 51],
        said("assistant", "done"),
        &[52],
    )
}

#[test]
fn a_conversation_that_was_summed_up_goes_on_as_one() {
    let [first, second, _] = work();
    let summary = SUMMARY;
    let sent = [uses("c2", "no JSON"), result("c2", "two")];
    let summed = summed(&[&second.messages[..], &sent].concat());
    let reading = read(&[first, second, summed, fresh(&[])]);
    let page = reading.transcript(None, 0, 99).unwrap();
    assert_eq!(page.root, Some(0));
    assert_eq!(
        show(&page.entries)[2..],
        [
            "0 assistant:  [bash {\"a\":1} -> one]".to_owned(),
            "1 assistant:  [bash no JSON -> two] !".to_owned(),
            format!("3 user: {summary}"),
            "3 assistant: done".to_owned(),
        ]
    );
    let kinds = page.conversations.iter();
    let kinds: Vec<_> = kinds
        .map(|it| (it.root, it.kind.as_str(), it.turns))
        .collect();
    assert_eq!(kinds, [(0, "agent", 4)]);
    assert_eq!(reading.graph(3, 1).edges, [edge(1, 3, Link::Compacts)]);
    // The summary itself is read from its own call on.
    let summed = reading.transcript(Some(2), 0, 99).unwrap().entries;
    assert_eq!(
        show(&summed).last().unwrap(),
        &format!("2 assistant: {summary}")
    );
}

/// How the call that was open when the conversation was summed up reads.
fn last_call(calls: &[Asked]) -> String {
    let lines = all(&read(calls)).into_iter();
    let mut lines = lines.filter(|line| line.starts_with("1 assistant:"));
    lines.next_back().unwrap()
}

#[test]
fn a_result_that_only_a_failed_call_was_sent_is_at_its_call() {
    let [first, second, mut third] = work();
    third.status = Some(400);
    // The summary is asked for with the conversation as a text, which has no results.
    let mut summed = summed(&[]);
    summed.prompt = vec![60];
    let calls = [first, second, third, summed, fresh(&[])];
    assert_eq!(last_call(&calls), "1 assistant:  [bash no JSON -> two] !");
}

#[test]
fn a_result_that_only_the_new_conversation_has_is_at_its_call() {
    let [first, second, _] = work();
    let summed = summed(&second.messages);
    let last = |kept: &[Value]| {
        let fresh = fresh(kept);
        last_call(&[first.clone(), second.clone(), summed.clone(), fresh])
    };
    assert_eq!(
        last(&[uses("c2", "no JSON"), result("c2", "two")]),
        "1 assistant:  [bash no JSON -> two] !"
    );
    // The same id names another call.
    let open = "1 assistant:  [bash no JSON -> ?] !";
    assert_eq!(last(&[uses("c2", "neither"), result("c2", "other")]), open);
    assert_eq!(last(&[uses("c2", "{}"), result("c2", "other")]), open);
    assert_eq!(last(&[result("c2", "other")]), open);
}

#[test]
fn a_result_is_at_its_call_where_nothing_but_a_summary_follows() {
    let [first, second, _] = work();
    let sent = [uses("c2", "no JSON"), result("c2", "two")];
    let mut summed = summed(&[&second.messages[..], &sent].concat());
    let calls = [first, second, summed.clone()];
    assert_eq!(last_call(&calls), "1 assistant:  [bash no JSON -> two]");
    // One without an id may be any call's.
    let [first, second, _] = calls;
    summed.messages[5] = json!({"role": "tool", "content": "two"});
    assert_eq!(
        last_call(&[first, second, summed]),
        "1 assistant:  [bash no JSON -> ?]"
    );
}

#[test]
fn every_conversation_is_listed_and_can_be_read() {
    let [first, second, third] = work();
    let own = |mut asked: Asked| {
        asked.session = Some("main");
        asked
    };
    let mut helper = asked(
        &[said("user", "help  me\nout")],
        &[30],
        said("assistant", "ok"),
        &[31],
    );
    (helper.session, helper.parent) = (Some("child"), Some("main"));
    let reading = read(&[title(), own(first), own(second), helper, own(third)]);
    let page = reading.transcript(None, 0, 1).unwrap();
    let listed = page.conversations.iter();
    let listed: Vec<_> = listed
        .map(|it| (it.root, it.kind.as_str(), it.title.as_str(), it.turns))
        .collect();
    assert_eq!(
        listed,
        [
            (1, "agent", "do it", 3),
            (3, "subagent", "help me out", 1),
            (0, "auxiliary", "a title", 1)
        ]
    );
    let helper = reading.transcript(Some(3), 0, 9).unwrap();
    assert_eq!(helper.root, Some(3));
    assert_eq!(
        show(&helper.entries),
        ["3 user: help  me\nout", "3 assistant: ok"]
    );
}

#[test]
fn a_fork_is_read_through_the_call_that_is_named() {
    let [first, second, third] = work();
    let again = Asked {
        sampled: vec![70],
        reply: said("assistant", "never mind"),
        ..second.clone()
    };
    let reading = read(&[first, again, second, third]);
    assert_eq!(all(&reading).last().unwrap(), "3 assistant: done");
    let other = reading.transcript(Some(1), 0, 99).unwrap();
    assert_eq!(
        show(&other.entries).last().unwrap(),
        "1 assistant: never mind"
    );
    assert_eq!(other.root, Some(0));
}

#[test]
fn reasoning_parts_and_attachments_are_kept_apart() {
    let parts = json!([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]);
    let asked_with = json!({"role": "user", "content": parts});
    let reply = json!({"role": "assistant", "content": "I see", "reasoning_content": "hm"});
    let entries = read(&[asked(&[asked_with], &[1], reply, &[2])])
        .transcript(None, 0, 9)
        .unwrap()
        .entries;
    assert_eq!(
        (entries[0].text.as_str(), entries[0].attachments),
        ("look", 1)
    );
    assert_eq!(
        (entries[1].text.as_str(), entries[1].reasoning.as_deref()),
        ("I see", Some("hm"))
    );
}

#[test]
fn a_page_ends_early_where_its_texts_are_long() {
    let long = "x".repeat(3 << 20);
    let messages = [
        said("user", &long),
        said("user", &long),
        said("user", "short"),
    ];
    let reading = read(&[asked(&messages, &[1], said("assistant", "ok"), &[2])]);
    let page = reading.transcript(None, 0, 9).unwrap();
    assert_eq!((page.entries.len(), page.total), (1, 4));
    let page = reading.transcript(None, 1, 9).unwrap();
    assert_eq!((page.entries.len(), page.total), (3, 4));
}

#[test]
fn a_rollout_whose_calls_all_failed_shows_what_was_asked() {
    let [first, ..] = work();
    let busy = Asked {
        status: Some(500),
        ..first.clone()
    };
    let reading = read(&[busy.clone(), busy.clone()]);
    assert_eq!(all(&reading), ["1 system: be good", "1 user: do it"]);
    assert_eq!(
        reading.transcript(None, 0, 1).unwrap().conversations.len(),
        2
    );
    let page = read(&[busy, first]).transcript(None, 0, 1).unwrap();
    assert_eq!((page.root, page.conversations.len()), (Some(1), 1));
}
