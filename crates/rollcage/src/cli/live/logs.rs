//! `rollcage live logs`.

use std::io::Write;

use anyhow::Context;

use super::directory::AgentDirectory;
use super::place::{Place, PlaceArguments, path_of};
use super::screen::clean;
use crate::{Outcome, output};

/// Of a log on disk.
const BYTES_MAX: u64 = 1 << 20;

/// Print the end of the log of an agent's server
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Its id, the beginning of one, or its name
    #[arg(value_name = "AGENT")]
    agent: String,

    /// How many lines
    #[arg(short = 'n', long, default_value_t = 200, value_name = "N")]
    lines: usize,

    /// The supervisor's own log instead
    #[arg(long, conflicts_with = "server")]
    supervisor: bool,

    #[command(flatten)]
    place: PlaceArguments,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let view = place.find(&arguments.agent).await?;
    let log = match &place {
        Place::Server(api) => api.get_text(&path_of(&view, "/logs")).await?,
        // On disk, whether it runs or not.
        Place::Home(home) => {
            let agent = AgentDirectory::new(home, &view.id);
            let path = match arguments.supervisor {
                true => agent.log(),
                false => agent.serve_log(),
            };
            let read = rollcage_engine::store::read_tail(&path, BYTES_MAX);
            read.with_context(|| format!("read {}", path.display()))?
        }
    };
    let log = clean(&log);
    let lines: Vec<&str> = log.lines().collect();
    let mut out = output::stdout();
    for line in &lines[lines.len().saturating_sub(arguments.lines)..] {
        writeln!(out, "{line}")?;
    }
    Ok(Outcome::Success)
}
