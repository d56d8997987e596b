//! `rollcage agent doctor`: does an agent still behave as its manifest expects?

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use rollcage_engine::agent::{Agent, Expectation};
use rollcage_engine::bundle::VersionRequest;
use rollcage_engine::endpoint::EndpointChoice;
use rollcage_engine::proxy::probe::Profile;
use rollcage_engine::remote::Remotes;
use rollcage_engine::{Engine, ModelSettings, Plan};
use rollcage_model::record::{Ended, RolloutResult};
use rollcage_model::script::Step;
use rollcage_model::task::Task;
use rollcage_model::trace::CaptureLevel;

use crate::progress::InstallProgress;
use crate::{Outcome, settings, text};

/// How answers reach the agent; one that does not stream gets them whole in both.
const MODES: [(&str, bool); 2] = [("live", true), ("replayed", false)];

/// What one run showed.
#[derive(Debug, Serialize)]
struct Finding {
    agent: String,
    version: String,
    /// `live` passes streams on as they come; `replayed` makes them from whole answers.
    mode: &'static str,
    is_fine: bool,
    problems: Vec<String>,
    level: CaptureLevel,
    calls: usize,
    /// Requests beside the agent's own conversation.
    side_calls: usize,
    /// Of the agent's turns, how many go on exactly from the one before.
    exact_prefix_rate: f64,
    first_call_s: Option<f64>,
    wall_s: f64,
    memory_peak_bytes: Option<u64>,
}

/// Installs each agent, has it write a file with the scripted model in every mode, and compares.
pub(super) async fn run(names: &[String], is_json: bool) -> anyhow::Result<Outcome> {
    let agents: Vec<(Arc<dyn Agent>, VersionRequest)> = if names.is_empty() {
        let all = settings::agents()?.into_iter();
        let with_model = all.filter(|agent| agent.dialect().is_some());
        with_model
            .map(|agent| (agent, VersionRequest::Default))
            .collect()
    } else {
        let found = names.iter().map(|name| settings::agent(name));
        found.collect::<anyhow::Result<_>>()?
    };
    let engine = settings::engine().await?;
    let mut are_fine = true;
    if !is_json {
        head(&mut std::io::stdout().lock())?;
    }
    for (agent, version) in agents {
        let progress = InstallProgress::new();
        let ready = engine
            .ready(&*agent, version, &|step| progress.show(&step))
            .await;
        progress.clear();
        let ready = ready?;
        for (mode, has_live_streams) in MODES {
            let plan = plan(&engine, &agent, ready.clone(), has_live_streams).await?;
            let result = run_one(&engine, plan).await?;
            let finding = judge(&agent.expectation(), mode, &result);
            are_fine &= finding.is_fine;
            let mut out = std::io::stdout().lock();
            if is_json {
                writeln!(out, "{}", serde_json::to_string(&finding)?)?;
            } else {
                row(&mut out, &finding)?;
            }
        }
    }
    engine.close().await;
    Ok(if are_fine {
        Outcome::Fine
    } else {
        Outcome::Bad
    })
}

async fn plan(
    engine: &Engine,
    agent: &Arc<dyn Agent>,
    ready: rollcage_engine::ReadyAgent,
    has_live_streams: bool,
) -> anyhow::Result<Plan> {
    let task = Task {
        id: format!("doctor-{}", agent.name()),
        instruction: "Write hello.txt with one line: hello".to_owned(),
        verify: vec!["grep -qx hello hello.txt".to_owned()],
        solution: vec![
            Step {
                write: Some("hello.txt".to_owned()),
                content: Some("hello\n".to_owned()),
                ..Step::default()
            },
            Step {
                say: Some("It is there.".to_owned()),
                ..Step::default()
            },
        ],
        agent_timeout_s: 120.0,
        ..Task::default()
    };
    let mut endpoint = engine.endpoint(&EndpointChoice::Scripted, &task).await?;
    endpoint.profile = Some(Profile {
        has_live_streams,
        ..Profile::whole()
    });
    Ok(Plan {
        task,
        uploads: BTreeMap::new(),
        agent: Arc::clone(agent),
        ready,
        endpoint,
        settings: ModelSettings::default(),
        mcp: Remotes::default(),
    })
}

async fn run_one(engine: &Engine, plan: Plan) -> anyhow::Result<RolloutResult> {
    let (events, _) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    let cancel = CancellationToken::new();
    let ran = engine.run(vec![Arc::new(plan)], 1, events, cancel, |result| {
        results.push(result)
    });
    ran.await?;
    results
        .pop()
        .ok_or_else(|| anyhow::anyhow!("a rollout ended without a result"))
}

fn judge(expected: &Expectation, mode: &'static str, result: &RolloutResult) -> Finding {
    let of_agent = result
        .proxy_turns
        .iter()
        .filter(|turn| turn.role == "agent")
        .count();
    let calls = result.proxy_turns.len();
    let exact = result
        .training_trace
        .as_ref()
        .map_or(0, |trace| trace.turns.len());
    let mut problems = Vec::new();
    if result.ended != Ended::Completed || result.reward != Some(1.0) {
        let why = result.error.as_deref().unwrap_or("the file is not there");
        problems.push(format!("{}: {why}", result.ended.as_str()));
    }
    if result.capture_level != CaptureLevel::Tokens {
        problems.push(format!("captured at level {:?} only", result.capture_level));
    }
    let mut compare = |what: &str, got: usize, wanted: usize| {
        if got != wanted {
            problems.push(format!("{got} {what} instead of {wanted}"));
        }
    };
    compare("turns of its own", of_agent, expected.calls);
    compare("side calls", calls - of_agent, expected.side_calls);
    compare("exact turns", exact, expected.calls);
    Finding {
        agent: result.agent.name.clone(),
        version: result.agent.version.clone(),
        mode,
        is_fine: problems.is_empty(),
        problems,
        level: result.capture_level,
        calls,
        side_calls: calls - of_agent,
        exact_prefix_rate: exact as f64 / of_agent.max(1) as f64,
        first_call_s: result.timings.first_call_s,
        wall_s: result.wall_s,
        memory_peak_bytes: result.usage.memory_peak_bytes,
    }
}

fn head(out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<16} {:<10} {:<9} {:<8} {:>5} {:>5} {:>6} {:>10} {:>9} {:>10}  verdict",
        "agent",
        "version",
        "mode",
        "level",
        "calls",
        "side",
        "exact",
        "first call",
        "wall",
        "memory"
    )
}

fn row(out: &mut impl Write, finding: &Finding) -> std::io::Result<()> {
    let seconds = |value: Option<f64>| value.map_or("-".to_owned(), text::duration);
    let verdict = if finding.is_fine {
        "ok".to_owned()
    } else {
        finding.problems.join("; ")
    };
    let level = format!("{:?}", finding.level).to_lowercase();
    writeln!(
        out,
        "{:<16} {:<10} {:<9} {level:<8} {:>5} {:>5} {:>5.0}% {:>10} {:>9} {:>10}  {verdict}",
        finding.agent,
        finding.version,
        finding.mode,
        finding.calls,
        finding.side_calls,
        100.0 * finding.exact_prefix_rate,
        seconds(finding.first_call_s),
        text::duration(finding.wall_s),
        finding
            .memory_peak_bytes
            .map_or("-".to_owned(), text::bytes),
    )
}
