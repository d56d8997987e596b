//! Answers of a real vLLM 0.32 with the engine's own ids and logprobs beside them: what is read of an answer is what the
//! engine sampled, streamed and whole.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;

use rollcage_dialect::chat::{ConstraintPolicy, RefusedParameter, Rewrite, StreamError, prepare};
use rollcage_dialect::sampling::LogprobsMode;
use rollcage_model::exchange::{Exchange, Request, Response};
use rollcage_model::finding::{Code, Level, RolloutType};
use rollcage_model::trace::{Interpretation, interpret};
use rollcage_model::turn::{Exactness, Turn};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What the engine itself logged.
#[derive(Deserialize)]
struct Truth {
    prompt: Vec<u32>,
    ids: Vec<u32>,
    logprobs: Vec<(u32, f64)>,
    finish: String,
}

const FORMS: [&str; 2] = ["stream", "whole"];

/// Plain answers, which are all that they seem to be.
const PLAIN: [&str; 7] = ["length", "plain", "random", "stop", "think", "tool", "utf8"];

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vllm");
    std::fs::read(path.join(name)).unwrap()
}

/// A call as the record would hold it.
fn tape(name: &str) -> Exchange {
    // The prompt that was too long is not kept.
    let request = match name.contains("e-context") {
        true => br#"{"model":"tiny","messages":[]}"#.to_vec(),
        false => file(&format!("a-{name}.request.json")),
    };
    let response = String::from_utf8(file(&format!("a-{name}.response"))).unwrap();
    let (head, body) = response.split_once('\n').unwrap();
    let (status, kind) = head.split_once(' ').unwrap();
    Exchange {
        request: Request {
            exchange: 1,
            path: "/v1/chat/completions".to_owned(),
            body: request.into(),
            ..Request::default()
        },
        sent: None,
        response: Some(Response {
            exchange: 1,
            status: Some(status.parse().unwrap()),
            is_stream: kind.starts_with("text/event-stream"),
            body: body.to_owned().into(),
            ..Response::default()
        }),
    }
}

fn truth(name: &str) -> Truth {
    serde_json::from_slice(&file(&format!("a-{name}.truth.json"))).unwrap()
}

/// What a training session sends beside the agent's own members.
fn pinned(temperature: f64) -> Map<String, Value> {
    let sent = json!({
        "temperature": temperature, "top_p": 1, "top_k": -1, "min_p": 0,
        "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1,
    });
    sent.as_object().cloned().unwrap()
}

fn sampled(name: &str, mode: LogprobsMode, set: Map<String, Value>) -> Turn {
    let mut exchange = tape(name);
    exchange.request.logprobs_of = Some(mode);
    exchange.request.set = set;
    Turn::new(&exchange)
}

#[test]
fn every_id_and_logprob_is_the_engines() {
    let names = PLAIN.into_iter().chain(["required", "strict"]);
    // Of the calls with a stop string the engine's own log is not kept.
    let names = names.filter(|name| *name != "stop");
    for name in names.flat_map(|name| FORMS.map(|form| format!("{name}-{form}"))) {
        let (turn, truth) = (Turn::new(&tape(&name)), truth(&name));
        let prompt = turn.prompt_token_ids.as_ref().map(|ids| ids.to_vec());
        assert_eq!(prompt.as_ref(), Some(&truth.prompt), "{name}");
        assert_eq!(
            turn.completion_token_ids.as_ref(),
            Some(&truth.ids),
            "{name}"
        );
        let logprobs: Vec<f64> = truth.logprobs.iter().map(|(_, logprob)| *logprob).collect();
        // To the last bit.
        assert_eq!(turn.logprobs, Some(logprobs), "{name}");
        let ids: Vec<u32> = truth.logprobs.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, truth.ids, "{name}: the tape itself");
        // A tool call has a finish reason of its own in chat.
        let finish = match turn.finish_reason.as_deref() {
            Some("tool_calls") => "stop",
            other => other.unwrap(),
        };
        assert_eq!(finish, truth.finish, "{name}");
    }
}

#[test]
fn a_stream_and_a_whole_answer_say_the_same() {
    for name in PLAIN.into_iter().filter(|name| *name != "random") {
        let [streamed, whole] = FORMS.map(|form| Turn::new(&tape(&format!("{name}-{form}"))));
        let said = |turn: &Turn| {
            let message = turn.message.clone().unwrap();
            (
                message.content.unwrap_or_default(),
                message.tool_calls.len(),
            )
        };
        assert_eq!(said(&streamed), said(&whole), "{name}");
        assert_eq!(streamed.completion_token_ids, whole.completion_token_ids);
        assert_eq!(streamed.logprobs, whole.logprobs, "{name}");
        assert_eq!(streamed.exactness, Exactness::Exact, "{name}");
        assert_eq!(whole.exactness, Exactness::Exact, "{name}");
    }
}

#[test]
fn refusals_are_errors_and_no_answers() {
    for (name, status, words) in [
        ("e-context", 400, "maximum context length"),
        ("e-model", 404, "does not exist"),
        ("e-tools-empty", 400, "must not be an empty array"),
        ("e-toplogprobs", 400, "greater than max allowed: 20"),
    ] {
        for form in FORMS {
            let name = format!("{name}-{form}");
            let turn = Turn::new(&tape(&name));
            assert!(turn.is_failed(), "{name}");
            assert_eq!(turn.exactness, Exactness::NotExact(Code::UpstreamError));
            let error = turn.upstream_error.unwrap().to_string();
            assert!(error.contains(words), "{name}: {error}");
            // Too many alternatives are told of inside of a stream that has begun.
            if name != "e-toplogprobs-stream" {
                assert_eq!(turn.upstream_status, Some(status), "{name}");
            }
        }
    }
}

#[test]
fn line_tool_choice_and_strict_are_sampled_under_a_grammar() {
    for (name, member) in [("required", "tool_choice"), ("strict", "tools.strict")] {
        for form in FORMS {
            let turn = Turn::new(&tape(&format!("{name}-{form}")));
            let expect = Exactness::NotExact(Code::ConstrainedSampling);
            assert_eq!(turn.exactness, expect, "{name}");
            assert_eq!(turn.unfit.as_deref(), Some(member));
        }
    }
    let body = tape("required-whole").request.body;
    let refuse = Rewrite {
        constrained: ConstraintPolicy::Refuse,
        ..Rewrite::default()
    };
    let error = prepare(&body, &refuse).unwrap_err().to_string();
    assert!(error.starts_with("`tool_choice` constrains"), "{error}");
}

#[test]
fn line_raw_logprobs_are_trainable_at_temperature_1_and_nothing_else() {
    use LogprobsMode::{Processed, Raw, Temperature};
    let exactness = |mode, temperature| sampled("plain-whole", mode, pinned(temperature)).exactness;
    let not = Exactness::NotExact(Code::LogprobsNotSampled);
    assert_eq!(exactness(Raw, 1.0), Exactness::Exact);
    assert_eq!(exactness(Raw, 0.5), not);
    assert_eq!(exactness(Temperature, 0.5), Exactness::Exact);
    assert_eq!(exactness(Processed, 0.5), Exactness::Exact);
}

#[test]
fn line_a_models_own_defaults_are_not_temperature_1() {
    // The request names no sampling, so `generation_config.json` does.
    let turn = sampled("plain-whole", LogprobsMode::Raw, Map::new());
    assert_eq!(
        turn.exactness,
        Exactness::NotExact(Code::LogprobsNotSampled)
    );
    let words = turn.unfit.unwrap();
    assert!(
        words.contains("no temperature, no top_p, no top_k"),
        "{words}"
    );
    let sent = sampled("plain-whole", LogprobsMode::Raw, pinned(1.0)).sampling;
    assert_eq!(
        (&sent["temperature"], &sent["top_k"]),
        (&json!(1.0), &json!(-1))
    );
}

#[test]
fn line_too_many_alternatives_teach_nothing() {
    for form in FORMS {
        let response = tape(&format!("e-toplogprobs-{form}")).response.unwrap();
        let text = response.text();
        let data = text.lines().next().unwrap();
        let data = data.strip_prefix("data: ").unwrap_or(data);
        assert!(StreamError::read(data).is_some());
        assert_eq!(RefusedParameter::read(data), None);
    }
}

#[test]
fn line_thoughts_that_are_not_included_cost_the_ids() {
    for form in FORMS {
        let turn = Turn::new(&tape(&format!("no-reasoning-{form}")));
        assert_eq!(turn.exactness, Exactness::NotExact(Code::NoSampledIds));
    }
    // So they are asked for.
    let rewrite = Rewrite {
        capture: rollcage_dialect::chat::CaptureMode::Tokens,
        ..Rewrite::default()
    };
    let body = tape("no-reasoning-whole").request.body;
    let prepared = prepare(&body, &rewrite).unwrap();
    assert_eq!(prepared.set["include_reasoning"], true);
    assert!(prepared.added.reasoning);
}

#[test]
fn line_a_null_logprob_is_one_bad_turn() {
    let mut bad = tape("plain-whole");
    let response = bad.response.as_mut().unwrap();
    let text = response.text().replacen("-17.296993255615234", "null", 1);
    response.body = text.into();
    let good = |number: u64| {
        let mut exchange = tape("tool-stream");
        exchange.request.exchange = number;
        exchange.response.as_mut().unwrap().exchange = number;
        exchange
    };
    let seen = interpret([bad, good(2)]);
    let exact: Vec<bool> = seen.turns.iter().map(Turn::is_exact).collect();
    assert_eq!(exact, [false, true]);
    assert_eq!(
        seen.turns[0].exactness,
        Exactness::NotExact(Code::InvalidLogprob)
    );
    assert_eq!(seen.rollout_type, RolloutType::Train);
}

#[test]
fn line_a_context_overflow_names_the_context() {
    let response = tape("e-context-whole").response.unwrap();
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(body["error"]["param"], "input_tokens");
    let seen = interpret([tape("e-context-whole"), tape_as("plain-whole", 2)]);
    assert!(has(&seen, Level::Warn, Code::ContextBudgetExhausted));
}

#[test]
fn line_speculative_and_split_utf8_tokens_keep_their_ids() {
    // Several tokens in a chunk, and one letter over several tokens.
    let turn = Turn::new(&tape("utf8-stream"));
    assert_eq!(turn.exactness, Exactness::Exact);
    let text = turn.message.unwrap().content.unwrap();
    assert!(!text.contains('\u{fffd}') && !text.is_ascii(), "{text}");
}

/// One call of a conversation: what was in the prompt, what was sampled, and what was said before.
fn turn_of(number: u64, prompt: &[u32], sampled: &[u32], said: &[&str], reply: &str) -> Exchange {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages = said.iter().zip(roles);
    let messages: Vec<Value> = messages
        .map(|(text, role)| json!({"role": role, "content": text}))
        .collect();
    let logprobs: Vec<Value> = sampled
        .iter()
        .map(|_| json!({"token": "x", "logprob": -1.5}))
        .collect();
    let body = json!({
        "model": "tiny", "prompt_token_ids": prompt,
        "choices": [{
            "index": 0, "finish_reason": "stop", "token_ids": sampled, "logprobs": {"content": logprobs},
            "message": {"role": "assistant", "content": reply},
        }],
        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": sampled.len()},
    });
    Exchange {
        request: Request {
            exchange: number,
            body: json!({"model": "tiny", "messages": messages})
                .to_string()
                .into(),
            ..Request::default()
        },
        sent: None,
        response: Some(Response {
            exchange: number,
            status: Some(200),
            body: body.to_string().into(),
            ..Response::default()
        }),
    }
}

#[test]
fn line_a_reply_that_is_rendered_otherwise_keeps_its_own_row() {
    // The parser gives the text back with a line feed that the template writes again, so the next prompt has one token
    // (9) where two (6, 7) were sampled.
    let first = turn_of(1, &[1, 2], &[5, 6, 7], &["go"], "text\n");
    let next = turn_of(2, &[1, 2, 5, 9, 3], &[8], &["go", "text\n", "on"], "done");
    let seen = interpret([first, next]);
    let rows: Vec<(Vec<u32>, Vec<u32>)> = seen
        .training_turns()
        .map(|turn| (turn.prompt_token_ids, turn.completion_token_ids))
        .collect();
    let expect = [(vec![1, 2], vec![5, 6, 7]), (vec![1, 2, 5, 9, 3], vec![8])];
    assert_eq!(rows, expect);
}

#[test]
fn line_without_thinking_the_prefix_breaks_at_every_turn() {
    // An empty think block (40, 41) ends each prompt and is left out of the history.
    let first = turn_of(1, &[1, 40, 41], &[5], &["a"], "b");
    let next = turn_of(2, &[1, 5, 2, 40, 41], &[6], &["a", "b", "c"], "d");
    let last = turn_of(
        3,
        &[1, 5, 2, 6, 3, 40, 41],
        &[7],
        &["a", "b", "c", "d", "e"],
        "f",
    );
    let seen = interpret([first, next, last]);
    let sampled: Vec<Vec<u32>> = seen
        .training_turns()
        .map(|turn| turn.completion_token_ids)
        .collect();
    assert_eq!(sampled, [vec![5], vec![6], vec![7]]);
    assert_eq!(seen.n_trainable_tokens, 3);
}

#[test]
fn line_an_abort_is_no_answer() {
    for form in FORMS {
        let mut exchange = tape(&format!("plain-{form}"));
        let response = exchange.response.as_mut().unwrap();
        let text = response.text();
        let text = text.replace(r#""finish_reason":"stop""#, r#""finish_reason":"abort""#);
        response.body = text.into();
        let turn = Turn::new(&exchange);
        assert_eq!(turn.exactness, Exactness::NotExact(Code::AbortedTurn));
        assert_eq!(turn.n_trainable_tokens(), 0, "{form}");
    }
}

#[test]
fn line_an_engine_that_is_killed_leaves_no_trainable_turn() {
    let mut exchange = tape("plain-stream");
    let response = exchange.response.as_mut().unwrap();
    response.body = response.body.slice(..response.body.len() / 2);
    response.error = Some("the stream broke off: connection closed".to_owned());
    let turn = Turn::new(&exchange);
    assert_eq!(turn.exactness, Exactness::NotExact(Code::TruncatedTurn));
    exchange.response = None;
    let turn = Turn::new(&exchange);
    assert!(turn.is_failed(), "refused, or never heard of again");
}

#[test]
fn a_session_whose_policy_makes_every_turn_unfit_is_an_evaluation() {
    let mut exchange = tape("plain-whole");
    exchange.request.logprobs_of = Some(LogprobsMode::Raw);
    exchange.request.set = pinned(0.5);
    let seen = interpret([exchange.clone()]);
    assert_eq!(seen.rollout_type, RolloutType::Eval);
    assert!(has(&seen, Level::Fatal, Code::NothingTrainable));
    let told = seen.findings.iter();
    let mut told = told.filter(|finding| finding.code == Code::LogprobsNotSampled);
    let text = &told.next().unwrap().text;
    assert!(
        text.contains("n1:")
            && text.contains("temperature=0.5")
            && text.contains("processed_logprobs"),
        "{text}"
    );
    // One turn that is fine is enough.
    let mut fine = tape_as("utf8-whole", 2);
    fine.request.logprobs_of = Some(LogprobsMode::Raw);
    fine.request.set = pinned(1.0);
    let seen = interpret([exchange, fine]);
    assert_eq!(seen.rollout_type, RolloutType::Train);
    assert_eq!(
        seen.n_trainable_tokens,
        truth("utf8-whole").ids.len() as u64
    );
    assert!(has(&seen, Level::Warn, Code::LogprobsNotSampled));
}

#[test]
fn a_prompt_with_an_image_is_not_trained_on() {
    let mut exchange = tape("plain-whole");
    let body = String::from_utf8(exchange.request.body.to_vec()).unwrap();
    let content = r#"[{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]"#;
    exchange.request.body = body.replacen("\"SCRIPT=plain\"", content, 1).into();
    let seen = interpret([exchange]);
    assert!(has(&seen, Level::Warn, Code::MediaInPrompt));
    assert_eq!(seen.rollout_type, RolloutType::Eval);
}

#[test]
fn capture_that_the_endpoint_refused_is_told_of_every_turn_it_touches() {
    let mut exchange = tape_as("plain-whole", 2);
    exchange.request.refused = vec!["top_k".to_owned(), "return_token_ids".to_owned()];
    let seen = interpret([tape("utf8-whole"), exchange]);
    let told = seen.findings.iter();
    let mut told = told.filter(|finding| finding.code == Code::ReducedCapture);
    let expect = "n2: the endpoint refused return_token_ids, so the answers have less in them";
    assert_eq!(told.next().unwrap().text, expect);
}

#[test]
fn an_image_that_did_not_reach_the_endpoint_is_told_of() {
    let mut exchange = tape("plain-whole");
    exchange.sent = Some(exchange.request.body.clone());
    let image = json!({"type": "input_image", "image_url": "data:image/png;base64,AA"});
    let own = json!({"input": [{"role": "user", "content": [image]}]});
    exchange.request.body = own.to_string().into();
    let seen = interpret([exchange]);
    assert!(has(&seen, Level::Warn, Code::ImageNotSent));
}

fn tape_as(name: &str, number: u64) -> Exchange {
    let mut exchange = tape(name);
    exchange.request.exchange = number;
    exchange.response.as_mut().unwrap().exchange = number;
    exchange
}

fn has(seen: &Interpretation, level: Level, code: Code) -> bool {
    let mut findings = seen.findings.iter();
    findings.any(|finding| finding.level == level && finding.code == code)
}
