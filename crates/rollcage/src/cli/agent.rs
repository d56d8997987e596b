//! `rollcage agent list|install|outdated|update|lock|remove|doctor`.

mod doctor;
mod lock;
mod outdated;
mod update;

use std::io::Write;

use serde_json::json;

use rollcage_agents::bundle::{Origin, PinnedListSource};
use rollcage_agents::{Agent, WireDialect};

use super::engine::{make_ready, with_engine};
use super::signals::StopSignal;
use crate::progress::Screen;
use crate::{Outcome, UsageError, output, settings, text};

/// List, install, update, pin, try out and remove agents.
///
/// An agent is installed once, straight from the npm registry (npm's settings and HTTPS_PROXY are honoured) or from
/// PyPI with the host's pip, and mounted read-only into every sandbox. `rollcage run` installs what it needs by itself.
/// The packages of the built-in agents' own versions are pinned, npm's with hashes; other versions are resolved.
/// Agents of your own are TOML manifests in $ROLLCAGE_HOME/agents; manifests shows how they look.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Which agents there are and which versions are installed
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Install an agent and make it ready
    Install {
        /// `opencode`, `opencode@1.18.33` or `opencode@latest`; other names (`claude-code`) are in the list
        #[arg(value_name = "NAME[@VERSION]")]
        agent: String,
    },
    /// Show the newest version of each agent, as its registry tells, beside the pinned and installed ones
    ///
    /// The pinned version is the one that is used when none is named. Exit status 1 means that a registry did not tell.
    Outdated {
        /// Agents by name; the default is all that come from a registry
        #[arg(value_name = "NAME")]
        agents: Vec<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Pin the newest version of agents, once each has been tried out
    ///
    /// The newest version is resolved, installed beside the others, and tried as by `rollcage agent doctor`. If it behaves as
    /// expected it is pinned: $ROLLCAGE_HOME/pins/NAME.lock then beats the version that comes with Rollcage. If not, the
    /// old version stays, and the reason is told. Rollouts that run keep their version, and a server keeps its versions
    /// until it is started anew. Exit status 1 means that an agent could not be updated.
    Update(update::Arguments),
    /// Pin the packages of an agent: write a list that it is installed from
    ///
    /// Resolves everything that one version of the agent consists of, for all kinds of machines, and writes the list:
    /// one entry per package, with its exact version, its place, and for npm its integrity hash. Nothing is installed.
    /// The list names no registry, so it holds for mirrors too. An agent with a list is installed without asking the
    /// registry what fits what: the tarballs are fetched side by side, and one that is not what the list says is
    /// refused. The built-in agents come with lists of their default versions; an agent of your own may name one in its
    /// manifest. Make it anew when the manifest's `version` changes.
    Lock(lock::Arguments),
    /// Try agents out with the scripted model, in every mode, and compare with what is expected of them
    ///
    /// Each is installed if need be and writes one file, once in each mode: streams passed on live, streams replayed
    /// from whole answers, and an endpoint that gives only logprobs or only text. Then it plays a long conversation
    /// (`long`) with what agents change, drop or ask again for: an edit, numbers, several calls at once, blank text,
    /// broken arguments, an unknown tool, a call cut by the token limit, an error, a broken stream, a subagent. The
    /// table tells the time to the first call, the peak of memory, how many turns are trained exactly, and which
    /// replies came back changed. Exit status 1 means that one behaves differently: a side request, an inexact prompt,
    /// a reply that is not trained, events that cannot be read any more, a failure.
    Doctor {
        /// Agents, as `rollcage run --agent` takes them; the default is all
        #[arg(value_name = "NAME[@VERSION]|FILE.toml")]
        agents: Vec<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Remove one installed version
    Remove {
        /// The version as `rollcage agent list` shows it
        #[arg(value_name = "NAME@VERSION")]
        agent: String,
    },
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::List { json } => list(json),
        Command::Install { agent } => install(&agent).await,
        Command::Outdated { agents, json } => Box::pin(outdated::run(&agents, json)).await,
        Command::Update(arguments) => Box::pin(update::run(arguments)).await,
        Command::Lock(arguments) => Box::pin(lock::run(arguments)).await,
        Command::Doctor { agents, json } => Box::pin(doctor::run(&agents, json)).await,
        Command::Remove { agent } => remove(&agent),
    }
}

fn list(is_json: bool) -> anyhow::Result<Outcome> {
    let installed = settings::bundles()?.list();
    let mut out = output::stdout();
    for agent in settings::agents()? {
        let pinned = &agent.source().default_version;
        let bundles: Vec<_> = installed
            .iter()
            .filter(|bundle| bundle.agent == agent.name())
            .collect();
        if is_json {
            let versions: Vec<_> = bundles
                .iter()
                .map(|bundle| json!({"version": bundle.version, "bytes": bundle.bytes}))
                .collect();
            writeln!(
                out,
                "{}",
                json!({
                    "agent": agent.name(),
                    "aliases": agent.aliases(),
                    "title": agent.title(),
                    "dialect": agent.dialect().map(WireDialect::as_str),
                    "default_version": pinned,
                    "built_in_version": replaced_version(&*agent)?,
                    "version_why": agent.version_why(),
                    "needs_installation": needs_installation(&*agent),
                    "installed": versions,
                    "options": rollcage_agents::options(&*agent),
                })
            )?;
            continue;
        }
        let version = match (pinned.as_str(), replaced_version(&*agent)?) {
            ("", _) => String::new(),
            (pinned, None) => format!(" {pinned}"),
            (pinned, Some(other)) => format!(" {pinned} by your pin, {other} with Rollcage"),
        };
        let aliases = match agent.aliases() {
            [] => String::new(),
            aliases => format!(", also {}", aliases.join(", ")),
        };
        let (name, title) = (agent.name(), agent.title());
        writeln!(out, "{name}  ({title}{version}{aliases})")?;
        if let Some(why) = agent.version_why() {
            writeln!(out, "  pinned there: {why}")?;
        }
        if bundles.is_empty() && needs_installation(&*agent) {
            writeln!(
                out,
                "  not installed: rollcage agent install {}",
                agent.name()
            )?;
        }
        for bundle in bundles {
            writeln!(out, "  {}  {}", bundle.version, text::bytes(bundle.bytes))?;
        }
    }
    Ok(Outcome::Success)
}

/// Whether an agent comes with Rollcage: one of the user's own may have replaced it.
fn is_built_in(agent: &dyn Agent) -> anyhow::Result<bool> {
    Ok(match &agent.source().list {
        Some(PinnedListSource::BuiltIn(_)) => true,
        Some(PinnedListSource::File(path)) => settings::pins()?.path(agent.name()) == *path,
        None => rollcage_agents::find(agent.name())
            .is_ok_and(|(known, _)| known.source() == agent.source()),
    })
}

/// The version that comes with Rollcage, for an agent that the user has pinned at another.
fn replaced_version(agent: &dyn Agent) -> anyhow::Result<Option<String>> {
    let is_pinned = settings::pins()?.has(agent.name()) && is_built_in(agent)?;
    let built_in = rollcage_agents::find(agent.name()).ok();
    let built_in = built_in.filter(|_| is_pinned);
    Ok(built_in.map(|(agent, _)| agent.source().default_version.clone()))
}

/// Whether it has to be installed before its first rollout.
fn needs_installation(agent: &dyn Agent) -> bool {
    matches!(agent.source().origin, Origin::Npm(_) | Origin::Pypi(_))
}

async fn install(name: &str) -> anyhow::Result<Outcome> {
    let (agent, version) = settings::agent(name)?;
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let ready =
        with_engine(async |engine| make_ready(engine, (&*agent, version), stop.token()).await);
    let bundle = Box::pin(ready).await?.bundle;
    writeln!(
        output::stdout(),
        "{} {} is ready ({})",
        bundle.agent,
        bundle.version,
        text::bytes(bundle.bytes)
    )?;
    Ok(Outcome::Success)
}

fn remove(name: &str) -> anyhow::Result<Outcome> {
    let Some((agent, version)) = name
        .split_once('@')
        .filter(|(_, version)| !version.is_empty())
    else {
        return Err(UsageError(format!(
            "say which version of {name} to remove: {name}@VERSION"
        ))
        .into());
    };
    // An agent whose manifest is gone may still be installed.
    let known = settings::agent(agent).ok();
    let agent = known.as_ref().map_or(agent, |(agent, _)| agent.name());
    let removed = settings::bundles()?
        .remove(agent, version)
        .map_err(|error| match error {
            rollcage_agents::bundle::RemoveError::NotInstalled { .. } => {
                anyhow::Error::from(UsageError(error.to_string()))
            }
            error => error.into(),
        })?;
    rollcage_engine::forget_home(&settings::home()?, agent, version);
    writeln!(
        output::stdout(),
        "removed {agent} {version} ({})",
        text::bytes(removed.bytes)
    )?;
    Ok(Outcome::Success)
}
