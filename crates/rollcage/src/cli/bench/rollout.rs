//! `rollcage bench rollout`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use rollcage_engine::agent::{self, LaunchRequest, ModelAccess};
use rollcage_engine::endpoint::EndpointChoice;
use rollcage_engine::remote::Remotes;
use rollcage_engine::{Engine, ModelSettings, Plan};
use rollcage_model::record::RolloutResult;
use rollcage_model::script::Step;
use rollcage_model::task::Task;

use crate::progress::InstallProgress;
use crate::{Outcome, settings, text};

/// Measure a real OpenCode rollout against the same agent run bare.
///
/// Both play the same script against the same scripted endpoint, turn about in one run, so that the ratio means
/// something on a busy machine. `cargo bench -p rollcage-sandbox` measures the sandbox alone.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often each is run
    #[arg(short, long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let engine = settings::engine().await?;
    let progress = InstallProgress::new();
    let (agent, version) = agent::find("opencode")?;
    let ready = engine
        .ready(&*agent, version, &|step| progress.show(&step))
        .await?;
    progress.clear();
    let task = Task {
        id: "bench".to_owned(),
        instruction: "Create hello.txt.".to_owned(),
        solution: vec![Step::shell("echo hello > hello.txt")],
        ..Task::default()
    };
    let endpoint = engine.endpoint(&EndpointChoice::Scripted, &task).await?;
    let plan = Arc::new(Plan {
        task,
        uploads: BTreeMap::new(),
        agent,
        ready,
        endpoint,
        settings: ModelSettings::default(),
        mcp: Remotes::default(),
    });
    let scratch = engine.store().root().join("bench");
    let (mut bare, mut whole, mut peak) = (Vec::new(), Vec::new(), 0);
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        bare.push(run_bare(&plan, &scratch).await?);
        let (result, resident) = run_rollout(&engine, &plan).await?;
        whole.push(result.wall_s);
        peak = peak.max(resident);
    }
    engine.close().await;
    let _ = std::fs::remove_dir_all(&scratch);
    let (bare, whole) = (median(&mut bare), median(&mut whole));
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "opencode run, bare                median {}",
        text::duration(bare)
    )?;
    writeln!(
        out,
        "opencode as a rollout             median {}  {:.2} x bare (goal: at most 1.15)",
        text::duration(whole),
        whole / bare
    )?;
    writeln!(
        out,
        "our own process during a rollout  {} resident (goal: under 60 MiB)",
        text::bytes(peak)
    )?;
    Ok(Outcome::Fine)
}

/// The tuned agent on the host: same environment, same pre-baked home, no sandbox, no proxy.
async fn run_bare(plan: &Plan, scratch: &Path) -> anyhow::Result<f64> {
    let _ = std::fs::remove_dir_all(scratch);
    let (home, work) = (scratch.join("home/user"), scratch.join("work"));
    std::fs::create_dir_all(&work)?;
    if let Some(layer) = &plan.ready.home_layer {
        copy_tree(&layer.join("home/user"), &home).context("copy the pre-baked home")?;
    }
    let access = ModelAccess {
        base_url: plan.endpoint.base_url.clone(),
        key: plan
            .endpoint
            .key
            .as_ref()
            .map(|key| key.expose().to_owned())
            .unwrap_or_default(),
        model: plan.endpoint.model.clone(),
        context_tokens: 131_072,
        output_tokens: 8192,
        patience_ms: 600_000,
    };
    let launch = plan.agent.launch(&LaunchRequest {
        task: &plan.task,
        access: &access,
        bundle: &plan.ready.bundle,
    })?;
    let inside = "/home/user";
    for (path, text) in &launch.files {
        let path = home.join(path.trim_start_matches(inside).trim_start_matches('/'));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)?;
    }
    let env = launch
        .env
        .iter()
        .map(|(name, value)| (name.clone(), value.replace(inside, &home.to_string_lossy())));
    // What the script writes goes to its absolute path inside, so only relative commands are played here.
    let since = Instant::now();
    let mut child = tokio::process::Command::new(&plan.ready.bundle.program)
        .args(&launch.argv[1..])
        .env_clear()
        .envs(env)
        .env("HOME", &home)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .current_dir(&work)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("run the agent bare")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(launch.stdin.as_bytes()).await?;
    }
    let status = tokio::time::timeout(Duration::from_secs(120), child.wait())
        .await
        .context("the bare agent hangs")??;
    let took = since.elapsed().as_secs_f64();
    ensure!(
        status.success() && work.join("hello.txt").exists(),
        "the bare agent did not do its task ({status})"
    );
    Ok(took)
}

/// A rollout, and the most memory our own process had resident during it.
async fn run_rollout(engine: &Engine, plan: &Arc<Plan>) -> anyhow::Result<(RolloutResult, u64)> {
    let (events, _incoming) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    engine
        .run(
            vec![Arc::clone(plan)],
            1,
            events,
            CancellationToken::new(),
            |result| results.push(result),
        )
        .await?;
    let result = results.pop().context("a rollout gives a result")?;
    ensure!(
        result.files.contains_key("hello.txt"),
        "the rollout did not do its task: {:?}",
        result.error
    );
    // A measurement is no work of the user's to keep.
    let _ = std::fs::remove_dir_all(&result.record);
    Ok((result, resident_bytes()?))
}

/// The high-water mark of our own resident memory.
fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("the kernel tells no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target: PathBuf = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
