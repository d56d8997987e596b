use serde_json::{Map, Value, json};

use super::figures::RolloutFigures;
use super::tokens::Part;
use super::turn::MessageRange;
use super::*;
use crate::exchange::{Encoder, Line, Request, Response};
use crate::finding::Code;
use crate::trace::Facts;

mod graph;
mod saved;
mod tokens;
mod transcript;

/// A model call of the tests: the messages and ids that went in, and the reply.
#[derive(Clone, Default)]
struct Asked {
    messages: Vec<Value>,
    prompt: Vec<u32>,
    reply: Value,
    sampled: Vec<u32>,
    has_tools: bool,
    has_logprobs: bool,
    /// With their logprobs, for every token.
    likely: Vec<(&'static str, f64)>,
    is_stream: bool,
    session: Option<&'static str>,
    parent: Option<&'static str>,
    /// Set for a call that failed.
    status: Option<u16>,
    /// No answer is stored.
    is_open: bool,
}

fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

fn uses(id: &str, arguments: &str) -> Value {
    let function = json!({"name": "bash", "arguments": arguments});
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": function}]})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

/// A call of the agent with tools and tokens.
fn asked(messages: &[Value], prompt: &[u32], reply: Value, sampled: &[u32]) -> Asked {
    Asked {
        messages: messages.to_vec(),
        prompt: prompt.to_vec(),
        reply,
        sampled: sampled.to_vec(),
        has_tools: true,
        has_logprobs: true,
        ..Asked::default()
    }
}

impl Asked {
    fn request(&self, number: u64) -> Line {
        let mut body = json!({"model": "m", "temperature": 0.5, "messages": self.messages});
        if self.has_tools {
            body["tools"] = json!([{"type": "function", "function": {"name": "bash"}}]);
        }
        let headers = [
            ("x-session-affinity", self.session),
            ("x-parent-session-id", self.parent),
        ];
        let headers = headers.into_iter();
        Line::Request(Request {
            exchange: number,
            at: 10.0 * number as f64,
            headers: headers
                .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
                .collect(),
            body: body.to_string().into(),
            ..Request::default()
        })
    }

    fn entry(&self, id: u32) -> Value {
        let likely = self.likely.iter();
        let likely: Vec<Value> = likely
            .map(|(token, logprob)| json!({"token": token, "logprob": logprob}))
            .collect();
        json!({"token": format!("t{id}"), "logprob": -f64::from(id) / 100.0, "top_logprobs": likely})
    }

    fn response(&self, number: u64) -> Line {
        let entries: Vec<Value> = self.sampled.iter().map(|id| self.entry(*id)).collect();
        let name = if self.is_stream { "delta" } else { "message" };
        let mut choice = json!({"finish_reason": "stop"});
        choice[name] = self.reply.clone();
        let mut body = json!({"model": "served"});
        if !self.prompt.is_empty() {
            body["prompt_token_ids"] = json!(self.prompt);
            choice["token_ids"] = json!(self.sampled);
            body["usage"] = json!({
                "prompt_tokens": self.prompt.len(), "completion_tokens": self.sampled.len(),
                "prompt_tokens_details": {"cached_tokens": 1},
            });
        }
        if self.has_logprobs {
            choice["logprobs"] = json!({"content": entries});
        }
        body["choices"] = json!([choice]);
        let body = match (self.status, self.is_stream) {
            (Some(_), _) => json!({"error": {"message": "too busy"}}).to_string(),
            (None, true) => format!("data: {body}\n\ndata: [DONE]\n\n"),
            (None, false) => body.to_string(),
        };
        Line::Response(Response {
            exchange: number,
            at: 10.0 * number as f64 + 1.0,
            status: self.status.or(Some(200)),
            is_stream: self.is_stream,
            total_s: number as f64,
            body: body.into(),
            ..Response::default()
        })
    }
}

fn record(calls: &[Asked]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    for (number, asked) in (1..).zip(calls) {
        let response = (!asked.is_open).then(|| asked.response(number));
        for line in [Some(asked.request(number)), response]
            .into_iter()
            .flatten()
        {
            let frame = encoder.earlier(&line).frame(line).unwrap();
            bytes.extend(encoder.encode(frame).unwrap().0);
        }
    }
    bytes
}

fn read(calls: &[Asked]) -> Reading {
    Reading::new(record(calls).into(), &Facts::default(), false)
}

fn read_running(calls: &[Asked]) -> Reading {
    Reading::new(record(calls).into(), &Facts::default(), true)
}

/// Three calls: a tool is used, and used again.
fn work() -> [Asked; 3] {
    let (system, task) = (said("system", "be good"), said("user", "do it"));
    let (first, second) = (uses("c1", "{\"a\":1}"), uses("c2", "no JSON"));
    let start = [system, task];
    let more = [&start[..], &[first.clone(), result("c1", "one")]].concat();
    let most = [&more[..], &[second.clone(), result("c2", "two")]].concat();
    [
        asked(&start, &[1, 2, 3], first, &[4, 5]),
        asked(&more, &[1, 2, 3, 4, 5, 6], second, &[7]),
        asked(
            &most,
            &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            said("assistant", "done"),
            &[10],
        ),
    ]
}

fn title() -> Asked {
    let mut title = asked(
        &[said("user", "a title")],
        &[20],
        said("assistant", "T"),
        &[21],
    );
    title.has_tools = false;
    title
}

#[test]
fn rows_tell_what_is_known_and_nothing_else() {
    let mut calls = work();
    calls[1].has_logprobs = false;
    let reading = read(&calls);
    let page = reading.turns(0, 100);
    assert_eq!((page.start, page.total, page.turns.len()), (0, 3, 3));
    let first = &page.turns[0];
    assert_eq!(
        (first.node_id.as_str(), first.role.as_str(), first.root),
        ("n1", "agent", Some(0))
    );
    assert_eq!(
        (first.prompt_tokens, first.cached_tokens, first.messages),
        (Some(3), Some(1), 2)
    );
    assert_eq!(
        (&first.tool_calls[..], first.before),
        (&["bash".to_owned()][..], None)
    );
    assert!((first.mean_logprob.unwrap() + 0.045).abs() < 1e-12);
    let second = &page.turns[1];
    assert_eq!(second.not_exact, Some(Code::NoLogprobs));
    assert_eq!(
        (second.mean_logprob, second.is_trained, second.before),
        (None, false, Some(0))
    );
    assert_eq!(page.turns[2].preview, "done");
    let rest = reading.turns(2, 1);
    assert_eq!((rest.turns[0].turn, rest.start, rest.total), (2, 2, 3));
    assert_eq!(reading.turns(9, 5).turns, []);
}

#[test]
fn a_call_in_full_has_the_messages_that_are_new() {
    let reading = read(&work());
    let detail = reading.detail(1, MessageRange::New).unwrap();
    assert_eq!(detail.messages_before, 3);
    assert_eq!(detail.messages, [result("c1", "one")]);
    assert_eq!(detail.message, Some(uses("c2", "no JSON")));
    assert_eq!((detail.prompt_ids, detail.completion_ids), (6, 1));
    let sampling: Map<String, Value> = [("temperature".to_owned(), json!(0.5))]
        .into_iter()
        .collect();
    assert_eq!(detail.sampling_params, sampling);
    assert_eq!(
        (detail.dialect.as_str(), detail.has_alternatives),
        ("chat", false)
    );
    let all = reading.detail(1, MessageRange::All).unwrap();
    assert_eq!((all.messages_before, all.messages.len()), (0, 4));
    assert_eq!(reading.detail(3, MessageRange::All), None);
}

#[test]
fn a_call_without_an_answer_is_pending_while_the_rollout_runs() {
    let mut calls = work();
    calls[2].is_open = true;
    let reading = read_running(&calls);
    let row = &reading.turns(2, 1).turns[0];
    assert_eq!(
        (row.role.as_str(), row.before, row.root, row.latency_s),
        ("pending", Some(1), Some(0), None)
    );
    assert_eq!(
        (&row.error, row.not_exact, row.preview.as_str()),
        (&None, None, "")
    );
    assert_eq!(
        reading
            .detail(2, MessageRange::New)
            .unwrap()
            .messages_before,
        5
    );
    let told = |reading: Reading| {
        let findings = reading.figures(None).findings.into_iter();
        findings.filter(|it| it.code == Code::UpstreamError).count()
    };
    assert_eq!((told(reading), told(read(&calls))), (0, 1));
    let row = read(&calls).turns(2, 1).turns.remove(0);
    assert_eq!(
        (row.role.as_str(), row.error.as_deref()),
        ("failed", Some("no response was stored"))
    );
}

#[test]
fn figures_are_counts_over_all_calls() {
    let [first, second, third] = work();
    let again = Asked {
        sampled: vec![70],
        ..second.clone()
    };
    let figures = read(&[title(), first, again, second, third]).figures(None);
    let count = |pairs: &[(&str, usize)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    };
    let expected = RolloutFigures {
        turns: 5,
        productive_turns: 3,
        roles: count(&[("agent", 3), ("auxiliary", 1), ("discarded", 1)]),
        forks: 1,
        prompt_tokens: 25,
        completion_tokens: 6,
        cached_tokens: 5,
        trainable_tokens: 4,
        mean_logprob: Some(-(0.21 + 0.04 + 0.05 + 0.70 + 0.07 + 0.10) / 6.0),
        finish_reasons: count(&[("stop", 5)]),
        tools: count(&[("bash", 3)]),
        latency_median_s: Some(3.0),
        latency_max_s: Some(5.0),
        findings: figures.findings.clone(),
        ..RolloutFigures::default()
    };
    let mean = |figures: &RolloutFigures| (figures.mean_logprob.unwrap() * 1e9).round();
    assert_eq!(mean(&figures), mean(&expected));
    let figures = RolloutFigures {
        mean_logprob: expected.mean_logprob,
        ..figures
    };
    assert_eq!(figures, expected);
}

#[test]
fn nothing_is_counted_of_an_empty_record() {
    let reading = read_running(&[]);
    assert_eq!(reading.figures(None), RolloutFigures::default());
    let codes = read(&[]).figures(None).findings;
    assert_eq!(codes[0].code, Code::NoTurns);
    assert_eq!(
        (reading.turns(0, 9).total, reading.graph(0, 9).total),
        (0, 0)
    );
    let page = reading.transcript(None, 0, 9).unwrap();
    assert_eq!(
        (page.root, page.total, page.conversations.len()),
        (None, 0, 0)
    );
    assert_eq!(reading.transcript(Some(0), 0, 9), None);
}

#[test]
fn a_black_box_shows_what_was_said_and_no_calls() {
    let facts = Facts {
        is_black_box: true,
        ..Facts::default()
    };
    let reading = Reading::new(record(&work()).into(), &facts, false);
    assert_eq!(
        (reading.turns(0, 9).total, reading.graph(0, 9).total),
        (0, 0)
    );
    assert_eq!(reading.tokens(0, Part::Completion, 0, 9), None);
    assert_eq!(
        (reading.detail(0, MessageRange::New), reading.exchange(0)),
        (None, None)
    );
    let figures = reading.figures(None);
    assert_eq!(
        (
            figures.turns,
            figures.prompt_tokens,
            figures.trainable_tokens
        ),
        (3, 18, 0)
    );
    assert!(figures.roles.is_empty() && figures.mean_logprob.is_none());
    assert_eq!(reading.transcript(None, 0, 99).unwrap().total, 5);
}

#[test]
fn the_bytes_of_a_call_are_those_that_were_stored() {
    let calls = work();
    let reading = read(&calls);
    let exchange = reading.exchange(1).unwrap();
    let Line::Request(request) = calls[1].request(2) else {
        panic!("a request");
    };
    assert_eq!(exchange.request, request);
    assert_eq!(reading.exchange(3), None);
}
