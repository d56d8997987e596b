//! The document that OpenEnv's capture proxy gives for a session, with its findings at OpenEnv's own levels.

use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{ExportError, Head, Meta, Options, Stream, write_line};
use crate::finding::{CaptureLevel, Code, Finding, Level, RolloutType};
use crate::graph::{Graph, Role, count_children};
use crate::stitch::{Stitched, lengths, rows};
use crate::trace::Interpretation;
use crate::turn::Shared;

#[derive(Serialize)]
struct Document<'a, T, S> {
    session_id: &'a str,
    metadata: Value,
    budget_stop_count: u64,
    turns: T,
    stats: Stats,
    sequences: S,
    validation: Vec<String>,
    trainable: bool,
    capture_level: CaptureLevel,
    rollout_type: RolloutType,
}

#[derive(Serialize)]
struct Stats {
    n_turns: usize,
    n_roots: usize,
    n_leaves: usize,
    n_forks: usize,
    n_discarded: usize,
    n_sequences: usize,
    n_trainable_sequences: usize,
    n_trainable_tokens: usize,
}

#[derive(Serialize)]
struct TurnView<'a> {
    node_id: &'a str,
    index: usize,
    root_id: &'a str,
    n_sampled: usize,
    n_prompt: usize,
    n_tools: usize,
    finish_reason: Option<&'a str>,
    harness_session_id: Option<&'a str>,
    sampling_params: &'a Map<String, Value>,
    requested_sampling_params: &'a Map<String, Value>,
    sampled_logprobs: Option<&'a [f64]>,
    discarded: bool,
    #[serde(flatten)]
    messages: Option<Messages<'a>>,
}

#[derive(Serialize)]
struct Messages<'a> {
    request_messages: &'a [Shared],
    request_tools: Option<&'a Shared>,
    response_message: Value,
}

#[derive(Serialize)]
struct RowView<'a, I, M, L> {
    role: &'static str,
    root_id: &'a str,
    node_ids: Vec<&'a str>,
    n_turns: usize,
    prompt_len: usize,
    n_trainable: usize,
    turn_lengths: Vec<usize>,
    input_ids: I,
    loss_mask: M,
    logprobs: L,
    trainable: bool,
    validation: Vec<String>,
}

/// One document of one line.
pub fn write(
    seen: &Interpretation,
    meta: &Meta,
    options: Options,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    let graph = &seen.graph;
    let rows: Vec<Stitched<'_>> = graph
        .sequences
        .iter()
        .filter(|sequence| sequence.role != Role::Discarded || options.include_discarded)
        .flat_map(|sequence| rows(seen, sequence))
        .collect();
    let is_train = seen.rollout_type == RolloutType::Train;
    let trained = || rows.iter().filter(|row| is_train && is_trainable(row));
    let n_trainable_sequences = trained().count();
    let document = Document {
        session_id: &meta.rollout_id,
        metadata: metadata(seen, meta),
        budget_stop_count: meta.budget_stop_count,
        turns: Stream(|| (0..graph.nodes.len()).map(|at| turn_view(seen, at, options))),
        stats: Stats {
            n_turns: graph.nodes.len(),
            n_roots: graph
                .nodes
                .iter()
                .filter(|node| node.parent.is_none())
                .count(),
            n_leaves: count_leaves(graph),
            n_forks: count_forks(graph),
            n_discarded: count_discarded(graph),
            n_sequences: rows.len(),
            n_trainable_sequences,
            n_trainable_tokens: trained().map(Stitched::n_trainable).sum(),
        },
        sequences: Stream(|| rows.iter().map(|row| row_view(graph, row, is_train))),
        validation: validation(seen),
        trainable: n_trainable_sequences > 0,
        capture_level: seen.capture_level,
        rollout_type: seen.rollout_type,
    };
    write_line(&document, out)
}

fn is_trainable(row: &Stitched<'_>) -> bool {
    let is_fatal = |finding: &Finding| finding.level == Level::Fatal;
    row.role == Role::Agent && !findings_of(row).iter().any(is_fatal)
}

/// What OpenEnv's own check of a row says of it.
fn findings_of(row: &Stitched<'_>) -> Vec<Finding> {
    let (len, n_trainable) = (row.len(), row.n_trainable());
    if row.prompt_len() == 0 {
        let text = "the row starts without prompt token ids";
        return vec![Finding::fatal(Code::InvalidTrainingSequence, text)];
    }
    let mut findings = Vec::new();
    if n_trainable == 0 {
        let text = format!("0 trainable tokens in a {len}-token sequence");
        findings.push(Finding::fatal(Code::NothingTrainable, text));
    }
    if row.prompt_len() >= len {
        let text = format!("prompt_len={} covers the whole sequence", row.prompt_len());
        findings.push(Finding::fatal(Code::EmptyResponse, text));
    }
    let spans = row.spans.iter().filter_map(|span| span.logprobs);
    let n_certain = spans.flatten().filter(|logprob| **logprob == 0.0).count();
    if n_certain > 0 {
        let text = format!("{n_certain}/{n_trainable} trainable tokens have logprob 0.0 (p=1.0)");
        findings.push(Finding::info(Code::CertainTokens, text));
    }
    findings
}

fn metadata(seen: &Interpretation, meta: &Meta) -> Value {
    let mut metadata = Head::new(meta, seen).members();
    metadata.insert("started_at".to_owned(), meta.started_at.into());
    metadata.into()
}

/// The findings about the rollout as a whole. Those that are about single rows stand with the rows.
fn validation(seen: &Interpretation) -> Vec<String> {
    let findings = seen.findings.iter();
    let own = findings.filter(|finding| finding.code != Code::CertainTokens);
    own.map(|finding| finding.in_openenv().to_string())
        .collect()
}

fn turn_view(seen: &Interpretation, at: usize, options: Options) -> TurnView<'_> {
    let node = &seen.graph.nodes[at];
    let turn = &seen.turns[node.turn];
    let (n_prompt, n_sampled) = lengths(turn);
    let messages = || Messages {
        request_messages: &turn.messages,
        request_tools: turn.tools.as_ref(),
        response_message: turn
            .message
            .as_ref()
            .map_or_else(|| json!({}), rollcage_dialect::chat::Message::to_value),
    };
    TurnView {
        node_id: &node.id,
        index: at,
        root_id: &seen.graph.nodes[node.root].id,
        n_sampled,
        n_prompt,
        n_tools: turn.n_tools,
        finish_reason: turn.finish_reason.as_deref(),
        harness_session_id: turn.harness_session_id.as_deref(),
        sampling_params: &turn.sampling,
        requested_sampling_params: &turn.requested_sampling,
        // Logprobs that are not exact are none: a reader would take them for the engine's.
        sampled_logprobs: turn.logprobs.as_deref().filter(|_| turn.is_exact()),
        discarded: node.role == Role::Discarded,
        messages: options.include_messages.then(messages),
    }
}

fn row_view<'a>(graph: &'a Graph, row: &'a Stitched<'a>, is_train: bool) -> impl Serialize + 'a {
    let node_ids: Vec<&str> = row
        .spans
        .iter()
        .map(|span| graph.nodes[span.node].id.as_str())
        .collect();
    let findings = if is_train {
        findings_of(row)
    } else {
        Vec::new()
    };
    RowView {
        role: row.role.as_str(),
        root_id: node_ids.first().copied().unwrap_or_default(),
        n_turns: node_ids.len(),
        node_ids,
        prompt_len: row.prompt_len(),
        n_trainable: row.n_trainable(),
        turn_lengths: row.run_lengths(),
        input_ids: Stream(|| row.ids()),
        loss_mask: Stream(|| row.mask()),
        logprobs: Stream(|| row.logprobs()),
        trainable: is_train && is_trainable(row),
        validation: findings.iter().map(Finding::to_string).collect(),
    }
}

fn count_leaves(graph: &Graph) -> usize {
    let counts = count_children(&graph.nodes);
    counts.into_iter().filter(|count| *count == 0).count()
}

fn count_forks(graph: &Graph) -> usize {
    let counts = count_children(&graph.nodes);
    counts.into_iter().filter(|count| *count > 1).count()
}

fn count_discarded(graph: &Graph) -> usize {
    let nodes = graph.nodes.iter();
    nodes.filter(|node| node.role == Role::Discarded).count()
}
