//! One rollout, from task to result. Start reading here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Phase, What};
use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::RolloutResult;
use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{Sandbox, Sandboxes};

use crate::collect::collect;
use crate::controls::Controls;
use crate::drive::exec::Exec;
use crate::drive::{Stage, drive};
use crate::feed::Feed;
use crate::intake::{PlanError, Preparation, Resolved};
use crate::judge::{Ending, with_verifiers};
use crate::places::{self, note_sandbox, spec};
use crate::plan::Plan;
use crate::result;
use crate::shell::{LOG_TAIL_CHARS, alive, run_command, seconds};
use crate::store::{Record, Store, StoreError};
use crate::verify::{self, Told};
use rollcage_agents::base_environment;
use rollcage_agents::{LaunchRequest, ModelAccess};
use rollcage_model::text::tail;
use rollcage_proxy::Profiles;
use rollcage_proxy::outbound::ClientError;
use rollcage_proxy::outbound::Clients;
use rollcage_proxy::probe::Profile;
use rollcage_proxy::{OnOverflow, ServerHandle, Session, SessionOptions, Sessions};

/// What rollouts of one process share.
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) sandboxes: Arc<dyn Sandboxes>,
    pub(crate) preparation: Preparation,
    pub(crate) clients: Arc<Clients>,
    pub(crate) profiles: Arc<Profiles>,
}

/// Runs one rollout to its result. Always returns one.
pub(crate) async fn run(
    cx: &Context,
    rollout: Resolved,
    teller: &Arc<Feed>,
    controls: &Controls,
) -> RolloutResult {
    let cancel = &controls.cancel;
    let started = Instant::now();
    let id = teller.rollout();
    let mut result = result::begin(id, &rollout);
    let record = match begin_record(cx, &rollout, &result).await {
        Ok(record) => record,
        Err(error) => {
            return result::finish(
                result,
                Ending::new(Cause::EngineFailed, rollcage_model::text::chain(&error)),
                started,
            );
        }
    };
    result.record = record.path().display().to_string();
    teller.tell(What::Entered {
        phase: Phase::Prepare,
    });
    let ending = match cancel
        .run_until_cancelled(Box::pin(cx.preparation.prepare(rollout)))
        .await
    {
        None => Ending::cancelled(),
        Some(Err(error)) => {
            if matches!(error, PlanError::Install(_)) {
                result.install_log_tail =
                    tail(&rollcage_model::text::chain(&error), LOG_TAIL_CHARS);
            }
            error.into()
        }
        Some(Ok(prepared)) => {
            let plan = &prepared.plan;
            result::note_plan(&mut result, plan);
            let (path, start) = (record.path().to_owned(), result::start_of(&result));
            // What is there already is nearly as good.
            let _ = at_the_disk(move || start.write(&path)).await;
            match attempt(cx, plan, &record, &mut result, teller, controls).await {
                Ok(ending) | Err(ending) => ending,
            }
        }
    };
    let ending = result::add_trace(&mut result, &record, ending).await;
    let result = Arc::new(result::finish(result, ending, started));
    let committed = {
        let result = Arc::clone(&result);
        at_the_disk(move || record.commit(&result)).await
    };
    let result = Arc::unwrap_or_clone(result);
    match committed {
        Ok(()) => result,
        Err(error) => result::finish(
            RolloutResult {
                // Nothing of it can be read there.
                record: String::new(),
                ..result
            },
            Ending::new(Cause::EngineFailed, rollcage_model::text::chain(&error)),
            started,
        ),
    }
}

async fn begin_record(
    cx: &Context,
    rollout: &Resolved,
    result: &RolloutResult,
) -> Result<Record, StoreError> {
    let (store, task) = (cx.store.clone(), rollout.task.clone());
    let (id, owner) = (result.rollout_id, rollout.owner.clone());
    let start = result::start_of(result);
    at_the_disk(move || store.begin(id, &task, &start, owner.as_deref())).await
}

/// Waits for the disk on a thread of its own, so that nobody else waits with us.
async fn at_the_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::Thread(error)))
}

/// Opens what the rollout needs, runs it inside, and closes everything again however that went.
async fn attempt(
    cx: &Context,
    plan: &Plan,
    record: &Record,
    result: &mut RolloutResult,
    teller: &Arc<Feed>,
    controls: &Controls,
) -> Result<Ending, Ending> {
    let cancel = &controls.cancel;
    let endpoint = &plan.endpoint;
    let client = cx.clients.of(&endpoint.base_url, endpoint.guard.as_ref());
    let client = client.map_err(no_client)?;
    let profile = cx.profiles.of(&client, &plan.endpoint, &plan.settings);
    let profile = cancel.run_until_cancelled(profile).await;
    let profile = profile
        .ok_or_else(Ending::cancelled)?
        .map_err(|error| Ending::new(error.cause(), error.to_string()))?;
    result::note_profile(result, &profile);

    teller.tell(What::Entered {
        phase: Phase::Sandbox,
    });
    let since = Instant::now();
    let sandbox = cancel
        .run_until_cancelled(cx.sandboxes.start(spec(teller.rollout(), plan)))
        .await;
    let mut sandbox = sandbox.ok_or_else(Ending::cancelled)??;
    result.timings.sandbox_s = seconds(since.elapsed());
    note_sandbox(result, &cx.sandboxes.capabilities().kind, &*sandbox);

    let session = open_session(cx, client, plan, record, teller, &profile).map_err(|error| {
        Ending::new(
            Cause::EngineFailed,
            format!("open the rollout's exchanges: {error}"),
        )
    })?;
    let sessions = Sessions::of(Arc::clone(&session));
    let span = tracing::Span::current();
    let handler: rollcage_proxy::Handler = Arc::new(move |request| {
        let sessions = Arc::clone(&sessions);
        let answering = async move { rollcage_proxy::answer(&sessions, request).await };
        Box::pin(answering.instrument(span.clone()))
    });
    let unserved = |error| Ending::new(Cause::EngineFailed, format!("serve the proxy: {error}"));
    let entrance = sandbox.take_entrance();
    let entrance = entrance.ok_or_else(|| unserved(std::io::ErrorKind::NotFound.into()))?;
    let (listener, base_url) = entrance.open().map_err(unserved)?;
    let mut serving = rollcage_proxy::serve(listener, handler).map_err(unserved)?;
    let inside = Inside {
        sandbox: &*sandbox,
        base_url,
        plan,
        session: &session,
        teller,
        cancel,
        controls,
    };
    let ending = inside.run(record, result, &mut serving).await;
    serving.close().await;
    if session.had_outage() {
        cx.profiles.forget(&plan.endpoint);
    }
    note_use(result, &session, &sandbox.usage().await);
    let closed = sandbox.close().await;
    if let Err(error) = closed {
        // Ours to clean up: it takes nothing from what the rollout came to.
        let problem = rollcage_model::text::chain(&error);
        tracing::warn!(%problem, "a sandbox is not gone");
        let finding = Finding::warn(Code::SandboxNotRemoved, problem);
        result.findings.push(finding);
    }
    match session.record_error() {
        Some(broken) => Err(Ending::new(Cause::EngineFailed, broken)),
        None => ending,
    }
}

fn no_client(error: ClientError) -> Ending {
    match &error {
        ClientError::Http(_) => {
            Ending::new(Cause::EngineFailed, rollcage_model::text::chain(&error))
        }
        ClientError::Forbidden(_) => Ending::new(Cause::EndpointUnreachable, error.to_string()),
    }
}

fn open_session(
    cx: &Context,
    client: reqwest::Client,
    plan: &Plan,
    record: &Record,
    teller: &Arc<Feed>,
    profile: &Profile,
) -> std::io::Result<Arc<Session>> {
    let teller = Arc::clone(teller);
    let options = SessionOptions {
        client,
        endpoint: plan.endpoint.clone(),
        settings: plan.settings.clone(),
        profile: profile.clone(),
        on_overflow: OnOverflow::Stop,
        record: record.exchanges(),
        agent_time: Some(Duration::from_secs_f64(plan.task.agent_timeout_s())),
        observe: Box::new(move |what| teller.tell(what)),
        mcp: plan.mcp.clone(),
        clients: Arc::clone(&cx.clients),
    };
    Session::create(rollcage_proxy::random_key("sk-rollcage-")?, options)
}

/// A rollout whose sandbox, proxy and record are open.
struct Inside<'a> {
    sandbox: &'a dyn Sandbox,
    /// The proxy's, as the agent sees it.
    base_url: String,
    plan: &'a Plan,
    session: &'a Arc<Session>,
    teller: &'a Arc<Feed>,
    cancel: &'a CancellationToken,
    controls: &'a Controls,
}

impl Inside<'_> {
    async fn run(
        &self,
        record: &Record,
        result: &mut RolloutResult,
        serving: &mut ServerHandle,
    ) -> Result<Ending, Ending> {
        let prepared = self.cancel.run_until_cancelled(self.prepare(result)).await;
        let services = prepared.ok_or_else(Ending::cancelled)??;

        self.teller.tell(What::Entered {
            phase: Phase::Agent,
        });
        let since = Instant::now();
        let launch = self.plan.agent.launch(&LaunchRequest {
            task: &self.plan.task,
            access: &self.access(result.endpoint.context_tokens),
            bundle: &self.plan.ready.bundle,
        });
        let launch = launch.map_err(|error| Ending::new(Cause::SetupFailed, error.to_string()))?;
        let stage = Stage {
            sandbox: self.sandbox,
            plan: self.plan,
            record,
            session: self.session,
            controls: self.controls,
        };
        let mut driver = Exec::new(launch, &self.plan.task.env);
        let driven = drive(&stage, &mut driver, serving).await?;
        self.teller.tell(What::AgentExited {
            exit_code: driven.exit_code,
        });
        result.timings.agent_s = seconds(since.elapsed());
        result.timings.first_call_s = self
            .session
            .first_call()
            .map(|call| seconds(call.duration_since(since)));
        result.agent_exit_code = driven.exit_code;
        result.agent_log_tail = driven.log_tail;
        result.agent_report = driven.report;
        if driven.killed > 0 {
            result.findings.extend(services_killed(&services));
        }
        let is_aborted = driven.ending.cause == Cause::Cancelled;
        if !is_aborted && !driven.ending.cause.verdict().is_graded {
            return Ok(driven.ending);
        }
        if is_aborted && let Some(ungraded) = self.controls.keep(self.teller).await {
            return Ok(ungraded);
        }

        let graded = self.cancel.run_until_cancelled(self.grade(result)).await;
        let problem = graded.ok_or_else(Ending::cancelled)??;
        let collected = self
            .cancel
            .run_until_cancelled(self.keep_files(result))
            .await;
        collected.ok_or_else(Ending::cancelled)?;
        Ok(with_verifiers(driven.ending, problem))
    }

    /// Task files, then setup commands one by one. The first that fails ends the rollout before the agent starts. The answer
    /// is what is left alive.
    async fn prepare(&self, result: &mut RolloutResult) -> Result<Vec<String>, Ending> {
        self.teller.tell(What::Entered {
            phase: Phase::Setup,
        });
        let since = Instant::now();
        let task = &self.plan.task;
        let files = places::before_setup(self.plan)
            .map_err(|error| Ending::new(Cause::SetupFailed, error.to_string()))?;
        for (path, content) in files {
            let written = self.sandbox.write_file(&path, 0o644, content.to_vec());
            written.await.map_err(Ending::from_setup)?;
        }
        let env = base_environment(&task.env);
        let limit = Duration::from_secs_f64(task.command_timeout_s);
        let of = task.setup.len();
        for (index, command) in task.setup.iter().enumerate() {
            self.tell_command(Phase::Setup, index, of, Told::Started(command));
            let outcome = run_command(self.sandbox, command, env.clone(), WORKDIR, limit).await?;
            self.tell_command(Phase::Setup, index, of, Told::Ended(&outcome));
            let (code, is_late) = (outcome.exit_code, outcome.timed_out);
            result.setup_results.push(outcome);
            if code != 0 {
                let how = if is_late {
                    "timed out".to_owned()
                } else {
                    format!("exit {code}")
                };
                let text = format!("setup command failed ({how}): {command}");
                return Err(Ending::new(Cause::SetupFailed, text));
            }
        }
        let services = match task.setup.is_empty() {
            true => Vec::new(),
            false => alive(self.sandbox).await?,
        };
        result.timings.setup_s = seconds(since.elapsed());
        Ok(services)
    }

    /// Grades what the agent left. The answer is what is wrong with the verifier, if anything.
    async fn grade(&self, result: &mut RolloutResult) -> Result<Option<String>, Ending> {
        if !self.plan.task.has_verifier() {
            return Ok(None);
        }
        self.teller.tell(What::Entered {
            phase: Phase::Verify,
        });
        let since = Instant::now();
        let tell = |index: usize, of: usize, told: Told<'_>| {
            self.tell_command(Phase::Verify, index, of, told);
        };
        let problem = verify::verify(self.sandbox, self.plan, result, tell).await?;
        result.timings.verify_s = seconds(since.elapsed());
        Ok(problem)
    }

    async fn keep_files(&self, result: &mut RolloutResult) {
        self.teller.tell(What::Entered {
            phase: Phase::Collect,
        });
        let since = Instant::now();
        let collected = collect(self.sandbox).await;
        result.files = collected.files;
        result.files_extra = collected.extra;
        self.teller.tell(What::Collected {
            files: result.files.keys().cloned().collect(),
            files_extra: result.files_extra.clone(),
        });
        // The grade is there already, and how the agent left its files does not change it.
        let told = |problem| Finding::info(Code::FilesNotCollected, problem);
        result.findings.extend(collected.problem.map(told));
        result.timings.collect_s = seconds(since.elapsed());
    }

    fn access(&self, context_tokens: Option<u64>) -> ModelAccess {
        let context_tokens = context_tokens.unwrap_or(131_072);
        let output_tokens = self.plan.settings.tokens_max.unwrap_or(8192);
        ModelAccess {
            base_url: format!("{}/v1", self.base_url),
            key: self.session.key().to_owned(),
            model: self.plan.endpoint.model.clone(),
            context_tokens,
            // What an agent may ask for has to leave room for a prompt.
            output_tokens: output_tokens.min(context_tokens / 2).max(1),
            patience_ms: 600_000,
        }
    }

    fn tell_command(&self, phase: Phase, index: usize, of: usize, told: Told<'_>) {
        let number = index + 1;
        self.teller.tell(match told {
            Told::Started(cmd) => What::CommandStarted {
                phase,
                number,
                of,
                cmd: cmd.to_owned(),
            },
            Told::Ended(outcome) => What::Command {
                phase,
                number,
                of,
                cmd: outcome.cmd.clone(),
                exit_code: outcome.exit_code,
            },
        });
    }
}

/// Tells of what setup commands had started and nothing that comes after the agent will find.
fn services_killed(services: &[String]) -> Option<Finding> {
    let text = format!(
        "setup commands left processes ({}), which ran beside the agent and were ended with it: a verify command that needs \
         them starts them itself",
        services.join(", ")
    );
    (!services.is_empty()).then(|| Finding::warn(Code::ServicesKilled, text))
}

fn note_use(result: &mut RolloutResult, session: &Session, used: &rollcage_sandbox::Usage) {
    result.proxy_log_tail = tail(&session.log(), LOG_TAIL_CHARS);
    result.usage.memory_peak_bytes = used.memory_peak_bytes;
    result.usage.cpu_s = used.cpu_s;
    result.usage.oom_kills = used.oom_kills;
    result.budget.spent = session.spent();
    result.budget.stops = session.budget_stops();
    result.budget.stopped_by = session.calls().stopped.map(|stopped| stopped.by);
    result.timings.outage_s = seconds(session.outage());
}
