//! `rollcage bench`: measures this machine against baselines that are measured in the same run.

use crate::Outcome;

mod bare;
mod capture;
mod figures;
mod fill;
mod live;
mod meter;
mod rollout;
mod served;

/// Measure this machine: ratios in one run, since machines are noisy.
///
/// `cargo bench -p rollcage-sandbox -p rollcage-model -p rollcage-dialect` measures the sandbox, the token graph and the
/// dialects alone.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Real rollouts against the same agents run bare
    Rollout(rollout::Arguments),
    /// The capture proxy between a load generator and a mock upstream
    Capture(capture::Arguments),
    /// Many turns of many live agents, every reply checked
    Live(live::Arguments),
    /// Write many records, to look at lists and pages with
    #[command(hide = true)]
    Fill(fill::Arguments),
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Rollout(arguments) => Box::pin(rollout::run(arguments)).await,
        Command::Capture(arguments) => Box::pin(capture::run(arguments)).await,
        Command::Live(arguments) => Box::pin(live::run(arguments)).await,
        Command::Fill(arguments) => fill::run(&arguments),
    }
}
