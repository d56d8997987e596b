//! The throughput of whole answers: through the proxy and directly, in alternation.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;

use super::load::{LoadResult, first_byte, load, serve};
use super::process::{OURSELVES, ProxyProcess, own_cpu};
use super::{CONNECTIONS, milliseconds};
use crate::text;

/// The size of a call, and the goal for it.
pub(super) struct CallShape {
    pub(super) name: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
    goal: f64,
}

pub(super) const SHAPES: [CallShape; 2] = [
    CallShape {
        name: "8,000-token prompts",
        prompt_tokens: 8000,
        completion_tokens: 300,
        goal: 0.20,
    },
    CallShape {
        name: "60,000-token prompts",
        prompt_tokens: 60_000,
        completion_tokens: 300,
        goal: 0.15,
    },
];
/// Each measurement is split into this many parts.
const ROUNDS: u32 = 4;

/// The measurements of one path to the upstream.
#[derive(Debug, Serialize)]
struct Rate {
    calls_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Of upstream, proxy and load generator together.
    cpu_ms_per_call: f64,
}

impl Rate {
    fn of(measured: &LoadResult) -> Self {
        Rate {
            calls_per_s: measured.calls_per_second(),
            p50_ms: milliseconds(measured.at(0.5)),
            p99_ms: milliseconds(measured.at(0.99)),
            cpu_ms_per_call: milliseconds(measured.cpu_per_call()),
        }
    }
}

/// The result for one call shape.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    workload: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
    connections: usize,
    direct: Rate,
    through: Rate,
    share_of_direct_rate: f64,
    share_goal: f64,
    share_by_cpu: f64,
    added_p50_ms: f64,
    /// Measured for short prompts only.
    added_first_byte_ms: Option<f64>,
    resident_bytes: u64,
}

pub(super) async fn measure(shape: &CallShape, length: Duration) -> anyhow::Result<Report> {
    let upstream = MockUpstream::start(shape).await?;
    let proxy = ProxyProcess::start(Path::new(OURSELVES), upstream.address, 0).await?;
    let key = proxy.open_session().await?;
    let whole = request(shape, &key, false);
    let (direct, through) = compare(&upstream, &proxy, &whole, CONNECTIONS, length).await?;
    let (alone_direct, alone) = compare(&upstream, &proxy, &whole, 1, length / 2).await?;
    let mut added_first_byte_ms = None;
    if shape.prompt_tokens == 8000 {
        let streamed = request(shape, &key, true);
        let direct = first_byte(upstream.address, &streamed, 50).await?;
        let through = first_byte(proxy.address, &streamed, 50).await?;
        added_first_byte_ms = Some(milliseconds(through.saturating_sub(direct)));
    }
    let share_by_cpu = direct.cpu_per_call().as_secs_f64() / through.cpu_per_call().as_secs_f64();
    Ok(Report {
        workload: "whole",
        prompt_tokens: shape.prompt_tokens,
        completion_tokens: shape.completion_tokens,
        connections: CONNECTIONS,
        share_of_direct_rate: through.calls_per_second() / direct.calls_per_second(),
        share_goal: shape.goal,
        share_by_cpu,
        direct: Rate::of(&direct),
        through: Rate::of(&through),
        added_p50_ms: milliseconds(alone.at(0.5).saturating_sub(alone_direct.at(0.5))),
        added_first_byte_ms,
        resident_bytes: proxy.resident()?,
    })
}

pub(super) fn show(
    out: &mut impl Write,
    shape: &CallShape,
    report: &Report,
) -> std::io::Result<()> {
    let CallShape {
        name,
        completion_tokens,
        ..
    } = shape;
    writeln!(
        out,
        "{name} + {completion_tokens} sampled, {CONNECTIONS} connections"
    )?;
    for (name, rate) in [
        ("direct", &report.direct),
        ("through the proxy", &report.through),
    ] {
        writeln!(
            out,
            "  {name:<32} {:>8.0} calls/s  p50 {:.2} ms  p99 {:.2} ms  {:.3} ms of processor a call",
            rate.calls_per_s, rate.p50_ms, rate.p99_ms, rate.cpu_ms_per_call,
        )?;
    }
    writeln!(
        out,
        "  share of the direct rate         {:>8.1} %   (goal: at least {:.0} %)",
        report.share_of_direct_rate * 100.0,
        report.share_goal * 100.0
    )?;
    writeln!(
        out,
        "  the same by processor time       {:>8.1} %   (holds on a busy machine too)",
        report.share_by_cpu * 100.0
    )?;
    writeln!(
        out,
        "  added at one connection, p50     {:>8.3} ms  (goal for 8,000: under 0.4 ms)",
        report.added_p50_ms
    )?;
    if let Some(added) = report.added_first_byte_ms {
        writeln!(
            out,
            "  first byte of a stream, added    {added:>8.3} ms  (goal: within 1 ms)"
        )?;
    }
    writeln!(
        out,
        "  resident                         {:>12}  (goal: under 60 MiB, flat)",
        text::bytes(report.resident_bytes)
    )
}

/// Measures the direct path and the path through the proxy in alternation, so that other load on the machine affects
/// both.
async fn compare(
    upstream: &MockUpstream,
    proxy: &ProxyProcess,
    request: &Arc<[u8]>,
    connections: usize,
    length: Duration,
) -> anyhow::Result<(LoadResult, LoadResult)> {
    let (mut direct, mut through) = (LoadResult::default(), LoadResult::default());
    for _ in 0..ROUNDS {
        for (address, sum) in [
            (upstream.address, &mut direct),
            (proxy.address, &mut through),
        ] {
            let request = Arc::clone(request);
            let before = own_cpu()? + proxy.cpu()?;
            let mut more = load(address, request, connections, length / ROUNDS).await?;
            more.cpu = (own_cpu()? + proxy.cpu()?).saturating_sub(before);
            sum.add(more);
        }
    }
    Ok((direct, through))
}

struct MockUpstream {
    address: SocketAddr,
    tasks: tokio::task::JoinSet<()>,
}

impl MockUpstream {
    async fn start(shape: &CallShape) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let whole = answer(shape.prompt_tokens, shape.completion_tokens);
        let stream = streamed_answer(shape);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let _ = serve(listener, whole, stream).await;
        });
        Ok(MockUpstream { address, tasks })
    }
}

impl Drop for MockUpstream {
    fn drop(&mut self) {
        self.tasks.abort_all();
    }
}

/// A request with about four bytes per token.
fn request(shape: &CallShape, key: &str, is_stream: bool) -> Arc<[u8]> {
    let words = "word ".repeat(shape.prompt_tokens * 4 / 5);
    let body = if is_stream {
        json!({"stream": true, "model": "m", "messages": [{"role": "user", "content": words}]})
    } else {
        json!({"model": "m", "messages": [{"role": "user", "content": words}]})
    };
    let body = body.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat().into()
}

fn logprobs(from: usize, count: usize) -> Vec<serde_json::Value> {
    let entry = |at: usize| {
        let logprob = -0.001 * (at % 1000) as f64 - 0.123_456_7;
        json!({"token": " word", "logprob": logprob, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []})
    };
    (from..from + count).map(entry).collect()
}

/// A whole answer as an HTTP response.
pub(super) fn answer(prompt_tokens: usize, completion_tokens: usize) -> Arc<[u8]> {
    let prompt: Vec<usize> = (0..prompt_tokens).map(|at| 10_000 + at % 50_000).collect();
    let sampled: Vec<usize> = (0..completion_tokens).map(|at| 20_000 + at).collect();
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": " word".repeat(completion_tokens)},
            "logprobs": {"content": logprobs(0, completion_tokens)},
            "finish_reason": "stop", "stop_reason": null, "token_ids": sampled,
        }],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": 1},
        "prompt_token_ids": prompt,
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat().into()
}

fn streamed_answer(shape: &CallShape) -> Arc<[u8]> {
    let prompt: Vec<usize> = (0..shape.prompt_tokens)
        .map(|at| 10_000 + at % 50_000)
        .collect();
    let choice = |delta: serde_json::Value, at: usize, count: usize, finish: Option<&str>| {
        let ids: Vec<usize> = (at..at + count).map(|at| 20_000 + at).collect();
        json!([{"index": 0, "delta": delta, "token_ids": ids, "logprobs": {"content": logprobs(at, count)}, "finish_reason": finish}])
    };
    let chunk = |choices: serde_json::Value| json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices});
    let mut first = chunk(choice(
        json!({"role": "assistant", "content": ""}),
        0,
        0,
        None,
    ));
    first["prompt_token_ids"] = json!(prompt);
    let mut events = vec![first.to_string()];
    let last = shape.completion_tokens - 1;
    events.extend(
        (0..last).map(|at| chunk(choice(json!({"content": " word"}), at, 1, None)).to_string()),
    );
    events.push(chunk(choice(json!({}), last, 1, Some("stop"))).to_string());
    let mut usage = chunk(json!([]));
    usage["usage"] = json!({"prompt_tokens": shape.prompt_tokens, "completion_tokens": shape.completion_tokens, "total_tokens": 1});
    events.push(usage.to_string());
    events.push("[DONE]".to_owned());
    let mut out =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec();
    for event in events {
        let event = format!("data: {event}\n\n");
        out.extend(format!("{:x}\r\n{event}\r\n", event.len()).into_bytes());
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out.into()
}
