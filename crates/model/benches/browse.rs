//! How long it takes to look at a rollout of 2,000 calls, first and again: `cargo bench -p rollcage-model --bench browse`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rollcage_model::browse::Reading;
use rollcage_model::browse::tokens::Part;
use rollcage_model::browse::turn::MessageRange;
use rollcage_model::exchange::{Encoder, Line, Request, Response};
use rollcage_model::trace::Facts;
use serde_json::{Value, json};

const TURNS: u32 = 2000;
const SAMPLED: u32 = 60;
const TOLD: u32 = 60;

/// A conversation that grows by a tool call and its output each turn, with five alternatives to every token.
fn record() -> Vec<u8> {
    let tools: Vec<Value> = (0..12)
        .map(|tool| json!({"type": "function", "function": {"name": format!("tool{tool}"), "description": "d".repeat(2000)}}))
        .collect();
    let mut messages = vec![
        json!({"role": "system", "content": "s".repeat(9000)}),
        json!({"role": "user", "content": "Do it."}),
    ];
    let mut ids: Vec<u32> = (0..3000).collect();
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    for turn in 0..TURNS {
        let sampled: Vec<u32> = (0..SAMPLED).map(|at| 10_000 + turn * 7 + at).collect();
        let likely: Vec<Value> = (0..5)
            .map(|at| json!({"token": format!("t{at}"), "logprob": -f64::from(at), "bytes": [116, 48]}))
            .collect();
        let entries: Vec<Value> = sampled
            .iter()
            .map(|id| json!({"token": format!("t{id}"), "logprob": -0.5, "bytes": [116], "top_logprobs": likely}))
            .collect();
        let id = format!("call{turn}");
        let arguments = format!("{{\"command\":\"ls {turn}\"}}");
        let call = json!({"id": id, "type": "function", "function": {"name": "tool1", "arguments": arguments}});
        let reply =
            json!({"role": "assistant", "content": format!("Step {turn}."), "tool_calls": [call]});
        let body = json!({
            "model": "m", "prompt_token_ids": ids,
            "choices": [{"index": 0, "message": reply, "finish_reason": "tool_calls", "token_ids": sampled, "logprobs": {"content": entries}}],
            "usage": {"prompt_tokens": ids.len(), "completion_tokens": sampled.len()},
        });
        let exchange = u64::from(turn) + 1;
        let request = Line::Request(Request {
            exchange,
            body: json!({"model": "m", "messages": messages, "tools": tools})
                .to_string()
                .into(),
            ..Request::default()
        });
        let response = Line::Response(Response {
            exchange,
            status: Some(200),
            body: body.to_string().into(),
            ..Response::default()
        });
        for line in [request, response] {
            let frame = encoder.earlier(&line).frame(line);
            let written = frame.and_then(|frame| encoder.encode(frame));
            bytes.extend(written.map(|(bytes, _)| bytes).unwrap_or_default());
        }
        messages.push(reply);
        messages.push(
            json!({"role": "tool", "tool_call_id": id, "content": "output ".repeat(20 + turn as usize % 50)}),
        );
        ids.extend(&sampled);
        ids.extend((0..TOLD).map(|at| 40_000 + turn * 11 + at));
    }
    bytes
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn measure<T>(name: &str, rounds: usize, work: impl Fn() -> T) {
    let once = || {
        let started = Instant::now();
        black_box(work());
        started.elapsed()
    };
    let mut times: Vec<Duration> = (0..rounds).map(|_| once()).collect();
    times.sort();
    println!(
        "{name:<28} {:>9.2} ms",
        times[rounds / 2].as_secs_f64() * 1000.0
    );
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn main() {
    let bytes = bytes::Bytes::from(record());
    println!("{TURNS} calls, {} kB", bytes.len() / 1000);
    let read = || Reading::new(bytes.clone(), &Facts::default(), false);
    measure("read the record", 3, read);
    let reading = read();
    let last = TURNS as usize - 1;
    measure("100 rows", 21, || reading.turns(1900, 100));
    measure("a call", 21, || reading.detail(last, MessageRange::New));
    measure("its sampled tokens", 21, || {
        reading.tokens(last, Part::Completion, 0, 1000)
    });
    measure("5,000 tokens of its prompt", 21, || {
        reading.tokens(last, Part::Prompt, 0, 5000)
    });
    measure("its bytes", 21, || reading.exchange(last));
    measure("the graph", 21, || reading.graph(0, 5000));
    measure("figures", 21, || reading.figures(None));
    measure("100 entries of the words", 21, || {
        reading.transcript(None, 3000, 100)
    });
}
