//! `rollcage live stop` and `rollcage live remove`.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;

use rollcage_engine::LOCAL;

use super::client::Api;
use super::directory::AgentDirectory;
use super::place::{Place, PlaceArguments, path_of, shown};
use crate::cli::engine::with_engine;
use crate::{Outcome, UsageError, output};

/// For a supervisor to end after its agent was stopped.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Stop an agent: its turn is aborted, its files are saved, its processes end
///
/// `rollcage live start --id AGENT` starts it again with its conversations and files. It also cleans up after a
/// supervisor that was killed.
#[derive(clap::Args)]
pub(crate) struct StopArguments {
    /// Its id, the beginning of one, or its name
    #[arg(value_name = "AGENT")]
    agent: String,

    #[command(flatten)]
    place: PlaceArguments,
}

/// Remove a stopped agent with its files and turns; its records stay
#[derive(clap::Args)]
pub(crate) struct RemoveArguments {
    /// Its id, the beginning of one, or its name
    #[arg(value_name = "AGENT")]
    agent: String,

    #[command(flatten)]
    place: PlaceArguments,
}

pub(super) async fn stop(arguments: &StopArguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let view = place.find(&arguments.agent).await?;
    let path = path_of(&view, "/stop");
    match &place {
        Place::Server(api) => {
            api.post(&path, None).await?;
        }
        Place::Home(home) => {
            let agent = AgentDirectory::new(home, &view.id);
            if agent.is_served().await {
                Api::at_socket(&agent)?.post(&path, None).await?;
                let is_free = agent.wait_until_free(Instant::now() + END_LIMIT).await;
                if !is_free.context("wait for the supervisor")? {
                    anyhow::bail!("the agent is stopped, but its supervisor did not end");
                }
            } else {
                with_engine(async |engine| Ok(engine.live().stop(LOCAL, &view.id).await?)).await?;
            }
        }
    }
    writeln!(output::stdout(), "stopped {}", shown(&view))?;
    Ok(Outcome::Success)
}

pub(super) async fn remove(arguments: &RemoveArguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let view = place.find(&arguments.agent).await?;
    match &place {
        Place::Server(api) => api.delete(&path_of(&view, "")).await?,
        Place::Home(home) => {
            if AgentDirectory::new(home, &view.id).is_served().await {
                let text = format!("{} runs: stop it first", shown(&view));
                return Err(UsageError(text).into());
            }
            with_engine(async |engine| Ok(engine.live().remove(LOCAL, &view.id).await?)).await?;
        }
    }
    writeln!(output::stdout(), "removed {}", shown(&view))?;
    Ok(Outcome::Success)
}
