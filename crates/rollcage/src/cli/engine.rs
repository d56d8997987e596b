//! Runs a command's work with an engine that is always closed afterwards.

use tokio_util::sync::CancellationToken;

use rollcage_agents::Agent;
use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::VersionRequest;
use rollcage_engine::intake::ResolvedRollout;
use rollcage_engine::{Engine, EngineOptions, RolloutCommand};
use rollcage_model::record::RolloutResult;

use crate::progress::{InstallProgress, Screen};
use crate::{Interrupted, settings};

/// Runs a command's work with an engine. The engine is closed even when the work fails, so that no sandbox, cgroup or
/// directory is left behind.
pub(crate) async fn with_engine<T>(
    work: impl AsyncFnOnce(&Engine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_engine_of(settings::engine_options().await?, work).await
}

/// Like [`with_engine`], with other options.
pub(crate) async fn with_engine_of<T>(
    options: EngineOptions,
    work: impl AsyncFnOnce(&Engine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let engine = settings::open_engine(options).await?;
    let done = work(&engine).await;
    engine.close().await;
    done
}

/// Installs and prepares an agent, and shows the progress.
pub(crate) async fn make_ready(
    engine: &Engine,
    (agent, version): (&dyn Agent, VersionRequest),
    cancel: &CancellationToken,
) -> anyhow::Result<ReadyAgent> {
    let progress = InstallProgress::on(&Screen::new());
    let show = |step| progress.show(&step);
    let ready = engine.ready(agent, version, &show);
    let ready = cancel.run_until_cancelled(ready).await;
    progress.clear();
    Ok(ready.ok_or(Interrupted)??)
}

/// Runs one rollout and returns its result.
pub(crate) async fn run_one(
    engine: &Engine,
    rollout: ResolvedRollout,
    cancel: &CancellationToken,
) -> anyhow::Result<RolloutResult> {
    let entries = engine.submit(rollout, 1)?;
    for entry in &entries {
        // Somebody waits for the result. Fails if the rollout has already ended.
        let _ = engine.command(entry, RolloutCommand::Finalize);
    }
    let mut ended = None;
    let deliver = |result| ended = Some(result);
    engine.deliver(entries, cancel.clone(), deliver).await;
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    ended.ok_or_else(|| anyhow::anyhow!("a rollout ended without a result"))
}
