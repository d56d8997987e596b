//! `rollcage list`.

use std::io::Write;

use rollcage_engine::store::Summary;

use crate::{Outcome, output, settings, text};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many to show
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    limit: usize,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let summaries = settings::store()?.list(arguments.limit)?;
    let mut out = output::stdout();
    if arguments.json {
        for summary in &summaries {
            writeln!(out, "{}", serde_json::to_string(summary)?)?;
        }
        return Ok(Outcome::Success);
    }
    if summaries.is_empty() {
        writeln!(out, "No rollouts yet. Start one with: rollcage run TASK")?;
        return Ok(Outcome::Success);
    }
    writeln!(
        out,
        "{:<36}  {:<19}  {:<16}  {:>6}  {:>5}  {:>10}  {:<20}  MODEL",
        "ROLLOUT", "STARTED", "ENDED", "REWARD", "CALLS", "TIME", "TASK"
    )?;
    for summary in &summaries {
        writeln!(out, "{}", row(summary))?;
    }
    Ok(Outcome::Success)
}

fn row(summary: &Summary) -> String {
    let ended = match summary.row.ended {
        Some(ended) => ended.as_str(),
        None if summary.is_ended() => "unreadable",
        None => "unfinished",
    };
    format!(
        "{:<36}  {:<19}  {ended:<16}  {:>6}  {:>5}  {:>10}  {:<20}  {}",
        summary.row.rollout_id,
        text::time(summary.row.started_at),
        text::reward(summary.row.reward),
        summary.row.calls,
        text::duration(summary.row.wall_s),
        text::line(&summary.row.task_id, 20),
        text::line(&summary.row.model, 40),
    )
}
