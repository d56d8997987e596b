//! Prints finished rollouts for people.

use std::io::{self, Write};

use rollcage_model::finding::{CaptureLevel, RolloutType};
use rollcage_model::network::Phase;
use rollcage_model::record::{CommandResult, RolloutResult};

use crate::text;

/// One rollout in a few lines; several as a table with their mean reward.
pub(crate) fn summary(out: &mut impl Write, results: &[RolloutResult]) -> io::Result<()> {
    match results {
        [result] => {
            one(out, result)?;
            writeln!(out, "\nrollcage show {}", result.rollout_id)
        }
        results => table(out, results),
    }
}

/// One rollout; also the first part of `rollcage show`.
pub(crate) fn one(out: &mut impl Write, result: &RolloutResult) -> io::Result<()> {
    let reward = match result.reward {
        Some(reward) if result.reward_valid => format!("reward {reward:.2}"),
        Some(reward) => format!("reward {reward:.2} (not valid)"),
        None => "no reward".to_owned(),
    };
    let ended = result.ended.as_str();
    writeln!(
        out,
        "{}  {ended}  {reward}  {}",
        result.task_id,
        text::duration(result.wall_s)
    )?;
    if let Some(error) = &result.error {
        writeln!(out, "  error    {}", text::line(error, 400))?;
    }
    if !result.setup_results.is_empty() {
        writeln!(
            out,
            "  setup    {}",
            commands(&result.setup_results, result.timings.setup_s)
        )?;
    }
    let usage = &result.usage;
    writeln!(
        out,
        "  agent    {} {}, model {}: {} calls, {} + {} tokens, {}",
        result.agent.name,
        result.agent.version,
        text::line(&result.endpoint.model, 60),
        usage.calls,
        text::count(usage.prompt_tokens),
        text::count(usage.completion_tokens),
        text::duration(result.timings.agent_s),
    )?;
    if !result.verify_results.is_empty() {
        writeln!(
            out,
            "  verify   {}",
            commands(&result.verify_results, result.timings.verify_s)
        )?;
    }
    writeln!(out, "  trace    {}", trace(result))?;
    for finding in &result.findings {
        writeln!(out, "  finding  {}", text::line(&finding.to_string(), 200))?;
    }
    if !result.network.is_empty() {
        writeln!(out, "  network  {}", network(result))?;
    }
    writeln!(out, "  sandbox  {}", sandbox(result))?;
    writeln!(out, "  record   {}", result.record)
}

fn table(out: &mut impl Write, results: &[RolloutResult]) -> io::Result<()> {
    writeln!(
        out,
        "{:<36}  {:<16}  {:>6}  {:>5}  {:>10}  {:>10}  ERROR",
        "ROLLOUT", "ENDED", "REWARD", "CALLS", "TRAINABLE", "TIME"
    )?;
    for result in results {
        writeln!(
            out,
            "{:<36}  {:<16}  {:>6}  {:>5}  {:>10}  {:>10}  {}",
            result.rollout_id,
            result.ended.as_str(),
            text::reward(result.reward),
            result.usage.calls,
            text::count(result.usage.trainable_tokens),
            text::duration(result.wall_s),
            text::line(result.error.as_deref().unwrap_or_default(), 80),
        )?;
    }
    let valid: Vec<f64> = results
        .iter()
        .filter(|result| result.reward_valid)
        .filter_map(|result| result.reward)
        .collect();
    let mean = if valid.is_empty() {
        None
    } else {
        Some(valid.iter().sum::<f64>() / valid.len() as f64)
    };
    writeln!(
        out,
        "\nmean reward {} over {} of {} rollouts",
        text::reward(mean),
        valid.len(),
        results.len()
    )
}

fn commands(results: &[CommandResult], seconds: f64) -> String {
    let passed = results
        .iter()
        .filter(|result| result.exit_code == 0)
        .count();
    let failed = results.iter().find(|result| result.exit_code != 0);
    let failed = failed.map(|result| {
        format!(
            ", exit {}: {}",
            result.exit_code,
            text::line(&result.cmd, 80)
        )
    });
    format!(
        "{passed} of {} passed, {}{}",
        results.len(),
        text::duration(seconds),
        failed.unwrap_or_default()
    )
}

fn trace(result: &RolloutResult) -> String {
    let level = match result.capture_level {
        CaptureLevel::Tokens => "tokens",
        CaptureLevel::Logprobs => "logprobs",
        CaptureLevel::Text => "text",
    };
    match result.rollout_type {
        RolloutType::Train => {
            let trainable = text::count(result.usage.trainable_tokens);
            let turns = result.usage.trainable_turns;
            format!("{turns} turns, {trainable} trainable tokens, captured at level {level}")
        }
        RolloutType::Eval => format!("not for training, captured at level {level}"),
    }
}

/// The phases in their order, with what each of them reached.
fn network(result: &RolloutResult) -> String {
    let phases = Phase::ALL.into_iter().filter_map(|phase| {
        let totals = result.network.get(phase.as_str())?;
        let refused = match totals.refused {
            0 => String::new(),
            count => format!(", {} refused", text::count(count)),
        };
        Some(format!(
            "{} {} in, {} out{refused}",
            phase.as_str(),
            text::bytes(totals.bytes_in),
            text::bytes(totals.bytes_out)
        ))
    });
    phases.collect::<Vec<_>>().join("; ")
}

fn sandbox(result: &RolloutResult) -> String {
    if result.sandbox_id.is_empty() {
        return "none was started".to_owned();
    }
    let peak = result
        .usage
        .memory_peak_bytes
        .map(|bytes| format!(", peak {}", text::bytes(bytes)));
    let info = &result.sandbox;
    let limits = format!(
        "memory by {}, pids by {}, cpu by {}",
        info.memory, info.pids, info.cpu
    );
    format!(
        "{} in {}{}; {limits}",
        info.tier,
        text::duration(result.timings.sandbox_s),
        peak.unwrap_or_default()
    )
}
