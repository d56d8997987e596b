//! `rollcage bench capture`: the proxy as its own process between a load generator and a mock upstream, next to the
//! direct way, on the same machine in the same run.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tokio::net::TcpListener;

use super::load::{Measured, first_byte, load, serve};
use crate::cli::signals::Signals;
use crate::{Interrupted, Outcome, output, settings, text};

/// Measure the capture proxy against the direct way to a mock upstream.
///
/// The upstream answers with prompt ids, sampled ids and logprobs as vLLM does. Upstream, proxy and load generator share
/// this machine, so the ratio is what counts.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Seconds for each measurement
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

/// A kind of call.
struct Shape {
    name: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
    goal: f64,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "8,000-token prompts",
        prompt_tokens: 8000,
        completion_tokens: 300,
        goal: 0.20,
    },
    Shape {
        name: "60,000-token prompts",
        prompt_tokens: 60_000,
        completion_tokens: 300,
        goal: 0.15,
    },
];
const CONNECTIONS: usize = 16;
/// Each measurement is made in so many parts.
const ROUNDS: u32 = 4;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let mut signals = Signals::new().context("catch signals")?;
    tokio::select! {
        measured = measure(arguments) => measured.map(|()| Outcome::Fine),
        // The proxy, a process of its own, ends with what is dropped here.
        () = signals.next() => Err(Interrupted.into()),
        () = output::reader_gone() => Err(Interrupted.into()),
    }
}

async fn measure(arguments: Arguments) -> anyhow::Result<()> {
    let length = Duration::from_secs(arguments.seconds);
    let mut out = output::stdout();
    for shape in &SHAPES {
        // Direct and through the proxy, with many connections and, half as long, with one.
        output::say(&format!("{}: {} s", shape.name, arguments.seconds * 3));
        let upstream = Upstream::start(shape).await?;
        let proxy = Proxy::start(&upstream.address)?;
        let key = proxy.open_session().await?;
        let request = request(shape, &key, false);
        let (direct, through) = compare(&upstream, &proxy, &request, CONNECTIONS, length).await?;
        let (alone_direct, alone) = compare(&upstream, &proxy, &request, 1, length / 2).await?;
        writeln!(
            out,
            "{} + {} sampled, {CONNECTIONS} connections",
            shape.name, shape.completion_tokens
        )?;
        rate(&mut out, "direct", &direct)?;
        rate(&mut out, "through the proxy", &through)?;
        let share = through.calls_per_second() / direct.calls_per_second();
        writeln!(
            out,
            "  share of the direct rate         {:>8.1} %   (goal: at least {:.0} %)",
            share * 100.0,
            shape.goal * 100.0
        )?;
        let share = direct.cpu_per_call().as_secs_f64() / through.cpu_per_call().as_secs_f64();
        writeln!(
            out,
            "  the same by processor time       {:>8.1} %   (holds on a busy machine too)",
            share * 100.0
        )?;
        let added = alone.at(0.5).saturating_sub(alone_direct.at(0.5));
        writeln!(
            out,
            "  added at one connection, p50     {:>8.3} ms  (goal for 8,000: under 0.4 ms)",
            milliseconds(added)
        )?;
        if shape.prompt_tokens == 8000 {
            let streamed = stream_request(shape, &key);
            let direct = first_byte(upstream.address, &streamed, 50).await?;
            let through = first_byte(proxy.address, &streamed, 50).await?;
            writeln!(
                out,
                "  first byte of a stream, added    {:>8.3} ms  (goal: within 1 ms)",
                milliseconds(through.saturating_sub(direct))
            )?;
        }
        writeln!(
            out,
            "  resident                         {:>12}  (goal: under 60 MiB, flat)",
            text::bytes(proxy.resident()?)
        )?;
    }
    Ok(())
}

/// The direct way and the way through the proxy by turns, so that what else the machine does falls on both.
async fn compare(
    upstream: &Upstream,
    proxy: &Proxy,
    request: &Arc<[u8]>,
    connections: usize,
    length: Duration,
) -> anyhow::Result<(Measured, Measured)> {
    let (mut direct, mut through) = (Measured::default(), Measured::default());
    for _ in 0..ROUNDS {
        for (address, sum) in [
            (upstream.address, &mut direct),
            (proxy.address, &mut through),
        ] {
            let request = Arc::clone(request);
            let before = cpu("self")? + cpu(&proxy.child.id().to_string())?;
            let mut more = load(address, request, connections, length / ROUNDS).await?;
            more.cpu = (cpu("self")? + cpu(&proxy.child.id().to_string())?).saturating_sub(before);
            sum.add(more);
        }
    }
    Ok((direct, through))
}

/// What a process has used, by its threads; none of them ends while it is measured.
fn cpu(process: &str) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ran = text.split(' ').next().and_then(|text| text.parse().ok());
        sum += ran.unwrap_or(0_u64);
    }
    Ok(Duration::from_nanos(sum))
}

fn rate(out: &mut impl Write, name: &str, measured: &Measured) -> std::io::Result<()> {
    writeln!(
        out,
        "  {name:<32} {:>8.0} calls/s  p50 {:.2} ms  p99 {:.2} ms  {:.3} ms of processor a call",
        measured.calls_per_second(),
        milliseconds(measured.at(0.5)),
        milliseconds(measured.at(0.99)),
        milliseconds(measured.cpu_per_call()),
    )
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

struct Upstream {
    address: SocketAddr,
    tasks: tokio::task::JoinSet<()>,
}

impl Upstream {
    async fn start(shape: &Shape) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (whole, stream) = (whole_answer(shape), streamed_answer(shape));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let _ = serve(listener, whole, stream).await;
        });
        Ok(Upstream { address, tasks })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.tasks.abort_all();
    }
}

/// The proxy as a process of its own, so that its memory is its own.
struct Proxy {
    child: Child,
    address: SocketAddr,
    home: std::path::PathBuf,
}

impl Proxy {
    fn start(upstream: &SocketAddr) -> anyhow::Result<Self> {
        let home = settings::home()?.join(format!("bench-{}", std::process::id()));
        let mut child = Command::new("/proc/self/exe")
            .args([
                "proxy",
                "--upstream",
                &format!("http://{upstream}"),
                "--model",
                "m",
                "--port",
                "0",
            ])
            .env("ROLLCAGE_HOME", &home)
            .stdout(Stdio::piped())
            .spawn()
            .context("start the proxy")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the proxy's output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("http://"));
        let address = address.and_then(|address| address.parse().ok());
        Ok(Proxy {
            address: address.context("the proxy says where it listens")?,
            child,
            home,
        })
    }

    async fn open_session(&self) -> anyhow::Result<String> {
        let client = rollcage_proxy::outbound::client("http://127.0.0.1")?;
        let url = format!("http://{}/sessions", self.address);
        let request = client.post(url).header("content-type", "application/json");
        let text = request.body("{}").send().await?.text().await?;
        let answer: serde_json::Value = serde_json::from_str(&text)?;
        ensure!(
            answer["capture_level"] == "tokens",
            "the mock upstream is captured whole: {text}"
        );
        Ok(answer["session_id"]
            .as_str()
            .context("a session id")?
            .to_owned())
    }

    fn resident(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("the kernel tells VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// About four bytes of conversation a token.
fn request(shape: &Shape, key: &str, is_stream: bool) -> Arc<[u8]> {
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

fn stream_request(shape: &Shape, key: &str) -> Arc<[u8]> {
    request(shape, key, true)
}

fn logprobs(from: usize, count: usize) -> Vec<serde_json::Value> {
    let entry = |at: usize| {
        let logprob = -0.001 * (at % 1000) as f64 - 0.123_456_7;
        json!({"token": " word", "logprob": logprob, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []})
    };
    (from..from + count).map(entry).collect()
}

fn whole_answer(shape: &Shape) -> Arc<[u8]> {
    let prompt: Vec<usize> = (0..shape.prompt_tokens)
        .map(|at| 10_000 + at % 50_000)
        .collect();
    let sampled: Vec<usize> = (0..shape.completion_tokens).map(|at| 20_000 + at).collect();
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": " word".repeat(shape.completion_tokens)},
            "logprobs": {"content": logprobs(0, shape.completion_tokens)},
            "finish_reason": "stop", "stop_reason": null, "token_ids": sampled,
        }],
        "usage": {"prompt_tokens": shape.prompt_tokens, "completion_tokens": shape.completion_tokens, "total_tokens": 1},
        "prompt_token_ids": prompt,
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat().into()
}

fn streamed_answer(shape: &Shape) -> Arc<[u8]> {
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
