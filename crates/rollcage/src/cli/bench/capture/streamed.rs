//! Streamed calls of coding agents, many at once, and what each costs the proxy in processor time. Engine and agents
//! run in another process than the proxy, so that nothing of theirs is counted.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::conversation::{COMPLETION_TOKENS, PROMPT_TOKENS, TURNS, answer, requests};
use super::engine::{Answers, MockEngine, MockStream};
use super::process::{OURSELVES, ProxyProcess};
use super::{CONNECTIONS, milliseconds, whole};

/// For one call, which takes one step of the engine per token.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Processor time of a proxy, user and system.
#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

/// Another build that is compared with this one.
#[derive(Debug, Serialize)]
struct Comparison {
    program: PathBuf,
    cpu_ms_per_call: Spread,
    /// Its processor time divided by ours: the median over the rounds.
    ratio: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    workload: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
    connections: usize,
    rounds: usize,
    calls_per_round: usize,
    cpu_ms_per_call: Spread,
    against: Vec<Comparison>,
}

/// Measures this program and other builds in alternation.
pub(super) async fn measure(rounds: usize, against: &[PathBuf]) -> anyhow::Result<Report> {
    let bodies: Vec<Vec<String>> = (0..CONNECTIONS).map(requests).collect();
    let engine = MockEngine::start(answers(&bodies)).await?;
    let ourselves = PathBuf::from(OURSELVES);
    let programs: Vec<&PathBuf> = std::iter::once(&ourselves).chain(against).collect();
    let mut proxies = Vec::new();
    for (number, program) in programs.iter().enumerate() {
        let proxy = ProxyProcess::start(program, engine.address, number).await;
        proxies.push(proxy.with_context(|| format!("measure {}", program.display()))?);
    }
    let mut costs = vec![Vec::new(); proxies.len()];
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..proxies.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let cost = cost_of_a_call(&proxies[at], &bodies).await?;
            // The first round warms up.
            if round > 0 {
                costs[at].push(milliseconds(cost));
            }
        }
    }
    let other = |(program, theirs): (&PathBuf, &Vec<f64>)| {
        let ratios = theirs.iter().zip(&costs[0]).map(|(their, our)| their / our);
        Comparison {
            program: program.clone(),
            cpu_ms_per_call: spread(theirs.clone()),
            ratio: spread(ratios.collect()).median,
        }
    };
    Ok(Report {
        workload: "streamed",
        prompt_tokens: PROMPT_TOKENS,
        completion_tokens: COMPLETION_TOKENS,
        connections: CONNECTIONS,
        rounds,
        calls_per_round: CONNECTIONS * TURNS,
        against: against.iter().zip(&costs[1..]).map(other).collect(),
        cpu_ms_per_call: spread(costs[0].clone()),
    })
}

pub(super) fn show(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(
        out,
        "streamed agent calls: {PROMPT_TOKENS}-token prompts + {COMPLETION_TOKENS} sampled, {CONNECTIONS} at once, {} rounds of {}",
        report.rounds, report.calls_per_round
    )?;
    row(out, "processor time of the proxy", &report.cpu_ms_per_call)?;
    for other in &report.against {
        row(
            out,
            &other.program.display().to_string(),
            &other.cpu_ms_per_call,
        )?;
        writeln!(
            out,
            "  that is                          {:>+8.1} %",
            (other.ratio - 1.0) * 100.0
        )?;
    }
    Ok(())
}

fn row(out: &mut impl Write, name: &str, cost: &Spread) -> io::Result<()> {
    let Spread { median, min, max } = cost;
    writeln!(
        out,
        "  {name:<32} {median:>8.3} ms a call  ({min:.3} to {max:.3})"
    )
}

fn spread(mut numbers: Vec<f64>) -> Spread {
    numbers.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
    let last = numbers.len().saturating_sub(1);
    Spread {
        median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
        min: at(0),
        max: at(last),
    }
}

fn answers(bodies: &[Vec<String>]) -> Answers {
    let shortest = |turn: usize| bodies.iter().map(|agent| agent[turn].len()).min();
    let stream = |turn: usize| MockStream {
        request_bytes: shortest(turn).unwrap_or_default(),
        events: answer(turn),
    };
    Answers {
        // For the probe, whose calls are small.
        whole: whole::answer(100, 16),
        streams: (0..TURNS).map(stream).collect(),
    }
}

/// The proxy's processor time per call, over one conversation per agent, each in its own session.
async fn cost_of_a_call(proxy: &ProxyProcess, bodies: &[Vec<String>]) -> anyhow::Result<Duration> {
    let mut agents = Vec::new();
    for bodies in bodies {
        let key = proxy.open_session().await?;
        let requests = bodies.iter().map(|body| {
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        });
        agents.push(requests.collect::<Vec<_>>());
    }
    let before = proxy.cpu()?;
    let mut running = JoinSet::new();
    for requests in agents {
        let address = proxy.address;
        running.spawn(async move { converse(address, &requests).await });
    }
    while let Some(agent) = running.join_next().await {
        agent??;
    }
    let calls = u32::try_from(bodies.len() * TURNS)?;
    Ok(proxy.cpu()?.saturating_sub(before) / calls)
}

async fn converse(address: SocketAddr, requests: &[String]) -> io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    for request in requests {
        let call = async {
            socket.write_all(request.as_bytes()).await?;
            read_stream(&mut socket).await
        };
        tokio::time::timeout(CALL_LIMIT, call).await??;
    }
    Ok(())
}

/// Reads a streamed answer to its end.
async fn read_stream(socket: &mut TcpStream) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(1 << 18);
    while !buffer.ends_with(b"0\r\n\r\n") {
        if socket.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let text = String::from_utf8_lossy(&buffer);
    let is_whole = text.starts_with("HTTP/1.1 200") && text.contains("data: [DONE]");
    if is_whole {
        return Ok(());
    }
    let beginning: String = text.chars().take(500).collect();
    Err(io::Error::other(format!("no whole stream: {beginning}")))
}
