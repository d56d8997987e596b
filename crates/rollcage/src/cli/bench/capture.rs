//! `rollcage bench capture`: the proxy as its own process between a load generator and a mock upstream, on the same
//! machine in the same run.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::cli::signals::Signals;
use crate::{Interrupted, Outcome, UsageError, output};

mod conversation;
mod engine;
mod load;
mod process;
mod streamed;
mod whole;

/// Measure the capture proxy between a load generator and a mock upstream.
///
/// The upstream answers with prompt ids, sampled ids and logprobs as vLLM does. Upstream, proxy and load generator
/// share this machine.
///
/// Whole answers come as fast as they can, through the proxy and directly by turns: the ratio is what counts.
///
/// Streamed calls are those of coding agents: 16 conversations at once, prompts of about 20,000 tokens that grow with
/// every turn, words and a tool call of 300 tokens in as many chunks, each sent when its step of the engine is due and
/// each with its id and five alternatives. What counts is the processor time, user and system, that the proxy alone
/// uses for a call: it is a process of its own, and a busy machine changes it little. To see what a change costs, keep
/// the program from before it and measure both by turns:
///
///     rollcage bench capture --workload streamed --against ./rollcage-before
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// What is measured
    #[arg(long, value_enum, default_value_t = Workload::All, value_name = "WHAT")]
    workload: Workload,

    /// Seconds for each measurement of whole answers
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,

    /// How often streamed calls are measured; each time takes about seven seconds
    #[arg(short, long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// Another build of rollcage, whose streamed calls are measured turn about with ours; repeatable
    #[arg(long, value_name = "PROGRAM")]
    against: Vec<PathBuf>,

    /// Print one JSON object per measurement
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    All,
    /// Whole answers, as many as the machine can do
    Whole,
    /// Streamed calls of agents, as an engine's steps allow
    Streamed,
}

/// Concurrent connections, in both workloads.
const CONNECTIONS: usize = 16;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    if arguments.workload == Workload::Whole && !arguments.against.is_empty() {
        let text = "--against measures streamed calls: leave out --workload whole";
        return Err(UsageError(text.to_owned()).into());
    }
    let mut signals = Signals::new().context("catch signals")?;
    tokio::select! {
        measured = measure(arguments) => measured.map(|()| Outcome::Success),
        // Dropping the measurement ends the proxy's process.
        () = signals.next() => Err(Interrupted.into()),
        () = output::reader_gone() => Err(Interrupted.into()),
    }
}

async fn measure(arguments: Arguments) -> anyhow::Result<()> {
    let length = Duration::from_secs(arguments.seconds);
    let mut out = output::stdout();
    if arguments.workload != Workload::Streamed {
        for shape in &whole::SHAPES {
            // Direct and through the proxy, with many connections and, half as long, with one.
            output::say(&format!("{}: {} s", shape.name, arguments.seconds * 3));
            let report = whole::measure(shape, length).await?;
            match arguments.json {
                true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
                false => whole::show(&mut out, shape, &report)?,
            }
        }
    }
    if arguments.workload != Workload::Whole {
        let rounds = usize::from(arguments.rounds);
        let runs = (rounds + 1) * (arguments.against.len() + 1);
        output::say(&format!("streamed agent calls: about {} s", runs * 7));
        let report = streamed::measure(rounds, &arguments.against).await?;
        match arguments.json {
            true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
            false => streamed::show(&mut out, &report)?,
        }
    }
    Ok(())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
