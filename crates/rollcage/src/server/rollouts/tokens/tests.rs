use rollcage_model::exchange::{Encoder, Line, Request, Response};
use rollcage_model::id::RolloutId;
use rollcage_model::task::Task;
use rollcage_model::trace::TrainingTrace;

use super::*;

/// A stored rollout of `n_calls` calls, each of which repeats all earlier messages and adds a little.
fn stored(store: &Store, n_calls: u32) -> RolloutResult {
    let id = RolloutId::generate();
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    let mut write = |line: Line| {
        let frame = encoder.earlier(&line).frame(line).unwrap();
        bytes.extend(encoder.encode(frame).unwrap().0);
    };
    let mut messages = vec![json!({"role": "user", "content": "go \"on\" \\ ".repeat(20)})];
    let mut ids: Vec<u32> = (1000..1200).collect();
    for number in 1..=n_calls {
        let sampled: Vec<u32> = (0..10).map(|at| number * 100 + at).collect();
        let entries: Vec<Value> = sampled
            .iter()
            .map(|_| json!({"token": "x", "logprob": -0.5}))
            .collect();
        let said = json!({"role": "assistant", "content": format!("said {number}")});
        let request = json!({"messages": messages, "tools": [{"type": "function"}]});
        let answer = json!({
            "model": "served", "prompt_token_ids": ids,
            "choices": [{"finish_reason": "stop", "message": said, "token_ids": sampled, "logprobs": {"content": entries}}],
            "usage": {"prompt_tokens": ids.len(), "completion_tokens": sampled.len()},
        });
        write(Line::Request(Request {
            exchange: u64::from(number),
            body: request.to_string().into(),
            ..Request::default()
        }));
        write(Line::Response(Response {
            exchange: u64::from(number),
            status: Some(200),
            body: answer.to_string().into(),
            ..Response::default()
        }));
        messages.extend([
            said,
            json!({"role": "user", "content": format!("more {number}")}),
        ]);
        ids.extend(&sampled);
        ids.extend((0..20).map(|at| 50_000 + number * 100 + at));
    }
    let record = store.directory(id);
    std::fs::create_dir_all(&record).unwrap();
    std::fs::write(record.join("exchanges.rec"), bytes).unwrap();
    RolloutResult {
        rollout_type: RolloutType::Train,
        record: record.display().to_string(),
        ..rollcage_engine::result::begin_abandoned(id, Task::default())
    }
}

fn in_store(check: impl FnOnce(&Store)) {
    let home = tempfile::tempdir().unwrap();
    check(&Store::open(home.path()).unwrap());
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn codes(answer: &Value) -> Vec<&str> {
    let findings = answer["findings"].as_array().unwrap().iter();
    findings
        .filter_map(|finding| finding["code"].as_str())
        .collect()
}

#[test]
fn an_answer_that_fits_has_the_originals_form_with_the_strict_trace() {
    in_store(|store| {
        let result = stored(store, 5);
        let answer = text(store, &result, ResultForm::OpenEnv, ANSWER_BYTES_MAX).unwrap();
        let answer = parsed(&answer);
        assert_eq!(answer["proxy_turns"].as_array().unwrap().len(), 5);
        let turn = &answer["proxy_turns"][4];
        assert_eq!(turn["request"]["messages"].as_array().unwrap().len(), 9);
        assert_eq!(turn["completion_token_ids"].as_array().unwrap().len(), 10);
        let trace: TrainingTrace =
            serde_json::from_value(answer["training_trace"].clone()).unwrap();
        trace.check().unwrap();
        assert_eq!(trace.turns.len(), 5);
        assert_eq!(codes(&answer), Vec::<&str>::new());
    });
}

#[test]
fn parts_that_do_not_fit_are_omitted_in_steps_with_a_finding() {
    in_store(|store| {
        let result = stored(store, 60);
        let within = |bytes_max: usize| {
            let answer = text(store, &result, ResultForm::OpenEnv, bytes_max).unwrap();
            assert!(
                escaped(&answer) <= bytes_max,
                "{} of {bytes_max}",
                answer.len()
            );
            parsed(&answer)
        };
        let whole = text(store, &result, ResultForm::OpenEnv, usize::MAX).unwrap();
        let turns = turns_text(
            &store.interpret_result(&result).unwrap(),
            MessageScope::Whole,
            usize::MAX,
        )
        .unwrap()
        .unwrap();
        let new = turns_text(
            &store.interpret_result(&result).unwrap(),
            MessageScope::New,
            usize::MAX,
        )
        .unwrap()
        .unwrap();
        assert!(escaped(&whole) > escaped(&turns) && escaped(&turns) > 2 * escaped(&new));

        let without_trace = within(escaped(&whole) - 1);
        assert_eq!(without_trace["training_trace"], Value::Null);
        assert_eq!(
            without_trace["proxy_turns"][59]["request"]["messages"]
                .as_array()
                .unwrap()
                .len(),
            119
        );
        assert_eq!(codes(&without_trace), ["trace_too_large"]);

        let new_messages = within(escaped(&turns) - 1);
        let request = &new_messages["proxy_turns"][59]["request"];
        assert_eq!(request["messages"].as_array().unwrap().len(), 2);
        assert_eq!(
            request["messages_repeated"],
            json!({"turn": 59, "shared": 117, "repeats": []})
        );
        assert_eq!(codes(&new_messages), ["trace_too_large"]);

        let nothing = within(escaped(&new) - 1);
        assert_eq!(nothing["proxy_turns"], json!([]));
        assert_eq!(codes(&nothing), ["trace_too_large"]);
    });
}

#[test]
fn pages_together_are_the_whole_trace() {
    in_store(|store| {
        let result = stored(store, 30);
        let all: Vec<_> = store
            .interpret_result(&result)
            .unwrap()
            .training_turns()
            .collect();
        let mut turns = Vec::new();
        let mut next = Some(0);
        while let Some(offset) = next {
            let page = parsed(&page(store, &result, PagedTrace::TrainingTrace, offset, 7).unwrap());
            assert_eq!(page["total"], 30);
            turns.extend(page["items"].as_array().unwrap().clone());
            next = page["next_offset"]
                .as_u64()
                .map(|next| usize::try_from(next).unwrap());
        }
        assert_eq!(json!(turns), serde_json::to_value(&all).unwrap());
        let past = parsed(&page(store, &result, PagedTrace::Turns, 100, 7).unwrap());
        assert_eq!(
            (&past["items"], &past["next_offset"]),
            (&json!([]), &Value::Null)
        );
        let rows = parsed(&page(store, &result, PagedTrace::Sequences, 0, usize::MAX).unwrap());
        assert_eq!(
            (&rows["total"], &rows["items"][0]["n_trainable"]),
            (&json!(1), &json!(300))
        );
    });
}

#[test]
fn a_page_ends_where_it_would_be_too_large_but_never_before_its_first_item() {
    let items = || std::iter::repeat_n("x".repeat(PAGE_BYTES_MAX / 2 + 1), 3);
    assert_eq!(page_of(items(), 0, usize::MAX).unwrap().len(), 1);
    assert_eq!(page_of(items(), 2, usize::MAX).unwrap().len(), 1);
    assert_eq!(page_of(items(), 3, usize::MAX).unwrap().len(), 0);
    let large = std::iter::once("x".repeat(PAGE_BYTES_MAX + 1));
    assert_eq!(page_of(large, 0, usize::MAX).unwrap().len(), 1);
}

/// Results of the first version contained their tokens, which are now read from the record as for any other.
#[test]
fn a_result_of_the_first_version_is_read() {
    in_store(|store| {
        let result = stored(store, 3);
        let mut old = serde_json::to_value(&result).unwrap();
        for name in ["group", "schema_version"] {
            old.as_object_mut().unwrap().remove(name);
        }
        old["schema_version"] = json!(1);
        old["proxy_turns"] = json!([{"turn": 1, "prompt_token_ids": [1, 2]}]);
        old["training_trace"] = json!({"schema_version": 1, "turns": []});
        let record = store.directory(result.rollout_id);
        std::fs::write(record.join("result.json"), old.to_string()).unwrap();
        let read = store.result(result.rollout_id).unwrap();
        assert_eq!((read.schema_version, read.group.as_str()), (1, ""));
        let rows =
            parsed(&text(store, &read, ResultForm::View(TraceDetail::Sequences), 0).unwrap());
        assert_eq!(rows["sequences"][0]["n_trainable"], 30);
    });
}

#[test]
fn a_summary_is_short_and_a_view_has_the_requested_tokens() {
    in_store(|store| {
        let result = stored(store, 200);
        let summary = text(store, &result, ResultForm::Summary, 0).unwrap();
        assert!(summary.len() < 4000, "{summary}");
        assert_eq!(parsed(&summary)["rollout_id"], json!(result.rollout_id));
        let bare = text(store, &result, ResultForm::View(TraceDetail::None), 0).unwrap();
        let bare = parsed(&bare);
        for name in ["sequences", "turns", "proxy_turns", "training_trace"] {
            assert!(bare.get(name).is_none(), "{name}");
        }
        let rows =
            parsed(&text(store, &result, ResultForm::View(TraceDetail::Sequences), 0).unwrap());
        assert_eq!(rows["sequences"].as_array().unwrap().len(), 1);
    });
}
