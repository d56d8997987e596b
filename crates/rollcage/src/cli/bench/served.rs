//! Rollouts whose agent runs as a server, in `rollcage bench rollout`.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;

use tokio_util::sync::CancellationToken;

use rollcage_engine::{Engine, EngineLimits, EngineOptions, WarmLimits};

use super::figures::{Medians, RunMeasurement, medians};
use crate::{Interrupted, settings, text};

/// How long a server may take to stand ready.
const READY_LIMIT: Duration = Duration::from_secs(120);
const READY_PAUSE: Duration = Duration::from_millis(20);
/// The goal for a server that stands ready, in seconds from submission to the first call.
const WARM_GOAL_S: f64 = 0.4;

/// The server is started by the rollout, or stands ready before it.
#[derive(Debug, Serialize)]
pub(super) struct Served {
    cold: Medians,
    warm: Medians,
    warm_goal_s: f64,
}

/// Runs of both kinds, and the engine that keeps a server ready.
pub(super) struct ServedRuns {
    engine: Engine,
    cancel: CancellationToken,
    cold: Vec<RunMeasurement>,
    warm: Vec<RunMeasurement>,
}

impl ServedRuns {
    pub(super) async fn open(cancel: CancellationToken) -> anyhow::Result<Self> {
        let options = EngineOptions {
            limits: EngineLimits {
                warm: WarmLimits {
                    count_max: 1,
                    linger: Duration::from_secs(24 * 3600),
                },
                ..EngineLimits::default()
            },
            ..settings::engine_options().await?
        };
        Ok(ServedRuns {
            engine: settings::open_engine(options).await?,
            cancel,
            cold: Vec::new(),
            warm: Vec::new(),
        })
    }

    /// One of each, by `run`; the other engine keeps no server ready. Nothing is being started when it returns.
    pub(super) async fn run(
        &mut self,
        other: &Engine,
        run: impl AsyncFn(&Engine) -> anyhow::Result<RunMeasurement>,
        is_counted: bool,
    ) -> anyhow::Result<()> {
        let (cold, warm) = match self.measure(other, run).await {
            Ok(measured) => measured,
            Err(error) => {
                self.engine.close().await;
                return Err(error);
            }
        };
        if is_counted {
            self.cold.push(cold);
            self.warm.push(warm);
        }
        Ok(())
    }

    async fn measure(
        &self,
        other: &Engine,
        run: impl AsyncFn(&Engine) -> anyhow::Result<RunMeasurement>,
    ) -> anyhow::Result<(RunMeasurement, RunMeasurement)> {
        let cold = run(other).await?;
        if self.engine.load().warm.misses == 0 {
            run(&self.engine).await?;
            self.ready().await?;
        }
        let hits = self.engine.load().warm.hits;
        let warm = run(&self.engine).await?;
        ensure!(
            self.engine.load().warm.hits == hits + 1,
            "no server stood ready"
        );
        self.ready().await?;
        Ok((cold, warm))
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let since = Instant::now();
        while self.engine.load().warm.ready == 0 {
            ensure!(
                since.elapsed() < READY_LIMIT,
                "the agent's server does not get ready"
            );
            let pause = tokio::time::sleep(READY_PAUSE);
            let paused = self.cancel.run_until_cancelled(pause).await;
            paused.ok_or(Interrupted)?;
        }
        Ok(())
    }

    pub(super) async fn close(self) -> Served {
        self.engine.close().await;
        Served {
            cold: medians(&self.cold),
            warm: medians(&self.warm),
            warm_goal_s: WARM_GOAL_S,
        }
    }
}

pub(super) fn show(out: &mut impl Write, bare: &Medians, served: &Served) -> std::io::Result<()> {
    let Served { cold, warm, .. } = served;
    let mut line = |name: &str, bare: f64, cold: f64, warm: f64, goal: &str| {
        writeln!(
            out,
            "  {name:<26} bare {:>8}  cold {:>8}  ready {:>8}{goal}",
            text::duration(bare),
            text::duration(cold),
            text::duration(warm)
        )
    };
    line(
        "served: to first call",
        bare.first_call_s,
        cold.first_call_s,
        warm.first_call_s,
        &format!("  (goal: ready under {})", text::duration(WARM_GOAL_S)),
    )?;
    line(
        "served: whole run",
        bare.whole_s,
        cold.whole_s,
        warm.whole_s,
        "",
    )?;
    if let (Some(bare), Some(cold), Some(warm)) =
        (bare.agent_cpu_s, cold.agent_cpu_s, warm.agent_cpu_s)
    {
        line("served: processor time", bare, cold, warm, "")?;
    }
    Ok(())
}
