//! A self-test: starts one sandbox in the same way as rollouts do, to check that rollouts can run here.

use std::time::Duration;

use rollcage_sandbox::{Command, OutputLimit, Sandboxes, Spec, run};

/// The time limit for a command that does nothing.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// Why no rollout can run here.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error("start a sandbox")]
    Sandbox(#[from] rollcage_sandbox::Error),
    #[error("a sandbox starts, but /bin/true does not run in it ({0})")]
    Command(String),
}

/// Starts a sandbox with the usual limits, runs a command in it, and closes it.
pub(crate) async fn try_sandbox(sandboxes: &dyn Sandboxes) -> Result<(), TrialError> {
    let spec = Spec {
        id: format!("trial-{}", uuid::Uuid::now_v7()),
        ..Spec::default()
    };
    let sandbox = sandboxes.start(spec).await?;
    let command = Command {
        argv: vec!["/bin/true".to_owned()],
        ..Command::default()
    };
    let limit = OutputLimit { bytes_max: 1000 };
    let ran = run(&*sandbox, command, COMMAND_LIMIT, limit).await;
    sandbox.close().await?;
    let ran = ran?;
    match (ran.timed_out, ran.exit.code) {
        (false, Some(0)) => Ok(()),
        (true, _) => Err(TrialError::Command("it does not end".to_owned())),
        (false, _) => Err(TrialError::Command(format!("{:?}", ran.exit))),
    }
}
