//! The engine's side: code that runs in the process of the rollouts.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use async_trait::async_trait;

use crate::doctor::Check;
use crate::{Capabilities, Error, NetworkPolicy, Sandbox, Sandboxes, Snapshot, Spec};

mod cgroup;
mod channel;
mod control;
mod failure;
mod instance;
mod launcher;
mod limits;
mod program;
mod reaper;
mod sandbox;
mod saved;
mod skeleton;
mod slot;
mod spare;
mod start;

pub use launcher::Options;

use super::shared::cgroup::Cgroups;
use super::shared::mode::Mode;
use super::shared::wire::Setup;
use cgroup::mount::Mounts;
use launcher::Launcher;
use reaper::Reaper;
use spare::Spares;

/// The backend's name.
pub(crate) const KIND: &str = "local";

/// Starts sandboxes on this machine.
pub struct Local {
    mode: Mode,
    capabilities: Capabilities,
    spares: Spares,
}

impl Local {
    /// Cleans up after dead engines, and starts the zygote.
    pub async fn open(options: Options) -> Result<Local, Error> {
        let opened = tokio::task::spawn_blocking(move || open(options)).await;
        opened.unwrap_or_else(|error| {
            Err(Error::Engine {
                operation: "open the sandbox backend",
                source: error.into(),
            })
        })
    }
}

#[async_trait]
impl Sandboxes for Local {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn start(&self, spec: Spec) -> Result<Box<dyn Sandbox>, Error> {
        start::validate(&spec)?;
        let isolation = self.capabilities.isolation.clone();
        let sandbox = sandbox::start(&self.spares, self.mode, isolation, spec).await?;
        Ok(Box::new(sandbox))
    }

    async fn save_snapshot(&self, snapshot: &Snapshot, path: &Path) -> Result<(), Error> {
        saved::save(snapshot, path).await
    }

    async fn load_snapshot(&self, path: &Path) -> Result<Snapshot, Error> {
        saved::load(path).await
    }

    /// The checks run in the zygote, because they fork.
    async fn doctor(&self) -> Result<Vec<Check>, Error> {
        let mut checks = self.spares.launcher.doctor().await?;
        checks.extend(limits::checks(self.spares.cgroups()));
        Ok(checks)
    }

    async fn shutdown(&self) -> Result<(), Error> {
        self.spares.launcher.stop();
        self.spares.clear();
        self.spares.reaper.finish().await
    }
}

fn open(options: Options) -> Result<Local, Error> {
    let failed = |operation| move |source| Error::Engine { operation, source };
    make_private(&options.state_dir).map_err(failed("make the sandbox state directory"))?;
    let state_dir =
        fs::canonicalize(&options.state_dir).map_err(failed("find the sandbox state directory"))?;
    let mounts = Mounts::detect();
    instance::sweep(&state_dir, |path| fs::remove_dir_all(path));
    mounts.sweep();

    let name = instance::new_name();
    let claim =
        instance::claim(&state_dir, &name).map_err(failed("make the engine's directory"))?;
    let skeleton = claim.path.join("skeleton");
    let stage = claim.path.join("stage");
    let build = make_private(&stage)
        .and_then(|()| DirBuilder::new().mode(0o755).create(&skeleton))
        .and_then(|()| skeleton::build(&skeleton, Path::new("/")));
    let program = program::to_show(&options.program, &claim.path)
        .map_err(failed("find the program to show as as-agent"))?;
    let (cgroups, groups) = Cgroups::create(&mounts, &name);
    let mode = Mode::detect();
    let setup = Setup {
        mode,
        cgroups: cgroups.clone(),
        skeleton,
        stage,
        program,
        engine_pid: std::process::id(),
    };
    let capabilities = Capabilities {
        kind: String::from(KIND),
        root_inside: mode == Mode::Root,
        host_trees: true,
        snapshot: true,
        network: vec![NetworkPolicy::EntranceOnly],
        isolation: cgroups.isolation(mode.tier()),
    };
    let (launcher, thread) =
        Launcher::spawn(options, setup).map_err(failed("start the launcher thread"))?;
    // From here on the reaper cleans up, whatever fails.
    let reaper = Reaper::spawn(claim, groups, thread).map_err(failed("start the reaper thread"))?;
    build.map_err(failed("build the sandbox skeleton"))?;
    launcher.check()?;
    Ok(Local {
        mode,
        capabilities,
        spares: Spares::new(launcher, reaper, cgroups),
    })
}

fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
