//! An engine for one command, closed whatever comes of it.

use tokio_util::sync::CancellationToken;

use rollcage_agents::Agent;
use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::VersionRequest;
use rollcage_engine::Engine;

use crate::progress::InstallProgress;
use crate::{Interrupted, settings};

/// Does a command's work with an engine. It is closed also when the work fails, so that no sandbox, cgroup or directory
/// of it is left.
pub(crate) async fn with_engine<T>(
    work: impl AsyncFnOnce(&Engine) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let engine = settings::engine().await?;
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
    let progress = InstallProgress::new();
    let show = |step| progress.show(&step);
    let ready = engine.ready(agent, version, &show);
    let ready = cancel.run_until_cancelled(ready).await;
    progress.clear();
    Ok(ready.ok_or(Interrupted)??)
}
