//! `rollcage bench live`: many turns over many live agents, every reply checked.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use rollcage_engine::intake::{EndpointOptions, KeySource, RolloutRequest};
use rollcage_engine::live::{LiveAgent, LiveRequest, LiveSandbox, LiveView, TurnInput};
use rollcage_engine::{Engine, EngineLimits, EngineOptions};
use rollcage_model::live::{PermissionPolicy, Reply};
use rollcage_model::task::Task;
use rollcage_proxy::secret::Secret;
use rollcage_scripted::{Script, ScriptedEndpoint};

use self::conversation::ExpectedTurn;
use self::growth::{Growth, Sample};
use self::report::Report;
use super::meter::{CpuTime, available_bytes, descriptors, resident_bytes_now};
use crate::cli::engine::{make_ready, with_engine_of};
use crate::cli::signals::StopSignal;
use crate::progress::Screen;
use crate::{Interrupted, Outcome, UsageError, output, settings, text};

mod conversation;
mod growth;
mod report;

/// Drive many turns of many live agents, and check every reply.
///
/// The agents are real, each in a sandbox of its own, and the scripted model answers them. All of them work at once, each on
/// one turn after the other; in some turns they use their shell, and after ten turns a new conversation begins. Of every
/// turn the replies must be numbered without gaps, end once, and put together give the text that the model said, both as
/// they come and as they are stored.
///
/// Our own resident memory and open descriptors are noted meanwhile. The command fails when a reply was lost or doubled, or
/// when they grew after two fifths of the turns: by more than 20 % and 8 MiB, or 20 % and 16 descriptors.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Turns of all agents together
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,

    /// Live agents; each takes about 500 MiB of memory
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    agents: u16,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const AGENT: &str = "opencode";
/// Not the user's own agents.
const OWNER: &str = "bench";
/// What an agent takes with its sandbox: 430 MiB after 50 turns, 570 after 100.
const AGENT_BYTES: u64 = 512 << 20;
/// Agents that are started at the same time: a start keeps a core busy.
const STARTS_MAX: usize = 4;
/// Twenty servers may share two cores.
const START_LIMIT_S: f64 = 300.0;
const TURN_LIMIT_S: f64 = 300.0;
/// Longer than any measurement takes.
const IDLE_S: f64 = 24.0 * 3600.0;
/// Between two events of the model's streams: a fast model's, and slow enough for texts to come in parts.
const EVENT_PAUSE: Duration = Duration::from_millis(20);
/// Samples of our own process over all turns.
const SAMPLES: usize = 50;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let (turns, agents) = (arguments.turns as usize, usize::from(arguments.agents));
    check(turns, agents)?;
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let options = settings::engine_options().await?;
    let options = EngineOptions {
        limits: EngineLimits {
            live_per_owner: agents,
            live_max: agents,
            ..options.limits
        },
        ..options
    };
    let measured = with_engine_of(options, async |engine| {
        let scripted = ScriptedEndpoint::start(Default::default()).await?;
        let measured = measure(engine, &scripted, (turns, agents), stop.token()).await;
        remove_all(engine).await;
        scripted.close().await;
        measured
    });
    let report = Box::pin(measured).await?;
    let mut out = output::stdout();
    match arguments.json {
        true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        false => report.show(&mut out)?,
    }
    Ok(match report.is_good() {
        true => Outcome::Success,
        false => Outcome::Failure,
    })
}

fn check(turns: usize, agents: usize) -> anyhow::Result<()> {
    if turns < agents {
        let problem = format!("--turns {turns} is less than one turn for each of {agents} agents");
        return Err(UsageError(problem).into());
    }
    let available = available_bytes()?;
    let needed = AGENT_BYTES * agents as u64;
    anyhow::ensure!(
        needed <= available,
        "{agents} agents take about {}, and this machine has {} to spare: use --agents {}",
        text::bytes(needed),
        text::bytes(available),
        (available / AGENT_BYTES).max(1)
    );
    Ok(())
}

async fn measure(
    engine: &Engine,
    scripted: &ScriptedEndpoint,
    (turns, agents): (usize, usize),
    cancel: &CancellationToken,
) -> anyhow::Result<Report> {
    let (agent, version) = settings::agent(AGENT)?;
    make_ready(engine, (&*agent, version), cancel).await?;
    output::say(&format!("starting {agents} live agents"));
    let starting = start_all(engine, scripted, agents);
    let started = cancel.run_until_cancelled(starting).await;
    let started = started.ok_or(Interrupted)??;
    let bench = Bench::new(turns)?;
    let (cpu, since) = (CpuTime::now()?, Instant::now());
    let driving = started.iter().enumerate().map(|(number, agent)| {
        // The first ones take the turns that are left over.
        let turns = turns / agents + usize::from(number < turns % agents);
        bench.drive(number, agent, turns)
    });
    let driven = futures::future::join_all(driving);
    let driven = cancel.run_until_cancelled(driven).await;
    driven.ok_or(Interrupted)?;
    let (whole_s, cpu_s) = (
        since.elapsed().as_secs_f64(),
        CpuTime::now()?.own_s - cpu.own_s,
    );
    let views: Vec<LiveView> = started.iter().map(|agent| agent.view()).collect();
    Ok(bench.report(&views, (whole_s, cpu_s)))
}

/// Returns them in the order of their numbers.
async fn start_all(
    engine: &Engine,
    scripted: &ScriptedEndpoint,
    agents: usize,
) -> anyhow::Result<Vec<Arc<LiveAgent>>> {
    let start = async |number: usize| -> anyhow::Result<Arc<LiveAgent>> {
        let key = scripted.add(Script {
            event_pause: EVENT_PAUSE,
            ..Script::new(conversation::script(number))
        })?;
        let request = request(scripted.base_url(), Secret::new(key));
        Ok(engine.live().start(request).await?)
    };
    let started: Vec<_> = futures::stream::iter((0..agents).map(start))
        .buffered(STARTS_MAX)
        .collect()
        .await;
    started.into_iter().collect()
}

fn request(base_url: String, key: Secret) -> LiveRequest {
    let task = Task {
        id: "bench-live".to_owned(),
        ..Task::default()
    };
    LiveRequest {
        id: None,
        name: String::new(),
        rollout: RolloutRequest {
            agent: AGENT.to_owned(),
            owner: Some(OWNER.to_owned()),
            endpoint: EndpointOptions {
                base_url: Some(base_url),
                key: Some(KeySource::new(key)),
                model: Some(rollcage_scripted::MODEL.to_owned()),
                ..EndpointOptions::default()
            },
            ..RolloutRequest::new(task)
        },
        sandbox: LiveSandbox::Local,
        directory: None,
        deadline_s: START_LIMIT_S,
        poll_s: 0.25,
        idle_s: IDLE_S,
        turn_timeout_s: TURN_LIMIT_S,
        permissions: PermissionPolicy::Allow,
        models: Vec::new(),
    }
}

/// Agents and records of measurements are of no use to the user.
async fn remove_all(engine: &Engine) {
    let views = engine.live().list(OWNER);
    let removing = views.iter().map(async |view| {
        let stopped = engine.live().stop(OWNER, &view.id).await;
        let records = stopped.map_or_else(|_| view.records.clone(), |view| view.records);
        let _ = engine.live().remove(OWNER, &view.id).await;
        for record in records.iter().filter_map(|id| id.parse().ok()) {
            let _ = engine.store().remove(record);
        }
    });
    futures::future::join_all(removing).await;
}

/// What is noted while the agents work.
struct Bench {
    turns: usize,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    turn_s: Vec<f64>,
    replies: u64,
    samples: Vec<Sample>,
    problems: Vec<String>,
}

impl Bench {
    fn new(turns: usize) -> anyhow::Result<Self> {
        let notes = Notes {
            samples: vec![sample(0)?],
            ..Notes::default()
        };
        Ok(Bench {
            turns,
            notes: Mutex::new(notes),
        })
    }

    /// All turns of one agent, one after the other.
    async fn drive(&self, number: usize, agent: &LiveAgent, turns: usize) {
        let mut session = None;
        for turn in 0..turns {
            let expected = conversation::expected(number, turn);
            let since = Instant::now();
            let replies = one_turn(agent, &expected, (number, turn), &mut session).await;
            self.note(
                since.elapsed().as_secs_f64(),
                replies.map_err(|problem| format!("agent {number}, turn {turn}: {problem}")),
            );
        }
    }

    fn note(&self, turn_s: f64, replies: Result<usize, String>) {
        let mut notes = self.notes();
        notes.turn_s.push(turn_s);
        match replies {
            Ok(count) => notes.replies += count as u64,
            Err(problem) => notes.problems.push(problem),
        }
        let done = notes.turn_s.len();
        if done.is_multiple_of((self.turns / SAMPLES).max(1)) || done == self.turns {
            match sample(done) {
                Ok(sample) => notes.samples.push(sample),
                Err(error) => notes.problems.push(format!("{error:#}")),
            }
        }
        if done.is_multiple_of((self.turns / 10).max(1)) {
            output::say(&format!("{done} of {} turns", self.turns));
        }
    }

    fn report(&self, views: &[LiveView], (whole_s, cpu_s): (f64, f64)) -> Report {
        let mut notes = std::mem::take(&mut *self.notes());
        notes.turn_s.sort_by(f64::total_cmp);
        let turns = notes.turn_s.len();
        let first = views.first();
        Report {
            agent: first.map(|view| view.agent.clone()).unwrap_or_default(),
            version: first.map(|view| view.version.clone()).unwrap_or_default(),
            agents: views.len(),
            turns,
            replies: notes.replies,
            turns_per_s: turns as f64 / whole_s,
            turn_median_s: notes.turn_s[turns / 2],
            turn_p95_s: notes.turn_s[turns * 95 / 100],
            own_cpu_s_per_turn: cpu_s / turns as f64,
            restarts: views.iter().map(|view| view.restarts).sum(),
            agent_memory_bytes: views.iter().filter_map(|view| view.memory_bytes).max(),
            memory: Growth::of_memory(&notes.samples),
            descriptors: Growth::of_descriptors(&notes.samples),
            samples: notes.samples,
            problems: notes.problems,
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drives a turn and checks its replies; returns their number, or what is wrong with them.
async fn one_turn(
    agent: &LiveAgent,
    expected: &ExpectedTurn,
    (number, turn): (usize, usize),
    session: &mut Option<String>,
) -> Result<usize, String> {
    let trace_id = format!("{number}-{turn}");
    let input = TurnInput {
        text: format!("Turn {turn}: say something."),
        is_new_session: expected.is_new_session,
        trace_id: Some(trace_id.clone()),
        ..TurnInput::default()
    };
    let begun = agent.turn(input).map_err(|error| error.to_string())?;
    let mut replies: Vec<Reply> = Vec::new();
    while !replies.last().is_some_and(|last| last.kind.is_terminal()) {
        let seq = replies.last().map_or(0, |last| last.seq);
        // Ends at the turn's own limit.
        begun.wait_after(seq).await;
        let more = begun.after(seq);
        if more.is_empty() {
            return Err(format!(
                "the turn ended after reply {seq}, which is not terminal"
            ));
        }
        replies.extend(more);
    }
    let stored = agent.stored_replies(begun.id()).await;
    if stored.map_err(|error| error.to_string())? != replies {
        return Err("the stored replies are not those that came".to_owned());
    }
    let before = session.take();
    *session = replies.last().and_then(|last| last.session_id.clone());
    expected.check(&replies, &trace_id)?;
    match (*session == before) == expected.is_new_session {
        true => Err(format!("session {session:?} after {before:?}")),
        false => Ok(replies.len()),
    }
}

fn sample(turns: usize) -> anyhow::Result<Sample> {
    Ok(Sample {
        turns,
        resident_bytes: resident_bytes_now()?,
        descriptors: descriptors()?,
    })
}
