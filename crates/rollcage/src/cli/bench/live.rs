//! `rollcage bench live`: many turns over several live agents in one process, which must neither grow nor lose a reply.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use futures::StreamExt;
use futures::stream;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use rollcage_engine::intake::{EndpointOptions, RolloutRequest};
use rollcage_engine::live::{LiveAgent, LiveRequest, LiveSandbox, TurnInput};
use rollcage_engine::{Engine, EngineLimits, EngineOptions, LOCAL};
use rollcage_model::live::{Reply, ReplyKind};
use rollcage_model::script::Step;
use rollcage_model::task::Task;

use super::meter::Footprint;
use crate::cli::engine::with_engine_of;
use crate::cli::signals::StopSignal;
use crate::progress::Screen;
use crate::server::live::{DEADLINE_S, POLL_S, ReplyFollower, SECONDS_MAX};
use crate::{Interrupted, Outcome, output, settings, text};

/// Turns of one conversation; the next one begins a new one.
const TURNS_PER_SESSION: usize = 4;
/// Agents that start at once.
const STARTS: usize = 2;
/// How often our own memory and descriptors are looked at.
const SAMPLES: usize = 10;
/// After the first samples, in which caches fill.
const SETTLED: usize = 3;
/// Growth from then on that is noise.
const MEMORY_SLACK: f64 = 1.1;
const DESCRIPTORS_SLACK: usize = 8;
const TURN_LIMIT_S: f64 = 300.0;

/// Drive many turns over several live agents: our memory and descriptors stay flat, and no reply is lost or doubled.
///
/// The agents are real servers (`opencode serve`) in sandboxes of their own, the model is the scripted one; every other
/// turn calls a tool. Each turn's replies are compared with what is stored of it. Twenty agents need some 10 GiB.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many agents
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    agents: u16,

    /// How many turns, over all agents
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Sample {
    turns: usize,
    wall_s: f64,
    memory_bytes: u64,
    descriptors: usize,
}

#[derive(Debug, Serialize)]
struct Soak {
    agents: usize,
    turns: usize,
    replies: usize,
    broken: Vec<String>,
    start_s: f64,
    wall_s: f64,
    turn_median_s: f64,
    turn_p95_s: f64,
    samples: Vec<Sample>,
    is_flat: bool,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let stop = StopSignal::watch(Screen::new(), "Ending; again to end at once.")?;
    let agents = usize::from(arguments.agents);
    let options = EngineOptions {
        limits: EngineLimits {
            live_per_owner: agents,
            live_max: agents,
            ..EngineLimits::default()
        },
        ..settings::engine_options().await?
    };
    let turns = usize::try_from(arguments.turns)?;
    let soaked = with_engine_of(options, async |engine| {
        let began = Instant::now();
        let soaked = soak(engine, (agents, turns), began, stop.token()).await;
        remove_all(engine).await;
        soaked
    });
    let soaked = Box::pin(soaked).await?;
    let mut out = output::stdout();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&soaked)?)?;
    } else {
        show(&mut out, &soaked)?;
    }
    Ok(match soaked.is_flat && soaked.broken.is_empty() {
        true => Outcome::Success,
        false => Outcome::Failure,
    })
}

async fn soak(
    engine: &Engine,
    (count, turns): (usize, usize),
    began: Instant,
    cancel: &CancellationToken,
) -> anyhow::Result<Soak> {
    let starts = (0..count).map(|number| engine.live().start(request(number)));
    let starting = stream::iter(starts).buffered(STARTS).collect::<Vec<_>>();
    let started = cancel.run_until_cancelled(starting).await;
    let started: Result<Vec<_>, _> = started.ok_or(Interrupted)?.into_iter().collect();
    let agents = started.context("start the agents")?;
    let start_s = began.elapsed().as_secs_f64();
    let tally = Tally::new(turns);
    let driven = agents.iter().map(|agent| drive(agent, &tally));
    let driven = futures::future::try_join_all(driven);
    cancel
        .run_until_cancelled(driven)
        .await
        .ok_or(Interrupted)??;
    let mut seen = tally.seen.into_inner();
    seen.seconds.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (seen.seconds.len() as f64 * share) as usize;
        seen.seconds.get(place).copied().unwrap_or_default()
    };
    Ok(Soak {
        agents: count,
        turns: seen.seconds.len(),
        replies: seen.replies,
        start_s,
        wall_s: tally.began.elapsed().as_secs_f64(),
        turn_median_s: at(0.5),
        turn_p95_s: at(0.95),
        is_flat: is_flat(&seen.samples),
        broken: seen.broken,
        samples: seen.samples,
    })
}

/// What all agents' turns add up to.
struct Tally {
    turns: usize,
    taken: AtomicUsize,
    began: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    replies: usize,
    seconds: Vec<f64>,
    broken: Vec<String>,
    samples: Vec<Sample>,
}

impl Tally {
    fn new(turns: usize) -> Self {
        Tally {
            turns,
            taken: AtomicUsize::new(0),
            began: Instant::now(),
            seen: Mutex::default(),
        }
    }

    fn take(&self) -> bool {
        self.taken.fetch_add(1, Ordering::Relaxed) < self.turns
    }

    async fn add(
        &self,
        seconds: f64,
        replies: usize,
        problem: Option<String>,
    ) -> anyhow::Result<()> {
        let mut seen = self.seen.lock().await;
        seen.replies += replies;
        seen.seconds.push(seconds);
        seen.broken.extend(problem);
        let done = seen.seconds.len();
        if (done * SAMPLES) / self.turns > ((done - 1) * SAMPLES) / self.turns {
            let footprint = Footprint::now()?;
            seen.samples.push(Sample {
                turns: done,
                wall_s: self.began.elapsed().as_secs_f64(),
                memory_bytes: footprint.resident_bytes,
                descriptors: footprint.descriptors,
            });
        }
        Ok(())
    }
}

/// Drives turns of one agent, one after the other, until all are taken.
async fn drive(agent: &Arc<LiveAgent>, tally: &Tally) -> anyhow::Result<()> {
    let mut number = 0;
    while tally.take() {
        let began = Instant::now();
        let turn = agent.turn(TurnInput {
            text: format!("turn {number}"),
            is_new_session: number % TURNS_PER_SESSION == 0,
            timeout_s: Some(TURN_LIMIT_S),
            ..TurnInput::default()
        })?;
        let mut follower = ReplyFollower::of(Arc::clone(&turn), 0);
        let mut replies = Vec::new();
        while let Some(reply) = follower.next().await {
            replies.push(reply);
        }
        let seconds = began.elapsed().as_secs_f64();
        turn.ended().await;
        let stored = agent.stored_replies(turn.id()).await?;
        let problem = problem(&replies, &stored, number % TURNS_PER_SESSION);
        let problem = problem.map(|what| format!("turn {} of {}: {what}", number + 1, agent.id()));
        tally.add(seconds, replies.len(), problem).await?;
        number += 1;
    }
    Ok(())
}

/// What is wrong with the replies of a turn.
fn problem(replies: &[Reply], stored: &[Reply], place: usize) -> Option<String> {
    let is_in_order = (1..).zip(replies).all(|(seq, reply)| reply.seq == seq);
    let ends = replies.iter().filter(|reply| reply.kind.is_terminal());
    let mut said = String::new();
    let mut calls = 0;
    for reply in replies {
        match &reply.kind {
            ReplyKind::Delta { text } => said.push_str(text),
            ReplyKind::Tool { output, .. } => calls += usize::from(output.is_some()),
            _ => {}
        }
    }
    let expected = answer(place);
    match replies.last().map(|reply| &reply.kind) {
        _ if !is_in_order => Some("replies are lost or doubled".to_owned()),
        _ if ends.count() != 1 => Some("it has not one end".to_owned()),
        _ if stored != replies => Some("what is stored is something else".to_owned()),
        Some(ReplyKind::Final { text, .. }) if *text != expected => {
            Some(format!("it ended with `{}`", text::line(text, 60)))
        }
        Some(ReplyKind::Final { .. }) if said != expected => {
            Some(format!("it said `{}`", text::line(&said, 60)))
        }
        Some(ReplyKind::Final { .. }) if calls != 1 => Some(format!("{calls} calls of one")),
        Some(ReplyKind::Final { .. }) => None,
        end => Some(format!("it ended as {end:?}")),
    }
}

fn answer(place: usize) -> String {
    format!("This was turn {place} of the conversation.")
}

fn request(number: usize) -> LiveRequest {
    let steps = (0..TURNS_PER_SESSION).flat_map(|place| {
        let call = Step::shell(format!("echo {place} >> turns.txt; tail -n 1 turns.txt"));
        let say = Step {
            say: Some(answer(place)),
            ..Step::default()
        };
        [call, say]
    });
    let task = Task {
        id: "bench-live".to_owned(),
        solution: steps.collect(),
        ..Task::default()
    };
    LiveRequest {
        id: None,
        name: format!("bench-{}", number + 1),
        rollout: RolloutRequest {
            endpoint: EndpointOptions {
                kind: Some("scripted".to_owned()),
                ..EndpointOptions::default()
            },
            ..RolloutRequest::new(task)
        },
        sandbox: LiveSandbox::Local,
        // All of them start on one machine.
        directory: None,
        deadline_s: 2.0 * DEADLINE_S,
        poll_s: POLL_S,
        idle_s: SECONDS_MAX,
        turn_timeout_s: TURN_LIMIT_S,
        permissions: Default::default(),
        models: Vec::new(),
    }
}

fn is_flat(samples: &[Sample]) -> bool {
    let (Some(first), Some(last)) = (samples.get(SETTLED), samples.last()) else {
        return true;
    };
    let limit = first.memory_bytes as f64 * MEMORY_SLACK;
    last.memory_bytes as f64 <= limit && last.descriptors <= first.descriptors + DESCRIPTORS_SLACK
}

async fn remove_all(engine: &Engine) {
    let live = engine.live();
    for view in live.list(LOCAL) {
        if view.name.starts_with("bench-") {
            // What cannot be removed is closed with the engine.
            let _ = live.stop(LOCAL, &view.id).await;
            let _ = live.remove(LOCAL, &view.id).await;
        }
    }
}

fn show(out: &mut impl Write, soak: &Soak) -> anyhow::Result<()> {
    ensure!(!soak.samples.is_empty(), "nothing was measured");
    writeln!(
        out,
        "{} agents started in {}; {} turns in {}, {} replies",
        soak.agents,
        text::duration(soak.start_s),
        text::count(soak.turns as u64),
        text::duration(soak.wall_s),
        text::count(soak.replies as u64)
    )?;
    writeln!(
        out,
        "a turn: median {}, 95 of 100 under {}",
        text::duration(soak.turn_median_s),
        text::duration(soak.turn_p95_s)
    )?;
    writeln!(
        out,
        "\n{:>6}  {:>10}  {:>10}  {:>11}",
        "TURNS", "TIME", "MEMORY", "DESCRIPTORS"
    )?;
    for sample in &soak.samples {
        writeln!(
            out,
            "{:>6}  {:>10}  {:>10}  {:>11}",
            sample.turns,
            text::duration(sample.wall_s),
            text::bytes(sample.memory_bytes),
            sample.descriptors
        )?;
    }
    for problem in soak.broken.iter().take(20) {
        writeln!(out, "{problem}")?;
    }
    writeln!(
        out,
        "\nour own process: {}; replies lost, doubled or wrong: {} turns",
        if soak.is_flat { "flat" } else { "grows" },
        soak.broken.len()
    )?;
    Ok(())
}
