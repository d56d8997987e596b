//! The engine's side: what runs in the process that rollouts run in.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use async_trait::async_trait;

use crate::doctor::Check;
use crate::{Error, Isolation, Sandbox, Sandboxes, Spec};

mod cgroup;
mod cgroup_mount;
mod channel;
mod control;
mod failure;
mod instance;
mod launcher;
mod limits;
mod reaper;
mod sandbox;
mod skeleton;
mod slot;
mod spare;

pub use launcher::Options;

use super::shared::cgroup::Cgroups;
use super::shared::mode::Mode;
use super::shared::wire::{PORTS_MAX, Setup};
use cgroup_mount::Mounts;
use launcher::Launcher;
use reaper::Reaper;
use spare::Spares;

const LAYERS_MAX: usize = 100;
const MOUNTS_MAX: usize = 256;

/// Starts sandboxes on this machine.
pub struct Local {
    mode: Mode,
    isolation: Isolation,
    spares: Spares,
}

impl Local {
    /// Sweeps what dead engines left, and starts the zygote.
    pub async fn open(options: Options) -> Result<Local, Error> {
        let opened = tokio::task::spawn_blocking(move || open(options)).await;
        opened.unwrap_or_else(|error| {
            Err(Error::Engine {
                operation: "open the sandbox backend",
                source: error.into(),
            })
        })
    }

    /// How strong the walls of all sandboxes here are.
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// Tries what sandboxes need, in the zygote, since trying means forking.
    pub async fn doctor(&self) -> Result<Vec<Check>, Error> {
        let mut checks = self.spares.launcher.doctor().await?;
        checks.extend(limits::checks(self.spares.cgroups()));
        Ok(checks)
    }

    /// Waits until all ended sandboxes are cleaned up and removes the engine's own directories.
    /// Sandboxes must be closed or dropped before; none can be started afterwards.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.spares.launcher.stop();
        self.spares.clear();
        self.spares.reaper.finish().await
    }
}

#[async_trait]
impl Sandboxes for Local {
    async fn start(&self, spec: Spec) -> Result<Box<dyn Sandbox>, Error> {
        validate(&spec)?;
        let sandbox = sandbox::start(&self.spares, self.mode, self.isolation.clone(), spec).await?;
        Ok(Box::new(sandbox))
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
    let (cgroups, groups) = Cgroups::create(&mounts, &name);
    let mode = Mode::detect();
    let setup = Setup {
        mode,
        cgroups: cgroups.clone(),
        skeleton,
        stage,
        engine_pid: std::process::id(),
    };
    let isolation = cgroups.isolation(mode.tier());
    let (launcher, thread) =
        Launcher::spawn(options, setup).map_err(failed("start the launcher thread"))?;
    // From here on the reaper removes what was made, whatever fails.
    let reaper = Reaper::spawn(claim, groups, thread).map_err(failed("start the reaper thread"))?;
    build.map_err(failed("build the sandbox skeleton"))?;
    launcher.check()?;
    Ok(Local {
        mode,
        isolation,
        spares: Spares::new(launcher, reaper, cgroups),
    })
}

fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn validate(spec: &Spec) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid { what });
    let id_ok = (1..=63).contains(&spec.id.len())
        && spec
            .id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !spec.id.starts_with('-');
    if !id_ok {
        return invalid(format!(
            "id {:?}: letters, digits and dashes, at most 63",
            spec.id
        ));
    }
    if spec.ports.len() > PORTS_MAX
        || spec.layers.len() > LAYERS_MAX
        || spec.mounts.len() > MOUNTS_MAX
    {
        return invalid(format!(
            "at most {PORTS_MAX} ports, {LAYERS_MAX} layers and {MOUNTS_MAX} mounts"
        ));
    }
    let limits = &spec.limits;
    if [
        limits.memory_bytes,
        limits.pids,
        limits.disk_bytes,
        limits.file_bytes,
    ]
    .contains(&0)
        || limits
            .cpus
            .is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0)
    {
        return invalid(format!("limits must be positive: {limits:?}"));
    }
    for mount in &spec.mounts {
        let target = &mount.target;
        let plain = target
            .components()
            .skip(1)
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        if !target.is_absolute() || target.parent().is_none() || !plain {
            return invalid(format!(
                "mount target {}: an absolute path without ..",
                target.display()
            ));
        }
    }
    let paths = spec.layers.iter().chain(
        spec.mounts
            .iter()
            .flat_map(|mount| [&mount.source, &mount.target]),
    );
    match paths
        .into_iter()
        .find(|path| path.to_str().is_none_or(|path| path.contains('\0')))
    {
        Some(path) => invalid(format!("path {}: must be UTF-8", path.display())),
        None => Ok(()),
    }
}
