//! The baseline of a rollout: the same agent on the host, without sandbox and proxy, with the files and environment
//! that a rollout gives it.

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

/// An agent with a fresh home directory, which has the same files and first-start state, and a work directory.
pub(super) struct Bare {
    launch: Launch,
    scratch: PathBuf,
}

impl Bare {
    /// Prepares an agent below `scratch`, which is created here and removed on drop. This is not measured.
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
        // It contains a key, and its parent may be readable by everyone.
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

    /// Runs the agent to its end and returns when it was started.
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
            // An agent that reads its instruction from a file may close stdin.
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

    /// Replaces the sandbox's paths by those on the host in the agent's environment, arguments and files.
    fn translate(&mut self, rollout: &ResolvedRollout, ready: &ReadyAgent) {
        let text_of = |path: &Path| path.display().to_string();
        let mut paths = vec![
            (BUNDLE_DIR, text_of(&ready.bundle.path)),
            (HOME, text_of(&self.outside(HOME))),
        ];
        paths.extend(
            ready
                .node
                .iter()
                .map(|node| (NODE_DIR, text_of(&node.path))),
        );
        let translated = |text: &str| {
            let replace =
                |text: String, (inside, outside): &(&str, String)| text.replace(inside, outside);
            paths.iter().fold(text.to_owned(), replace)
        };
        let launch = &mut self.launch;
        let mut env = base_environment(&rollout.task.env);
        env.append(&mut launch.env);
        launch.env = env
            .into_iter()
            .map(|(name, value)| (name, translated(&value)))
            .collect();
        for text in &mut launch.argv {
            *text = translated(text);
        }
        for (path, text) in &mut launch.files {
            (*path, *text) = (translated(path), translated(text));
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

/// The path below a scratch directory for a path of the sandbox.
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
