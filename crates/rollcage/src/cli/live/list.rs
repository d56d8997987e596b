//! `rollcage live list`.

use std::io::Write;

use anyhow::Context;

use rollcage_engine::live::LiveView;

use super::client::Api;
use super::directory::AgentDirectory;
use super::place::{Place, PlaceArguments, fresh};
use crate::{Outcome, output, text};

/// List agents, the newest first: state, turns, tokens
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: PlaceArguments,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let mut views = place.views().await?;
    if let Place::Home(home) = &place {
        for view in &mut views {
            let agent = AgentDirectory::new(home, &view.id);
            if agent.is_served().await {
                // A supervisor that ends just now leaves what is stored.
                if let Ok(known) = fresh(&Api::at_socket(&agent)?, view).await {
                    *view = known;
                }
            }
        }
    }
    let mut out = output::stdout();
    if arguments.json {
        for view in &mut views {
            view.base_url = None;
            writeln!(out, "{}", serde_json::to_string(view).context("write it")?)?;
        }
        return Ok(Outcome::Success);
    }
    if views.is_empty() {
        writeln!(out, "No live agents. Start one with: rollcage live start")?;
        return Ok(Outcome::Success);
    }
    writeln!(
        out,
        "{:<36}  {:<16}  {:<9}  {:>5}  {:>8}  {:<19}  MODEL",
        "AGENT", "NAME", "STATE", "TURNS", "TOKENS", "LAST TURN"
    )?;
    for view in &views {
        writeln!(out, "{}", row(view))?;
    }
    Ok(Outcome::Success)
}

fn row(view: &LiveView) -> String {
    let last = view.last_turn_at.map_or_else(|| "–".to_owned(), text::time);
    format!(
        "{:<36}  {:<16}  {:<9}  {:>5}  {:>8}  {last:<19}  {}{}",
        view.id,
        text::line(&view.name, 16),
        view.state.as_str(),
        view.turns,
        text::count(view.prompt_tokens + view.completion_tokens),
        text::line(&view.model, 40),
        view.error
            .as_deref()
            .map(|error| format!("  {}", text::line(error, 100)))
            .unwrap_or_default(),
    )
}
