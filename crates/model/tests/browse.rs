//! What people see of the records of real agents and of a real vLLM's answers is what the record says.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rollcage_model::browse::Reading;
use rollcage_model::browse::tokens::{Alternative, Part, Token};
use rollcage_model::browse::turn::MessageRange;
use rollcage_model::exchange::{Encoder, Line, Request, Response, read};
use rollcage_model::sequence;
use rollcage_model::trace::{Facts, Interpretation};
use serde_json::{Value, json};

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The stored exchanges of six agents that did the same task.
fn agents() -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder("../rollcage/tests/golden")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let records = files.filter(|path| path.extension().is_some_and(|it| it == "rec"));
    records
        .map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn every_call_of_real_agents_is_shown_as_it_was_stored() {
    let agents = agents();
    assert!(agents.len() >= 6);
    for (agent, bytes) in agents {
        let (exchanges, problems) = read(&bytes);
        assert_eq!(problems, Vec::<String>::new(), "{agent}");
        let reading = Reading::new(bytes.into(), &Facts::default(), false);
        assert_eq!(reading.n_turns(), exchanges.len(), "{agent}");
        let mut trained = BTreeSet::new();
        for (turn, exchange) in exchanges.into_iter().enumerate() {
            assert_eq!(reading.exchange(turn).as_ref(), Some(&exchange), "{agent}");
            let own = &reading.interpretation().turns[turn];
            let detail = reading.detail(turn, MessageRange::All).unwrap();
            let messages: Vec<_> = own.messages.iter().map(|it| (**it).clone()).collect();
            assert_eq!(detail.messages, messages, "{agent}");
            let told = reading.tokens(turn, Part::Completion, 0, 9999).unwrap();
            if told.tokens.iter().any(|token| token.mask == 1) {
                trained.insert(detail.row.node_id);
            }
        }
        check_tokens(&reading, &agent);
        let rows = sequence::rows(reading.interpretation());
        let in_rows = rows
            .iter()
            .flat_map(|row| &row.turns)
            .filter(|turn| turn.is_trained);
        let in_rows: BTreeSet<_> = in_rows.map(|turn| turn.node_id.clone()).collect();
        assert_eq!(trained, in_rows, "{agent}");
    }
}

#[test]
fn what_real_agents_said_has_a_result_for_every_call_that_was_gone_on_from() {
    for (agent, bytes) in agents() {
        let reading = Reading::new(bytes.into(), &Facts::default(), false);
        let page = reading.whole_transcript(None).unwrap();
        assert!(
            page.total >= 3 && page.conversations[0].kind == "agent",
            "{agent}"
        );
        let last = page.entries.iter().map(|entry| entry.turn).max();
        for entry in page.entries.iter().filter(|entry| Some(entry.turn) < last) {
            for call in &entry.tool_calls {
                assert!(call.result.is_some(), "{agent}: {call:?}");
            }
        }
        for conversation in &page.conversations {
            let one = reading.whole_transcript(Some(conversation.root)).unwrap();
            assert_eq!(one.root, Some(conversation.root), "{agent}");
        }
    }
}

/// What an answer says of its sampled tokens, read without the readers of the program: the ids, and the entries of the
/// logprobs.
fn told_in(response: &Response) -> (Vec<u32>, Vec<Value>) {
    let text = response.text();
    let parts: Vec<&str> = match response.is_stream {
        true => text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .collect(),
        false => vec![&text],
    };
    let (mut ids, mut entries) = (Vec::new(), Vec::new());
    for part in parts {
        let part: Value = serde_json::from_str(part).unwrap();
        let choice = &part["choices"][0];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let new = list(&choice["token_ids"]).into_iter();
        ids.extend(new.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()));
        entries.extend(list(&choice["logprobs"]["content"]));
    }
    (ids, entries)
}

fn alternatives_in(entry: &Value) -> Vec<Alternative> {
    let likely = entry["top_logprobs"].as_array().into_iter().flatten();
    let likely = likely.map(|token| Alternative {
        id: None,
        text: token["token"].as_str().unwrap().to_owned(),
        logprob: token["logprob"].as_f64(),
    });
    likely.collect()
}

/// The trained calls with their masks over prompt and completion, as a trainer gets them.
fn masks(seen: &Interpretation) -> BTreeMap<String, Vec<u8>> {
    let turns = seen.training_turns();
    turns.map(|turn| (turn.node_id, turn.loss_mask)).collect()
}

/// Every token of every call that is shown is what the answer, the trace and the graph say, in all of its members.
fn check_tokens(reading: &Reading, name: &str) {
    let seen = reading.interpretation();
    let masks = masks(seen);
    for (index, turn) in seen.turns.iter().enumerate() {
        let response = reading.exchange(index).unwrap().response.unwrap();
        let (ids, entries) = told_in(&response);
        let prompt_ids = turn.prompt_token_ids.as_ref().map(|ids| ids.to_vec());
        let prompt_ids = prompt_ids.unwrap_or_default();
        let n_all = prompt_ids.len() + ids.len();
        let mask = masks.get(&turn.node_id()).cloned();
        let mask = mask.unwrap_or_else(|| vec![0; n_all]);
        assert_eq!(mask.len(), n_all, "{name}, {index}");
        let (prompt_mask, mask) = mask.split_at(prompt_ids.len());
        // Each token has its logprob here, or none has.
        assert!(entries.len() == ids.len() || entries.is_empty(), "{name}");
        let expected: Vec<Token> = (0..ids.len())
            .map(|at| Token {
                id: Some(ids[at]),
                text: entries
                    .get(at)
                    .map(|it| it["token"].as_str().unwrap().to_owned()),
                logprob: entries.get(at).and_then(|it| it["logprob"].as_f64()),
                mask: mask[at],
                sampled_in: None,
                alternatives: entries.get(at).map(alternatives_in).unwrap_or_default(),
            })
            .collect();
        let shown = |part| reading.tokens(index, part, 0, usize::MAX).unwrap().tokens;
        assert_eq!(shown(Part::Completion), expected, "{name}, {index}");

        let mut expected: Vec<Token> = prompt_ids
            .iter()
            .zip(prompt_mask)
            .map(|(id, mask)| Token {
                id: Some(*id),
                text: None,
                logprob: None,
                mask: *mask,
                sampled_in: None,
                alternatives: Vec::new(),
            })
            .collect();
        let nodes = &seen.graph.nodes;
        let parent = |at: usize| nodes[at].parent;
        let own = nodes.iter().position(|node| node.turn == index);
        for at in std::iter::successors(own.and_then(parent), |at| parent(*at)) {
            let call = nodes[at].turn;
            let sampled = &seen.turns[call];
            let start = sampled.prompt_token_ids.as_ref().unwrap().len();
            let ids = sampled.completion_token_ids.as_ref().unwrap();
            for (place, id) in ids.iter().enumerate() {
                let token = &mut expected[start + place];
                assert_eq!(token.id, Some(*id), "{name}: {call} in {index}");
                token.text = sampled.tokens.get(place).cloned();
                token.sampled_in = Some(call);
            }
        }
        assert_eq!(shown(Part::Prompt), expected, "{name}, {index}");
    }
}

/// The answers of a real vLLM, by their names.
fn vllm() -> Vec<String> {
    let files = std::fs::read_dir(folder("tests/vllm")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let names = files.filter_map(|name| Some(name.strip_suffix(".response")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A record of these answers, one call each, with something done to each body.
fn record_of(names: &[String], change: fn(&str) -> String) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Vec::new();
    for (number, name) in (1..).zip(names) {
        let file = |end: &str| std::fs::read(folder("tests/vllm").join(format!("{name}.{end}")));
        let answer = String::from_utf8(file("response").unwrap()).unwrap();
        let (head, body) = answer.split_once('\n').unwrap();
        let (status, kind) = head.split_once(' ').unwrap();
        // The prompt that was too long is not kept.
        let request = file("request.json").unwrap_or_else(|_| b"{}".to_vec());
        let request = Line::Request(Request {
            exchange: number,
            body: request.into(),
            ..Request::default()
        });
        let response = Line::Response(Response {
            exchange: number,
            status: Some(status.parse().unwrap()),
            is_stream: kind.starts_with("text/event-stream"),
            body: change(body).into(),
            ..Response::default()
        });
        for line in [request, response] {
            let frame = encoder.earlier(&line).frame(line).unwrap();
            bytes.extend(encoder.encode(frame).unwrap().0);
        }
    }
    bytes
}

/// The answers were asked for without alternatives: puts some beside each token, the most likely first, as vLLM does.
fn with_alternatives(body: &str) -> String {
    let mut parts = body.split(r#""top_logprobs":[]"#);
    let mut changed = parts.next().unwrap().to_owned();
    for (at, part) in parts.enumerate() {
        let likely = [(format!("a{at}"), -0.125), (format!("\u{fffd}{at}"), -2.5)];
        let likely = likely.map(|(token, logprob)| json!({"token": token, "logprob": logprob}));
        changed += &format!("\"top_logprobs\":{}{part}", json!(likely));
    }
    changed
}

#[test]
fn every_token_of_a_real_vllm_is_shown_as_it_answered_and_as_it_is_trained() {
    let names = vllm();
    assert_eq!(names.len(), 28);
    let read = |names: &[String], change| {
        let bytes = record_of(names, change);
        Reading::new(bytes.into(), &Facts::default(), false)
    };
    for change in [str::to_owned, with_alternatives] {
        // Alone a call without tools is the agent's, and beside others it is not.
        let mut n_trained = 0;
        for name in &names {
            let reading = read(std::slice::from_ref(name), change);
            check_tokens(&reading, name);
            n_trained += masks(reading.interpretation()).len();
        }
        assert_eq!(n_trained, 14);
        let all = read(&names, change);
        check_tokens(&all, "all");
        let trained: Vec<_> = masks(all.interpretation()).into_keys().collect();
        assert_eq!(trained.len(), 2, "{trained:?}");
    }
}

/// An answer of vLLM with half characters in its tokens, streamed and whole.
#[test]
fn half_characters_are_told_as_the_engine_wrote_them() {
    for form in ["stream", "whole"] {
        let bytes = record_of(&[format!("a-utf8-{form}")], str::to_owned);
        let reading = Reading::new(bytes.into(), &Facts::default(), false);
        let page = reading.tokens(0, Part::Completion, 0, 9999).unwrap();
        let turn = &reading.interpretation().turns[0];
        let texts: Vec<_> = page
            .tokens
            .iter()
            .map(|token| token.text.clone().unwrap())
            .collect();
        assert_eq!(texts, turn.tokens, "{form}");
        let ids: Vec<_> = page.tokens.iter().map(|token| token.id.unwrap()).collect();
        assert_eq!(Some(&ids), turn.completion_token_ids.as_ref(), "{form}");
        assert!(!texts.is_empty() && page.is_exact, "{form}");
    }
}
