//! `rollcage agent doctor`: does an agent still behave as its manifest expects?

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use rollcage_engine::agent::Agent;
use rollcage_engine::bundle::VersionRequest;
use rollcage_engine::endpoint::Endpoint;
use rollcage_engine::proxy::probe::Profile;
use rollcage_engine::remote::Remotes;
use rollcage_engine::scripted::{Options, Script, Scripted};
use rollcage_engine::traced::Traced;
use rollcage_engine::{Engine, ModelSettings, Plan};
use rollcage_model::record::{Ended, RolloutResult};
use rollcage_model::trace::CaptureLevel;
use rollcage_model::transcript::Format;

use crate::cli::engine::{make_ready, with_engine};
use crate::cli::signals::Stop;
use crate::cli::task::one_tool_task;
use crate::progress::Screen;
use crate::{Interrupted, Outcome, output, settings, text};

/// What the endpoint gives, and how its answers reach the agent. Only streams with token ids are ever replayed.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    level: CaptureLevel,
    has_live_streams: bool,
}

const MODES: [Mode; 4] = [
    Mode {
        name: "live",
        level: CaptureLevel::Tokens,
        has_live_streams: true,
    },
    Mode {
        name: "replayed",
        level: CaptureLevel::Tokens,
        has_live_streams: false,
    },
    Mode {
        name: "logprobs",
        level: CaptureLevel::Logprobs,
        has_live_streams: true,
    },
    Mode {
        name: "text",
        level: CaptureLevel::Text,
        has_live_streams: true,
    },
];

/// What one run showed.
#[derive(Debug, Serialize)]
struct Finding {
    agent: String,
    version: String,
    /// `live` passes streams with all tokens on as they come; `replayed` makes them from whole answers; `logprobs` and
    /// `text` pass on those of an endpoint that gives no more than that.
    mode: &'static str,
    is_fine: bool,
    problems: Vec<String>,
    level: CaptureLevel,
    calls: usize,
    /// Requests beside the agent's own conversation.
    side_calls: usize,
    /// Of the agent's turns, how many go on exactly from the one before; unknown where there are no tokens.
    exact_prefix_rate: Option<f64>,
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
    let stop = Stop::watch(Screen::new(), "Ending; again to end at once.")?;
    let tried = with_engine(async |engine| {
        let scripted = Scripted::start(Options::default()).await?;
        let tried = try_all(engine, &scripted, agents, is_json, stop.token()).await;
        scripted.close().await;
        tried
    });
    Box::pin(tried).await
}

async fn try_all(
    engine: &Engine,
    scripted: &Scripted,
    agents: Vec<(Arc<dyn Agent>, VersionRequest)>,
    is_json: bool,
    cancel: &CancellationToken,
) -> anyhow::Result<Outcome> {
    let mut out = output::stdout();
    let mut are_fine = true;
    if !is_json {
        head(&mut out)?;
    }
    for (agent, version) in agents {
        let ready = match make_ready(engine, (&*agent, version), cancel).await {
            Ok(ready) => ready,
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                are_fine = false;
                output::say(&format!("{}: {error:#}", agent.name()));
                continue;
            }
        };
        for mode in MODES {
            let plan = plan(scripted, &agent, ready.clone(), mode)?;
            let result = run_one(engine, plan, cancel).await?;
            let traced = Traced::read(&result)?;
            let finding = judge(&*agent, mode, &result, &traced);
            are_fine &= finding.is_fine;
            if is_json {
                writeln!(out, "{}", serde_json::to_string(&finding)?)?;
            } else {
                row(&mut out, &finding)?;
            }
        }
    }
    Ok(if are_fine {
        Outcome::Fine
    } else {
        Outcome::Bad
    })
}

fn plan(
    scripted: &Scripted,
    agent: &Arc<dyn Agent>,
    ready: rollcage_engine::ReadyAgent,
    mode: Mode,
) -> anyhow::Result<Plan> {
    let task = one_tool_task("doctor", agent.name());
    let key = scripted.add(Script {
        level: mode.level,
        ..Script::new(task.solution.clone())
    })?;
    let endpoint = Endpoint {
        has_token_ids: mode.level == CaptureLevel::Tokens,
        profile: Some(Profile {
            level: mode.level,
            has_live_streams: mode.has_live_streams,
            ..Profile::whole()
        }),
        ..Endpoint::scripted(scripted.base_url(), key)
    };
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

async fn run_one(
    engine: &Engine,
    plan: Plan,
    cancel: &CancellationToken,
) -> anyhow::Result<RolloutResult> {
    let (events, _) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    let ran = engine.run(vec![Arc::new(plan)], 1, events, cancel.clone(), |result| {
        results.push(result)
    });
    ran.await?;
    if cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    results
        .pop()
        .ok_or_else(|| anyhow::anyhow!("a rollout ended without a result"))
}

fn judge(agent: &dyn Agent, mode: Mode, result: &RolloutResult, traced: &Traced) -> Finding {
    let expected = agent.expectation();
    let of_agent = traced
        .proxy_turns
        .iter()
        .filter(|turn| turn.role == "agent")
        .count();
    let calls = traced.proxy_turns.len();
    let exact = traced
        .training_trace
        .as_ref()
        .map_or(0, |trace| trace.turns.len());
    let has_tokens = mode.level == CaptureLevel::Tokens;
    let mut problems = Vec::new();
    if result.ended != Ended::Completed || result.reward != Some(1.0) {
        let why = result.error.as_deref().unwrap_or("the file is not there");
        problems.push(format!("{}: {why}", result.ended.as_str()));
    }
    if result.capture_level != mode.level {
        let (got, wanted) = (result.capture_level, mode.level);
        problems.push(format!("captured at level {got:?} instead of {wanted:?}"));
    }
    let mut compare = |what: &str, got: usize, wanted: usize| {
        if got != wanted {
            problems.push(format!("{got} {what} instead of {wanted}"));
        }
    };
    compare("turns of its own", of_agent, expected.calls);
    compare("side calls", calls - of_agent, expected.side_calls);
    if has_tokens {
        compare("exact turns", exact, expected.calls);
    }
    problems.extend(unread_events(agent, result));
    Finding {
        agent: result.agent.name.clone(),
        version: result.agent.version.clone(),
        mode: mode.name,
        is_fine: problems.is_empty(),
        problems,
        level: result.capture_level,
        calls,
        side_calls: calls - of_agent,
        exact_prefix_rate: has_tokens.then(|| exact as f64 / of_agent.max(1) as f64),
        first_call_s: result.timings.first_call_s,
        wall_s: result.wall_s,
        memory_peak_bytes: result.usage.memory_peak_bytes,
    }
}

/// An agent that tells its events in another way than before still does its task, and its account is lost in silence.
fn unread_events(agent: &dyn Agent, result: &RolloutResult) -> Option<String> {
    let report = &result.agent_report;
    let has_events = agent.events().format != Format::Text;
    (has_events && (report.tool_calls == 0 || report.last_message.is_none())).then(|| {
        format!(
            "its events tell of {} tool calls and {}",
            report.tool_calls,
            match report.last_message {
                Some(_) => "a last word",
                None => "no last word",
            }
        )
    })
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
        "{:<16} {:<10} {:<9} {level:<8} {:>5} {:>5} {:>6} {:>10} {:>9} {:>10}  {verdict}",
        finding.agent,
        finding.version,
        finding.mode,
        finding.calls,
        finding.side_calls,
        finding
            .exact_prefix_rate
            .map_or("-".to_owned(), |rate| format!("{:.0}%", 100.0 * rate)),
        seconds(finding.first_call_s),
        text::duration(finding.wall_s),
        finding
            .memory_peak_bytes
            .map_or("-".to_owned(), text::bytes),
    )
}
