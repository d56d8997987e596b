//! `rollcage bench rollout`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::VersionRequest;
use rollcage_agents::{Agent, ModelAccess, WireDialect};
use rollcage_engine::Engine;
use rollcage_engine::intake::ResolvedRollout;
use rollcage_model::task::{AgentDriver, Task, absolute};
use rollcage_proxy::endpoint::Endpoint;
use rollcage_sandbox::guest::WORKDIR;
use rollcage_scripted::{Log, Script, ScriptedEndpoint};

use super::bare::{Bare, outside};
use super::figures::{Medians, RunMeasurement, median, medians};
use super::meter::{CpuTime, resident_bytes};
use super::served::{self, Served, ServedRuns};
use crate::cli::engine::{make_ready, run_one, with_engine};
use crate::cli::signals::StopSignal;
use crate::progress::Screen;
use crate::task_file::one_tool_task;
use crate::{Interrupted, Outcome, output, settings, text};

/// Measure real rollouts against the same agents run bare.
///
/// Bare is the agent on the host, with the same program, arguments, environment, files and first-start state, a home in
/// memory, straight at the scripted endpoint in its own dialect. A rollout is everything from its submission on. Both
/// write one file, turn about in one run, so that the ratio means something on a busy machine; a first round of each is
/// not counted. An agent with a server is measured with it, too: started by the rollout, and standing ready before it.
/// `cargo bench -p rollcage-sandbox` measures the sandbox alone.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often each is run
    #[arg(short, long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// An agent, as `rollcage run --agent` takes it; repeatable, and `all` is every one that asks a model and that can
    /// be installed
    #[arg(
        long,
        default_value = "opencode",
        value_name = "NAME[@VERSION]|FILE.toml|all"
    )]
    agent: Vec<String>,

    /// Print one JSON object per agent
    #[arg(long)]
    json: bool,
}

/// The goals: at most this many times the bare agent's time.
const FIRST_CALL_GOAL: f64 = 1.1;
const WHOLE_GOAL: f64 = 1.15;

/// What a rollout's start consists of; the rest is the record and the proxy.
#[derive(Debug, Serialize)]
struct StartBreakdown {
    sandbox_s: f64,
    agent_s: f64,
    rest_s: f64,
}

#[derive(Debug, Serialize)]
struct AgentComparison {
    agent: String,
    version: String,
    dialect: &'static str,
    rounds: u16,
    bare: Medians,
    rollout: Medians,
    rollout_start: StartBreakdown,
    first_call_ratio: f64,
    first_call_goal: f64,
    whole_ratio: f64,
    whole_goal: f64,
    agent_cpu_ratio: Option<f64>,
    /// Of an agent with a server.
    served: Option<Served>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let agents = chosen(&arguments.agent)?;
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let mut out = output::stdout();
    let measured = with_engine(async |engine| {
        for choice in agents {
            let (name, is_named) = (choice.agent.name().to_owned(), choice.is_named);
            let measured = match measure(engine, choice, arguments.rounds, stop.token()).await {
                Err(error) if !is_named && !error.is::<Interrupted>() => {
                    output::say(&format!("{name} is left out: {error:#}"));
                    continue;
                }
                measured => measured?,
            };
            if arguments.json {
                writeln!(out, "{}", serde_json::to_string(&measured)?)?;
            } else {
                show(&mut out, &measured)?;
            }
        }
        Ok(())
    });
    Box::pin(measured).await?;
    if !arguments.json {
        writeln!(
            out,
            "our own process: {} resident at most (goal: under 60 MiB)",
            text::bytes(resident_bytes()?)
        )?;
    }
    Ok(Outcome::Success)
}

async fn measure(
    engine: &Engine,
    choice: Choice,
    rounds: u16,
    cancel: &CancellationToken,
) -> anyhow::Result<AgentComparison> {
    let bench = Bench::open(engine, choice, cancel).await?;
    let measured = bench.measure(rounds).await;
    bench.scripted.close().await;
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    measured
}

struct Choice {
    agent: Arc<dyn Agent>,
    version: VersionRequest,
    /// Chosen by name, not by `all`.
    is_named: bool,
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<Choice>> {
    let mut chosen = Vec::new();
    for name in names {
        if name == "all" {
            let all = settings::agents()?.into_iter();
            let with_model = all.filter(|agent| agent.dialect().is_some());
            chosen.extend(with_model.map(|agent| Choice {
                agent,
                version: VersionRequest::Default,
                is_named: false,
            }));
            continue;
        }
        let (agent, version) = settings::agent(name)?;
        if agent.dialect().is_none() {
            let message = format!("{name} asks no model, so it has no first call to measure");
            return Err(crate::UsageError(message).into());
        }
        chosen.push(Choice {
            agent,
            version,
            is_named: true,
        });
    }
    Ok(chosen)
}

/// One installed agent, and an endpoint that logs when its calls arrive.
struct Bench<'a> {
    engine: &'a Engine,
    cancel: &'a CancellationToken,
    rollout: ResolvedRollout,
    ready: ReadyAgent,
    scripted: ScriptedEndpoint,
    log: Arc<Log>,
    bare_key: String,
    scratch: PathBuf,
}

impl<'a> Bench<'a> {
    async fn open(
        engine: &'a Engine,
        choice: Choice,
        cancel: &'a CancellationToken,
    ) -> anyhow::Result<Self> {
        let agent = choice.agent;
        let ready = make_ready(engine, (&*agent, choice.version), cancel).await?;
        let task = Task {
            // The bare agent's work is not verified either.
            verify: Vec::new(),
            ..one_tool_task("bench", agent.name())
        };
        // More calls than an agent makes in one run.
        let log = Log::new(64);
        let options = rollcage_scripted::Options {
            log: Some(Arc::clone(&log)),
            ..rollcage_scripted::Options::default()
        };
        let scripted = ScriptedEndpoint::start(options).await?;
        // In memory, as a sandbox's files are, so that the bare agent is not slowed down by the disk.
        let memory = Path::new("/dev/shm");
        let place = match memory.is_dir() {
            true => memory,
            false => engine.store().root(),
        };
        let scratch = place.join(format!("rollcage-bench-{}", std::process::id()));
        let bare_key = scripted.add(Script {
            workdir: outside(&scratch, WORKDIR).display().to_string(),
            ..Script::new(task.solution.clone())
        })?;
        let key = scripted.add(Script::new(task.solution.clone()))?;
        let endpoint = Endpoint::scripted(scripted.base_url(), rollcage_scripted::MODEL, key);
        let rollout = ResolvedRollout::new(task, agent, ready.clone(), endpoint);
        Ok(Bench {
            engine,
            cancel,
            rollout,
            ready,
            scripted,
            log,
            bare_key,
            scratch,
        })
    }

    async fn measure(&self, rounds: u16) -> anyhow::Result<AgentComparison> {
        let (mut bare, mut rollout) = (Vec::new(), Vec::new());
        let mut served = match self.rollout.agent.can_serve() {
            true => Some(ServedRuns::open(self.cancel.clone()).await?),
            false => None,
        };
        for round in 0..=rounds {
            let name = self.rollout.agent.name();
            output::say(&format!("{name}: round {round} of {rounds}"));
            let bare_run = self.cancel.run_until_cancelled(self.run_bare()).await;
            let rollout_run = self.run_rollout(self.engine, AgentDriver::Cli).await?;
            let runs = (bare_run.ok_or(Interrupted)??, rollout_run);
            if let Some(served) = &mut served {
                let run =
                    async |engine: &Engine| self.run_rollout(engine, AgentDriver::Serve).await;
                served.run(self.engine, run, round > 0).await?;
            }
            // The first round only fills the page cache.
            if round > 0 {
                bare.push(runs.0);
                rollout.push(runs.1);
            }
        }
        let served = match served {
            Some(served) => Some(served.close().await),
            None => None,
        };
        let rollout_start = StartBreakdown {
            sandbox_s: median(&rollout, |run| run.sandbox_s),
            agent_s: median(&rollout, |run| run.agent_s),
            rest_s: median(&rollout, |run| {
                run.first_call_s - run.sandbox_s - run.agent_s
            }),
        };
        let (bare, rollout) = (medians(&bare), medians(&rollout));
        let cpu = rollout.agent_cpu_s.zip(bare.agent_cpu_s);
        Ok(AgentComparison {
            agent: self.ready.bundle.agent.clone(),
            version: self.ready.bundle.version.clone(),
            dialect: self.rollout.agent.dialect().map_or("", WireDialect::as_str),
            rounds,
            first_call_ratio: rollout.first_call_s / bare.first_call_s,
            first_call_goal: FIRST_CALL_GOAL,
            whole_ratio: rollout.whole_s / bare.whole_s,
            whole_goal: WHOLE_GOAL,
            agent_cpu_ratio: cpu.map(|(rollout, bare)| rollout / bare),
            bare,
            rollout,
            rollout_start,
            served,
        })
    }

    async fn run_bare(&self) -> anyhow::Result<RunMeasurement> {
        let access = ModelAccess {
            base_url: self.scripted.base_url(),
            key: self.bare_key.clone(),
            model: rollcage_scripted::MODEL.to_owned(),
            context_tokens: 131_072,
            output_tokens: 8192,
            patience_ms: 600_000,
        };
        let bare = Bare::prepare((&self.rollout, &self.ready), &access, &self.scratch)?;
        let before = CpuTime::now()?;
        let since = bare.run().await?;
        let whole_s = since.elapsed().as_secs_f64();
        let after = CpuTime::now()?;
        Ok(RunMeasurement {
            first_call_s: self.first_call(since)?,
            whole_s,
            agent_cpu_s: Some(after.children_s - before.children_s),
            own_cpu_s: after.own_s - before.own_s,
            sandbox_s: 0.0,
            agent_s: 0.0,
        })
    }

    async fn run_rollout(
        &self,
        engine: &Engine,
        driver: AgentDriver,
    ) -> anyhow::Result<RunMeasurement> {
        let mut rollout = self.rollout.clone();
        rollout.task.driver = Some(driver);
        let before = CpuTime::now()?;
        let since = Instant::now();
        let result = run_one(engine, rollout, self.cancel).await?;
        let after = CpuTime::now()?;
        // Records of measurements are of no use to the user.
        let _ = std::fs::remove_dir_all(&result.record);
        ensure!(
            result.files.contains_key(&absolute("hello.txt")),
            "the rollout did not do its task: {:?}",
            result.error
        );
        Ok(RunMeasurement {
            first_call_s: self.first_call(since)?,
            whole_s: result.wall_s,
            agent_cpu_s: result.usage.cpu_s,
            own_cpu_s: after.own_s - before.own_s,
            sandbox_s: result.timings.sandbox_s,
            agent_s: result.timings.first_call_s.unwrap_or_default(),
        })
    }

    fn first_call(&self, since: Instant) -> anyhow::Result<f64> {
        let calls = self.log.take().into_iter();
        let first = calls.map(|served| served.arrived).min();
        let first = first.context("the agent asked no model")?;
        Ok(first.duration_since(since).as_secs_f64())
    }
}

fn show(out: &mut impl Write, measured: &AgentComparison) -> std::io::Result<()> {
    let AgentComparison { bare, rollout, .. } = measured;
    writeln!(
        out,
        "{} {} ({}), medians of {}",
        measured.agent, measured.version, measured.dialect, measured.rounds
    )?;
    let mut line = |name: &str, bare: f64, rollout: f64, goal: &str| {
        writeln!(
            out,
            "  {name:<26} bare {:>8}  rollout {:>8}  {:>5.2} x bare  ({goal})",
            text::duration(bare),
            text::duration(rollout),
            rollout / bare
        )
    };
    line(
        "start to first call",
        bare.first_call_s,
        rollout.first_call_s,
        &format!("goal: at most {FIRST_CALL_GOAL}"),
    )?;
    line(
        "whole run",
        bare.whole_s,
        rollout.whole_s,
        &format!("goal: at most {WHOLE_GOAL}"),
    )?;
    if let (Some(bare), Some(rollout)) = (bare.agent_cpu_s, rollout.agent_cpu_s) {
        let holds = "holds on a busy machine too";
        line("the agent's processor time", bare, rollout, holds)?;
    }
    if let Some(served) = &measured.served {
        served::show(out, bare, served)?;
    }
    writeln!(
        out,
        "  our own processor time     bare {:>8}  rollout {:>8}  (with the scripted endpoint's)",
        text::duration(bare.own_cpu_s),
        text::duration(rollout.own_cpu_s)
    )?;
    let parts = &measured.rollout_start;
    writeln!(
        out,
        "  of the rollout's start     sandbox {}, agent {}, record and proxy {}",
        text::duration(parts.sandbox_s),
        text::duration(parts.agent_s),
        text::duration(parts.rest_s)
    )?;
    Ok(())
}
