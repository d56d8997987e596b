//! An agent as a user runs it: on the host, without sandbox and proxy, with what a rollout would give it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::io::AsyncWriteExt;

use rollcage_agents::{Launch, LaunchRequest, ModelAccess, ReadyAgent, base_environment};
use rollcage_engine::intake::ResolvedRollout;
use rollcage_sandbox::guest::{AGENT_LOGS, BUNDLE_DIR, HOME, NODE_DIR, WORKDIR};

const LIMIT: Duration = Duration::from_secs(120);

/// A fresh home with the same files, the same state of a first start, and a work directory.
pub(super) struct Bare {
    launch: Launch,
    scratch: PathBuf,
}

impl Bare {
    /// `scratch` is made, and gone again with this. Nothing of it is measured.
    pub(super) fn prepare(
        (rollout, ready): (&ResolvedRollout, &ReadyAgent),
        access: &ModelAccess,
        scratch: &Path,
    ) -> anyhow::Result<Self> {
        let launch = rollout.agent.launch(&LaunchRequest {
            task: &rollout.task,
            access,
            bundle: &ready.bundle,
        })?;
        let mut bare = Bare {
            launch,
            scratch: scratch.to_owned(),
        };
        // It has a key in it, and the place may be everybody's.
        DirBuilder::new().mode(0o700).create(scratch)?;
        bare.translate(rollout, ready);
        for directory in [WORKDIR, AGENT_LOGS] {
            std::fs::create_dir_all(bare.outside(directory))?;
        }
        if let Some(layer) = &ready.home_layer {
            let home = layer.join(HOME.trim_start_matches('/'));
            copy_tree(&home, &bare.outside(HOME)).context("copy the pre-baked home")?;
        }
        for (path, text) in &bare.launch.files {
            if let Some(parent) = Path::new(path).parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(path, text)?;
        }
        Ok(bare)
    }

    /// Starts it, waits for its end, and says when it was started.
    pub(super) async fn run(&self) -> anyhow::Result<Instant> {
        let Some((program, arguments)) = self.launch.argv.split_first() else {
            bail!("the agent has no command");
        };
        let stderr = self.scratch.join("stderr");
        let since = Instant::now();
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(&self.launch.env)
            .current_dir(self.outside(WORKDIR))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&stderr)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {program} bare"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // An agent that has its instruction in a file may close it.
            let _ = stdin.write_all(self.launch.stdin.as_bytes()).await;
        }
        let status = tokio::time::timeout(LIMIT, child.wait())
            .await
            .context("the bare agent hangs")??;
        ensure!(
            status.success() && self.outside(WORKDIR).join("hello.txt").exists(),
            "the bare agent did not do its task ({status}): {}",
            std::fs::read_to_string(&stderr).unwrap_or_default().trim()
        );
        Ok(since)
    }

    /// Paths as they are outside, in everything that the agent is told.
    fn translate(&mut self, rollout: &ResolvedRollout, ready: &ReadyAgent) {
        let shown = |path: &Path| path.display().to_string();
        let mut places = vec![
            (BUNDLE_DIR, shown(&ready.bundle.path)),
            (HOME, shown(&self.outside(HOME))),
        ];
        places.extend(ready.node.iter().map(|node| (NODE_DIR, shown(&node.path))));
        let told = |text: &str| {
            let fill =
                |text: String, (inside, outside): &(&str, String)| text.replace(inside, outside);
            places.iter().fold(text.to_owned(), fill)
        };
        let launch = &mut self.launch;
        let mut env = base_environment(&rollout.task.env);
        env.append(&mut launch.env);
        launch.env = env
            .into_iter()
            .map(|(name, value)| (name, told(&value)))
            .collect();
        launch.argv.iter_mut().for_each(|text| *text = told(text));
        for (path, text) in &mut launch.files {
            (*path, *text) = (told(path), told(text));
        }
    }

    fn outside(&self, path: &str) -> PathBuf {
        outside(&self.scratch, path)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// Where a path of the sandbox is below a scratch directory.
pub(super) fn outside(scratch: &Path, path: &str) -> PathBuf {
    scratch.join(path.trim_start_matches('/'))
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
