//! The `rollcage` program: parse, log, run, exit code.
//!
//! `cli` has one file per command, `server` the HTTP servers of `rollcage serve` and `rollcage proxy`. To follow a
//! command, read its file: `cli/run.rs` first, which ends in the engine; then `cli/serve.rs` and `server.rs`.
//!
//! `settings` alone reads environment variables and the files of the home directory, and `output` alone writes to
//! standard output and standard error. `progress`, `report` and `text` put things into words for people, `saved`
//! into one HTML file; `task_file` reads task files.

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

mod cli;
mod output;
mod progress;
mod report;
mod saved;
mod server;
mod settings;
mod task_file;
mod text;

use output::OutputFailure;

/// For blocking threads to clean up after cancelled work.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(3);

/// Bodies are often allocated on one thread and freed on another, for which the C library's allocator takes locks. Huge
/// pages are off (`no_thp`): they would double the resident memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs real coding agents as sandboxed rollouts and keeps every token.
///
/// A rollout gives a task to an unmodified agent in a fresh sandbox, lets it talk to a model through a capturing
/// proxy, verifies what it did, and yields a reward and a training-ready trace.
#[derive(Parser)]
#[command(
    name = "rollcage",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
#[command(after_help = "Start with:  rollcage run examples/hello.toml\n\
    Data lives under $ROLLCAGE_HOME (default: $XDG_DATA_HOME/rollcage or ~/.local/share/rollcage).")]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Log more of what happens inside, on standard error (-v: info, -vv: debug)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Run a task: sandbox, agent, model, verification, reward and trace
    Run(Box<cli::run::Arguments>),
    /// Show one rollout: conversation, commands, reward, timings
    Show(cli::show::Arguments),
    /// List rollouts, the newest first
    List(cli::list::Arguments),
    /// Export stored rollouts in a format that trainers read
    Export(cli::export::Arguments),
    /// List, install, pin, try out and remove agents
    Agent(cli::agent::Arguments),
    /// List endpoints, and find out what one gives
    Endpoint(cli::endpoint::Arguments),
    /// Tell what the sandbox can and cannot do on this machine, and how to fix it
    Doctor(cli::doctor::Arguments),
    Serve(Box<cli::serve::Arguments>),
    /// Keep an agent running and talk to it, turn by turn
    Live(Box<cli::live::Arguments>),
    /// Serve the scripted model alone: an OpenAI-compatible endpoint that plays a script
    Scripted(cli::scripted::Arguments),
    /// Serve the capture proxy alone, with OpenEnv's session routes
    Proxy(cli::proxy::Arguments),
    /// Measure this machine: sandbox and rollout times next to their baselines
    Bench(cli::bench::Arguments),
}

/// The result of a command that ran to its end. The exit codes are part of the interface.
pub(crate) enum Outcome {
    Success,
    /// A rollout failed, or a check found a problem.
    Failure,
}

/// The user's mistake, which has its own exit code.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// The command was ended by a signal, or its output's reader has gone, before it had a result.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

fn main() -> ExitCode {
    // Inside sandboxes this same program is `as-agent`, which verify commands call.
    rollcage_sandbox::local::run_as_agent_if_called();
    // The zygote is this same program, re-executed; it must stay small and single-threaded.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == settings::ZYGOTE)
    {
        rollcage_sandbox::local::zygote_main();
    }
    rollcage_sandbox::names::use_built_in_services();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return show_help(&error),
    };
    start_logging(arguments.verbose);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return end(Err(anyhow::Error::from(error).context("start the runtime"))),
    };
    let outcome = runtime.block_on(run(arguments.command));
    // Blocking tasks may still run: a cancelled installation removes what it has unpacked.
    runtime.shutdown_timeout(CLEAN_UP_LIMIT);
    end(outcome)
}

/// Prints the requested help, or what is wrong with the command line.
fn show_help(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(unprinted) if !error.use_stderr() && unprinted.kind() != ErrorKind::BrokenPipe => {
            end(Err(anyhow::Error::from(unprinted).context("print help")))
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
    }
}

async fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Run(arguments) => Box::pin(cli::run::run(*arguments)).await,
        Command::Show(arguments) => cli::show::run(&arguments),
        Command::List(arguments) => cli::list::run(&arguments),
        Command::Export(arguments) => cli::export::run(&arguments),
        Command::Agent(arguments) => Box::pin(cli::agent::run(arguments)).await,
        Command::Endpoint(arguments) => Box::pin(cli::endpoint::run(arguments)).await,
        Command::Doctor(arguments) => Box::pin(cli::doctor::run(&arguments)).await,
        Command::Serve(arguments) => Box::pin(cli::serve::run(*arguments)).await,
        Command::Live(arguments) => Box::pin(cli::live::run(*arguments)).await,
        Command::Scripted(arguments) => Box::pin(cli::scripted::run(arguments)).await,
        Command::Proxy(arguments) => Box::pin(cli::proxy::run(arguments)).await,
        Command::Bench(arguments) => Box::pin(cli::bench::run(arguments)).await,
    }
}

/// Prints the error, if any, and chooses the exit code. An output whose reader has gone (`rollcage list | head`) is not
/// an error.
fn end(outcome: anyhow::Result<Outcome>) -> ExitCode {
    let output_failure = output::failure();
    let is_closed = output_failure == Some(OutputFailure::Closed);
    let code = match &outcome {
        Ok(Outcome::Success) => 0,
        Ok(Outcome::Failure) => 1,
        Err(error) if error.is::<UsageError>() => 2,
        Err(_) if is_closed => 0,
        Err(error) if error.is::<Interrupted>() => 1,
        Err(_) => 3,
    };
    match (outcome, output_failure) {
        (Err(error), _) if code == 2 || !is_closed => output::say(&format!("error: {error:#}")),
        (Ok(_), Some(OutputFailure::Failed(errno))) => {
            output::say(&format!("error: write to standard output: {errno}"));
        }
        _ => {}
    }
    ExitCode::from(match output_failure {
        Some(OutputFailure::Failed(_)) => 3,
        _ => code,
    })
}

fn start_logging(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        // The prefix of all our crates.
        1 => "warn,rollcage=info",
        _ => "info,rollcage=debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("ROLLCAGE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| output::StderrLog)
        .log_internal_errors(false)
        .init();
}
