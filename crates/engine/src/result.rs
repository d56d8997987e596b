//! Builds the result of a rollout.

use std::collections::BTreeMap;
use std::path::Path;

use tokio::time::Instant;

use rollcage_model::ending::Cause;
use rollcage_model::ending::Ended;
use rollcage_model::finding::{CaptureLevel, Code, Finding, RolloutType};
use rollcage_model::id::RolloutId;
use rollcage_model::record::{
    AgentInfo, BudgetReport, EndpointInfo, RolloutResult, RolloutTurn, SCHEMA_VERSION, SandboxInfo,
    Timings, Usage,
};
use rollcage_model::task::{AgentDriver, Mode, Task};
use rollcage_model::trace::{Facts, Interpretation};
use rollcage_model::turn::Turn;

use crate::intake::ResolvedRollout;
use crate::judge::{Ending, stopped_by};
use crate::plan::Plan;
use crate::shell::seconds;
use crate::store::{Record, StartInfo, Store, StoreError, interpret_at, read_exchanges};
use rollcage_model::text::{chain, tail};
use rollcage_proxy::ModelSettings;
use rollcage_proxy::clock::now;
use rollcage_proxy::probe::Profile;

/// The initial result of a rollout.
pub(crate) fn begin(id: RolloutId, rollout: &ResolvedRollout) -> RolloutResult {
    let version = rollout.ready.as_ref().map(|ready| &ready.bundle.version);
    RolloutResult {
        agent: AgentInfo {
            name: rollout.agent.name().to_owned(),
            version: version.cloned().unwrap_or_default(),
            ..AgentInfo::default()
        },
        endpoint: rollout.endpoint_info(),
        group: rollout.group.clone().unwrap_or_default(),
        labels: rollout.labels.clone(),
        ..begin_abandoned(id, rollout.task.clone())
    }
}

/// The parts of a result that are known before the rollout ends.
pub(crate) fn start_info(result: &RolloutResult) -> StartInfo {
    StartInfo {
        started_at: result.started_at,
        agent: result.agent.clone(),
        endpoint: result.endpoint.clone(),
        group: result.group.clone(),
        labels: result.labels.clone(),
        mode: result.mode.clone(),
        mcp_names: result.agent_report.mcp_names.clone(),
    }
}

/// Adds what is known once the agent is installed and the endpoint chosen.
pub(crate) fn note_plan(result: &mut RolloutResult, plan: &Plan) {
    result.agent = AgentInfo {
        name: plan.agent.name().to_owned(),
        version: plan.ready.bundle.version.clone(),
        components: components(plan),
    };
    result.endpoint = plan.endpoint.info();
    result.agent_report.mcp_names = plan.mcp_names();
    if plan.settings.is_black_box {
        result.mode = Mode::BlackBox.as_str().to_owned();
    }
}

/// Every package that the agent consists of, with its version.
fn components(plan: &Plan) -> BTreeMap<String, String> {
    let ready = &plan.ready;
    let node = ready.node.iter();
    let node = node.map(|node| (node.agent.clone(), node.version.clone()));
    ready
        .bundle
        .components
        .clone()
        .into_iter()
        .chain(node)
        .collect()
}

/// As `begin`, for a rollout of which only the task is known.
pub fn begin_abandoned(id: RolloutId, task: Task) -> RolloutResult {
    let agent_timeout_s = task.agent_timeout_s();
    let driver = task.driver.unwrap_or_default();
    RolloutResult {
        task_id: task.id,
        sandbox_id: String::new(),
        reward: None,
        agent_exit_code: None,
        wall_s: 0.0,
        mode: Mode::default().as_str().to_owned(),
        setup_results: Vec::new(),
        verify_results: Vec::new(),
        files: Default::default(),
        files_extra: Vec::new(),
        artifacts: Vec::new(),
        patch_bytes: None,
        agent_log_tail: String::new(),
        agent_report: Default::default(),
        proxy_log_tail: String::new(),
        error: None,
        exit_code: None,
        workdir_files: Default::default(),
        verifier_stdout: String::new(),
        verifier_stderr: String::new(),
        test_exit_code: None,
        install_log_tail: String::new(),
        schema_version: SCHEMA_VERSION,
        rollout_id: id,
        group: String::new(),
        labels: BTreeMap::new(),
        ended: Ended::EngineFailed,
        cause: None,
        retryable: false,
        graded: false,
        reward_valid: false,
        rollout_type: RolloutType::Eval,
        capture_level: CaptureLevel::Text,
        findings: Vec::new(),
        timings: Timings::default(),
        network: Default::default(),
        usage: Usage::default(),
        budget: BudgetReport {
            agent_timeout_s,
            ..BudgetReport::default()
        },
        driver,
        serve_session_id: None,
        agent: AgentInfo::default(),
        endpoint: EndpointInfo::default(),
        sandbox: SandboxInfo::default(),
        started_at: now(),
        record: String::new(),
    }
}

/// The result of a rollout. If its process was killed, it is the one that the next start will commit; nothing is written.
pub fn stored(store: &Store, id: RolloutId) -> Result<RolloutResult, StoreError> {
    let unfinished = match store.result(id) {
        Err(error @ StoreError::Unfinished(_)) => error,
        read => return read,
    };
    if store.is_running(id) {
        return Err(StoreError::Running(id));
    }
    match store.result(id) {
        Err(StoreError::Unfinished(_)) => {}
        // It ended while we looked.
        read => return read,
    }
    let path = store.directory(id);
    match path.is_dir() {
        true => Ok(of_killed(id, store.task(id).ok().flatten(), &path)),
        false => Err(unfinished),
    }
}

/// The result of a rollout whose process was killed, with what was captured until then.
pub(crate) fn of_killed(id: RolloutId, task: Option<Task>, record: &Path) -> RolloutResult {
    let mut result = begin_abandoned(id, task.unwrap_or_default());
    // The id contains its creation time.
    result.started_at = id.unix_seconds();
    if let Some(start) = StartInfo::read(record) {
        start.apply_to(&mut result);
    }
    result.record = record.display().to_string();
    let ending = match interpret_at(&result, record) {
        Ok(interpretation) => {
            note_interpretation(&mut result, interpretation);
            let text = "rollcage was killed while this rollout ran";
            Ending::new(Cause::EngineFailed, text)
        }
        Err(error) => Ending::new(Cause::EngineFailed, chain(&error)),
    };
    finish(result, ending, Instant::now())
}

/// Adds what probing the endpoint found out.
pub(crate) fn note_profile(
    result: &mut RolloutResult,
    profile: &Profile,
    settings: &ModelSettings,
) {
    if !settings.is_black_box
        && let Some(text) = settings.sampling.untrainable(profile)
    {
        tracing::warn!(text, "the rollout is not for training");
        let finding = Finding::warn(Code::LogprobsNotSampled, text);
        result.findings.push(finding);
    }
    result
        .endpoint
        .served_model
        .clone_from(&profile.served_model);
    result.endpoint.context_tokens = profile.context_tokens;
    result.endpoint.logprobs = profile.logprobs;
    result.endpoint.top_logprobs_max = profile.top_logprobs_max;
    let streams = if profile.has_live_streams {
        "live"
    } else {
        "replayed"
    };
    result.endpoint.streams = streams.to_owned();
}

/// Adds how the rollout ended.
pub(crate) fn finish(mut result: RolloutResult, ending: Ending, started: Instant) -> RolloutResult {
    let verdict = ending.cause.verdict();
    result.ended = verdict.ended;
    result.cause = Some(ending.cause);
    result.error = ending.error;
    result.reward_valid = result.graded && verdict.is_valid;
    result.retryable = verdict.is_retryable;
    result.wall_s = seconds(started.elapsed());
    if let Some(limit) = stopped_by(ending.cause) {
        result.budget.stopped_by.get_or_insert(limit.to_owned());
    }
    // Clients of the earlier environment expect a number here, and 0 of a server whose agent did its work.
    let is_well = result.driver == AgentDriver::Serve && ending.cause == Cause::Completed;
    let without = if is_well { 0 } else { -1 };
    result.exit_code = Some(result.agent_exit_code.unwrap_or(without));
    result.workdir_files = result.files.clone();
    let outputs = |pick: fn(&rollcage_model::record::CommandResult) -> &str| {
        result
            .verify_results
            .iter()
            .map(pick)
            .collect::<Vec<_>>()
            .join("")
    };
    let (stdout, stderr) = (
        outputs(|command| &command.stdout),
        outputs(|command| &command.stderr),
    );
    result.verifier_stdout = tail(&stdout, 4000);
    result.verifier_stderr = tail(&stderr, 2000);
    result.test_exit_code = result
        .verify_results
        .iter()
        .map(|command| command.exit_code)
        .find(|code| *code != 0);
    if result.test_exit_code.is_none() && !result.verify_results.is_empty() {
        result.test_exit_code = Some(0);
    }
    result
}

/// Interprets the captured exchanges and adds what they show. A record that cannot be read is an engine failure.
pub(crate) async fn add_trace(
    result: &mut RolloutResult,
    record: &Record,
    ending: Ending,
) -> Ending {
    let (path, facts) = (record.exchanges(), Facts::from(&*result));
    let reading = tokio::task::spawn_blocking(move || read_exchanges(&path, u64::MAX, &facts));
    let interpretation = match reading.await {
        Ok(Ok(interpretation)) => interpretation,
        Ok(Err(error)) => return Ending::new(Cause::EngineFailed, chain(&error)),
        Err(error) => {
            return Ending::new(
                Cause::EngineFailed,
                format!("interpret the exchanges: {error}"),
            );
        }
    };
    note_interpretation(result, interpretation);
    ending
}

/// Adds what the exchanges show.
pub fn note_interpretation(result: &mut RolloutResult, interpretation: Interpretation) {
    result.capture_level = interpretation.capture_level;
    result.rollout_type = interpretation.rollout_type;
    result.usage.calls = interpretation.usage.calls;
    result.usage.prompt_tokens = interpretation.usage.prompt_tokens;
    result.usage.completion_tokens = interpretation.usage.completion_tokens;
    result.usage.cached_tokens = interpretation.usage.cached_tokens;
    result.usage.trainable_turns = interpretation.trained().count() as u64;
    result.usage.trainable_tokens = interpretation.n_trainable_tokens;
    // Findings from the exchanges come first, then those of the rollout itself.
    let own = std::mem::replace(&mut result.findings, interpretation.findings);
    result.findings.extend(own);
}

/// Every model call, in the format of OpenEnv's original results.
pub fn proxy_turns(interpretation: &Interpretation) -> impl Iterator<Item = RolloutTurn> + '_ {
    let turns = interpretation.turns.iter().enumerate();
    turns.map(|(index, turn)| {
        let role = interpretation
            .graph
            .node_of(index)
            .map_or("failed", |node| node.role.as_str());
        rollout_turn(turn, role)
    })
}

fn rollout_turn(turn: &Turn, role: &str) -> RolloutTurn {
    // Leave out tokens and logprobs if their lengths do not match.
    let ids = turn.completion_token_ids.clone().unwrap_or_default();
    let logprobs = turn.logprobs.clone().unwrap_or_default();
    let is_aligned = ids.is_empty() || ids.len() == logprobs.len();
    let (tokens, logprobs) = if is_aligned {
        (turn.tokens.clone(), logprobs)
    } else {
        (Vec::new(), Vec::new())
    };
    // The request as it was sent: the original format's members, and every other sampling parameter.
    let mut request = turn.compact.clone();
    request.extend(turn.sampling.clone());
    request.insert("messages".to_owned(), serde_json::json!(turn.messages));
    let mut response = serde_json::json!({
        "finish_reason": turn.finish_reason,
        "usage": turn.usage,
        "message": turn.message.as_ref().map(rollcage_dialect::chat::Message::to_value),
    });
    if let Some(error) = &turn.upstream_error {
        response["upstream_status"] = turn.upstream_status.into();
        response["upstream_error"] = error.clone();
    }
    RolloutTurn {
        turn: turn.exchange,
        finish_reason: turn.finish_reason.clone(),
        completion_tokens: tokens,
        completion_token_ids: ids,
        per_token_logps: logprobs,
        latency_s: turn.latency_s.unwrap_or_default(),
        timestamp: turn.at,
        upstream_status: turn.upstream_status,
        upstream_error: turn.upstream_error.clone(),
        prompt_tokens: turn
            .prompt_token_ids
            .as_ref()
            .map_or(0, rollcage_model::tokens::Tokens::len),
        node_id: turn.node_id(),
        role: role.to_owned(),
        request: request.into(),
        response,
    }
}
