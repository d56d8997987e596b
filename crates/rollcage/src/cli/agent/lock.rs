//! `rollcage agent lock`: pins an agent's packages.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;

use rollcage_agents::bundle::{
    self, InstallError, ListError, NODE_VERSION, Source, VersionRequest,
};

use crate::cli::signals::StopSignal;
use crate::progress::{InstallProgress, Screen};
use crate::{Interrupted, Outcome, UsageError, output, settings};

/// Node is not an agent, but it is pinned like one.
const NODE: &str = "node";

#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  \
    rollcage agent lock pi --version latest          what the newest version consists of\n  \
    rollcage agent lock ./my.toml --output my.lock   pin an agent of your own; its manifest then says:\n\n  \
    [bundle]\n  \
    from = \"npm\"\n  \
    lock = \"my.lock\"                                 relative to the manifest")]
pub(super) struct Arguments {
    /// An agent, a manifest file, or `node` for the Node that runs agents made of JavaScript
    #[arg(value_name = "NAME|FILE.toml")]
    agent: String,
    /// The version to pin, or a tag such as `latest`; the default is the one in the manifest
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Write the list to this file, replacing it; the default is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let (source, version) = source(&arguments)?;
    let screen = Screen::new();
    let stop = StopSignal::watch(screen.clone(), "Ending; again to end at once.")?;
    let bundles = settings::bundles()?;
    let progress = InstallProgress::on(&screen);
    let show = |step| progress.show(&step);
    let pinned = bundles.pin(&source, version, &show);
    let pinned = stop.token().run_until_cancelled(pinned).await;
    progress.clear();
    let pinned = pinned.ok_or(Interrupted)?.map_err(|error| match error {
        InstallError::List(ListError::NothingToPin { .. })
        | InstallError::NoVersion { .. }
        | InstallError::Name { .. } => anyhow::Error::from(UsageError(error.to_string())),
        error => error.into(),
    })?;
    for (package, targets) in &pinned.missing {
        output::say(&format!(
            "not pinned for {}: the registry does not have {package}. Until the list is made anew where one has it, \
             it is resolved there",
            targets.join(", ")
        ));
    }
    let Some(path) = arguments.output else {
        output::stdout().write_all(pinned.text.as_bytes())?;
        return Ok(Outcome::Success);
    };
    std::fs::write(&path, &pinned.text).with_context(|| format!("write {}", path.display()))?;
    writeln!(
        output::stdout(),
        "{} {} is pinned in {} (packages: {})",
        source.agent,
        pinned.version,
        path.display(),
        pinned.packages
    )?;
    Ok(Outcome::Success)
}

fn source(arguments: &Arguments) -> anyhow::Result<(Source, VersionRequest)> {
    let name = &arguments.agent;
    let is_node = name == NODE && !settings::agents()?.iter().any(|agent| agent.name() == NODE);
    let (source, named) = if is_node {
        (bundle::node(NODE_VERSION), VersionRequest::Default)
    } else {
        let (agent, version) = settings::agent(name)?;
        (agent.source().clone(), version)
    };
    let version = match (&arguments.version, named) {
        (None, named) => named,
        (Some(version), VersionRequest::Default) => VersionRequest::parse(version),
        (Some(version), _) => {
            return Err(UsageError(format!(
                "{name} names a version, and so does --version {version}: give one of them"
            ))
            .into());
        }
    };
    Ok((source, version))
}
