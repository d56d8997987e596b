//! A live agent without a sandbox: on this machine, as this user, with the endpoint's own address and key. Nothing of it is
//! recorded.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::ModelAccess;
use rollcage_dialect::EndpointDialect;
use rollcage_live::server::SILENCE_MAX;
use rollcage_live::{
    Client, Credentials, Health, HostPlace, LiveServer, ServerOptions, write_config,
};
use rollcage_model::task::Task;
use rollcage_sandbox::guest::{BUNDLE_DIR, HOME, NODE_DIR, WORKDIR};

use super::disk::LiveDirectory;
use super::launch;
use super::sandboxed::ServerPlace;
use super::{LiveError, LiveRequest};
use crate::context::Context;
use crate::intake::{PreparedRollout, ResolvedRollout};
use crate::model::ToldLimits;

const PATIENCE_MS: u64 = 600_000;
/// The server's own default.
const USERNAME: &str = "opencode";
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// Between SIGTERM and SIGKILL.
const END_GRACE: Duration = Duration::from_secs(2);

/// An agent and an endpoint.
pub(super) struct Machine {
    prepared: PreparedRollout,
}

/// A server on this machine.
pub(super) struct MachineServer {
    pub(super) server: Arc<LiveServer>,
    pub(super) variant: Option<String>,
}

impl Machine {
    pub(super) async fn begin(cx: &Context, rollout: ResolvedRollout) -> Result<Self, LiveError> {
        check(&rollout.task)?;
        let prepared = Box::pin(cx.preparer.prepare(rollout)).await;
        let prepared =
            prepared.map_err(|error| LiveError::Start(rollcage_model::text::chain(&error)))?;
        match prepared.plan.endpoint.dialect {
            EndpointDialect::Chat => Ok(Machine { prepared }),
            EndpointDialect::Anthropic => Err(LiveError::Request(
                "without a sandbox the endpoint must have OpenAI's chat completions".to_owned(),
            )),
        }
    }

    pub(super) fn version(&self) -> &str {
        &self.prepared.plan.ready.bundle.version
    }

    pub(super) fn model(&self) -> &str {
        &self.prepared.plan.endpoint.model
    }

    /// A server that an earlier process of ours left is taken over.
    pub(super) async fn open(
        &mut self,
        place: &ServerPlace<'_>,
    ) -> Result<MachineServer, LiveError> {
        let plan = &self.prepared.plan;
        let endpoint = &plan.endpoint;
        let told = ToldLimits::new(endpoint.context_tokens, plan.settings.tokens_max);
        let access = ModelAccess {
            base_url: endpoint.base_url.clone(),
            key: endpoint
                .key
                .as_ref()
                .map_or_else(String::new, |key| key.expose().to_owned()),
            model: endpoint.model.clone(),
            context_tokens: told.context_tokens,
            output_tokens: told.output_tokens,
            patience_ms: PATIENCE_MS,
        };
        let mut launch = launch::server(plan, place.request, &access, &plan.task.env)?;
        launch.stay_in_directory()?;
        let paths = HostPaths::new(place, plan);
        // In a sandbox the first of them are a layer.
        let written = paths.write(&plan.agent.home_files());
        let written = written.and_then(|()| paths.write(&launch.files));
        written.map_err(|error| LiveError::Start(format!("write the agent's files: {error}")))?;
        let provider = launch::provider(plan, place.request, &access);
        write_config(&paths.home, &provider)
            .map_err(|error| LiveError::Start(rollcage_model::text::chain(&error)))?;
        let text = |text: &String| paths.outside(text);
        let env = launch.env.iter();
        let env: BTreeMap<_, _> = env
            .map(|(name, value)| (name.clone(), text(value)))
            .collect();
        let options = ServerOptions {
            argv: launch.argv.iter().map(text).collect(),
            env,
            cwd: paths.workdir.display().to_string(),
            port: 0,
            credentials: place.credentials.clone(),
            deadline: Duration::from_secs_f64(place.request.deadline_s),
            poll: Duration::from_secs_f64(place.request.poll_s),
            silence_max: SILENCE_MAX,
            log: place.directory.log(),
        };
        let machine = HostPlace::default();
        let left = place.directory.read_process();
        let left = left.and_then(|left| Some((machine.adopt(left.identity)?, left.port)));
        let server = LiveServer::new(Arc::new(machine), options);
        if let Some((process, port)) = left {
            server.adopt(process, port).await;
        }
        Ok(MachineServer {
            server,
            variant: launch.variant,
        })
    }
}

/// Where what the sandbox would show is on this machine.
struct HostPaths {
    home: PathBuf,
    workdir: PathBuf,
    /// The longest first, since they are replaced one after the other.
    pairs: Vec<(&'static str, String)>,
}

impl HostPaths {
    fn new(place: &ServerPlace<'_>, plan: &crate::plan::Plan) -> Self {
        let home = place.directory.home();
        let workdir = workdir(place.request, place.directory);
        let node = plan.ready.node.as_ref();
        let shown = |path: &Path| path.display().to_string();
        let pairs = [
            Some((WORKDIR, shown(&workdir))),
            Some((BUNDLE_DIR, shown(&plan.ready.bundle.path))),
            node.map(|node| (NODE_DIR, shown(&node.path))),
            Some((HOME, shown(&home))),
        ];
        HostPaths {
            home,
            workdir,
            pairs: pairs.into_iter().flatten().collect(),
        }
    }

    fn outside(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (inside, outside) in &self.pairs {
            text = text.replace(inside, outside);
        }
        text
    }

    fn write(&self, files: &[(String, String)]) -> io::Result<()> {
        for directory in [&self.home, &self.workdir] {
            private_directory(directory)?;
        }
        for (path, text) in files {
            let path = PathBuf::from(self.outside(path));
            if let Some(parent) = path.parent() {
                private_directory(parent)?;
            }
            crate::store::write_unsynced(&path, self.outside(text).as_bytes())
                .map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Where an agent without a sandbox works.
pub(super) fn workdir(request: &LiveRequest, directory: &LiveDirectory) -> PathBuf {
    let own = || directory.workdir();
    request.directory.clone().unwrap_or_else(own)
}

fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Refuses what only a sandbox can have.
fn check(task: &Task) -> Result<(), LiveError> {
    let has = [
        ("files", !task.files.is_empty() || !task.upload.is_empty()),
        ("setup", !task.setup.is_empty()),
        ("services", !task.services.is_empty()),
        ("mcp", !task.mcp.is_empty()),
    ];
    match has.iter().find(|(_, has)| *has) {
        None => Ok(()),
        Some((name, _)) => Err(LiveError::Request(format!(
            "`{name}` needs a sandbox: a live agent without one has an empty work directory"
        ))),
    }
}

/// Ends a server that a killed process left, unless it is healthy and may be adopted.
pub(super) async fn end_orphan(directory: &LiveDirectory) {
    let Some(left) = directory.read_process() else {
        return;
    };
    let credentials = credentials(left.password);
    let address = format!("http://127.0.0.1:{}", left.port);
    if let Ok(client) = Client::of_url(&address, Some(credentials))
        && matches!(client.health(PROBE_LIMIT).await, Health::Healthy { .. })
    {
        return;
    }
    end_left(directory).await;
}

/// Ends a server that a killed process left.
pub(super) async fn end_left(directory: &LiveDirectory) {
    let Some(left) = directory.read_process() else {
        return;
    };
    if let Some(mut process) = HostPlace::default().adopt(left.identity) {
        process.end(END_GRACE).await;
    }
    directory.forget_process();
}

pub(super) fn credentials(password: String) -> Credentials {
    Credentials {
        username: USERNAME.to_owned(),
        password,
    }
}
