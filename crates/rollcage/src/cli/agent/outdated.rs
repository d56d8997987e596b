//! `rollcage agent outdated`: the newest version of each agent, beside the pinned and the installed ones.

use std::io::Write;
use std::sync::Arc;

use serde::Serialize;

use rollcage_agents::Agent;
use rollcage_agents::bundle::{self, Bundle, VersionRequest};

use super::needs_installation;
use crate::cli::signals::StopSignal;
use crate::progress::Screen;
use crate::{Interrupted, Outcome, UsageError, output, settings};

/// What is known of one agent's versions.
#[derive(Debug, Serialize)]
struct Row {
    agent: String,
    /// The version that is used when none is named.
    pinned: String,
    /// The version that comes with Rollcage, if the pinned one is the user's own.
    built_in: Option<String>,
    /// What the registry has; `None` if it did not tell.
    newest: Option<String>,
    installed: Vec<String>,
    is_outdated: Option<bool>,
    /// Why the newest is not pinned, or not known.
    why: Option<String>,
}

pub(super) async fn run(names: &[String], is_json: bool) -> anyhow::Result<Outcome> {
    let agents = match names {
        [] => settings::agents()?,
        names => names
            .iter()
            .map(|name| unversioned(name))
            .collect::<anyhow::Result<_>>()?,
    };
    let agents = agents
        .into_iter()
        .filter(|agent| needs_installation(&**agent));
    let installed = settings::bundles()?.list();
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let rows = agents.map(|agent| row(agent, &installed));
    let rows = stop
        .token()
        .run_until_cancelled(futures::future::join_all(rows));
    let rows = rows.await.ok_or(Interrupted)?;
    let rows: Vec<Row> = rows.into_iter().collect::<anyhow::Result<_>>()?;
    print(&rows, is_json)?;
    Ok(match rows.iter().all(|row| row.newest.is_some()) {
        true => Outcome::Success,
        false => Outcome::Failure,
    })
}

/// An agent by its name, without a version.
fn unversioned(name: &str) -> anyhow::Result<Arc<dyn Agent>> {
    match settings::agent(name)? {
        (agent, VersionRequest::Default) if needs_installation(&*agent) => Ok(agent),
        (agent, VersionRequest::Default) => Err(UsageError(format!(
            "{} comes from no registry, so it has no versions",
            agent.name()
        ))
        .into()),
        _ => Err(UsageError(format!("{name} names a version: give the agent alone")).into()),
    }
}

async fn row(agent: Arc<dyn Agent>, installed: &[Bundle]) -> anyhow::Result<Row> {
    let source = agent.source();
    let newest = settings::bundles()?.newest(source, &|_| ()).await;
    let pinned = source.default_version.clone();
    let of_agent = installed
        .iter()
        .filter(|bundle| bundle.agent == agent.name());
    let is_outdated = newest
        .as_ref()
        .ok()
        .map(|newest| bundle::is_newer(newest, &pinned));
    let why = match &newest {
        Err(error) => Some(rollcage_model::text::chain(error)),
        Ok(_) if is_outdated == Some(true) => agent.version_why().map(str::to_owned),
        Ok(_) => None,
    };
    Ok(Row {
        agent: agent.name().to_owned(),
        built_in: super::replaced_version(&*agent)?,
        installed: of_agent.map(|bundle| bundle.version.clone()).collect(),
        newest: newest.ok(),
        pinned,
        is_outdated,
        why,
    })
}

fn print(rows: &[Row], is_json: bool) -> std::io::Result<()> {
    let mut out = output::stdout();
    if is_json {
        for row in rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        return Ok(());
    }
    let mut line = |columns: [&str; 5]| {
        let [agent, pinned, newest, installed, state] = columns;
        writeln!(
            out,
            "{agent:<16} {pinned:<12} {newest:<12} {installed:<20}  {state}"
        )
    };
    line(["agent", "pinned", "newest", "installed", "state"])?;
    for row in rows {
        let installed = match row.installed.as_slice() {
            [] => "-".to_owned(),
            versions => versions.join(", "),
        };
        let newest = row.newest.as_deref().unwrap_or("?");
        line([&row.agent, &row.pinned, newest, &installed, &row.state()])?;
    }
    Ok(())
}

impl Row {
    fn state(&self) -> String {
        let state = match self.is_outdated {
            Some(true) => "outdated",
            Some(false) => "up to date",
            None => "unknown",
        };
        let own = self
            .built_in
            .as_ref()
            .map(|version| format!("your pin; {version} comes with Rollcage"));
        let parts = [Some(state.to_owned()), own, self.why.clone()];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}
