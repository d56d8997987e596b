//! `rollcage doctor`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rollcage_sandbox::disk::{self, Disk};
use rollcage_sandbox::doctor::{Check, Status};
use rollcage_sandbox::{Command, OutputLimit, Sandboxes, Spec, run as run_command};

use super::signals::StopSignal;
use crate::progress::Screen;
use crate::{Interrupted, Outcome, output, settings, text};

/// With less free space the next agent may not fit.
const FREE_BYTES_MIN: u64 = 2 << 30;

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
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let home = settings::home()?;
    let data_check = data_directory(&home);
    let checks = if data_check.status == Status::Missing {
        // Sandboxes are built there, so no other check can succeed.
        vec![data_check]
    } else {
        let mut checks = check_sandboxes(&home, &stop).await?;
        checks.push(data_check);
        checks.push(packages());
        checks
    };
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
    Ok(if is_bad {
        Outcome::Failure
    } else {
        Outcome::Success
    })
}

async fn check_sandboxes(home: &Path, stop: &StopSignal) -> anyhow::Result<Vec<Check>> {
    let sandboxes = match settings::sandboxes(home).await {
        Err(error) => return Ok(vec![failed("zygote", &anyhow::Error::from(error))]),
        Ok(sandboxes) => sandboxes,
    };
    let look = async {
        let mut checks = sandboxes.doctor().await?;
        checks.push(try_sandbox(&sandboxes).await);
        anyhow::Ok(checks)
    };
    let looked = stop.token().run_until_cancelled(look).await;
    sandboxes.shutdown().await?;
    looked.ok_or(Interrupted)?
}

/// Where setup commands get packages from, and what of the machine's settings cannot be used in sandboxes.
fn packages() -> Check {
    let mirrors = settings::mirrors();
    let managers = ["pip", "npm", "cargo", "apt", "git"];
    let of = |name: &&str| {
        let first = mirrors.presets.get(name)?.hosts.first()?;
        Some(format!("{name} from {first}"))
    };
    let detail = managers
        .iter()
        .filter_map(of)
        .collect::<Vec<_>>()
        .join(", ");
    let refusals = mirrors.presets.values().flat_map(|preset| &preset.refusals);
    let refusals: Vec<&str> = refusals.map(String::as_str).collect();
    let name = "packages in setup";
    if refusals.is_empty() {
        return ok(name, detail);
    }
    Check {
        name: name.to_owned(),
        status: Status::Degraded,
        detail: format!("{detail}; {}", refusals.join("; ")),
        fix: Some("docs/network.md, \"Package managers\"".to_owned()),
    }
}

/// Writes to the data directory, and inspects its file system.
fn data_directory(home: &Path) -> Check {
    let name = "data directory";
    let shown = home.display();
    let elsewhere =
        "set ROLLCAGE_HOME to a directory on a disk with room, from which programs may be started";
    let bad = |status, detail: String| Check {
        name: name.to_owned(),
        status,
        detail,
        fix: Some(elsewhere.to_owned()),
    };
    let disk = match settings::store().and_then(|_| try_writing(home)) {
        Ok(disk) => disk,
        Err(error) => {
            let cause = error.root_cause();
            return bad(Status::Missing, format!("{shown}: {cause}"));
        }
    };
    let free = text::bytes(disk.free_bytes);
    if disk.is_noexec {
        let detail =
            format!("{shown} is mounted noexec: agents that are installed there cannot be started");
        return bad(Status::Missing, detail);
    }
    if disk.free_bytes < FREE_BYTES_MIN {
        return bad(
            Status::Degraded,
            format!("{shown} has only {free} free; an agent takes up to 1 GiB"),
        );
    }
    if disk.is_network {
        let detail = format!(
            "{shown}, {free} free, on a network file system: records and agents are slower there"
        );
        return bad(Status::Degraded, detail);
    }
    ok(name, format!("{shown}, {free} free"))
}

fn try_writing(home: &Path) -> anyhow::Result<Disk> {
    let probe = home.join(format!(".doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, [0; 65536]);
    let _ = std::fs::remove_file(&probe);
    written?;
    Ok(disk::inspect(home)?)
}

/// Starts one real sandbox, which proves more than the separate checks.
async fn try_sandbox(sandboxes: &dyn Sandboxes) -> Check {
    let since = Instant::now();
    let attempt = async {
        let sandbox = sandboxes
            .start(Spec {
                id: "doctor".to_owned(),
                intercepted_ports: Some(vec![443]),
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
        let walls = sandbox.isolation().clone();
        sandbox.close().await?;
        anyhow::ensure!(
            finished.exit.code == Some(0),
            "/bin/true exits with {:?} inside",
            finished.exit
        );
        Ok((walls, took))
    };
    match attempt.await {
        Ok((walls, took)) => ok(
            "a sandbox",
            format!(
                "tier {}; memory by {}, pids by {}, cpu by {}; started and ran a command in {}",
                walls.tier,
                walls.memory,
                walls.pids,
                walls.cpu,
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
