//! One warm sandbox: what it fits, and how it comes to stand ready.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::{LaunchRequest, ServeLaunch, WireDialect};
use rollcage_live::client::{NewSession, Prompt};
use rollcage_live::{Client, ClientError};
use rollcage_model::id::RolloutId;
use rollcage_model::network::Phase;
use rollcage_model::task::AgentDriver;
use rollcage_model::text::chain;
use rollcage_sandbox::{Sandbox, Sandboxes};

use crate::drive::serve::ServedAgent;
use crate::environment;
use crate::layout::spec;
use crate::model::{self, OpenEntrance};
use crate::network::{HostNetwork, RolloutNetwork};
use crate::plan::Plan;
use crate::release::close_shared;

/// How long the first session and its answer may take. They take half a second on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// A sandbox with a server that stands ready, and everything that was opened with it.
pub(crate) struct WarmSandbox {
    pub(crate) sandbox: Arc<Box<dyn Sandbox>>,
    pub(crate) entrance: OpenEntrance,
    pub(crate) network: RolloutNetwork,
    /// The key that its configuration names, for the session of its rollout.
    pub(crate) key: String,
    pub(crate) served: ServedAgent,
}

/// What has to be the same for a warm sandbox to fit a rollout; `None` for one that no warm sandbox fits.
pub(crate) fn kind_of(
    plan: &Plan,
    context_tokens: Option<u64>,
    host: &HostNetwork,
) -> Option<String> {
    // An agent's own log belongs to one rollout from its first line on.
    if plan.task.driver != Some(AgentDriver::Serve) || plan.task.agent.log_level.is_some() {
        return None;
    }
    let launch = launch(plan, context_tokens, ("", "")).ok()?;
    let mut spec = spec(RolloutId::generate(), plan, host);
    spec.id = String::new();
    let variables = environment::of_task(BTreeMap::new(), &plan.task);
    // Two owners never share one, even where all else is the same: the sandbox of one holds values that its task brought.
    let Plan {
        network,
        agent,
        owner,
        ..
    } = plan;
    let (name, version) = (agent.name(), &plan.ready.bundle.version);
    Some(format!(
        "{owner:?} {name} {version} {launch:?} {variables:?} {spec:?} {network:?}"
    ))
}

impl WarmSandbox {
    /// Starts a sandbox and the agent's server in it, and has the server do its first work.
    pub(super) async fn start(
        plan: &Plan,
        context_tokens: Option<u64>,
        host: &HostNetwork,
        sandboxes: &dyn Sandboxes,
        logs: &Path,
    ) -> Result<Self, String> {
        let id = RolloutId::generate();
        let sandbox = sandboxes.start(spec(id, plan, host)).await;
        let mut sandbox = sandbox.map_err(|error| chain(&error))?;
        let key = rollcage_proxy::random_key("sk-rollcage-").map_err(|error| error.to_string())?;
        let entrance = OpenEntrance::open(&mut *sandbox).map_err(|ending| ending.to_string())?;
        let network = RolloutNetwork::open(plan.network.clone(), host, &mut *sandbox);
        let network = network.map_err(|ending| ending.to_string())?;
        let launch = launch(plan, context_tokens, (&entrance.base_url, &key))?;
        for (path, text) in &launch.files {
            let written = sandbox.write_file(path, 0o600, text.clone().into_bytes());
            written.await.map_err(|error| chain(&error))?;
        }
        let sandbox = Arc::new(sandbox);
        let variables = environment::of_task(network.variables(Phase::Agent), &plan.task);
        let log = logs.join(format!("{id}.log"));
        let served = ServedAgent::new(&sandbox, &launch, &variables, log);
        let served = served.map_err(|error| error.to_string())?;
        let warm = WarmSandbox {
            sandbox,
            entrance,
            network,
            key,
            served,
        };
        match warm.boot(plan).await {
            Ok(()) => Ok(warm),
            Err(why) => {
                warm.close().await;
                Err(why)
            }
        }
    }

    /// The first session and the first answer load what the server loads only then.
    async fn boot(&self, plan: &Plan) -> Result<(), String> {
        let server = &self.served.server;
        let started = server.ensure_running().await;
        started.map_err(|error| chain(&error))?;
        let client = server.client().ok_or("the agent's server ended")?;
        let says_something = plan.agent.dialect() == Some(WireDialect::Chat);
        let first = first_session(&client, says_something);
        match tokio::time::timeout(BOOT_LIMIT, first).await {
            Ok(done) => done.map_err(|error| chain(&error)),
            Err(_) => Err("the agent's server did not answer its first message".to_owned()),
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.served.server.is_running()
    }

    pub(super) async fn close(self) {
        let WarmSandbox {
            sandbox,
            mut entrance,
            served,
            ..
        } = self;
        served.server.close().await;
        served.remove_log();
        drop(served);
        entrance.serving.close().await;
        if let Err(error) = close_shared(sandbox).await {
            let problem = chain(&error);
            tracing::warn!(%problem, "a warm sandbox is not gone");
        }
    }
}

/// A session that is removed again.
async fn first_session(client: &Client, says_something: bool) -> Result<(), ClientError> {
    let session = NewSession {
        title: "ready".to_owned(),
        directory: None,
    };
    let session = client.create_session(&session).await?;
    if says_something {
        let prompt = Prompt {
            text: "ready?".to_owned(),
            ..Prompt::default()
        };
        client.message(&session, &prompt).await?;
    }
    client.delete_session(&session).await
}

fn launch(
    plan: &Plan,
    context_tokens: Option<u64>,
    (base_url, key): (&str, &str),
) -> Result<ServeLaunch, String> {
    let access = model::access(plan, key, base_url, context_tokens);
    let request = LaunchRequest {
        task: &plan.task,
        access: &access,
        bundle: &plan.ready.bundle,
    };
    let launch = plan.agent.serve(&request);
    let launch = launch.ok_or("the agent has no server")?;
    launch.map_err(|error| error.to_string())
}
