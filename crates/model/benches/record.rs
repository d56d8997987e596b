//! How fast exchanges become a record and are read again: `cargo bench -p rollcage-model --bench record`.
//!
//! A conversation of 60 tokens a turn, as an agent sends it and an engine answers it: what is written per call is what is
//! new in it, what is compared is all of it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rollcage_model::exchange::{Encoder, Index, Line, Reader, Request, Response};

const TURNS: u64 = 400;
const ROUNDS: usize = 15;

/// A request and its answer for each turn.
fn lines() -> Vec<Line> {
    let mut messages = String::from("{\"role\":\"system\",\"content\":\"go\"}");
    let mut ids = String::from("1");
    let mut lines = Vec::new();
    for turn in 1..=TURNS {
        let sampled: Vec<String> = (0..60)
            .map(|at| (turn * 977 + at * 31).to_string())
            .collect();
        messages += &format!(
            ",{{\"role\":\"user\",\"content\":\"told {turn} {}\"}}",
            "text ".repeat(300)
        );
        ids += &format!(",{turn}").repeat(360);
        let entries: Vec<String> = sampled
            .iter()
            .map(|id| {
                format!("{{\"token\":\"token_id:{id}\",\"logprob\":-0.2591,\"bytes\":[119,111],\"top_logprobs\":[]}}")
            })
            .collect();
        let asked = format!("{{\"model\":\"m\",\"messages\":[{messages}],\"tools\":[1]}}");
        let answered = format!(
            "{{\"id\":\"{turn}\",\"choices\":[{{\"token_ids\":[{}],\"logprobs\":{{\"content\":[{}]}}}}],\"prompt_token_ids\":[{ids}]}}",
            sampled.join(","),
            entries.join(",")
        );
        ids += &format!(",{}", sampled.join(","));
        lines.push(Line::Request(Request {
            exchange: turn,
            body: asked.into(),
            ..Request::default()
        }));
        lines.push(Line::Response(Response {
            exchange: turn,
            body: answered.into(),
            ..Response::default()
        }));
    }
    lines
}

fn record(lines: &[Line]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    for line in lines.iter().cloned() {
        let frame = encoder.earlier(&line).frame(line);
        if let Ok((frame, _)) = frame.and_then(|frame| encoder.encode(frame)) {
            bytes.extend(frame);
        }
    }
    bytes
}

/// The shortest of several runs: what else the machine does only adds to it.
fn shortest(mut work: impl FnMut()) -> Duration {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn main() {
    let lines = lines();
    let bytes = record(&lines);
    let shown = |name: &str, took: Duration| {
        println!(
            "{name:8} {:8.2} ms, {:6.1} µs a call",
            took.as_secs_f64() * 1e3,
            took.as_secs_f64() * 1e6 / TURNS as f64
        );
    };
    println!(
        "{TURNS} calls, {:.2} MiB in the file",
        bytes.len() as f64 / f64::from(1 << 20)
    );
    shown("written", shortest(|| drop(black_box(record(&lines)))));
    shown(
        "read",
        shortest(|| {
            black_box(Reader::new(&bytes).count());
        }),
    );
    shown("indexed", shortest(|| drop(black_box(Index::new(&bytes)))));
}
