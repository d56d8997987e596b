//! A stored file of exchanges to all that can be said of it. Results, exports, servers and `rollcage show` read records
//! here and nowhere else, so that none of them keeps silent about what another one tells.

use std::borrow::Cow;

use super::{Interpretation, read};
use crate::exchange::Reader;
use crate::finding::{Code, Finding, RolloutType};
use crate::graph::Graph;
use crate::record::RolloutResult;
use crate::task::Mode;
use crate::transcript::McpNames;

/// What is known of a rollout beside its exchanges, and bears on what they mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Not for training, whatever was captured.
    pub is_eval: bool,
    /// The calls are no part of what is shown; what was found in them and their sums still are.
    pub is_black_box: bool,
    /// How the agent names the tools of the task's MCP servers, where it has any.
    pub mcp_names: Option<McpNames>,
    /// The endpoint's context, where it told.
    pub context_tokens: Option<u64>,
}

impl From<&RolloutResult> for Facts {
    fn from(result: &RolloutResult) -> Self {
        Facts {
            is_eval: false,
            is_black_box: result.mode == Mode::BlackBox.as_str(),
            mcp_names: result.agent_report.mcp_names.clone(),
            context_tokens: result.endpoint.context_tokens,
        }
    }
}

/// Reads a file of exchanges as far as it can be read. What cannot be read is a finding, like a hole.
pub fn interpret_record(bytes: &[u8], facts: &Facts) -> Interpretation {
    let mut exchanges = Reader::new(bytes);
    let mut seen = read(exchanges.by_ref());
    let problems = exchanges.problems.into_iter();
    seen.findings
        .extend(problems.map(|text| Finding::warn(Code::CaptureIngestFailed, text)));
    if let Some(names) = &facts.mcp_names {
        seen.findings.extend(names.not_offered(&seen.turns));
    }
    let too_small = context_too_small(&seen, facts.context_tokens);
    seen.findings.extend(too_small);
    if facts.is_eval || facts.is_black_box {
        seen.rollout_type = RolloutType::Eval;
        seen.n_trainable_tokens = 0;
    }
    if facts.is_black_box {
        seen.turns.clear();
        seen.graph = Graph::new(&[]);
    }
    seen
}

/// A first prompt that fills the whole context was cut by a server that does not say so.
fn context_too_small(seen: &Interpretation, context_tokens: Option<u64>) -> Option<Finding> {
    let context_tokens = context_tokens?;
    let mut turns = seen.turns.iter();
    let first = turns.find(|turn| turn.n_tools > 0 && !turn.is_failed())?;
    let prompt_tokens = first.usage?.prompt_tokens;
    (prompt_tokens >= context_tokens).then(|| {
        let text = format!(
            "{}: the agent's first prompt is {prompt_tokens} tokens, and the endpoint's context is {context_tokens}: serve \
             the model with a larger one",
            first.node_id()
        );
        Finding::warn(Code::ContextTooSmall, text)
    })
}

impl Interpretation {
    /// The result with every finding of this reading. A file that was damaged after its rollout ended says more than its
    /// result does.
    pub fn complete<'a>(&self, result: &'a RolloutResult) -> Cow<'a, RolloutResult> {
        let missing = self.findings.iter();
        let missing = missing.filter(|finding| !result.findings.contains(finding));
        let missing: Vec<Finding> = missing.cloned().collect();
        let mut result = Cow::Borrowed(result);
        if !missing.is_empty() {
            result.to_mut().findings.extend(missing);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exchange::{Encoder, Line, Request, Response};
    use crate::finding::CaptureLevel;

    /// One answered call with tokens, and a torn second one.
    fn torn_record() -> Vec<u8> {
        let tools = json!([{"type": "function", "function": {"name": "bash"}}]);
        let request = json!({"messages": [{"role": "user", "content": "hi"}], "tools": tools});
        let answer = json!({
            "prompt_token_ids": [1, 2], "usage": {"prompt_tokens": 2, "completion_tokens": 1},
            "choices": [{
                "finish_reason": "stop", "token_ids": [7], "message": {"role": "assistant", "content": "ok"},
                "logprobs": {"content": [{"token": "ok", "logprob": -0.5}]},
            }],
        });
        let line = |exchange| {
            Line::Request(Request {
                exchange,
                body: request.to_string().into(),
                ..Request::default()
            })
        };
        let response = Line::Response(Response {
            exchange: 1,
            status: Some(200),
            body: answer.to_string().into(),
            ..Response::default()
        });
        let mut encoder = Encoder::default();
        let mut bytes = Vec::new();
        for line in [line(1), response, line(2)] {
            let frame = encoder.earlier(&line).frame(line).unwrap();
            bytes.extend(encoder.encode(frame).unwrap().0);
        }
        bytes.truncate(bytes.len() - 1);
        bytes
    }

    fn codes(seen: &Interpretation) -> Vec<Code> {
        seen.findings.iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn what_cannot_be_read_is_a_finding_and_so_is_what_the_facts_tell() {
        let record = torn_record();
        let plain = interpret_record(&record, &Facts::default());
        assert_eq!(plain.rollout_type, RolloutType::Train);
        assert_eq!(plain.n_trainable_tokens, 1);
        assert!(codes(&plain).contains(&Code::CaptureIngestFailed));
        let facts = Facts {
            mcp_names: Some(McpNames::new("{server}_{tool}", [&"docs".to_owned()])),
            context_tokens: Some(2),
            ..Facts::default()
        };
        let told = codes(&interpret_record(&record, &facts));
        assert!(told.contains(&Code::McpNotOffered) && told.contains(&Code::ContextTooSmall));
    }

    #[test]
    fn a_black_box_shows_no_calls_and_all_findings() {
        let record = torn_record();
        let open = interpret_record(&record, &Facts::default());
        let facts = Facts {
            is_black_box: true,
            ..Facts::default()
        };
        let seen = interpret_record(&record, &facts);
        assert!(seen.turns.is_empty() && seen.training_turns().next().is_none());
        assert_eq!(
            (
                seen.rollout_type,
                seen.capture_level,
                seen.n_trainable_tokens
            ),
            (RolloutType::Eval, CaptureLevel::Tokens, 0)
        );
        assert_eq!((seen.findings, seen.usage), (open.findings, open.usage));
    }

    #[test]
    fn an_evaluation_keeps_its_calls_and_trains_none() {
        let facts = Facts {
            is_eval: true,
            ..Facts::default()
        };
        let seen = interpret_record(&torn_record(), &facts);
        assert_eq!((seen.turns.len(), seen.trained().count()), (1, 0));
    }
}
