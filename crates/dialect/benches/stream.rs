//! The cost of one streamed answer, event by event: forwarded in the endpoint's dialect, and parsed into deltas: `cargo
//! bench -p rollcage-dialect --bench stream`.

use std::hint::black_box;
use std::time::Instant;

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::chat::AddedFields;
use rollcage_dialect::upstream::StreamView;
use serde_json::{Value, json};

const ROUNDS: u32 = 100;
const REPEATS: u32 = 5;

/// As vLLM sends it, one token per event.
fn chunks(prompt_tokens: usize, completion_tokens: usize) -> Vec<String> {
    let prompt: Vec<usize> = (0..prompt_tokens).map(|at| 10_000 + at % 50_000).collect();
    let first =
        json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null});
    let first =
        json!({"id": "chatcmpl-1", "model": "m", "choices": [first], "prompt_token_ids": prompt});
    let token = |at: usize| {
        let logprob = -0.001 * (at % 1000) as f64 - 0.123_456_7;
        let entry = json!({"token": " word", "logprob": logprob, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []});
        let is_last = at + 1 == completion_tokens;
        let choice = json!({
            "index": 0, "delta": {"content": " word"}, "logprobs": {"content": [entry]},
            "finish_reason": if is_last { json!("stop") } else { Value::Null }, "token_ids": [20_000 + at],
        });
        json!({"id": "chatcmpl-1", "model": "m", "choices": [choice]})
    };
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens});
    let usage = json!({"id": "chatcmpl-1", "choices": [], "usage": usage});
    let events = [first]
        .into_iter()
        .chain((0..completion_tokens).map(token))
        .chain([usage]);
    let events = events.map(|event| format!("data: {event}\n\n"));
    events.chain(["data: [DONE]\n\n".to_owned()]).collect()
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn main() {
    let added = AddedFields {
        logprobs: true,
        top_logprobs: true,
        token_ids: true,
        usage: true,
        reasoning: false,
    };
    for (prompt_tokens, completion_tokens) in [(8000, 300), (60_000, 300), (100, 4000)] {
        let chunks = chunks(prompt_tokens, completion_tokens);
        for view in [StreamView::Original, StreamView::Deltas] {
            // The fastest repeat is the one least disturbed by other load.
            let best = (0..REPEATS).map(|_| {
                let since = Instant::now();
                for _ in 0..ROUNDS {
                    let mut reader = EndpointDialect::Chat.stream(view, added);
                    for chunk in &chunks {
                        let _ = black_box(reader.push(black_box(chunk.as_bytes())));
                    }
                    black_box(reader.usage());
                }
                since.elapsed() / ROUNDS
            });
            let best = best.min().unwrap_or_default();
            println!(
                "{prompt_tokens:>6} + {completion_tokens} tokens, {view:?}: {:>7.1} us, {:.2} us an event",
                best.as_secs_f64() * 1e6,
                best.as_secs_f64() * 1e6 / chunks.len() as f64,
            );
        }
    }
}
