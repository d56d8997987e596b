//! What is sampled with, what logprobs are of, and what becomes of calls that would make tokens unfit for training.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::Plan;
use rollcage_model::ending::Ended;
use rollcage_model::exchange::Exchange;
use rollcage_model::finding::{CaptureLevel, Code, RolloutType};
use rollcage_model::task::TOP_LOGPROBS;
use rollcage_proxy::probe::{LogprobsMode, Profile, probe};
use rollcage_testkit::upstream::{ReceivedRequest, Reply, StreamEnd, Upstream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::standalone::Proxy;
use crate::support::{ASK, ASK_STREAM, Home, endpoint, run_one, says, streams, task, traced};

const CHAT: &str = "/v1/chat/completions";

/// What a server does to its logprobs.
#[derive(Clone, Copy)]
enum Engine {
    Raw,
    AfterTemperature,
    Processed,
    /// Raw, of a model that is sure of every token.
    Sure,
}

/// A model of three tokens, sampled as engines do.
fn sampled(engine: Engine, asked: &ReceivedRequest) -> Reply {
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let number = |name: &str, usual: f64| body[name].as_f64().unwrap_or(usual);
    let logits: [f64; 3] = match engine {
        Engine::Sure => [500.0, 0.0, 0.0],
        _ => [2.0, 1.0, 0.5],
    };
    let is_cut = number("top_k", -1.0) == 1.0 || number("top_p", 1.0) < 0.01;
    let temperature = match engine {
        Engine::Raw | Engine::Sure => 1.0,
        Engine::AfterTemperature | Engine::Processed => number("temperature", 1.0),
    };
    let weights = logits.map(|logit| (logit / temperature).exp());
    let sum: f64 = weights.iter().sum();
    // Of the likeliest, which is what is left behind a cut; else of another.
    let at = usize::from(!is_cut && !matches!(engine, Engine::Sure));
    let logprob = match (engine, is_cut) {
        (Engine::Processed, true) => 0.0,
        _ => (weights[at] / sum).ln(),
    };
    let entry = json!({"token": "a", "logprob": logprob, "top_logprobs": []});
    let body = json!({
        "model": "test-model", "prompt_token_ids": [1, 2],
        "choices": [{
            "index": 0, "finish_reason": "length", "token_ids": [at, at],
            "message": {"role": "assistant", "content": "aa"}, "logprobs": {"content": [entry, entry]},
        }],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    });
    whole(200, &body)
}

fn whole(status: u16, body: &Value) -> Reply {
    Reply::Whole {
        status,
        content_type: "application/json",
        body: body.to_string(),
    }
}

fn is_stream(asked: &ReceivedRequest) -> bool {
    asked.body.contains("\"stream\":true")
}

fn vllm(asked: &ReceivedRequest) -> Reply {
    match is_stream(asked) {
        true => streams(true, StreamEnd::Clean),
        false => says("ok"),
    }
}

/// Streams without ids, so that agents get whole answers replayed.
fn lossy(asked: &ReceivedRequest) -> Reply {
    match vllm(asked) {
        Reply::Stream { data, ending } => Reply::Stream {
            data: data
                .into_iter()
                .map(|data| data.replace("\"token_ids\"", "\"no_ids\""))
                .collect(),
            ending,
        },
        other => other,
    }
}

async fn profile_of(answer: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Profile {
    let upstream = Upstream::start(move |_, asked| answer(asked)).unwrap();
    let endpoint = endpoint(upstream.base_url());
    let client = rollcage_proxy::outbound::client(&endpoint.base_url).unwrap();
    probe(&client, &endpoint, TOP_LOGPROBS).await.unwrap()
}

#[tokio::test]
async fn the_probe_finds_out_what_logprobs_are_of() {
    for (engine, expect) in [
        (Engine::Raw, LogprobsMode::Raw),
        (Engine::AfterTemperature, LogprobsMode::Temperature),
        (Engine::Processed, LogprobsMode::Processed),
        (Engine::Sure, LogprobsMode::Unknown),
    ] {
        let profile = profile_of(move |asked| match is_stream(asked) {
            true => streams(true, StreamEnd::Clean),
            false => sampled(engine, asked),
        });
        assert_eq!(profile.await.logprobs, expect);
    }
}

/// vLLM with `--max-logprobs`. A stream begins, with status 200, before it looks at the number.
fn vllm_with_max(max: u64, asked: &ReceivedRequest) -> Reply {
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let wanted = body["top_logprobs"].as_u64().unwrap_or_default();
    // As vLLM does, which gives no logprobs at all without the number.
    let is_without = body["logprobs"] == true && body.get("top_logprobs").is_none();
    assert!(!is_without, "{body}");
    if wanted <= max {
        return vllm(asked);
    }
    let message = format!(
        "Requested sample logprobs of {wanted}, which is greater than max allowed: {max} (parameter=logprobs, value={wanted})"
    );
    let error = json!({"error": {"message": message, "type": "BadRequestError", "param": "logprobs", "code": 400}});
    match is_stream(asked) {
        true => Reply::Stream {
            data: vec![error.to_string(), "[DONE]".to_owned()],
            ending: StreamEnd::Clean,
        },
        false => whole(400, &error),
    }
}

#[tokio::test]
async fn the_probe_finds_out_how_many_alternatives_are_given() {
    for (max, expect) in [
        (0, Some(0)),
        (1, Some(1)),
        (3, Some(3)),
        (5, None),
        (20, None),
    ] {
        let profile = profile_of(move |asked| vllm_with_max(max, asked)).await;
        assert_eq!(profile.top_logprobs_max, expect, "{max}");
        assert_eq!(profile.level, CaptureLevel::Tokens, "{max}");
        assert!(profile.has_live_streams, "{max}");
    }
    // In words that name no number.
    let profile = profile_of(|asked| match asked.body.contains("\"top_logprobs\":0") {
        true => vllm(asked),
        false => whole(
            400,
            &json!({"error": {"message": "top_logprobs: too many"}}),
        ),
    });
    let profile = profile.await;
    assert_eq!(
        (profile.top_logprobs_max, profile.level),
        (Some(0), CaptureLevel::Tokens)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_asks_for_no_more_alternatives_than_it_is_given_and_says_so() {
    for max in [0, 2] {
        let upstream = Upstream::start(move |_, asked| vllm_with_max(max, asked)).unwrap();
        let home = Home::new();
        let engine = home.engine().await;
        let run = async |wanted: u32, is_probed: bool, ask: &str| {
            let mut plan = home.plan(task(&["true"]), ask, upstream.base_url());
            plan.settings.top_logprobs = wanted;
            if is_probed {
                plan.endpoint.profile = None;
            }
            run_one(&engine, plan, &CancellationToken::new()).await
        };
        // With a probe before, and with none: then a call's own refusal says it.
        for (is_probed, ask) in [
            (true, ASK),
            (true, ASK_STREAM),
            (false, ASK),
            (false, ASK_STREAM),
        ] {
            let result = run(5, is_probed, ask).await;
            assert_eq!(result.ended, Ended::Completed, "{:?}", result.error);
            assert_eq!(result.rollout_type, RolloutType::Train);
            assert_eq!(u64::from(result.endpoint.top_logprobs_max.unwrap()), max);
            let told = result
                .findings
                .iter()
                .filter(|it| it.code == Code::FewerAlternatives);
            let [told] = &told.collect::<Vec<_>>()[..] else {
                panic!("{:?}", result.findings);
            };
            let words = format!("at most {max} alternatives per token and refuses 5");
            assert!(told.text.contains(&words), "{}", told.text);
            assert_eq!(last_asked(&upstream)["top_logprobs"], max);
        }
        // Another rollout may want other numbers of the same endpoint.
        let result = run(u32::try_from(max).unwrap(), true, ASK).await;
        assert_eq!(result.endpoint.top_logprobs_max, None);
        assert!(
            result
                .findings
                .iter()
                .all(|it| it.code != Code::FewerAlternatives)
        );
        engine.close().await;
    }
}

#[tokio::test]
async fn an_endpoint_whose_first_answer_is_none_is_not_taken_for_one_without_tokens() {
    let is_first = AtomicBool::new(true);
    let profile = profile_of(move |asked| match is_first.swap(false, Ordering::Relaxed) {
        true => whole(200, &json!({"choices": []})),
        false => vllm(asked),
    });
    assert_eq!(profile.await.level, CaptureLevel::Tokens);
}

#[tokio::test]
async fn a_null_among_the_logprobs_does_not_make_streams_lossy() {
    let profile = profile_of(|asked| match vllm(asked) {
        Reply::Stream { data, ending } => Reply::Stream {
            data: data
                .into_iter()
                .map(|data| data.replace("-0.25", "null"))
                .collect(),
            ending,
        },
        other => other,
    })
    .await;
    assert!(profile.has_live_streams);
    assert!(
        !profile_of(lossy).await.has_live_streams,
        "ids that are lost do"
    );
}

/// A session of a proxy before this upstream, and its key.
async fn session(upstream: &Upstream, wanted: Value) -> (Proxy, String) {
    let proxy = Proxy::start(upstream, &[]);
    let session = proxy.session(wanted).await;
    let key = session["session_id"].as_str().unwrap().to_owned();
    (proxy, key)
}

fn last_asked(upstream: &Upstream) -> Value {
    serde_json::from_str(&upstream.requests().pop().unwrap().body).unwrap()
}

fn hi() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.2, "top_p": 0.5})
}

#[tokio::test]
async fn an_endpoint_that_gives_tokens_is_asked_at_temperature_1_and_nothing_else() {
    let upstream = Upstream::start(|_, asked| vllm(asked)).unwrap();
    let (proxy, key) = session(&upstream, json!({})).await;
    assert_eq!(proxy.send("POST", CHAT, &key, &hi()).await.0, 200);
    let sent = last_asked(&upstream);
    for (name, value) in [
        ("temperature", json!(1.0)),
        ("top_p", json!(1)),
        ("top_k", json!(-1)),
        ("min_p", json!(0)),
        ("presence_penalty", json!(0)),
        ("frequency_penalty", json!(0)),
        ("repetition_penalty", json!(1)),
    ] {
        assert_eq!(sent[name], value, "{name}");
    }
    let Exchange { request, .. } = proxy.exchanges().pop().unwrap();
    assert_eq!(request.logprobs_of, Some(LogprobsMode::Raw));
    drop(proxy);
    let (proxy, key) = session(&upstream, json!({"purpose": "eval"})).await;
    assert_eq!(proxy.send("POST", CHAT, &key, &hi()).await.0, 200);
    let sent = last_asked(&upstream);
    assert_eq!(
        (&sent["temperature"], sent.get("top_k")),
        (&json!(0.2), None)
    );
}

#[tokio::test]
async fn a_training_session_refuses_constraints_in_every_dialect() {
    let upstream = Upstream::start(|_, asked| vllm(asked)).unwrap();
    let training = json!({"sampling": {"temperature": 1}});
    let (proxy, key) = session(&upstream, training).await;
    let before = upstream.requests().len();
    let tool = json!({"name": "a", "input_schema": {"type": "object"}});
    for (path, body, name) in [
        (
            CHAT,
            json!({"messages": [], "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a"}}]}),
            "tool_choice",
        ),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": {"type": "any"}}),
            "tool_choice",
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": "x", "text": {"format": {"type": "json_object"}}}),
            "response_format",
        ),
        (
            "/v1beta/models/m:generateContent",
            json!({"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"responseMimeType": "application/json"}}),
            "response_format",
        ),
    ] {
        let (status, answer) = proxy.send("POST", path, &key, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let words = format!("`{name}` constrains what is sampled");
        assert!(answer.contains(&words), "{path}: {answer}");
        assert!(answer.contains("constrained = refuse"), "{path}: {answer}");
    }
    assert_eq!(upstream.requests().len(), before, "nothing was asked");
}

#[tokio::test]
async fn constraints_are_removed_or_kept_as_the_policy_says() {
    let upstream = Upstream::start(|_, asked| vllm(asked)).unwrap();
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "a", "strict": true}}],
    });
    let remove = json!({"sampling": {"temperature": 1}, "constrained": "remove"});
    let (proxy, key) = session(&upstream, remove).await;
    assert_eq!(proxy.send("POST", CHAT, &key, &body).await.0, 200);
    let sent = last_asked(&upstream);
    assert_eq!(sent.get("tool_choice"), None);
    assert_eq!(sent["tools"][0]["function"], json!({"name": "a"}));
    let removed = proxy.exchanges().pop().unwrap().request.removed;
    assert_eq!(removed, ["tool_choice", "tools.strict"]);
    let path = format!("/sessions/{key}/trace_entries");
    assert_eq!(proxy.send("GET", &path, "", &json!({})).await.0, 200);
    drop(proxy);

    let (proxy, key) = session(&upstream, json!({})).await;
    assert_eq!(proxy.send("POST", CHAT, &key, &body).await.0, 200);
    assert_eq!(last_asked(&upstream)["tool_choice"], "required");
    let path = format!("/sessions/{key}/rollout");
    let (_, document) = proxy.send("GET", &path, "", &json!({})).await;
    assert!(document.contains("constrained_sampling"), "{document}");
}

/// An answer with thoughts in it, which vLLM gives no ids for when it is told to leave them out.
fn thinks(asked: &ReceivedRequest) -> Reply {
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let is_hidden = body["include_reasoning"] == false;
    let change = |text: String| match is_hidden {
        true => text
            .replace("token_ids", "no_ids")
            .replace("logprobs", "none"),
        false => text.replace(r#""content":"ok""#, r#""content":"ok","reasoning":"hmm""#),
    };
    match vllm(asked) {
        Reply::Whole {
            status,
            content_type,
            body,
        } => Reply::Whole {
            status,
            content_type,
            body: change(body),
        },
        Reply::Stream { data, ending } => Reply::Stream {
            data: data.into_iter().map(change).collect(),
            ending,
        },
        other => other,
    }
}

#[tokio::test]
async fn an_agent_that_wants_no_thoughts_gets_none_and_loses_no_ids() {
    let thinks_lossily = |asked: &ReceivedRequest| match is_stream(asked) {
        true => lossy(asked),
        false => thinks(asked),
    };
    let answers: [fn(&ReceivedRequest) -> Reply; 2] = [thinks, thinks_lossily];
    for answer in answers {
        let upstream = Upstream::start(move |_, asked| answer(asked)).unwrap();
        let (proxy, key) = session(&upstream, json!({})).await;
        for path in [CHAT, "/v1/messages"] {
            for is_stream in [false, true] {
                let body = json!({
                    "model": "m", "max_tokens": 9, "stream": is_stream, "include_reasoning": false,
                    "messages": [{"role": "user", "content": "x"}],
                });
                let (status, seen) = proxy.send("POST", path, &key, &body).await;
                assert_eq!(status, 200, "{seen}");
                assert!(seen.contains("ok") && !seen.contains("hmm"), "{seen}");
                let exchange = proxy.exchanges().pop().unwrap();
                let response = exchange.response.as_ref().unwrap();
                assert!(response.text().contains("hmm"), "it is recorded");
                let turn = rollcage_model::turn::Turn::new(&exchange);
                assert_eq!(turn.completion_token_ids, Some(vec![7, 8]));
                assert!(turn.is_exact(), "{:?}", turn.exactness);
            }
        }
    }
}

/// A refusal of a parameter, in OpenAI's words.
fn refuses(name: &str) -> Reply {
    let message = format!("Unrecognized request argument supplied: {name}");
    whole(400, &json!({"error": {"message": message, "param": null}}))
}

#[tokio::test]
async fn a_refused_parameter_is_learnt_in_the_replayed_way_too() {
    let upstream = Upstream::start(|_, asked| match asked.body.contains("\"min_p\"") {
        true => refuses("min_p"),
        false => lossy(asked),
    })
    .unwrap();
    let (proxy, key) = session(&upstream, json!({})).await;
    let mut body = hi();
    body["stream"] = true.into();
    let (status, seen) = proxy.send("POST", CHAT, &key, &body).await;
    assert_eq!(status, 200, "{seen}");
    assert!(seen.contains("ok"), "{seen}");
    let exchanges = proxy.exchanges();
    let statuses: Vec<_> = exchanges
        .iter()
        .map(|exchange| exchange.response.as_ref().unwrap().status)
        .collect();
    assert_eq!(statuses, [Some(400), Some(200)]);
    assert_eq!(exchanges[1].request.refused, ["min_p"]);
    let turn = rollcage_model::turn::Turn::new(&exchanges[1]);
    assert!(turn.is_exact(), "what is not there rests: {:?}", turn.unfit);
}

#[tokio::test]
async fn what_the_agent_caused_itself_changes_nothing_of_what_we_ask_for() {
    let message = "Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)";
    let error = json!({"error": {"message": message, "param": "logprobs", "code": 400}});
    let upstream = Upstream::start(move |_, asked| match asked.body.contains(":50") {
        true => whole(400, &error),
        false => vllm(asked),
    })
    .unwrap();
    let (proxy, key) = session(&upstream, json!({})).await;
    let mut greedy = hi();
    greedy["logprobs"] = true.into();
    greedy["top_logprobs"] = 50.into();
    let (status, answer) = proxy.send("POST", CHAT, &key, &greedy).await;
    assert_eq!(status, 400, "it is the agent's to put right: {answer}");
    assert!(answer.contains("greater than max allowed"), "{answer}");
    assert_eq!(proxy.send("POST", CHAT, &key, &hi()).await.0, 200);
    let sent = last_asked(&upstream);
    assert_eq!(
        (&sent["return_token_ids"], &sent["logprobs"]),
        (&json!(true), &json!(true))
    );
}

#[tokio::test]
async fn a_context_overflow_is_passed_on_in_the_replayed_way_too() {
    let error = json!({"error": {"message": "This model's maximum context length is 10 tokens", "param": "input_tokens"}});
    let upstream = Upstream::start(move |_, asked| match asked.body.contains("\"hi\"") {
        true => whole(400, &error),
        false => lossy(asked),
    })
    .unwrap();
    let (proxy, key) = session(&upstream, json!({})).await;
    let mut body = hi();
    body["stream"] = true.into();
    let (status, answer) = proxy.send("POST", CHAT, &key, &body).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("maximum context length"), "{answer}");
}

#[tokio::test]
async fn a_proxy_probes_its_endpoint_again_after_an_outage() {
    let is_other = Arc::new(AtomicBool::new(false));
    let other = Arc::clone(&is_other);
    let upstream = Upstream::start(move |_, asked| {
        if asked.body.contains("gone") {
            return whole(404, &json!({"error": {"message": "no such model"}}));
        }
        match (is_stream(asked), other.load(Ordering::Relaxed)) {
            (true, _) => streams(true, StreamEnd::Clean),
            (false, true) => sampled(Engine::Processed, asked),
            (false, false) => sampled(Engine::Raw, asked),
        }
    })
    .unwrap();
    let (proxy, key) = session(&upstream, json!({})).await;
    let body = json!({"messages": [{"role": "user", "content": "gone"}]});
    assert_eq!(proxy.send("POST", CHAT, &key, &body).await.0, 404);
    is_other.store(true, Ordering::Relaxed);
    // Only one session's record is there to be read.
    std::fs::remove_file(proxy.record()).unwrap();
    let again = proxy.session(json!({})).await;
    let again = again["session_id"].as_str().unwrap();
    assert_eq!(proxy.send("POST", CHAT, again, &hi()).await.0, 200);
    let request = proxy.exchanges().pop().unwrap().request;
    assert_eq!(request.logprobs_of, Some(LogprobsMode::Processed));
}

#[tokio::test]
async fn a_rollout_says_what_its_logprobs_are_of_and_probes_again_after_an_outage() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let upstream = Upstream::start(move |_, asked| {
        let is_agents = asked.body.contains("\"hi\"");
        match is_agents && away.load(Ordering::Relaxed) {
            true => whole(401, &json!({"error": {"message": "who is there?"}})),
            false => vllm(asked),
        }
    })
    .unwrap();
    let probes = || {
        let asked = upstream.requests();
        let probes = asked.iter().filter(|it| it.body.contains("any animal"));
        probes.count()
    };
    let home = Home::new();
    let engine = home.engine().await;
    let run = async || {
        let plan = home.plan(task(&["true"]), ASK, upstream.base_url());
        let mut endpoint = plan.endpoint.clone();
        endpoint.profile = None;
        run_one(
            &engine,
            Plan { endpoint, ..plan },
            &CancellationToken::new(),
        )
        .await
    };
    let result = run().await;
    assert_eq!(result.endpoint.logprobs, LogprobsMode::Raw);
    assert_eq!(result.rollout_type, RolloutType::Train);
    let trace = traced(&result).training_trace.unwrap();
    let turn = &trace.turns[0];
    assert_eq!(turn.metadata["logprobs_of"], "raw");
    assert_eq!(turn.metadata["sampling_params"]["temperature"], 1.0);
    let once = probes();
    assert_eq!(run().await.ended, Ended::Completed);
    assert_eq!(probes(), once, "what is known is not asked again");
    is_away.store(true, Ordering::Relaxed);
    run().await;
    is_away.store(false, Ordering::Relaxed);
    assert_eq!(run().await.ended, Ended::Completed);
    assert_eq!(probes(), 2 * once, "somebody else may answer now");
    engine.close().await;
}

/// A rollout that ends before its agent starts: what it tells was known before it.
fn run_at(upstream: &Upstream, arguments: &[&str]) -> (String, Value) {
    let home = tempfile::tempdir().unwrap();
    let task = home.path().join("task.toml");
    std::fs::write(&task, "instruction = 'go'\nsetup = ['exit 3']\n").unwrap();
    let manifest = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../manifests/shell-loop.toml"
    );
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .arg("run")
        .arg(&task)
        .args(["--json", "--agent", manifest, "--model", "test-model"])
        .args(["--base-url", upstream.base_url()])
        .args(arguments)
        .env("ROLLCAGE_HOME", home.path().join("data"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let result = serde_json::from_slice(&output.stdout);
    let result: Value = result.unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(result["ended"], "setup_failed", "{result}");
    (said, result)
}

#[test]
fn a_temperature_that_nothing_can_be_trained_at_is_told_before_the_first_rollout() {
    let upstream = Upstream::start(|_, asked| match is_stream(asked) {
        true => streams(true, StreamEnd::Clean),
        false => sampled(Engine::Raw, asked),
    })
    .unwrap();
    for (arguments, is_told) in [
        (&["--temperature", "0.5"][..], true),
        (&["--temperature", "1"], false),
        (&["--sampling", "agent"], false),
    ] {
        let (said, result) = run_at(&upstream, arguments);
        let warning = "warning: nothing sampled with temperature=0.5 can be trained on";
        assert_eq!(said.contains(warning), is_told, "{arguments:?}: {said}");
        let findings = result["findings"].as_array().unwrap();
        let mut codes = findings.iter().map(|finding| &finding["code"]);
        let is_found = codes.any(|code| code == "logprobs_not_sampled");
        assert_eq!(is_found, is_told, "{arguments:?}: {findings:?}");
    }
}
