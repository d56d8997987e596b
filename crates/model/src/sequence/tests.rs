use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::call;
use crate::exchange::{Exchange, Request, Response};
use crate::trace;

/// A model call of the tests.
#[derive(Clone, Debug)]
struct Asked {
    messages: Vec<Value>,
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    /// Whether its logprobs came whole.
    is_exact: bool,
    has_tools: bool,
}

fn exchange(number: u64, asked: &Asked) -> Exchange {
    let logprob = |at: usize| match asked.is_exact {
        true => json!(-((number * 100) as f64 + at as f64 + 1.0) / 1e6),
        false => Value::Null,
    };
    let entries: Vec<Value> = (0..asked.sampled.len())
        .map(|at| json!({"token": "x", "logprob": logprob(at)}))
        .collect();
    let body = json!({
        "model": "served", "prompt_token_ids": asked.prompt,
        "choices": [{
            "finish_reason": "stop", "token_ids": asked.sampled, "logprobs": {"content": entries},
            "message": {"role": "assistant", "content": format!("said in {number}")},
        }],
        "usage": {"prompt_tokens": asked.prompt.len(), "completion_tokens": asked.sampled.len()},
    });
    let mut request = json!({"messages": asked.messages});
    if asked.has_tools {
        request["tools"] = json!([{"type": "function"}]);
    }
    Exchange {
        request: Request {
            exchange: number,
            body: request.to_string().into(),
            ..Request::default()
        },
        response: Some(Response {
            exchange: number,
            status: Some(200),
            body: body.to_string().into(),
            ..Response::default()
        }),
        sent: None,
    }
}

fn read(calls: &[Asked]) -> Interpretation {
    trace::read(
        (1..)
            .zip(calls)
            .map(|(number, asked)| exchange(number, asked)),
    )
}

fn asked(prompt: &[u32], sampled: &[u32]) -> Asked {
    Asked {
        messages: vec![json!({"role": "user", "content": format!("{prompt:?}")})],
        prompt: prompt.to_vec(),
        sampled: sampled.to_vec(),
        is_exact: true,
        has_tools: true,
    }
}

/// What must hold for the rows of any rollout: each row is a prefix-exact path, and every trained token of every call
/// stands in them once, with its own logprob.
fn check(seen: &Interpretation) -> Result<(), TestCaseError> {
    let rows = rows(seen);
    let mut trained: Vec<(String, Vec<u32>, Vec<f64>)> = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        prop_assert_eq!(row.row, number);
        prop_assert_eq!(row.ids.len(), row.loss_mask.len());
        prop_assert_eq!(row.ids.len(), row.logprobs.len());
        let whole = whole(&rows, number).unwrap();
        prop_assert_eq!(whole.ids.len(), row.n_ids);
        prop_assert_eq!(whole.loss_mask.len(), row.n_ids);
        prop_assert_eq!(whole.logprobs.len(), row.n_ids);
        let ones = whole.loss_mask.iter().filter(|mask| **mask == 1).count();
        prop_assert_eq!(ones, row.n_trainable);
        prop_assert!(row.n_trainable > 0, "a row that trains nothing");
        let mut is_covered = vec![false; row.n_ids];
        for turn in &row.turns {
            let own = seen
                .turns
                .iter()
                .find(|own| own.node_id() == turn.node_id)
                .unwrap();
            let end = turn.start + turn.len;
            prop_assert_eq!(
                &whole.ids[..turn.start],
                own.prompt_token_ids.as_ref().unwrap().to_vec()
            );
            prop_assert_eq!(
                &whole.ids[turn.start..end],
                own.completion_token_ids.as_deref().unwrap()
            );
            prop_assert_eq!(turn.is_trained, own.is_exact());
            let mask = u8::from(turn.is_trained);
            prop_assert!(
                whole.loss_mask[turn.start..end]
                    .iter()
                    .all(|it| *it == mask)
            );
            if turn.is_trained {
                is_covered[turn.start..end].fill(true);
                let logprobs = whole.logprobs[turn.start..end].to_vec();
                prop_assert_eq!(&logprobs, own.logprobs.as_ref().unwrap());
                trained.push((
                    turn.node_id.clone(),
                    whole.ids[turn.start..end].to_vec(),
                    logprobs,
                ));
            }
        }
        for (at, is_covered) in is_covered.into_iter().enumerate() {
            prop_assert!(is_covered || whole.loss_mask[at] == 0 && whole.logprobs[at] == 0.0);
        }
    }
    let mut expected: Vec<_> = seen
        .training_turns()
        .filter(|turn| !turn.completion_token_ids.is_empty())
        .map(|turn| {
            (
                turn.node_id,
                turn.completion_token_ids,
                turn.per_token_logps,
            )
        })
        .collect();
    expected.sort_by(|left, right| left.0.cmp(&right.0));
    trained.sort_by(|left, right| left.0.cmp(&right.0));
    prop_assert_eq!(trained, expected);
    let total: usize = rows.iter().map(|row| row.n_trainable).sum();
    prop_assert_eq!(total as u64, seen.n_trainable_tokens);

    check_calls(seen)
}

/// Every call is whole again once what it shares is put before what is new.
fn check_calls(seen: &Interpretation) -> Result<(), TestCaseError> {
    let calls: Vec<_> = call::calls(seen).collect();
    for (at, turn) in seen.turns.iter().enumerate() {
        let prompt = turn.prompt_token_ids.as_ref().map(Tokens::to_vec);
        prop_assert_eq!(call::whole_prompt(&calls, at), prompt);
        prop_assert_eq!(
            call::whole_messages(&calls, at).unwrap(),
            turn.messages.clone()
        );
    }
    Ok(())
}

#[test]
fn a_conversation_is_one_row() {
    let seen = read(&[asked(&[1, 2], &[3]), asked(&[1, 2, 3, 4], &[5, 6])]);
    let rows = rows(&seen);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].parent, rows[0].shared), (None, 0));
    assert_eq!(rows[0].ids, [1, 2, 3, 4, 5, 6]);
    assert_eq!(rows[0].loss_mask, [0, 0, 1, 0, 1, 1]);
    assert_eq!(rows[0].turns[1].start, 4);
    check(&seen).unwrap();
}

#[test]
fn what_two_paths_share_is_trained_in_the_earlier_one() {
    let seen = read(&[
        asked(&[1], &[2]),
        asked(&[1, 2, 3], &[4]),
        asked(&[1, 2, 5], &[6]),
        asked(&[1, 2, 3, 4, 7], &[8]),
        asked(&[1, 2, 5, 6, 9], &[10]),
    ]);
    let rows = rows(&seen);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row.parent,
                row.shared,
                row.ids.clone(),
                row.loss_mask.clone(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (None, 0, vec![1, 2, 3, 4, 7, 8], vec![0, 1, 0, 1, 0, 1]),
            (Some(0), 2, vec![5, 6, 9, 10], vec![0, 1, 0, 1]),
        ]
    );
    check(&seen).unwrap();
}

#[test]
fn two_samples_of_one_prompt_are_both_trained_though_they_start_alike() {
    // Both were gone on from, so both are the agent's.
    let seen = read(&[
        asked(&[1], &[5, 6]),
        asked(&[1], &[5, 7]),
        asked(&[1, 5, 6, 2], &[3]),
        asked(&[1, 5, 7, 2], &[3]),
    ]);
    let rows = rows(&seen);
    assert_eq!((rows[1].parent, rows[1].shared), (Some(0), 1));
    assert_eq!(rows[1].ids, [5, 7, 2, 3]);
    check(&seen).unwrap();
}

#[test]
fn a_call_that_is_not_exact_is_context_and_ends_no_row() {
    let broken = |prompt: &[u32], sampled: &[u32]| Asked {
        is_exact: false,
        ..asked(prompt, sampled)
    };
    let seen = read(&[
        asked(&[1], &[2]),
        broken(&[1, 2, 3], &[4]),
        asked(&[1, 2, 3, 4, 5], &[6]),
        broken(&[1, 2, 3, 4, 5, 6, 7], &[8]),
    ]);
    let rows = rows(&seen);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].ids, [1, 2, 3, 4, 5, 6]);
    assert_eq!(rows[0].loss_mask, [0, 1, 0, 0, 0, 1]);
    check(&seen).unwrap();
}

#[test]
fn what_is_beside_the_work_is_trained_when_that_is_asked_for() {
    let title = Asked {
        has_tools: false,
        ..asked(&[9, 8], &[7])
    };
    let seen = read(&[title, asked(&[1], &[2]), asked(&[1, 2, 3], &[4])]);
    let shown = |trained| -> Vec<_> {
        let rows = rows_of(&seen, trained).into_iter();
        rows.map(|row| (row.role, row.ids, row.n_trainable))
            .collect()
    };
    let agent = ("agent".to_owned(), vec![1, 2, 3, 4], 2);
    let title = ("auxiliary".to_owned(), vec![9, 8, 7], 1);
    assert_eq!(shown(Trained::default()), std::slice::from_ref(&agent));
    let auxiliary = Trained {
        auxiliary: true,
        asked_again: false,
    };
    assert_eq!(shown(auxiliary), [agent, title]);
}

#[test]
fn what_was_asked_for_again_is_trained_when_that_is_asked_for() {
    // A call that was cut, and asked for again.
    let calls = [
        asked(&[1], &[2, 3]),
        asked(&[1], &[4]),
        asked(&[1, 4, 5], &[6]),
    ];
    let exchanges = (1..).zip(&calls).map(|(number, asked)| {
        let mut stored = exchange(number, asked);
        stored.request.at = number as f64;
        let session = ("x-session-id".to_owned(), "s".to_owned());
        stored.request.headers.extend([session]);
        stored
    });
    let seen = trace::read(exchanges);
    let shown = |trained| -> Vec<_> {
        let rows = rows_of(&seen, trained);
        let shown = (0..rows.len()).map(|at| {
            let WholeRow { ids, loss_mask, .. } = whole(&rows, at).unwrap();
            (rows[at].role.clone(), ids, loss_mask)
        });
        shown.collect()
    };
    let agent = ("agent".to_owned(), vec![1, 4, 5, 6], vec![0, 1, 0, 1]);
    let again = ("discarded".to_owned(), vec![1, 2, 3], vec![0, 1, 1]);
    let others = Trained {
        auxiliary: true,
        asked_again: false,
    };
    assert_eq!(shown(others), std::slice::from_ref(&agent));
    let asked_again = Trained {
        auxiliary: false,
        asked_again: true,
    };
    assert_eq!(shown(asked_again), [agent, again]);
}

#[test]
fn rows_that_are_not_whole_are_told_from_whole_ones() {
    let seen = read(&[
        asked(&[1], &[2]),
        asked(&[1, 2, 3], &[4]),
        asked(&[1, 2, 5], &[6]),
    ]);
    let mut rows = rows(&seen);
    assert!(whole(&rows, 7).is_none());
    rows[1].parent = Some(1);
    assert!(whole(&rows, 1).is_none());
    rows[1].parent = Some(0);
    rows[1].shared = 100;
    assert!(whole(&rows, 1).is_none());
}

/// A conversation of many calls. With `is_broken` every prompt begins with another clock, so that no prompt goes on from
/// the one before by its tokens.
fn conversation(n_calls: usize, is_broken: bool) -> Vec<Asked> {
    let mut messages: Vec<Value> = vec![
        json!({"role": "system", "content": "be good"}),
        json!({"role": "user", "content": "go"}),
    ];
    let mut body: Vec<u32> = (1000..3000).collect();
    let mut calls = Vec::new();
    for number in 0..n_calls as u32 {
        let clock = if is_broken { number } else { 0 };
        let sampled: Vec<u32> = (0..20).map(|at| 100_000 + number * 50 + at).collect();
        calls.push(Asked {
            messages: messages.clone(),
            prompt: [&[1, clock][..], &body].concat(),
            sampled: sampled.clone(),
            is_exact: true,
            has_tools: true,
        });
        body.extend(&sampled);
        body.extend((0..30).map(|at| 200_000 + number * 50 + at));
        messages.push(json!({"role": "assistant", "content": format!("said in {}", number + 1)}));
        messages.push(json!({"role": "user", "content": format!("a tool's answer {number} {}", "x".repeat(90))}));
    }
    calls
}

/// The bytes of rows and of calls.
fn sizes(calls: &[Asked]) -> (usize, usize) {
    let seen = read(calls);
    check(&seen).unwrap();
    let rows = serde_json::to_string(&rows(&seen)).unwrap();
    let calls: Vec<_> = call::calls(&seen).collect();
    (rows.len(), serde_json::to_string(&calls).unwrap().len())
}

#[test]
fn sizes_grow_with_what_is_new_also_where_every_prompt_is_rendered_anew() {
    for is_broken in [false, true] {
        let (rows_50, calls_50) = sizes(&conversation(50, is_broken));
        let (rows_100, calls_100) = sizes(&conversation(100, is_broken));
        let (rows_200, calls_200) = sizes(&conversation(200, is_broken));
        // Equal steps, within what longer numbers take.
        let is_linear = |small: usize, middle: usize, large: usize| {
            let (first, second) = (middle - small, large - middle);
            second < 2 * first + first / 5
        };
        assert!(
            is_linear(rows_50, rows_100, rows_200),
            "{rows_50} {rows_100} {rows_200}"
        );
        assert!(
            is_linear(calls_50, calls_100, calls_200),
            "{calls_50} {calls_100} {calls_200}"
        );
    }
}

proptest! {
    #[test]
    fn every_sampled_token_is_trained_once_in_any_rollout(
        seeds in prop::collection::vec(
            (any::<prop::sample::Index>(), 0_usize..5, 0_u32..4, 0_u32..4, prop::bool::weighted(0.8)),
            1..16,
        ),
    ) {
        let mut known: Vec<Vec<u32>> = vec![(10..60).collect()];
        let mut calls = Vec::new();
        for (base, changed, more, sampled, is_exact) in seeds {
            let mut prompt = known[base.index(known.len())].clone();
            // Sometimes an id near the start is another one, and the prompt is new by its tokens.
            if changed == 0 {
                prompt[3] = 100 + known.len() as u32;
            }
            prompt.extend((0..more).map(|at| at % 2));
            let sampled: Vec<u32> = (0..sampled).collect();
            known.push([prompt.clone(), sampled.clone()].concat());
            calls.push(Asked { is_exact, ..asked(&prompt, &sampled) });
        }
        check(&read(&calls))?;
    }
}
