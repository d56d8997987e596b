//! Conversations that branch, retry and lose tokens: the order of arrival changes nothing, parents are exact prefixes,
//! and a trace holds only what was sampled.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rollcage_model::exchange::{Exchange, Request, Response};
use rollcage_model::trace::{Interpretation, interpret};
use serde_json::json;

/// One model call that goes on from an earlier one, or from none.
#[derive(Arbitrary, Clone, Debug)]
struct Step {
    after: Option<u8>,
    /// What the prompt has beyond the call it goes on from; few different ids, so that prefixes meet by chance.
    prompt: Vec<bool>,
    sampled: Vec<bool>,
    /// The endpoint lost something of it.
    loses: Option<Loss>,
    has_tools: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Loss {
    PromptIds,
    SampledIds,
    OneLogprob,
    Answer,
}

fuzz_target!(|steps: Vec<Step>| {
    if steps.len() > 24 {
        return;
    }
    let mut tokens: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
    for step in &steps {
        let before = step.after.and_then(|after| tokens.get(usize::from(after)));
        let mut prompt = before.map_or_else(Vec::new, |(prompt, sampled)| {
            [prompt.as_slice(), sampled].concat()
        });
        prompt.extend(ids(&step.prompt));
        tokens.push((prompt, ids(&step.sampled)));
    }
    let exchanges: Vec<Exchange> = (1..)
        .zip(steps.iter().zip(&tokens))
        .map(|(number, (step, tokens))| exchange(number, step, tokens))
        .collect();
    let seen = interpret(&exchanges);
    let backwards: Vec<Exchange> = exchanges.iter().rev().cloned().collect();
    assert!(seen == interpret(&backwards), "the order of arrival counts");
    check(&seen, &tokens);
});

fn ids(bits: &[bool]) -> Vec<u32> {
    bits.iter()
        .take(32)
        .map(|&bit| u32::from(bit) + 1)
        .collect()
}

fn exchange(number: u64, step: &Step, (prompt, sampled): &(Vec<u32>, Vec<u32>)) -> Exchange {
    let logprobs = match step.loses {
        Some(Loss::OneLogprob) => sampled.len().saturating_sub(1),
        _ => sampled.len(),
    };
    let entries = vec![json!({"token": "x", "logprob": -0.5}); logprobs];
    let mut choice = json!({
        "finish_reason": "stop", "logprobs": {"content": entries},
        "message": {"role": "assistant", "content": format!("answer {number}")},
    });
    if !matches!(step.loses, Some(Loss::SampledIds)) {
        choice["token_ids"] = json!(sampled);
    }
    let mut body = json!({
        "choices": [choice],
        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": sampled.len()},
    });
    if !matches!(step.loses, Some(Loss::PromptIds)) {
        body["prompt_token_ids"] = json!(prompt);
    }
    let tools = vec![json!({"type": "function"}); usize::from(step.has_tools)];
    let asked =
        json!({"messages": [{"role": "user", "content": format!("{prompt:?}")}], "tools": tools});
    let response = Response {
        exchange: number,
        status: Some(200),
        body: body.to_string().into(),
        ..Response::default()
    };
    Exchange {
        request: Request {
            exchange: number,
            body: asked.to_string().into(),
            ..Request::default()
        },
        response: (!matches!(step.loses, Some(Loss::Answer))).then_some(response),
        sent: None,
    }
}

fn check(seen: &Interpretation, tokens: &[(Vec<u32>, Vec<u32>)]) {
    for node in &seen.graph.nodes {
        if let Some(parent) = node.parent.map(|parent| &seen.graph.nodes[parent]) {
            let (turn, before) = (&seen.turns[node.turn], &seen.turns[parent.turn]);
            if turn.prompt_token_ids.is_some() && before.is_exact() {
                let (prompt, sampled) = &tokens[parent.turn];
                let whole = [prompt.as_slice(), sampled].concat();
                assert!(tokens[node.turn].0.starts_with(&whole), "{}", node.id);
            }
        }
    }
    let Some(trace) = &seen.training_trace else {
        return;
    };
    trace.check().expect("a trace obeys the rules");
    let known: BTreeMap<String, &(Vec<u32>, Vec<u32>)> = (1..)
        .zip(tokens)
        .map(|(number, tokens)| (format!("n{number}"), tokens))
        .collect();
    for turn in &trace.turns {
        let (prompt, sampled) = known[&turn.node_id];
        assert_eq!(&turn.prompt_token_ids, prompt);
        assert_eq!(&turn.completion_token_ids, sampled);
    }
}
