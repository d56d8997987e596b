//! The measured proxy, in a separate process so that its memory and processor time can be told apart from the load's.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::settings;

/// The running program, even if its file has been replaced.
pub(super) const OURSELVES: &str = "/proc/self/exe";
/// For a proxy to probe the mock upstream and listen.
const START_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct ProxyProcess {
    child: Child,
    home: PathBuf,
    pub(super) address: SocketAddr,
}

impl ProxyProcess {
    /// Starts a build of this program as the proxy of an upstream; `number` distinguishes several proxies of one run.
    pub(super) async fn start(
        program: &Path,
        upstream: SocketAddr,
        number: usize,
    ) -> anyhow::Result<Self> {
        let home = settings::home()?.join(format!("bench-{}-{number}", std::process::id()));
        let url = format!("http://{upstream}");
        let child = Command::new(program)
            .args(["proxy", "--upstream", &url, "--model", "m", "--port", "0"])
            .env("ROLLCAGE_HOME", &home)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start the proxy of {}", program.display()))?;
        // From here on the child is killed on drop, also when an error returns.
        let mut proxy = ProxyProcess {
            child,
            home,
            address: upstream,
        };
        let stdout = proxy.child.stdout.take().context("the proxy's output")?;
        let first_line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = tokio::time::timeout(START_LIMIT, first_line)
            .await
            .context("the proxy does not start")???;
        let address = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("http://"))
            .and_then(|address| address.parse().ok());
        proxy.address = address.with_context(|| {
            format!("{} does not say where its proxy listens", program.display())
        })?;
        Ok(proxy)
    }

    /// Opens a session and returns the agent's key.
    pub(super) async fn open_session(&self) -> anyhow::Result<String> {
        let client = rollcage_proxy::outbound::client("http://127.0.0.1")?;
        let url = format!("http://{}/sessions", self.address);
        let request = client.post(url).header("content-type", "application/json");
        let text = request.body("{}").send().await?.text().await?;
        let answer: serde_json::Value = serde_json::from_str(&text)?;
        ensure!(
            answer["capture_level"] == "tokens",
            "the mock upstream is captured whole: {text}"
        );
        Ok(answer["session_id"]
            .as_str()
            .context("a session id")?
            .to_owned())
    }

    /// Its processor time so far, user and system.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        cpu(&self.child.id().to_string())
    }

    pub(super) fn resident(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("the kernel tells VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// The processor time of our own process, which runs the upstream and the load.
pub(super) fn own_cpu() -> anyhow::Result<Duration> {
    cpu("self")
}

/// The processor time of a process, summed over its threads, none of which ends during a measurement.
fn cpu(process: &str) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ran = text.split(' ').next().and_then(|text| text.parse().ok());
        sum += ran.unwrap_or(0_u64);
    }
    Ok(Duration::from_nanos(sum))
}
