//! `rollcage agent doctor`: checks that an agent still behaves as its manifest says.

use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use rollcage_agents::Agent;
use rollcage_agents::bundle::VersionRequest;
use rollcage_engine::Engine;
use rollcage_engine::intake::ResolvedRollout;
use rollcage_engine::openenv_trace::OpenEnvTrace;
use rollcage_model::ending::Ended;
use rollcage_model::finding::CaptureLevel;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::AgentDriver;
use rollcage_model::trace::Interpretation;
use rollcage_model::transcript::TranscriptFormat;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::probe::Profile;
use rollcage_scripted::DrillReport;
use rollcage_scripted::drill::{Conversation, Drill};
use rollcage_scripted::{Log, Options, Script, ScriptedEndpoint, ServedAnswer};

use crate::cli::engine::{make_ready, run_one, with_engine};
use crate::cli::signals::StopSignal;
use crate::progress::Screen;
use crate::task_file::one_tool_task;
use crate::{Interrupted, Outcome, output, settings, text};

/// What the endpoint returns in a trial run, and how its answers are delivered. Only streams with token ids are ever
/// replayed.
#[derive(Clone, Copy)]
struct TrialMode {
    name: &'static str,
    level: CaptureLevel,
    has_live_streams: bool,
    scenario: Scenario,
    driver: AgentDriver,
}

/// What the scripted model does in a trial run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scenario {
    /// Writes one file and ends.
    OneFile,
    /// A long conversation with everything that agents are known to change, drop or retry.
    Drill,
}

const MODES: [TrialMode; 6] = [
    TrialMode {
        name: "live",
        level: CaptureLevel::Tokens,
        has_live_streams: true,
        scenario: Scenario::OneFile,
        driver: AgentDriver::Cli,
    },
    TrialMode {
        name: "replayed",
        level: CaptureLevel::Tokens,
        has_live_streams: false,
        scenario: Scenario::OneFile,
        driver: AgentDriver::Cli,
    },
    TrialMode {
        name: "logprobs",
        level: CaptureLevel::Logprobs,
        has_live_streams: true,
        scenario: Scenario::OneFile,
        driver: AgentDriver::Cli,
    },
    TrialMode {
        name: "text",
        level: CaptureLevel::Text,
        has_live_streams: true,
        scenario: Scenario::OneFile,
        driver: AgentDriver::Cli,
    },
    TrialMode {
        name: "long",
        level: CaptureLevel::Tokens,
        has_live_streams: true,
        scenario: Scenario::Drill,
        driver: AgentDriver::Cli,
    },
    TrialMode {
        name: "serve",
        level: CaptureLevel::Tokens,
        has_live_streams: true,
        scenario: Scenario::OneFile,
        driver: AgentDriver::Serve,
    },
];

/// The most answers of one run that are logged.
const ANSWERS_MAX: usize = 1000;

/// The result of one trial run.
#[derive(Debug, Serialize)]
pub(super) struct TrialReport {
    agent: String,
    version: String,
    /// `live` passes streams with all tokens on as they arrive; `replayed` makes streams from whole answers; `logprobs`
    /// and `text` pass on streams of an endpoint that returns no more than that; `long` is `live` with a long
    /// conversation; `serve` is `live` with the agent's server, for agents that have one.
    pub(super) mode: &'static str,
    pub(super) is_fine: bool,
    pub(super) problems: Vec<String>,
    level: CaptureLevel,
    calls: usize,
    /// Requests outside the agent's main conversation, such as titles.
    side_calls: usize,
    /// The share of the turns that the agent continued from which are trained with their exact tokens; `None` without
    /// tokens. Agents continue from every turn, except in long conversations, where they change what they send back.
    exact_prefix_rate: Option<f64>,
    first_call_s: Option<f64>,
    wall_s: f64,
    memory_peak_bytes: Option<u64>,
    /// What happened to the replies of a long conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    drill: Option<DrillReport>,
}

/// Installs each agent, runs it with the scripted model in every mode, and compares the results with its manifest.
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
    Box::pin(with_trials(async |trials| {
        try_all(trials, agents, is_json).await
    }))
    .await
}

/// What agents are tried out with.
pub(super) struct Trials<'a> {
    engine: &'a Engine,
    scripted: &'a ScriptedEndpoint,
    log: &'a Log,
    cancel: &'a CancellationToken,
}

/// Does a command's work with an engine and a scripted endpoint.
pub(super) async fn with_trials<T>(
    work: impl AsyncFnOnce(&Trials<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    with_engine(async |engine| {
        let log = Log::new(ANSWERS_MAX);
        let scripted = ScriptedEndpoint::start(Options {
            log: Some(Arc::clone(&log)),
            ..Options::default()
        });
        let scripted = scripted.await?;
        let trials = Trials {
            engine,
            scripted: &scripted,
            log: &log,
            cancel: stop.token(),
        };
        let done = work(&trials).await;
        scripted.close().await;
        done
    })
    .await
}

impl Trials<'_> {
    pub(super) fn cancel(&self) -> &CancellationToken {
        self.cancel
    }

    /// Installs an agent and runs it in every mode that it has.
    pub(super) async fn run(
        &self,
        (agent, version): (&Arc<dyn Agent>, VersionRequest),
        mut on_report: impl FnMut(TrialReport) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let ready = make_ready(self.engine, (&**agent, version), self.cancel).await?;
        let modes = MODES.into_iter();
        for mode in modes.filter(|mode| mode.driver == AgentDriver::Cli || agent.can_serve()) {
            let rollout = rollout(self.scripted, agent, ready.clone(), mode)?;
            let result = run_one(self.engine, rollout, self.cancel).await?;
            let served = self.log.take();
            let seen = self.engine.store().interpret_result(&result)?;
            on_report(match mode.scenario {
                Scenario::OneFile => judge(&**agent, mode, &result, &OpenEnvTrace::new(&seen)),
                Scenario::Drill => judge_drill(&**agent, mode, &result, (&served, &seen)),
            })?;
        }
        Ok(())
    }
}

async fn try_all(
    trials: &Trials<'_>,
    agents: Vec<(Arc<dyn Agent>, VersionRequest)>,
    is_json: bool,
) -> anyhow::Result<Outcome> {
    let mut out = output::stdout();
    let mut are_fine = true;
    if !is_json {
        table_head(&mut out)?;
    }
    for (agent, version) in agents {
        let tried = trials.run((&agent, version), |report| {
            are_fine &= report.is_fine;
            if is_json {
                writeln!(out, "{}", serde_json::to_string(&report)?)?;
            } else {
                row(&mut out, &report)?;
            }
            Ok(())
        });
        match Box::pin(tried).await {
            Ok(()) => {}
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                are_fine = false;
                output::say(&format!("{}: {error:#}", agent.name()));
            }
        }
    }
    Ok(if are_fine {
        Outcome::Success
    } else {
        Outcome::Failure
    })
}

fn rollout(
    scripted: &ScriptedEndpoint,
    agent: &Arc<dyn Agent>,
    ready: rollcage_agents::ReadyAgent,
    mode: TrialMode,
) -> anyhow::Result<ResolvedRollout> {
    let (mut task, script) = match mode.scenario {
        Scenario::OneFile => {
            let task = one_tool_task("doctor", agent.name());
            let script = Script::new(task.solution.clone());
            (task, script)
        }
        Scenario::Drill => {
            let expected = agent.expectation().long;
            let drill = Drill::without(&expected.without);
            let mut task = drill.task(format!("doctor-{}", agent.name()));
            task.agent.tools = expected.tools;
            (task, Script::of_drill(drill))
        }
    };
    task.driver = Some(mode.driver);
    let key = scripted.add(Script {
        level: mode.level,
        ..script
    })?;
    let endpoint = Endpoint {
        has_token_ids: mode.level == CaptureLevel::Tokens,
        profile: Some(Profile {
            level: mode.level,
            has_live_streams: mode.has_live_streams,
            ..Profile::whole()
        }),
        ..Endpoint::scripted(scripted.base_url(), rollcage_scripted::MODEL, key)
    };
    Ok(ResolvedRollout::new(
        task,
        Arc::clone(agent),
        ready,
        endpoint,
    ))
}

fn judge(
    agent: &dyn Agent,
    mode: TrialMode,
    result: &RolloutResult,
    traced: &OpenEnvTrace,
) -> TrialReport {
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
    problems.extend(unsolved(result));
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
    problems.extend(unserved(mode, result));
    TrialReport {
        exact_prefix_rate: has_tokens.then(|| exact as f64 / of_agent.max(1) as f64),
        side_calls: calls - of_agent,
        ..report(mode, result, problems)
    }
}

/// The part of a report that all scenarios have in common.
fn report(mode: TrialMode, result: &RolloutResult, problems: Vec<String>) -> TrialReport {
    TrialReport {
        agent: result.agent.name.clone(),
        version: result.agent.version.clone(),
        mode: mode.name,
        is_fine: problems.is_empty(),
        problems,
        level: result.capture_level,
        calls: usize::try_from(result.usage.calls).unwrap_or(usize::MAX),
        side_calls: 0,
        exact_prefix_rate: None,
        first_call_s: result.timings.first_call_s,
        wall_s: result.wall_s,
        memory_peak_bytes: result.usage.memory_peak_bytes,
        drill: None,
    }
}

/// Whether every reply of a long conversation is trained as it was sampled, except those that the agent is known to
/// discard.
fn judge_drill(
    agent: &dyn Agent,
    mode: TrialMode,
    result: &RolloutResult,
    (served, seen): (&[ServedAnswer], &Interpretation),
) -> TrialReport {
    let expected = agent.expectation();
    let account = DrillReport::new(served, seen);
    let mut problems = Vec::new();
    problems.extend(unsolved(result));
    let mut left_out = account.left_out.iter();
    if let Some(told) = left_out.find(|told| !expected.long.thrown_away.contains(&told.part)) {
        problems.push(format!("`{}` is not trained: {}", told.part, told.why));
    }
    let mut changed = account.changed.iter();
    if let Some(told) = changed.find(|told| told.why.is_empty()) {
        problems.push(format!(
            "no finding tells that `{}` came back changed",
            told.part
        ));
    }
    if !account.strange.is_empty() {
        problems.push(format!(
            "the trace has what was not sent: {}",
            account.strange.join(", ")
        ));
    }
    problems.extend(unread_events(agent, result));
    let gone_on_from = account.replies.saturating_sub(account.asked_again.len());
    let is_aside = |served: &&ServedAnswer| {
        served.played.map(|played| played.conversation) == Some(Conversation::Aside)
    };
    TrialReport {
        side_calls: served.iter().filter(is_aside).count(),
        exact_prefix_rate: Some(account.trained as f64 / gone_on_from.max(1) as f64),
        drill: Some(account),
        ..report(mode, result, problems)
    }
}

/// Why the task was not solved, if it was not.
fn unsolved(result: &RolloutResult) -> Option<String> {
    (result.ended != Ended::Completed || result.reward != Some(1.0)).then(|| {
        let why = result.error.as_deref().unwrap_or("the file is not there");
        format!("{}: {why}", result.ended.as_str())
    })
}

/// Whether the agent's events could not be read. An agent whose event format has changed still solves its task, so its
/// transcript would be lost without notice.
fn unread_events(agent: &dyn Agent, result: &RolloutResult) -> Option<String> {
    let report = &result.agent_report;
    let has_events = agent.events().format != TranscriptFormat::Text;
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

/// What is missing of a served agent: its session, or its own transcript. Everything else that is asked of a server is
/// needed to solve the task.
fn unserved(mode: TrialMode, result: &RolloutResult) -> Option<String> {
    if mode.driver == AgentDriver::Cli {
        return None;
    }
    let Some(session) = &result.serve_session_id else {
        return Some("its server made no session".to_owned());
    };
    let messages = std::path::Path::new(&result.record).join("messages.json");
    let has_messages = std::fs::read_to_string(messages)
        .is_ok_and(|text| text.contains(session) && text.contains("\"parts\""));
    (!has_messages).then(|| "its server gave no messages of its session".to_owned())
}

/// What happened to a long conversation, in a few words.
fn describe_drill(account: &DrillReport) -> String {
    let mut text = format!("{} of {} replies trained", account.trained, account.replies);
    let again: Vec<_> = account
        .asked_again
        .iter()
        .map(|part| part.as_str())
        .collect();
    let changed: Vec<_> = account
        .changed
        .iter()
        .map(|told| told.part.as_str())
        .collect();
    for (what, parts) in [("thrown away", again), ("sent back changed", changed)] {
        if !parts.is_empty() {
            text.push_str(&format!("; {what}: {}", parts.join(", ")));
        }
    }
    text
}

pub(super) fn table_head(out: &mut impl Write) -> std::io::Result<()> {
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

pub(super) fn row(out: &mut impl Write, report: &TrialReport) -> std::io::Result<()> {
    let seconds = |value: Option<f64>| value.map_or("-".to_owned(), text::duration);
    let verdict = match (report.is_fine, &report.drill) {
        (true, None) => "ok".to_owned(),
        (true, Some(account)) => format!("ok: {}", describe_drill(account)),
        (false, None) => report.problems.join("; "),
        (false, Some(account)) => format!(
            "{}; {}",
            report.problems.join("; "),
            describe_drill(account)
        ),
    };
    let level = format!("{:?}", report.level).to_lowercase();
    writeln!(
        out,
        "{:<16} {:<10} {:<9} {level:<8} {:>5} {:>5} {:>6} {:>10} {:>9} {:>10}  {verdict}",
        report.agent,
        report.version,
        report.mode,
        report.calls,
        report.side_calls,
        report
            .exact_prefix_rate
            .map_or("-".to_owned(), |rate| format!("{:.0}%", 100.0 * rate)),
        seconds(report.first_call_s),
        text::duration(report.wall_s),
        report.memory_peak_bytes.map_or("-".to_owned(), text::bytes),
    )
}
