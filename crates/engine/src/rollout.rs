//! One rollout, from task to result. Start reading here.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Phase, What};
use rollcage_model::finding::{Code, Finding};
use rollcage_model::network;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::AgentDriver;
use rollcage_sandbox::Sandbox;

use crate::artifacts;
use crate::collect::{self, collect};
use crate::context::Context;
use crate::controls::Controls;
use crate::drive::serve::ServedAgent;
use crate::drive::{DriveContext, drive, driver};
use crate::feed::Feed;
use crate::installed;
use crate::intake::{PlanError, ResolvedRollout};
use crate::judge::{Ending, with_verifier_problem};
use crate::layout::note_sandbox;
use crate::model::{self, OpenEntrance, SessionParts};
use crate::network::{HostNetwork, RolloutNetwork};
use crate::patch;
use crate::plan::Plan;
use crate::release::close_shared;
use crate::result;
use crate::services::{RolloutServices, Services};
use crate::shell::{LOG_TAIL_CHARS, seconds};
use crate::stage::Stage;
use crate::start::StartedSandbox;
use crate::store::{Record, StoreError};
use crate::usage::{self, Meter};
use crate::verify::{self, CommandProgress};
use rollcage_agents::LaunchRequest;
use rollcage_model::text::tail;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::probe::Profile;
use rollcage_proxy::{ModelSettings, ServerHandle, Session};

/// Runs one rollout to its result. Always returns one.
pub(crate) async fn run(
    cx: &Context,
    rollout: ResolvedRollout,
    feed: &Arc<Feed>,
    controls: &Controls,
) -> RolloutResult {
    let cancel = &controls.cancel;
    let started = Instant::now();
    let id = feed.rollout();
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
    feed.publish(What::Entered {
        phase: Phase::Prepare,
    });
    let ending = match cancel
        .run_until_cancelled(Box::pin(cx.preparer.prepare(rollout)))
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
            let (path, start) = (record.path().to_owned(), result::start_info(&result));
            // A failure is harmless: the start information written by `begin_record` stays.
            let _ = run_blocking(move || start.write(&path)).await;
            match attempt(cx, plan, &record, &mut result, feed, controls).await {
                Ok(ending) | Err(ending) => ending,
            }
        }
    };
    let ending = result::add_trace(&mut result, &record, ending).await;
    let result = Arc::new(result::finish(result, ending, started));
    let committed = {
        let result = Arc::clone(&result);
        run_blocking(move || record.commit(&result)).await
    };
    let result = Arc::unwrap_or_clone(result);
    match committed {
        Ok(()) => result,
        Err(error) => result::finish(
            RolloutResult {
                // The record is incomplete, so the result must not refer to it.
                record: String::new(),
                ..result
            },
            Ending::new(Cause::EngineFailed, rollcage_model::text::chain(&error)),
            started,
        ),
    }
}

pub(crate) async fn begin_record(
    cx: &Context,
    rollout: &ResolvedRollout,
    result: &RolloutResult,
) -> Result<Record, StoreError> {
    let (store, task) = (cx.store.clone(), rollout.task.clone());
    let (id, owner) = (result.rollout_id, rollout.owner.clone());
    let start = result::start_info(result);
    run_blocking(move || store.begin(id, &task, &start, owner.as_deref())).await
}

/// Runs disk work on a blocking thread, so that it does not stall the runtime.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::Thread(error)))
}

/// The way to the endpoint, and what the endpoint delivers.
pub(crate) async fn reach(
    cx: &Context,
    endpoint: &Endpoint,
    settings: &ModelSettings,
) -> Result<(reqwest::Client, Profile), Ending> {
    let client = cx.clients.of(&endpoint.base_url, endpoint.guard.as_ref());
    let client = client.map_err(model::client_ending)?;
    let profile = cx.profiles.of(&client, endpoint, settings).await;
    let profile = profile.map_err(|error| Ending::new(error.cause(), error.to_string()))?;
    Ok((client, profile))
}

/// Opens everything the rollout needs, runs it inside, and closes everything again whatever the outcome.
async fn attempt(
    cx: &Context,
    plan: &Arc<Plan>,
    record: &Record,
    result: &mut RolloutResult,
    feed: &Arc<Feed>,
    controls: &Controls,
) -> Result<Ending, Ending> {
    let cancel = &controls.cancel;
    let reaching = reach(cx, &plan.endpoint, &plan.settings);
    let reached = cancel.run_until_cancelled(reaching).await;
    let (client, profile) = reached.ok_or_else(Ending::cancelled)??;
    result::note_profile(result, &profile, &plan.settings);

    feed.publish(What::Entered {
        phase: Phase::Sandbox,
    });
    let host = &*cx.preparer.catalogue.network;
    installed::check_user(&plan.task, cx.sandboxes.capabilities())?;
    let since = Instant::now();
    let start = StartedSandbox::get(cx, plan, result.endpoint.context_tokens, feed);
    let started = cancel.run_until_cancelled(Box::pin(start)).await;
    let StartedSandbox {
        sandbox,
        entrance,
        network,
        key,
        served,
    } = started.ok_or_else(Ending::cancelled)??;
    result.timings.sandbox_s = seconds(since.elapsed());
    note_sandbox(result, &cx.sandboxes.capabilities().kind, &**sandbox);
    result.sandbox.warm = served.is_some();

    let parts = SessionParts::new(&cx.clients, (client, &profile), plan, record, feed);
    let session = parts.open(key)?;
    entrance.attach(&session);
    let OpenEntrance {
        mut serving,
        base_url,
        ..
    } = entrance;
    let inside = OpenRollout {
        sandbox: &**sandbox,
        shared_sandbox: &sandbox,
        base_url,
        network: &network,
        host,
        plan,
        session: &session,
        feed,
        cancel,
        controls,
    };
    let mut beside = Beside {
        services: RolloutServices::of(&plan.task),
        meter: Meter::new(&plan.task),
        served,
    };
    let ending = inside.run(record, result, &mut serving, &mut beside).await;
    if let Some(unused) = beside.served.take() {
        unused.server.close().await;
    }
    serving.close().await;
    beside.services.keep(record.path()).await;
    network.close(record.path(), result).await;
    if session.had_outage() {
        cx.profiles.forget(&plan.endpoint);
    }
    usage::note_usage(result, &session, &sandbox.usage().await);
    beside.meter.finish(result);
    if let Err(error) = close_shared(sandbox).await {
        result.findings.push(not_removed(&error));
    }
    match session.record_error() {
        Some(broken) => Err(Ending::new(Cause::EngineFailed, broken)),
        None => ending,
    }
}

/// Cleaning up is our job: a failure of it does not change the outcome of the rollout.
fn not_removed(error: &rollcage_sandbox::Error) -> Finding {
    let problem = rollcage_model::text::chain(error);
    tracing::warn!(%problem, "a sandbox is not gone");
    Finding::warn(Code::SandboxNotRemoved, problem)
}

/// A rollout whose sandbox, proxy and record are open.
struct OpenRollout<'a> {
    sandbox: &'a dyn Sandbox,
    /// The same, for the connections to an agent's server.
    shared_sandbox: &'a Arc<Box<dyn Sandbox>>,
    /// The proxy's base URL as seen from inside the sandbox.
    base_url: String,
    network: &'a RolloutNetwork,
    host: &'a HostNetwork,
    plan: &'a Plan,
    session: &'a Arc<Session>,
    feed: &'a Arc<Feed>,
    cancel: &'a CancellationToken,
    controls: &'a Controls,
}

/// What goes on beside a rollout's phases.
struct Beside {
    services: RolloutServices,
    meter: Meter,
    /// The agent's server, where it stands ready, until the agent's turn.
    served: Option<ServedAgent>,
}

impl OpenRollout<'_> {
    async fn run(
        &self,
        record: &Record,
        result: &mut RolloutResult,
        serving: &mut ServerHandle,
        beside: &mut Beside,
    ) -> Result<Ending, Ending> {
        let Beside {
            services, meter, ..
        } = &mut *beside;
        let stage = self.stage();
        let prepare = stage.prepare(result, &mut services.agent);
        let prepared = self.cancel.run_until_cancelled(prepare).await;
        let starved = meter.end(network::Phase::Setup, self.sandbox, result).await;
        let prepared = prepared.ok_or_else(Ending::cancelled)?;
        prepared.map_err(|ending| ending.with(starved))?;
        let (task, path) = (&self.plan.task, record.path());
        let baseline = patch::baseline(self.sandbox, task, path, result);
        let baseline = self.cancel.run_until_cancelled(baseline).await;
        let baseline = baseline.ok_or_else(Ending::cancelled)?;
        let kept = collect::keep_start(self.sandbox, self.plan, path);
        let kept = self.cancel.run_until_cancelled(kept).await;
        kept.ok_or_else(Ending::cancelled)?;

        let ending = self.run_agent(record, result, serving, beside).await?;
        let Beside {
            services, meter, ..
        } = beside;
        let is_aborted = ending.cause == Cause::Cancelled;
        if !is_aborted && !ending.cause.verdict().is_graded {
            return Ok(ending);
        }
        if is_aborted && let Some(ungraded) = self.controls.keep(self.feed).await {
            return Ok(ungraded);
        }

        let patched = patch::write(baseline, self.sandbox, path, result);
        let patched = self.cancel.run_until_cancelled(patched).await;
        patched.ok_or_else(Ending::cancelled)?;
        let graded = self.grade(result, &mut services.verify);
        let graded = self.cancel.run_until_cancelled(graded).await;
        if self.plan.task.has_verifier() {
            let verify = network::Phase::Verify;
            meter.end(verify, self.sandbox, result).await;
        }
        let problem = graded.ok_or_else(Ending::cancelled)??;
        let problem = match result.driver {
            AgentDriver::Cli => problem,
            // In the words of OpenEnv's original.
            AgentDriver::Serve => problem.map(|problem| format!("finalize: {problem}")),
        };
        let collected = self
            .cancel
            .run_until_cancelled(self.keep_files(record, result))
            .await;
        collected.ok_or_else(Ending::cancelled)?;
        Ok(with_verifier_problem(ending, problem))
    }

    /// Drives the agent to its end, and notes what is known of it then.
    async fn run_agent(
        &self,
        record: &Record,
        result: &mut RolloutResult,
        serving: &mut ServerHandle,
        Beside {
            services,
            meter,
            served,
        }: &mut Beside,
    ) -> Result<Ending, Ending> {
        self.feed.publish(What::Entered {
            phase: Phase::Agent,
        });
        let since = Instant::now();
        let context_tokens = result.endpoint.context_tokens;
        let access = model::access(
            self.plan,
            self.session.key(),
            &self.base_url,
            context_tokens,
        );
        let launch = LaunchRequest {
            task: &self.plan.task,
            access: &access,
            bundle: &self.plan.ready.bundle,
        };
        let stage = DriveContext {
            sandbox: self.shared_sandbox,
            plan: self.plan,
            record,
            session: self.session,
            feed: self.feed,
            controls: self.controls,
            services: &services.agent,
        };
        let env = self.stage().environment(network::Phase::Agent);
        let ready = served.take();
        if let Some(ready) = ready.as_ref().filter(|_| self.plan.changes_workdir()) {
            ready.read_anew().await;
        }
        let mut driver = driver(&stage, &launch, &env, ready)?;
        let agent_run = drive(&stage, &mut *driver, serving).await;
        drop(driver);
        self.network.shut();
        services.agent.settle().await;
        let starved = meter.end(network::Phase::Agent, self.sandbox, result).await;
        let mut agent_run = agent_run?;
        agent_run.ending = agent_run.ending.with(starved);
        self.feed.publish(What::AgentExited {
            exit_code: agent_run.exit_code,
        });
        result.timings.agent_s = seconds(since.elapsed());
        result.timings.first_call_s = self
            .session
            .first_call()
            .map(|call| seconds(call.duration_since(since)));
        result.agent_exit_code = agent_run.exit_code;
        result.agent_log_tail = agent_run.log_tail;
        result.agent_report = agent_run.report;
        result.serve_session_id = agent_run.session;
        result.findings.extend(agent_run.services_ended);
        Ok(agent_run.ending)
    }

    /// Runs the verifier. Returns what is wrong with the verifier itself, if anything.
    async fn grade(
        &self,
        result: &mut RolloutResult,
        services: &mut Services,
    ) -> Result<Option<String>, Ending> {
        if !self.plan.task.has_verifier() {
            return Ok(None);
        }
        self.feed.publish(What::Entered {
            phase: Phase::Verify,
        });
        let since = Instant::now();
        let report = |index: usize, of: usize, progress: CommandProgress<'_>| {
            self.stage()
                .publish_command(Phase::Verify, index, of, progress);
        };
        self.network
            .enter(network::Phase::Verify, self.sandbox)
            .await?;
        let env = self.stage().environment(network::Phase::Verify);
        let env = verify::Environments::of(self.plan, &env);
        let problem =
            verify::verify(self.sandbox, self.plan, env, services, result, report).await?;
        self.network.shut();
        result.timings.verify_s = seconds(since.elapsed());
        Ok(problem)
    }

    async fn keep_files(&self, record: &Record, result: &mut RolloutResult) {
        self.feed.publish(What::Entered {
            phase: Phase::Collect,
        });
        let since = Instant::now();
        collect(self.sandbox, result).await;
        artifacts::keep(self.sandbox, &self.plan.task, record.path(), result).await;
        self.feed.publish(What::Collected {
            files: result.files.keys().cloned().collect(),
            files_extra: result.files_extra.clone(),
        });
        result.timings.collect_s = seconds(since.elapsed());
    }

    fn stage(&self) -> Stage<'_> {
        Stage {
            sandbox: self.sandbox,
            network: self.network,
            host: self.host,
            plan: self.plan,
            feed: self.feed,
        }
    }
}
