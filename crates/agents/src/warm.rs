//! Prepares an installed agent: builds a pre-baked home directory once per bundle, which every sandbox gets as a layer.
//! The agent's slow first start, such as the migrations of its database, happens here, in a sandbox, and not in
//! rollouts.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use rollcage_sandbox::disk;
use rollcage_sandbox::guest::{BUNDLE_DIR, HOME, NODE_DIR, USER_ID};
use rollcage_sandbox::{
    Command, Content, EntryKind, Mount, OutputLimit, Sandbox, Sandboxes, Spec, run,
};

use crate::bundle::Bundle;
use crate::environment::base_environment;
use crate::{Agent, WarmUp};
use rollcage_model::text::tail;

/// Part of the layer's name: increase it when the way layers are built changes.
const LAYER_VERSION: u32 = 2;
const WARM_UP_LIMIT: Duration = Duration::from_secs(120);
const KEPT_FILE_BYTES_MAX: u64 = 64 << 20;

/// An agent that can be mounted into a sandbox and started.
#[derive(Clone, Debug)]
pub struct ReadyAgent {
    pub bundle: Bundle,
    /// The Node that runs it, for a JavaScript agent.
    pub node: Option<Bundle>,
    pub home_layer: Option<PathBuf>,
}

impl ReadyAgent {
    /// The mounts that the agent needs.
    pub fn mounts(&self) -> Vec<Mount> {
        let mount = |bundle: &Bundle, target: &str| Mount {
            content: Content::HostTree(bundle.path.clone()),
            target: target.into(),
        };
        let node = self.node.as_ref().map(|node| mount(node, NODE_DIR));
        [mount(&self.bundle, BUNDLE_DIR)]
            .into_iter()
            .chain(node)
            .collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    #[error("write the agent's pre-baked home {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "agents cannot be started from {path}, whose file system is mounted noexec: set ROLLCAGE_HOME to a directory on \
         another one"
    )]
    NoExec { path: PathBuf },
    #[error("warm the agent up in a sandbox")]
    Sandbox(#[from] rollcage_sandbox::Error),
    #[error("the agent's first start went wrong ({how}): {said}")]
    Failed { how: String, said: String },
}

/// Builds the home directory if it does not exist yet. Two processes may do so concurrently; the first to finish wins.
pub async fn warm_up(
    agent: &dyn Agent,
    (bundle, node): (Bundle, Option<Bundle>),
    layers: &Path,
    sandboxes: &dyn Sandboxes,
) -> Result<ReadyAgent, WarmError> {
    let mut ready = ReadyAgent {
        bundle,
        node,
        home_layer: None,
    };
    for bundle in [Some(&ready.bundle), ready.node.as_ref()]
        .into_iter()
        .flatten()
    {
        if disk::inspect(&bundle.path).is_ok_and(|disk| disk.is_noexec) {
            return Err(WarmError::NoExec {
                path: bundle.path.clone(),
            });
        }
    }
    let files = agent.home_files();
    let warm_up = agent.warm_up(&ready.bundle);
    if files.is_empty() && warm_up.is_none() {
        return Ok(ready);
    }
    let layer = layers.join(layer_name(&ready.bundle, &files, warm_up.as_ref()));
    if !layer.is_dir() {
        let write = |path: &Path, source| WarmError::Write {
            path: path.to_owned(),
            source,
        };
        let partial = Partial(layers.join(format!(".partial-{}", uuid::Uuid::now_v7())));
        bake(&ready, (files, warm_up), &partial.0, sandboxes).await?;
        match fs::rename(&partial.0, &layer) {
            Err(_) if layer.is_dir() => {}
            renamed => renamed.map_err(|source| write(&layer, source))?,
        }
    }
    ready.home_layer = Some(layer);
    Ok(ready)
}

/// A layer under construction, removed on drop; after a success it was renamed and is gone already.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A name made from everything that the layer depends on: a user's manifest may change without its version.
fn layer_name(bundle: &Bundle, files: &[(String, String)], warm_up: Option<&WarmUp>) -> String {
    // Root and an ordinary user create files with different owners, so they do not share a layer.
    let owner = if is_root() { "root" } else { "user" };
    let baked = format!("{files:?} {warm_up:?}");
    let hash = Sha256::digest(baked.as_bytes());
    let hash = base16ct::lower::encode_string(&hash[..6]);
    format!(
        "{}-{}-{owner}-{LAYER_VERSION}-{hash}",
        bundle.agent, bundle.version
    )
}

async fn bake(
    ready: &ReadyAgent,
    (files, warm_up): (Vec<(String, String)>, Option<WarmUp>),
    layer: &Path,
    sandboxes: &dyn Sandboxes,
) -> Result<(), WarmError> {
    let mut writer = LayerWriter {
        root: layer.to_owned(),
    };
    for (path, text) in files {
        writer.write(&path, text.as_bytes())?;
    }
    let Some(warm_up) = warm_up else {
        return Ok(());
    };
    let spec = Spec {
        id: format!("warm-{}", uuid::Uuid::now_v7()),
        layers: vec![Content::HostTree(layer.to_owned())],
        mounts: ready.mounts(),
        ..Spec::default()
    };
    let sandbox = sandboxes.start(spec).await?;
    let kept = first_start(&*sandbox, warm_up).await;
    let closed = sandbox.close().await;
    for (path, content) in kept? {
        writer.write(&path, &content)?;
    }
    Ok(closed?)
}

/// Starts the agent once and reads what it wrote into its home directory.
async fn first_start(
    sandbox: &dyn Sandbox,
    warm_up: WarmUp,
) -> Result<Vec<(String, Vec<u8>)>, WarmError> {
    let env = base_environment(&warm_up.env);
    let command = Command {
        argv: warm_up.argv,
        env,
        ..Command::default()
    };
    let finished = run(
        sandbox,
        command,
        WARM_UP_LIMIT,
        OutputLimit { bytes_max: 8192 },
    )
    .await?;
    if finished.timed_out || finished.exit.code != Some(0) {
        let how = if finished.timed_out {
            "it did not end".to_owned()
        } else {
            format!("{:?}", finished.exit)
        };
        let said = [finished.stdout, finished.stderr].concat();
        return Err(WarmError::Failed {
            how,
            said: tail(&String::from_utf8_lossy(&said), 500),
        });
    }
    sandbox.kill_all().await?;
    let mut kept = Vec::new();
    for directory in warm_up.keep {
        let directory = format!("{HOME}/{directory}");
        for entry in sandbox.list(&directory, 1, 64).await? {
            if entry.kind == EntryKind::File {
                let path = format!("{directory}/{}", entry.path);
                let content = sandbox.read_file(&path, KEPT_FILE_BYTES_MAX).await?;
                kept.push((path, content));
            }
        }
    }
    Ok(kept)
}

/// Writes files into a layer by their path in the sandbox, owned by the sandbox's user.
struct LayerWriter {
    root: PathBuf,
}

impl LayerWriter {
    fn write(&mut self, path: &str, content: &[u8]) -> Result<(), WarmError> {
        let target = self.root.join(path.trim_start_matches('/'));
        self.place(&target, path, content)
            .map_err(|source| WarmError::Write {
                path: target,
                source,
            })
    }

    fn place(&self, target: &Path, path: &str, content: &[u8]) -> io::Result<()> {
        if let Some(parent) = target.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)?;
        }
        fs::write(target, content)?;
        fs::set_permissions(target, fs::Permissions::from_mode(0o644))?;
        if is_root() {
            // As root, the owners of a layer's files are id-mapped: what belongs to the user inside must have this id
            // outside. This applies to the home directory and everything below it, but not to its parents.
            for part in Path::new(path)
                .ancestors()
                .filter(|part| part.starts_with(HOME))
            {
                let part = part.strip_prefix("/").unwrap_or(part);
                chown(self.root.join(part), Some(USER_ID), Some(USER_ID))?;
            }
        }
        Ok(())
    }
}

fn is_root() -> bool {
    // The owner of /proc/self is our effective user.
    fs::metadata("/proc/self")
        .is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}
