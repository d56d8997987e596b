//! `rollcage doctor`.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use rollcage_sandbox::doctor::{Check, Status};
use rollcage_sandbox::local::{Local, Options};
use rollcage_sandbox::{Command, OutputLimit, Sandboxes, Spec, run as run_command};

use super::signals::Stop;
use crate::progress::Screen;
use crate::{Interrupted, Outcome, output, settings, text};

/// Tell what the sandbox can and cannot do on this machine, and how to fix it.
///
/// Everything is tried out, nothing is guessed. Exit status 1 means that rollouts cannot run here.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let stop = Stop::watch(Screen::new(), "Ending; again to end at once.")?;
    // Opens the data directory too: a full or read-only disk shows here.
    let home = settings::store()?.root().to_owned();
    let mut checks = match Local::open(Options {
        args: vec![settings::ZYGOTE.to_owned()],
        ..Options::new(home.join("sandboxes"))
    })
    .await
    {
        Err(error) => vec![failed("zygote", &anyhow::Error::from(error))],
        Ok(sandboxes) => {
            let look = async {
                let mut checks = sandboxes.doctor().await?;
                checks.push(try_sandbox(&sandboxes).await);
                anyhow::Ok(checks)
            };
            let looked = stop.token().run_until_cancelled(look).await;
            sandboxes.shutdown().await?;
            looked.ok_or(Interrupted)??
        }
    };
    checks.push(ok("data directory", home.display().to_string()));
    let mut out = output::stdout();
    for check in &checks {
        if arguments.json {
            writeln!(out, "{}", serde_json::to_string(check)?)?;
            continue;
        }
        let mark = match check.status {
            Status::Ok => "ok      ",
            Status::Degraded => "degraded",
            Status::Missing => "missing ",
        };
        writeln!(out, "{mark}  {:<22}  {}", check.name, check.detail)?;
        if let Some(fix) = &check.fix {
            writeln!(out, "{:>34}fix: {fix}", "")?;
        }
    }
    let is_bad = checks.iter().any(|check| check.status == Status::Missing);
    Ok(if is_bad { Outcome::Bad } else { Outcome::Fine })
}

/// The whole thing once, which counts for more than its parts.
async fn try_sandbox(sandboxes: &Local) -> Check {
    let since = Instant::now();
    let attempt = async {
        let sandbox = sandboxes
            .start(Spec {
                id: "doctor".to_owned(),
                ..Spec::default()
            })
            .await?;
        let command = Command {
            argv: vec!["/bin/true".to_owned()],
            env: BTreeMap::new(),
            ..Command::default()
        };
        let finished = run_command(
            &*sandbox,
            command,
            Duration::from_secs(10),
            OutputLimit { bytes_max: 1000 },
        )
        .await?;
        let took = since.elapsed();
        let tier = sandbox.isolation().tier.clone();
        sandbox.close().await?;
        anyhow::ensure!(
            finished.exit.code == Some(0),
            "/bin/true exits with {:?} inside",
            finished.exit
        );
        Ok((tier, took))
    };
    match attempt.await {
        Ok((tier, took)) => ok(
            "a sandbox",
            format!(
                "tier {tier}; started and ran a command in {}",
                text::duration(took.as_secs_f64())
            ),
        ),
        Err(error) => failed("a sandbox", &error),
    }
}

fn ok(name: &str, detail: String) -> Check {
    Check {
        name: name.to_owned(),
        status: Status::Ok,
        detail,
        fix: None,
    }
}

fn failed(name: &str, error: &anyhow::Error) -> Check {
    Check {
        name: name.to_owned(),
        status: Status::Missing,
        detail: format!("{error:#}"),
        fix: None,
    }
}
