//! `rollcage bench`: numbers of this machine next to their baselines, each compared in one run.

use crate::Outcome;

pub(crate) mod capture;
pub(crate) mod load;
mod rollout;

/// Measure this machine: ratios in one run, since machines are noisy.
///
/// `cargo bench -p rollcage-sandbox` and `cargo bench -p rollcage-model` measure the sandbox and the token graph alone.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// A real OpenCode rollout against the same agent run bare
    Rollout(rollout::Arguments),
    /// The capture proxy against the direct way to a mock upstream
    Capture(capture::Arguments),
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Rollout(arguments) => Box::pin(rollout::run(arguments)).await,
        Command::Capture(arguments) => Box::pin(capture::run(arguments)).await,
    }
}
