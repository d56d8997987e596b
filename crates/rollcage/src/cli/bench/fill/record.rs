//! Whole records: task, start, exchanges and result.

use anyhow::Context;
use rollcage_engine::result::{begin_abandoned, note_interpretation};
use rollcage_engine::store::{StartInfo, Store, read_exchanges};
use rollcage_model::ending::Cause;
use rollcage_model::id::RolloutId;
use rollcage_model::record::{AgentInfo, CommandResult, EndpointInfo, RolloutResult, Timings};
use rollcage_model::task::Task;
use rollcage_model::trace::Facts;
use uuid::{NoContext, Timestamp, Uuid};

use super::conversation::{self, Subject};
use super::words::Dice;

/// Rollouts that were asked for together.
const GROUP: usize = 8;
/// Over how long they are spread, up to now.
const DAYS: f64 = 30.0;
const SECONDS_A_DAY: f64 = 86_400.0;

const TASKS: [&str; 24] = [
    "add-retry",
    "fix-off-by-one",
    "parse-csv",
    "sort-log",
    "cache-eviction",
    "rename-module",
    "json-diff",
    "flaky-test",
    "port-to-async",
    "sql-injection",
    "memory-leak",
    "unicode-width",
    "rate-limit",
    "cli-flags",
    "matrix-inverse",
    "html-escape",
    "date-parser",
    "merge-intervals",
    "lru-cache",
    "graph-cycle",
    "tokenizer",
    "dockerfile",
    "makefile",
    "regex-engine",
];
const AGENTS: [(&str, &str); 4] = [
    ("opencode", "1.3.17"),
    ("claude-code", "2.1.92"),
    ("codex", "0.118.0"),
    ("gemini-cli", "0.36.0"),
];
/// Endpoint, model, and US dollars for a million prompt and completion tokens.
const MODELS: [(&str, &str, f64, f64); 5] = [
    ("vllm", "Qwen/Qwen3-8B", 0.0, 0.0),
    ("vllm", "Qwen/Qwen3-32B", 0.0, 0.0),
    ("sglang", "zai-org/GLM-4.5-Air", 0.0, 0.0),
    ("openrouter", "deepseek/deepseek-v3.2", 0.28, 0.42),
    ("openai", "gpt-5-mini", 0.25, 2.0),
];
/// How many in a thousand end how.
const CAUSES: [(Cause, usize, Option<&str>); 8] = [
    (Cause::Completed, 860, None),
    (
        Cause::AgentTimeUsed,
        50,
        Some("the agent's 600 s are used up"),
    ),
    (
        Cause::BudgetLimit,
        25,
        Some("the budget of 200 calls is used up"),
    ),
    (Cause::Cancelled, 20, Some("cancelled")),
    (
        Cause::EndpointUnreachable,
        15,
        Some("connect to http://127.0.0.1:8001/v1: connection refused"),
    ),
    (
        Cause::AgentExited,
        12,
        Some("the agent exited with 1 before it had done anything"),
    ),
    (
        Cause::SetupFailed,
        10,
        Some("setup command 1 of 2 exited with 127: pip: command not found"),
    ),
    (
        Cause::VerifierFailed,
        8,
        Some("verify command 1 of 3 took longer than 300 s"),
    ),
];

/// The rollouts of one task, agent and model.
pub(super) struct Group {
    number: usize,
    size: usize,
    /// Unix seconds.
    started_at: f64,
}

/// One rollout of a group.
struct Plan<'a> {
    id: RolloutId,
    task: Task,
    agent: (&'a str, &'a str),
    model: (&'a str, &'a str, f64, f64),
    group: String,
    step: usize,
    started_at: f64,
    cause: Cause,
    error: Option<&'a str>,
    /// How many of the verify commands succeed.
    passed: usize,
    calls: usize,
    seed: u64,
}

impl Group {
    /// Groups of so many rollouts together, the oldest first.
    pub(super) fn all(rollouts: usize) -> Vec<Group> {
        let count = rollouts.div_ceil(GROUP);
        let now = rollcage_proxy::clock::now();
        let start = now - DAYS * SECONDS_A_DAY;
        (0..count)
            .map(|number| Group {
                number,
                size: GROUP.min(rollouts - number * GROUP),
                started_at: start + DAYS * SECONDS_A_DAY * number as f64 / count as f64,
            })
            .collect()
    }

    pub(super) fn write(&self, store: &Store) -> anyhow::Result<()> {
        let mut dice = Dice::new(self.number as u64);
        let task = dice.below(TASKS.len());
        let agent = *dice.pick(&AGENTS);
        let model = dice.below(MODELS.len());
        let group = id_at(self.started_at)?.to_string();
        // Tasks differ in how hard they are, models in how able.
        let skill = 0.25 + 0.13 * model as f64 - 0.03 * (task % 12) as f64;
        for number in 0..self.size {
            let (cause, error) = cause(dice.below(1000));
            let has_passed = dice.share() < skill;
            let started_at = self.started_at + number as f64 * 2.5;
            let plan = Plan {
                id: id_at(started_at)?,
                task: task_of(TASKS[task]),
                agent,
                model: MODELS[model],
                group: group.clone(),
                step: self.number / 10,
                started_at,
                cause,
                error,
                passed: if has_passed { 3 } else { dice.below(3) },
                calls: match cause {
                    Cause::SetupFailed | Cause::EndpointUnreachable => 0,
                    _ => 2 + dice.below(3),
                },
                seed: (self.number * GROUP + number) as u64,
            };
            plan.write(store)?;
        }
        Ok(())
    }
}

/// Writes one rollout of so many calls.
pub(super) fn write_long(store: &Store, calls: usize) -> anyhow::Result<RolloutId> {
    let started_at = rollcage_proxy::clock::now() - 4.0 * 3600.0;
    let id = id_at(started_at)?;
    let plan = Plan {
        id,
        task: task_of("long-refactoring"),
        agent: AGENTS[0],
        model: MODELS[1],
        group: id.to_string(),
        step: 0,
        started_at,
        cause: Cause::Completed,
        error: None,
        passed: 3,
        calls,
        seed: 0,
    };
    plan.write(store)?;
    Ok(id)
}

impl Plan<'_> {
    fn write(self, store: &Store) -> anyhow::Result<()> {
        let mut result = self.begun();
        let start = StartInfo {
            started_at: result.started_at,
            agent: result.agent.clone(),
            endpoint: result.endpoint.clone(),
            group: result.group.clone(),
            labels: result.labels.clone(),
            mode: result.mode.clone(),
            mcp_names: None,
        };
        let record = store.begin(self.id, &self.task, &start, None)?;
        let mut end = self.started_at + 2.0;
        if self.calls > 0 {
            let subject = Subject {
                model: self.model.1,
                instruction: &self.task.instruction,
                started_at: self.started_at,
                seed: self.seed,
            };
            end = conversation::write(&record.exchanges(), &subject, self.calls)?;
        }
        let seen = read_exchanges(&record.exchanges(), u64::MAX, &Facts::from(&result))?;
        note_interpretation(&mut result, seen);
        self.finish(&mut result, end);
        result.record = record.path().display().to_string();
        Ok(record.commit(&result)?)
    }

    fn begun(&self) -> RolloutResult {
        let (agent, version) = self.agent;
        let (kind, model, ..) = self.model;
        RolloutResult {
            sandbox_id: self.id.to_string(),
            group: self.group.clone(),
            labels: [
                ("step".to_owned(), self.step.to_string()),
                ("run".to_owned(), format!("grpo-{}", self.step / 50)),
            ]
            .into(),
            started_at: self.started_at,
            agent: AgentInfo {
                name: agent.to_owned(),
                version: version.to_owned(),
                ..AgentInfo::default()
            },
            endpoint: EndpointInfo {
                kind: kind.to_owned(),
                base_url: "http://127.0.0.1:8001/v1".to_owned(),
                model: model.to_owned(),
                served_model: Some(model.to_owned()),
                ..EndpointInfo::default()
            },
            ..begin_abandoned(self.id, self.task.clone())
        }
    }

    fn finish(&self, result: &mut RolloutResult, end: f64) {
        let verdict = self.cause.verdict();
        let agent_s = end - self.started_at - 1.5;
        result.ended = verdict.ended;
        result.cause = Some(self.cause);
        result.retryable = verdict.is_retryable;
        result.error = self.error.map(str::to_owned);
        result.wall_s = end - self.started_at + 1.2;
        result.timings = Timings {
            sandbox_s: 0.05,
            setup_s: 0.9,
            agent_s,
            first_call_s: Some(0.6),
            verify_s: 0.8,
            collect_s: 0.1,
            outage_s: 0.0,
        };
        let (.., prompt_price, completion_price) = self.model;
        let spent = &mut result.budget.spent;
        spent.calls = result.usage.calls;
        spent.prompt_tokens = result.usage.prompt_tokens;
        spent.completion_tokens = result.usage.completion_tokens;
        spent.usd = (spent.prompt_tokens as f64 * prompt_price
            + spent.completion_tokens as f64 * completion_price)
            / 1e6;
        if self.calls == 0 {
            return;
        }
        result.agent_exit_code = (self.cause == Cause::Completed).then_some(0);
        result.exit_code = Some(result.agent_exit_code.unwrap_or(-1));
        result.usage.cpu_s = Some(agent_s * 0.2);
        result.usage.memory_peak_bytes = Some(400 << 20);
        result.setup_results = vec![command(&self.task.setup[0], true)];
        if verdict.is_graded {
            let commands = self.task.verify.iter().enumerate();
            result.verify_results = commands
                .map(|(number, cmd)| command(cmd, number < self.passed))
                .collect();
            result.graded = true;
            result.reward = Some(self.passed as f64 / self.task.verify.len() as f64);
            result.reward_valid = verdict.is_valid;
        }
    }
}

fn command(cmd: &str, is_good: bool) -> CommandResult {
    CommandResult {
        cmd: cmd.to_owned(),
        exit_code: i32::from(!is_good),
        stdout: if is_good { "ok\n" } else { "1 failed\n" }.to_owned(),
        stderr: String::new(),
        duration_s: 0.25,
        timed_out: false,
    }
}

fn task_of(name: &str) -> Task {
    Task {
        id: name.to_owned(),
        instruction: format!("Solve {name}: make the tests in tests/ pass without changing them."),
        setup: vec!["git init -q && git add -A".to_owned()],
        verify: vec![
            "cargo test --quiet".to_owned(),
            "cargo clippy --quiet".to_owned(),
            "git diff --exit-code tests".to_owned(),
        ],
        ..Task::default()
    }
}

fn cause(number: usize) -> (Cause, Option<&'static str>) {
    let mut end = 0;
    for (cause, weight, error) in CAUSES {
        end += weight;
        if number < end {
            return (cause, error);
        }
    }
    (Cause::Completed, None)
}

/// An id that was made at a time.
fn id_at(unix_seconds: f64) -> anyhow::Result<RolloutId> {
    let nanoseconds = (unix_seconds.fract() * 1e9) as u32;
    let time = Timestamp::from_unix(NoContext, unix_seconds as u64, nanoseconds);
    let id = Uuid::new_v7(time).to_string();
    id.parse().context("make an id")
}
