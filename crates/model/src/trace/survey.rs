//! The findings about a rollout's turns.
//!
//! What OpenEnv calls fatal for one turn is a warning here: the turn is left out of the training trace, the rollout
//! stays trainable. Fatal is what leaves nothing to train on.

use super::listed::listed;
use super::{lacking, model_name, reply};
use crate::finding::{CaptureLevel, Code, Finding};
use crate::graph::{Graph, Node, Role};
use crate::turn::{Exactness, Turn};
use rollcage_dialect::chat;
use rollcage_dialect::{Dialect, EndpointDialect};

pub(super) fn findings(turns: &[Turn], graph: &Graph, level: CaptureLevel) -> Vec<Finding> {
    let mut findings: Vec<Finding> = turns.iter().filter_map(failure).collect();
    let is_too_long =
        |turn: &Turn| failure(turn).is_some_and(|it| it.code == Code::ContextBudgetExhausted);
    findings.extend(lacking::context_too_small(turns, is_too_long));
    if graph.nodes.is_empty() {
        findings.push(Finding::fatal(Code::NoTurns, "no model call was answered"));
        return findings;
    }
    for node in graph.nodes.iter().filter(|node| node.role == Role::Agent) {
        let turn = &turns[node.turn];
        findings.extend(shortcoming(turn, level));
        findings.extend(notes(turn));
        findings.extend(reply::of_node(turns, graph, node));
    }
    // Asked for again as a rule, and no part of the conversation then.
    let others = graph.nodes.iter().filter(|node| node.role != Role::Agent);
    let others = others.map(|node| &turns[node.turn]);
    let aborted = others.filter(|it| it.exactness == Exactness::NotExact(Code::AbortedTurn));
    findings.extend(aborted.filter_map(|turn| shortcoming(turn, level)));
    reply::limit(&mut findings);
    let agents: Vec<&Turn> = agents_of(turns, graph).collect();
    findings.extend(lacking::unknown_tools(agents.iter().copied()));
    findings.extend(model_name::other_models(turns));
    unfit(&agents, level, &mut findings);
    losses(&agents, &mut findings);
    translation(turns, &mut findings);
    structure(graph, level, &mut findings);
    reply::discarded(turns, graph, &mut findings);
    sampling(turns, graph, &mut findings);
    if level == CaptureLevel::Tokens {
        tokens(turns, graph, &mut findings);
    }
    findings
}

fn agents_of<'a>(turns: &'a [Turn], graph: &'a Graph) -> impl Iterator<Item = &'a Turn> {
    let agents = graph.nodes.iter().filter(|node| node.role == Role::Agent);
    agents.map(|node| &turns[node.turn])
}

fn failure(turn: &Turn) -> Option<Finding> {
    let error = turn.upstream_error.as_ref()?;
    let status = turn
        .upstream_status
        .map_or("no status".to_owned(), |status| format!("status {status}"));
    let message = error["message"]
        .as_str()
        .or(error["error"]["message"].as_str());
    let message = message.map_or_else(|| error.to_string(), str::to_owned);
    let short: String = message.chars().take(200).collect();
    let status_code = turn.upstream_status;
    let is_too_long =
        status_code.is_some_and(|status| chat::is_context_overflow(status, &error.to_string()));
    let code = match is_too_long {
        true => Code::ContextBudgetExhausted,
        false => Code::UpstreamError,
    };
    Some(Finding::warn(
        code,
        format!("{}: {status}: {short}", turn.node_id()),
    ))
}

/// Why a turn is not in the training trace.
fn shortcoming(turn: &Turn, level: CaptureLevel) -> Option<Finding> {
    let Exactness::NotExact(code) = turn.exactness else {
        return None;
    };
    // Below the level of tokens every turn lacks the same things, which the level already says.
    let is_told_always = matches!(code, Code::TruncatedTurn | Code::AbortedTurn);
    if level != CaptureLevel::Tokens && !is_told_always || turn.unfit.is_some() {
        return None;
    }
    let reason = code
        .flaw()
        .map_or("its tokens are not exact", |flaw| flaw.reason);
    Some(Finding::warn(
        code,
        format!("{}: {reason}; left out of training", turn.node_id()),
    ))
}

/// Turns whose tokens are exact and cannot be trained on for what was asked: one finding for all with the same reason.
fn unfit(agents: &[&Turn], level: CaptureLevel, findings: &mut Vec<Finding>) {
    let mut groups: Vec<(Code, &str, Vec<String>)> = Vec::new();
    for turn in agents {
        let (Exactness::NotExact(code), Some(words)) = (turn.exactness, turn.unfit.as_deref())
        else {
            continue;
        };
        let same = groups
            .iter_mut()
            .find(|(other, text, _)| *other == code && *text == words);
        match same {
            Some((_, _, ids)) => ids.push(turn.node_id()),
            None => groups.push((code, words, vec![turn.node_id()])),
        }
    }
    if level != CaptureLevel::Tokens {
        return;
    }
    for (code, words, ids) in groups {
        let reason = match code {
            Code::ConstrainedSampling => format!(
                "sampled under a constraint ({words}); set `constrained` to refuse or remove it"
            ),
            Code::MediaInPrompt => format!("the prompt has more in it than its ids say ({words})"),
            _ => format!(
                "{words}; sample at temperature 1 and nothing else (`temperature` 1, not `sampling` agent), or let the \
                 server give processed logprobs (vLLM: --logprobs-mode processed_logprobs)"
            ),
        };
        let text = format!("{}: {reason}; left out of training", listed(&ids));
        findings.push(Finding::warn(code, text));
    }
}

/// What the endpoint was not asked for, or did not get.
fn losses(agents: &[&Turn], findings: &mut Vec<Finding>) {
    let mut reduced: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
    let mut without_images = Vec::new();
    let mut n_images = 0;
    for turn in agents {
        let lacks: Vec<&str> = turn.refused_capture().collect();
        match reduced.iter_mut().find(|(names, _)| *names == lacks) {
            _ if lacks.is_empty() => {}
            Some((_, ids)) => ids.push(turn.node_id()),
            None => reduced.push((lacks, vec![turn.node_id()])),
        }
        if turn.images_not_sent > 0 {
            n_images = n_images.max(turn.images_not_sent);
            without_images.push(turn.node_id());
        }
    }
    for (names, ids) in reduced {
        let text = format!(
            "{}: the endpoint refused {}, so the answers have less in them",
            listed(&ids),
            names.join(", ")
        );
        findings.push(Finding::warn(Code::ReducedCapture, text));
    }
    if n_images > 0 {
        let text = format!(
            "{}: {n_images} of the agent's images did not get into the endpoint's dialect",
            listed(&without_images)
        );
        findings.push(Finding::warn(Code::ImageNotSent, text));
    }
}

fn notes(turn: &Turn) -> Vec<Finding> {
    let id = turn.node_id();
    let mut notes = Vec::new();
    if turn.finish_reason.as_deref() == Some("length") {
        notes.push(Finding::warn(
            Code::TruncatedTurn,
            format!("{id}: the token limit cut the completion"),
        ));
    }
    if turn.is_from_strings {
        notes.push(Finding::warn(
            Code::TokenStrings,
            format!("{id}: the ids were read from token strings"),
        ));
    }
    let is_silent = turn.message.as_ref().is_some_and(chat::Message::is_empty);
    if turn.is_exact() && turn.n_trainable_tokens() == 0 || !turn.is_exact() && is_silent {
        notes.push(Finding::warn(
            Code::EmptyCompletion,
            format!("{id}: nothing was sampled"),
        ));
    }
    let text = turn.message.as_ref().and_then(|it| it.content.as_deref());
    let is_blank = text.is_some_and(|text| !text.is_empty() && text.trim().is_empty());
    // Claude Code does; the next prompt then does not begin with these tokens.
    if turn.dialect == Dialect::Anthropic && is_blank {
        let text = format!("{id}: a text of only white space, which the agent does not send back");
        notes.push(Finding::info(Code::BlankText, text));
    }
    if turn.is_exact() && turn.is_stream && turn.usage.is_none() {
        let text =
            format!("{id}: a stream without usage, so a token lost inside it would not show");
        notes.push(Finding::warn(Code::NoUsage, text));
    }
    notes
}

fn structure(graph: &Graph, level: CaptureLevel, findings: &mut Vec<Finding>) {
    let live = || {
        graph
            .nodes
            .iter()
            .filter(|node| node.role != Role::Discarded)
    };
    let n_roots = live().filter(|node| node.parent.is_none()).count();
    let n_live = live().count();
    if n_roots > 1 && n_roots == n_live && level == CaptureLevel::Tokens {
        let text = format!(
            "each of {n_roots} turns is a root: the prompt is rendered anew, so rows are single turns"
        );
        findings.push(Finding::warn(Code::PerTurnCaptureOnly, text));
    } else if n_roots > 1 && n_roots == n_live {
        let text =
            format!("each of {n_roots} turns is a root: no messages go on from earlier ones");
        findings.push(Finding::info(Code::PerTurnTraceOnly, text));
    } else if n_roots > 1 {
        let text = format!("{n_roots} roots across {n_live} turns");
        findings.push(Finding::warn(Code::MultipleRoots, text));
    }
    if graph.nodes.len() == 1 {
        findings.push(Finding::warn(
            Code::DegenerateRollout,
            "only one model call was answered",
        ));
    }
    let mut n_next = vec![0; graph.nodes.len()];
    // What goes on with a reply left out goes on from it all the same.
    let next = live().filter(|node| node.left_out.is_none());
    for before in next.filter_map(Node::before) {
        n_next[before] += 1;
    }
    let n_forks = n_next.into_iter().filter(|count| *count > 1).count();
    if n_forks > 0 {
        findings.push(Finding::info(
            Code::Forks,
            format!("{n_forks} turns were gone on from more than once"),
        ));
    }
}

/// What the endpoint's dialect cannot say, in either direction.
fn translation(turns: &[Turn], findings: &mut Vec<Finding>) {
    const NAMES_MAX: usize = 20;
    let is_anthropic = |turn: &Turn| turn.endpoint_dialect == EndpointDialect::Anthropic;
    if turns.iter().any(is_anthropic) {
        let text = "the endpoint speaks Anthropic, which has no token ids and no logprobs: for evaluation, not for training";
        findings.push(Finding::info(Code::NoTokensInDialect, text));
    }
    let mut names: Vec<&str> = Vec::new();
    for name in turns.iter().flat_map(|turn| &turn.dropped) {
        if !names.contains(&name.as_str()) && names.len() < NAMES_MAX {
            names.push(name);
        }
    }
    if !names.is_empty() {
        let text = format!(
            "asked for by the agent, and unknown in the endpoint's dialect: {}",
            names.join(", ")
        );
        findings.push(Finding::info(Code::LeftOutInTranslation, text));
    }
}

/// Members that cut or bend the distribution, so that logprobs taken behind them cannot be recomputed, and the seed, which
/// makes the rollouts of a group the same.
const OVERRIDDEN: [&str; 9] = [
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
];

fn sampling(turns: &[Turn], graph: &Graph, findings: &mut Vec<Finding>) {
    let agents: Vec<&Turn> = agents_of(turns, graph).collect();
    let changed = |turn: &Turn, name: &str| {
        let asked = turn.requested_sampling.get(name)?;
        // 1 and 1.0 are the same wish.
        let is_same = turn
            .sampling
            .get(name)
            .is_some_and(|sent| sent == asked || sent.as_f64() == asked.as_f64());
        (!is_same).then(|| format!("{name}={asked}"))
    };
    let changes = agents.iter().map(|turn| -> Vec<String> {
        let names = OVERRIDDEN.iter();
        let changes = names.filter_map(|name| changed(turn, name));
        changes.chain(turn.loosened.iter().cloned()).collect()
    });
    if let Some(changes) = changes.into_iter().find(|changes| !changes.is_empty()) {
        let text = format!(
            "the agent asked for {}, which was not sent",
            changes.join(", ")
        );
        findings.push(Finding::warn(Code::SamplingNeutralised, text));
    }
    let exact = || agents.iter().filter(|turn| turn.is_exact());
    let temperature = |turn: &&&Turn| turn.sampling.get("temperature").cloned();
    let first = exact().next();
    if let Some(first) = first
        && let Some(other) = exact().find(|turn| temperature(turn) != temperature(&first))
    {
        let shown = |turn: &Turn| {
            let value = turn.sampling.get("temperature");
            value.map_or("no temperature".to_owned(), |value| {
                format!("temperature {value}")
            })
        };
        let text = format!(
            "{} was sampled with {}, {} with {}",
            first.node_id(),
            shown(first),
            other.node_id(),
            shown(other)
        );
        findings.push(Finding::warn(Code::SamplingPolicyChanged, text));
    }
}

fn tokens(turns: &[Turn], graph: &Graph, findings: &mut Vec<Finding>) {
    let exact: Vec<&Turn> = agents_of(turns, graph)
        .filter(|turn| turn.is_exact())
        .collect();
    let n_tokens: usize = exact.iter().map(|turn| turn.n_trainable_tokens()).sum();
    if n_tokens == 0 {
        let is_unfit = agents_of(turns, graph).any(|turn| turn.unfit.is_some());
        let text = match is_unfit {
            true => "no turn of the agent can be trained on as it was sampled",
            false => "no turn of the agent has exact tokens",
        };
        findings.push(Finding::fatal(Code::NothingTrainable, text));
        return;
    }
    let logprobs = exact
        .iter()
        .filter_map(|turn| turn.logprobs.as_ref())
        .flatten();
    let n_certain = logprobs.filter(|logprob| **logprob == 0.0).count();
    if n_certain > 0 {
        let text = format!("{n_certain}/{n_tokens} trainable tokens have logprob 0.0 (p=1.0)");
        findings.push(Finding::info(Code::CertainTokens, text));
    }
}
