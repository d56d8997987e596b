//! An engine for one command, closed whatever comes of it.

use tokio_util::sync::CancellationToken;

use rollcage_agents::Agent;
use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::VersionRequest;
use rollcage_engine::intake::ResolvedRollout;
use rollcage_engine::{Engine, EngineOptions};
use rollcage_model::record::RolloutResult;

use crate::progress::{InstallProgress, Screen};
use crate::{Interrupted, settings};

/// Does a command's work with an engine. It is closed also when the work fails, so that no sandbox, cgroup or directory
/// of it is left.
pub(crate) async fn with_engine<T>(
    work: impl AsyncFnOnce(&Engine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_engine_of(settings::engine_options().await?, work).await
}

/// The same, with other options.
pub(crate) async fn with_engine_of<T>(
    options: EngineOptions,
    work: impl AsyncFnOnce(&Engine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let engine = settings::open_engine(options).await?;
    let done = work(&engine).await;
    engine.close().await;
    done
}

/// Makes an agent ready while its installation is shown.
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

/// Runs one rollout that a command made for itself.
pub(crate) async fn run_one(
    engine: &Engine,
    rollout: ResolvedRollout,
    cancel: &CancellationToken,
) -> anyhow::Result<RolloutResult> {
    let entries = engine.submit(rollout, 1)?;
    let mut ended = None;
    let deliver = |result| ended = Some(result);
    engine.deliver(entries, cancel.clone(), deliver).await;
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    ended.ok_or_else(|| anyhow::anyhow!("a rollout ended without a result"))
}
