//! A live agent in a sandbox: its session on the proxy and its record, which outlive the sandboxes that it runs in one
//! after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use rollcage_live::place::Company;
use rollcage_live::server::SILENCE_MAX;
use rollcage_live::{Credentials, LiveServer, SandboxPlace, ServerOptions};
use rollcage_model::event::{Event, Phase, What};
use rollcage_model::id::RolloutId;
use rollcage_model::network;
use rollcage_model::record::RolloutResult;
use rollcage_proxy::{ServerHandle, Session};
use rollcage_sandbox::guest::{HOME, WORKDIR};
use rollcage_sandbox::{Sandbox, Usage};

use super::disk::LiveDirectory;
use super::launch::{self, ServerLaunch};
use super::{LiveError, LiveRequest};
use crate::context::Context;
use crate::environment;
use crate::feed::Feed;
use crate::installed;
use crate::intake::{PreparedRollout, ResolvedRollout};
use crate::judge::Ending;
use crate::layout::{note_sandbox, spec};
use crate::metrics::Metrics;
use crate::model::{self, SessionParts};
use crate::network::RolloutNetwork;
use crate::release::close_shared;
use crate::result;
use crate::rollout::{begin_record, reach, run_blocking};
use crate::services::RolloutServices;
use crate::shell::run_command;
use crate::stage::Stage;
use crate::store::Record;
use crate::usage;

/// For making a directory.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// The parts of a live agent that outlive its sandboxes.
pub(super) struct Recorded {
    prepared: PreparedRollout,
    record: Record,
    result: RolloutResult,
    feed: Arc<Feed>,
    session: Arc<Session>,
    services: RolloutServices,
    started: Instant,
    /// Of the sandboxes that are closed.
    used: Usage,
}

/// A sandbox with a server in it.
pub(super) struct OpenSandbox {
    pub(super) sandbox: Arc<Box<dyn Sandbox>>,
    pub(super) server: Arc<LiveServer>,
    pub(super) variant: Option<String>,
    serving: ServerHandle,
    network: RolloutNetwork,
}

/// What a server needs besides the plan.
pub(super) struct ServerPlace<'a> {
    pub(super) request: &'a LiveRequest,
    pub(super) directory: &'a LiveDirectory,
    pub(super) credentials: &'a Credentials,
}

impl Recorded {
    /// Begins a record, prepares the agent and opens its session. A failure is in the record.
    pub(super) async fn begin(
        cx: &Context,
        rollout: ResolvedRollout,
        metrics: &Arc<Metrics>,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Result<Recorded, LiveError> {
        let id = RolloutId::generate();
        let started = Instant::now();
        let mut result = result::begin(id, &rollout);
        let record = begin_record(cx, &rollout, &result).await?;
        result.record = record.path().display().to_string();
        let feed = Arc::new(Feed::new(id, Arc::clone(metrics), listener));
        let opened = open_session(cx, rollout, &record, &mut result, &feed).await;
        let (prepared, session) = match opened {
            Ok(opened) => opened,
            Err(ending) => {
                let text = ending.error.clone();
                commit(record, result, ending, started).await?;
                return Err(LiveError::Start(text.unwrap_or_default()));
            }
        };
        Ok(Recorded {
            services: RolloutServices::of(&prepared.plan.task),
            prepared,
            record,
            result,
            feed,
            session,
            started,
            used: Usage::default(),
        })
    }

    pub(super) fn id(&self) -> RolloutId {
        self.result.rollout_id
    }

    pub(super) fn version(&self) -> &str {
        &self.prepared.plan.ready.bundle.version
    }

    pub(super) fn model(&self) -> &str {
        &self.prepared.plan.endpoint.model
    }

    pub(super) fn memory_bytes_max(&self) -> u64 {
        let default = rollcage_sandbox::Limits::default().memory_bytes;
        let asked = self.prepared.plan.task.limits.memory_mb;
        asked.map_or(default, |mib| mib << 20)
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Starts a sandbox, from the saved files if there are any, and a server in it, which is not started yet. Whatever
    /// fails, nothing is left.
    pub(super) async fn open(
        &mut self,
        cx: &Context,
        place: &ServerPlace<'_>,
    ) -> Result<OpenSandbox, LiveError> {
        let saved = place.directory.saved();
        let snapshot = match saved.exists() {
            true => Some(
                cx.sandboxes
                    .load_snapshot(&saved)
                    .await
                    .map_err(Ending::from)?,
            ),
            false => None,
        };
        let is_new = snapshot.is_none();
        let plan = &self.prepared.plan;
        let host = &*cx.preparer.catalogue.network;
        installed::check_user(&plan.task, cx.sandboxes.capabilities())?;
        // A sandbox has a name of its own: the one before may not be quite gone.
        let mut spec = spec(RolloutId::generate(), plan, host);
        spec.snapshot = snapshot;
        let mut sandbox = cx.sandboxes.start(spec).await.map_err(Ending::from)?;
        note_sandbox(
            &mut self.result,
            &cx.sandboxes.capabilities().kind,
            &*sandbox,
        );
        let furnished = self.furnish(cx, place, &mut *sandbox, is_new).await;
        let (serving, network, launch) = match furnished {
            Ok(furnished) => furnished,
            Err(error) => {
                close(Arc::new(sandbox)).await;
                self.services.agent.settle().await;
                return Err(error);
            }
        };
        self.feed.publish(What::Entered {
            phase: Phase::Agent,
        });
        let sandbox = Arc::new(sandbox);
        let at = Arc::new(SandboxPlace {
            sandbox: Arc::clone(&sandbox),
            company: match self.services.agent.is_empty() {
                true => Company::Alone,
                false => Company::Services,
            },
        });
        let options = ServerOptions {
            argv: launch.argv,
            env: launch.env,
            cwd: WORKDIR.to_owned(),
            port: 0,
            credentials: place.credentials.clone(),
            deadline: Duration::from_secs_f64(place.request.deadline_s),
            poll: Duration::from_secs_f64(place.request.poll_s),
            silence_max: SILENCE_MAX,
            log: place.directory.log(),
        };
        Ok(OpenSandbox {
            server: LiveServer::new(at, options),
            sandbox,
            variant: launch.variant,
            serving,
            network,
        })
    }

    /// Makes a new sandbox the agent's: its model, its network, what setup leaves, its configuration.
    async fn furnish(
        &mut self,
        cx: &Context,
        place: &ServerPlace<'_>,
        sandbox: &mut dyn Sandbox,
        is_new: bool,
    ) -> Result<(ServerHandle, RolloutNetwork, ServerLaunch), LiveError> {
        let plan = &self.prepared.plan;
        let host = &*cx.preparer.catalogue.network;
        let (serving, base_url) = model::serve(&self.session, sandbox)?;
        let network = RolloutNetwork::open(plan.network.clone(), host, sandbox)?;
        let stage = Stage {
            sandbox,
            network: &network,
            host,
            plan,
            feed: &self.feed,
        };
        let services = &mut self.services.agent;
        match is_new {
            true => stage.prepare(&mut self.result, services).await?,
            false => {
                sandbox.seal_setup().await.map_err(Ending::from)?;
                stage.start_services(services).await?;
            }
        }
        let context_tokens = self.result.endpoint.context_tokens;
        let access = model::access(plan, self.session.key(), &base_url, context_tokens);
        let variables = stage.environment(network::Phase::Agent);
        let launch = launch::server(plan, place.request, &access, &variables)?;
        write_files(sandbox, &launch).await?;
        Ok((serving, network, launch))
    }

    /// Ends everything in a sandbox and saves its files.
    pub(super) async fn save(
        &mut self,
        cx: &Context,
        open: &OpenSandbox,
        directory: &LiveDirectory,
    ) -> Result<(), LiveError> {
        open.server.stop().await;
        let saved = async {
            open.sandbox.kill_all().await?;
            self.services.agent.settle().await;
            let snapshot = open.sandbox.snapshot().await?;
            let path = directory.saved();
            cx.sandboxes.save_snapshot(&snapshot, &path).await
        };
        saved.await.map_err(|error| {
            let error = rollcage_model::text::chain(&error);
            LiveError::Start(format!("the live agent's files were not saved: {error}"))
        })
    }

    /// Ends everything in a sandbox and closes it.
    pub(super) async fn close(&mut self, open: OpenSandbox) {
        let OpenSandbox {
            sandbox,
            server,
            mut serving,
            network,
            ..
        } = open;
        server.close().await;
        drop(server);
        network.shut();
        if let Err(error) = sandbox.kill_all().await {
            // It is closed below in any case.
            tracing::debug!(%error, "a live agent's sandbox does not answer");
        }
        serving.close().await;
        self.services.agent.settle().await;
        self.add_usage(sandbox.usage().await);
        network.close(self.record.path(), &mut self.result).await;
        close(sandbox).await;
    }

    /// Commits the record.
    pub(super) async fn finish(mut self, cx: &Context, ending: Ending) -> Result<(), LiveError> {
        self.services.keep(self.record.path()).await;
        if self.session.had_outage() {
            cx.profiles.forget(&self.prepared.plan.endpoint);
        }
        usage::note_usage(&mut self.result, &self.session, &self.used);
        let ending = match self.session.record_error() {
            Some(broken) => Ending::new(rollcage_model::ending::Cause::EngineFailed, broken),
            None => ending,
        };
        commit(self.record, self.result, ending, self.started).await
    }

    fn add_usage(&mut self, more: Usage) {
        let used = &mut self.used;
        used.memory_peak_bytes = used.memory_peak_bytes.max(more.memory_peak_bytes);
        used.cpu_s = match (used.cpu_s, more.cpu_s) {
            (Some(before), Some(more)) => Some(before + more),
            (before, more) => before.or(more),
        };
        used.oom_kills = match (used.oom_kills, more.oom_kills) {
            (Some(before), Some(more)) => Some(before + more),
            (before, more) => before.or(more),
        };
    }
}

async fn open_session(
    cx: &Context,
    rollout: ResolvedRollout,
    record: &Record,
    result: &mut RolloutResult,
    feed: &Arc<Feed>,
) -> Result<(PreparedRollout, Arc<Session>), Ending> {
    let prepared = Box::pin(cx.preparer.prepare(rollout)).await?;
    let plan = &prepared.plan;
    result::note_plan(result, plan);
    let (path, start) = (record.path().to_owned(), result::start_info(result));
    // A failure is harmless: the start information written before stays.
    let _ = run_blocking(move || start.write(&path)).await;
    let (client, profile) = reach(cx, &plan.endpoint, &plan.settings).await?;
    result::note_profile(result, &profile, &plan.settings);
    let parts = SessionParts::new(&cx.clients, (client, &profile), plan, record, feed);
    let session = parts.open_live()?;
    Ok((prepared, session))
}

async fn commit(
    record: Record,
    mut result: RolloutResult,
    ending: Ending,
    started: Instant,
) -> Result<(), LiveError> {
    let ending = result::add_trace(&mut result, &record, ending).await;
    let result = result::finish(result, ending, started);
    Ok(run_blocking(move || record.commit(&result)).await?)
}

/// The directory of its configuration is its own: a key stands there.
async fn write_files(sandbox: &dyn Sandbox, launch: &ServerLaunch) -> Result<(), Ending> {
    let command =
        format!("mkdir -p -m 700 {HOME}/.config/opencode && chmod 700 {HOME}/.config/opencode");
    let env = environment::of_agent(&Default::default());
    run_command(sandbox, &command, env, "/", COMMAND_LIMIT).await?;
    for (path, text) in &launch.files {
        let written = sandbox.write_file(path, 0o600, text.clone().into_bytes());
        written.await.map_err(Ending::from_setup)?;
    }
    Ok(())
}

async fn close(sandbox: Arc<Box<dyn Sandbox>>) {
    if let Err(error) = close_shared(sandbox).await {
        let error = rollcage_model::text::chain(&error);
        tracing::warn!(error, "a live agent's sandbox is not gone");
    }
}
