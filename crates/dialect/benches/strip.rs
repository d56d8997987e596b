//! The cost of stripping token ids and logprobs from one answer:
//! `cargo bench -p rollcage-dialect --bench strip`.

use std::hint::black_box;
use std::time::Instant;

use rollcage_dialect::chat::{AddedFields, strip_body};
use serde_json::json;

const ROUNDS: u32 = 2000;
const REPEATS: u32 = 5;

/// As vLLM sends it.
fn answer(prompt_tokens: usize, completion_tokens: usize) -> Vec<u8> {
    let prompt: Vec<usize> = (0..prompt_tokens).map(|at| 10_000 + at % 50_000).collect();
    let sampled: Vec<usize> = (0..completion_tokens).map(|at| 20_000 + at).collect();
    let logprobs: Vec<_> = (0..completion_tokens)
        .map(|at| {
            let logprob = -0.001 * (at % 1000) as f64 - 0.123_456_7;
            json!({"token": " word", "logprob": logprob, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []})
        })
        .collect();
    let message = json!({"role": "assistant", "content": " word".repeat(completion_tokens)});
    let body = json!({
        "id": "chatcmpl-1", "model": "m",
        "choices": [{
            "index": 0, "message": message, "logprobs": {"content": logprobs},
            "finish_reason": "stop", "token_ids": sampled,
        }],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
        "prompt_token_ids": prompt,
    });
    body.to_string().into_bytes()
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn main() {
    let added = AddedFields {
        logprobs: true,
        top_logprobs: true,
        token_ids: true,
        usage: false,
        reasoning: false,
    };
    for (prompt_tokens, completion_tokens) in [(8000, 300), (60_000, 300), (100, 4000)] {
        let body = answer(prompt_tokens, completion_tokens);
        // The fastest repeat is the one least disturbed by other load.
        let best = (0..REPEATS).map(|_| {
            let since = Instant::now();
            for _ in 0..ROUNDS {
                black_box(strip_body(black_box(&body), &added));
            }
            since.elapsed() / ROUNDS
        });
        let best = best.min().unwrap_or_default();
        println!(
            "{prompt_tokens:>6} + {completion_tokens} tokens, {:>4} KiB: {:>7.1} us, {:.1} GB/s",
            body.len() >> 10,
            best.as_secs_f64() * 1e6,
            body.len() as f64 / best.as_secs_f64() / 1e9,
        );
    }
}
