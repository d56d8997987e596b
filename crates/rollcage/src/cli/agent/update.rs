//! `rollcage agent update`: a newer version is pinned once it has been tried out.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;

use rollcage_agents::bundle::{self, VersionRequest};
use rollcage_agents::{Agent, NewPin};

use super::doctor::{self, TrialReport, Trials};
use super::needs_installation;
use crate::progress::{InstallProgress, Screen};
use crate::{Interrupted, Outcome, UsageError, output, settings};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Built-in agents; the default is those that are installed. A version is pinned instead of the newest
    #[arg(value_name = "NAME[@VERSION]")]
    agents: Vec<String>,
    /// Go back to the versions that come with Rollcage (by default for all agents)
    #[arg(long)]
    reset: bool,
    /// Print one JSON object per agent
    #[arg(long)]
    json: bool,
}

/// What became of one agent.
#[derive(Debug, Serialize)]
struct Report {
    agent: String,
    /// The version that was pinned before.
    from: String,
    /// The version that was tried, if one was.
    to: Option<String>,
    is_updated: bool,
    /// Why the pin has not moved.
    problems: Vec<String>,
    trials: Vec<TrialReport>,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    if arguments.reset {
        return reset(&arguments.agents);
    }
    let agents = match arguments.agents.as_slice() {
        [] => installed()?,
        names => names
            .iter()
            .map(|name| built_in(name))
            .collect::<anyhow::Result<_>>()?,
    };
    if agents.is_empty() {
        output::say("no agent is installed: name those to update");
    }
    let is_json = arguments.json;
    let updated = doctor::with_trials(async |trials| {
        let mut are_fine = true;
        for (agent, version) in agents {
            let report = Box::pin(update(trials, (&agent, version), is_json)).await?;
            are_fine &= report.problems.is_empty();
            tell(&report, is_json)?;
        }
        Ok(are_fine)
    });
    Ok(match Box::pin(updated).await? {
        true => Outcome::Success,
        false => Outcome::Failure,
    })
}

/// A built-in agent that comes from a registry, and the version that is wanted of it.
fn built_in(name: &str) -> anyhow::Result<(Arc<dyn Agent>, VersionRequest)> {
    let (agent, version) = settings::agent(name)?;
    let is_own = name.ends_with(".toml") || !super::is_built_in(&*agent)?;
    let why = match (needs_installation(&*agent), is_own) {
        (true, false) => return Ok((agent, version)),
        (false, false) => "comes from no registry, so it has no versions",
        (_, true) => "is an agent of your own: its manifest says its version",
    };
    Err(UsageError(format!("{} {why}", agent.name())).into())
}

fn installed() -> anyhow::Result<Vec<(Arc<dyn Agent>, VersionRequest)>> {
    let installed = settings::bundles()?.list();
    let mut agents = Vec::new();
    for agent in settings::agents()? {
        let is_installed = installed.iter().any(|bundle| bundle.agent == agent.name());
        if is_installed && needs_installation(&*agent) && super::is_built_in(&*agent)? {
            agents.push((agent, VersionRequest::Default));
        }
    }
    Ok(agents)
}

/// A pin that is damaged must not be in the way here.
fn reset(names: &[String]) -> anyhow::Result<Outcome> {
    let pins = settings::pins()?;
    let mut out = output::stdout();
    let agents = match names {
        [] => rollcage_agents::all()
            .into_iter()
            .filter(|agent| pins.has(agent.name()))
            .collect(),
        names => names
            .iter()
            .map(|name| match rollcage_agents::find(name) {
                Ok((agent, _)) => Ok(agent),
                Err(error) => Err(UsageError(error.to_string()).into()),
            })
            .collect::<anyhow::Result<Vec<_>>>()?,
    };
    for agent in agents {
        let (name, version) = (agent.name(), &agent.source().default_version);
        let was_pinned = pins
            .forget(name)
            .with_context(|| format!("forget the pin of {name}"))?;
        match was_pinned {
            true => writeln!(
                out,
                "{name} is at {version} again, as it comes with Rollcage"
            )?,
            false => writeln!(
                out,
                "{name} was at {version} already, as it comes with Rollcage"
            )?,
        }
    }
    Ok(Outcome::Success)
}

/// Resolves, installs and tries a version, and pins it if it behaves.
async fn update(
    trials: &Trials<'_>,
    (agent, version): (&Arc<dyn Agent>, VersionRequest),
    is_json: bool,
) -> anyhow::Result<Report> {
    let mut report = Report {
        agent: agent.name().to_owned(),
        from: agent.source().default_version.clone(),
        to: None,
        is_updated: false,
        problems: Vec::new(),
        trials: Vec::new(),
    };
    let tried = try_version(trials, agent, version, &mut report, is_json);
    match Box::pin(tried).await {
        Ok(None) => {}
        Ok(Some(pin)) => {
            report.problems = problems(&report.trials);
            if report.problems.is_empty() {
                pin.keep().context("keep the new pin")?;
                report.is_updated = true;
            }
        }
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => report.problems.push(format!("{error:#}")),
    }
    Ok(report)
}

/// Returns the pin of a version that has been tried, or nothing if there is no newer one.
async fn try_version(
    trials: &Trials<'_>,
    agent: &Arc<dyn Agent>,
    version: VersionRequest,
    report: &mut Report,
    is_json: bool,
) -> anyhow::Result<Option<NewPin>> {
    let (bundles, source) = (settings::bundles()?, agent.source());
    let progress = InstallProgress::on(&Screen::new());
    let show = |step| progress.show(&step);
    let resolved = async {
        let wanted = match version {
            VersionRequest::Default => {
                let newest = bundles.newest(source, &show).await?;
                if !bundle::is_newer(&newest, &report.from) {
                    return Ok(None);
                }
                VersionRequest::Exact(newest)
            }
            named => named,
        };
        bundles.pin(source, wanted, &show).await.map(Some)
    };
    let resolved = trials.cancel().run_until_cancelled(resolved).await;
    progress.clear();
    let Some(pinned) = resolved.ok_or(Interrupted)?? else {
        return Ok(None);
    };
    let (name, to) = (agent.name(), pinned.version.clone());
    output::say(&format!(
        "{name}: trying {to}; {} holds until then",
        report.from
    ));
    report.to = Some(to);
    let pin = settings::pins()?.begin(name, &pinned.text);
    let pin = pin.with_context(|| format!("write the new pin of {name}"))?;
    let mut out = output::stdout();
    if !is_json {
        doctor::table_head(&mut out)?;
    }
    let candidate = (&pin.agent()?, VersionRequest::Default);
    let tried = trials.run(candidate, |trial| {
        if !is_json {
            doctor::row(&mut out, &trial)?;
        }
        report.trials.push(trial);
        Ok(())
    });
    Box::pin(tried).await?;
    Ok(Some(pin))
}

fn problems(trials: &[TrialReport]) -> Vec<String> {
    let failed = trials.iter().filter(|trial| !trial.is_fine);
    let told = failed.map(|trial| format!("{}: {}", trial.mode, trial.problems.join("; ")));
    told.collect()
}

fn tell(report: &Report, is_json: bool) -> std::io::Result<()> {
    let mut out = output::stdout();
    if is_json {
        return writeln!(out, "{}", serde_json::to_string(report)?);
    }
    let Report { agent, from, .. } = report;
    match (&report.to, report.problems.as_slice()) {
        (Some(to), []) => writeln!(out, "{agent} is pinned at {to} now (was {from})"),
        (None, []) => writeln!(out, "{agent} {from} is the newest"),
        (_, problems) => writeln!(out, "{agent} stays at {from}: {}", problems.join(" | ")),
    }
}
