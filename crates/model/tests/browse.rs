//! What people see of the records of real agents and of a real vLLM's answers is what the record says.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rollcage_model::browse::Reading;
use rollcage_model::browse::tokens::Part;
use rollcage_model::browse::turn::MessageRange;
use rollcage_model::exchange::{Encoder, Line, Request, Response, read};
use rollcage_model::sequence;
use rollcage_model::trace::Facts;

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
            let ids: Option<Vec<u32>> = told.tokens.iter().map(|token| token.id).collect();
            assert_eq!(
                ids.unwrap(),
                own.completion_token_ids.clone().unwrap_or_default()
            );
            if told.tokens.iter().any(|token| token.mask == 1) {
                trained.insert(detail.row.node_id);
            }
            let prompt = reading.tokens(turn, Part::Prompt, 0, usize::MAX).unwrap();
            for token in prompt
                .tokens
                .iter()
                .filter(|token| token.sampled_in.is_some())
            {
                let sampled = &reading.interpretation().turns[token.sampled_in.unwrap()];
                assert!(
                    sampled
                        .completion_token_ids
                        .as_ref()
                        .unwrap()
                        .contains(&token.id.unwrap())
                );
            }
        }
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

/// An answer of vLLM with half characters in its tokens, streamed and whole.
#[test]
fn half_characters_are_told_as_the_engine_wrote_them() {
    for form in ["stream", "whole"] {
        let file = |end: &str| {
            std::fs::read(folder("tests/vllm").join(format!("a-utf8-{form}.{end}"))).unwrap()
        };
        let answer = String::from_utf8(file("response")).unwrap();
        let (head, body) = answer.split_once('\n').unwrap();
        let request = Line::Request(Request {
            exchange: 1,
            body: file("request.json").into(),
            ..Request::default()
        });
        let response = Line::Response(Response {
            exchange: 1,
            status: Some(200),
            is_stream: head.contains("event-stream"),
            body: body.to_owned().into(),
            ..Response::default()
        });
        let mut encoder = Encoder::default();
        let mut bytes = Vec::new();
        for line in [request, response] {
            let frame = encoder.earlier(&line).frame(line).unwrap();
            bytes.extend(encoder.encode(frame).unwrap().0);
        }
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
