//! The proxy as an agent and an upstream see it: what is changed, what is kept, what is refused.

use std::path::Path;
use std::time::Duration;

use crate::support::Plan;
use crate::support::{API_KEY, ASK, ASK_STREAM, Home, run_one, says, streams, task, traced};
use rollcage_dialect::chat::Sampling;
use rollcage_model::ending::Cause;
use rollcage_model::ending::Ended;
use rollcage_model::exchange::{self, Exchange};
use rollcage_model::finding::{CaptureLevel, RolloutType};
use rollcage_model::record::RolloutResult;
use rollcage_proxy::{ModelSettings, SamplingPolicy};
use rollcage_testkit::upstream::{Reply, StreamEnd, Upstream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn exchanges(result: &RolloutResult) -> Vec<Exchange> {
    let lines = std::fs::read(Path::new(&result.record).join("exchanges.rec")).unwrap();
    let (exchanges, problems) = exchange::read(&lines);
    assert_eq!(problems, Vec::<String>::new());
    exchanges
}

/// The home must live as long as the record is read.
async fn run(home: &Home, script: &str, upstream: &Upstream) -> RolloutResult {
    home.run_against(task(&[]), script, upstream.base_url())
        .await
}

#[tokio::test]
async fn the_upstream_gets_its_own_key_and_model_and_is_asked_for_tokens() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let result = run(&Home::new(), ASK, &upstream).await;
    assert_eq!(result.ended, Ended::Completed, "{:?}", result.error);
    let asked = &upstream.requests()[0];
    assert_eq!(asked.path, "/v1/chat/completions");
    let authorization = asked
        .headers
        .iter()
        .find(|(name, _)| name == "authorization")
        .unwrap();
    assert_eq!(authorization.1, format!("Bearer {API_KEY}"));
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body["model"], "test-model");
    assert_eq!(
        (&body["logprobs"], &body["return_token_ids"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(body["top_logprobs"], 0);
}

#[tokio::test]
async fn the_agent_sees_nothing_of_what_was_added() {
    for (ask, reply) in [
        (ASK, says("ok")),
        (ASK_STREAM, streams(true, StreamEnd::Clean)),
    ] {
        let upstream = Upstream::start(move |_, _| reply.clone()).unwrap();
        let home = Home::new();
        let result = home.run_against(task(&[]), ask, upstream.base_url()).await;
        let seen = &result.agent_log_tail;
        assert!(seen.contains("\"ok\""), "{seen}");
        for added in ["token_ids", "-0.25", "prompt_tokens_details"] {
            assert!(!seen.contains(added), "{added} in {seen}");
        }
        let trace = traced(&result)
            .training_trace
            .expect("what the agent does not see is captured");
        assert_eq!(trace.turns[0].completion_token_ids, [7, 8]);
        assert_eq!(trace.turns[0].per_token_logps, [-0.25, -0.5]);
    }
}

#[tokio::test]
async fn a_wrong_key_is_refused_and_not_forwarded() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let home = Home::new();
    let result = run(&home, &format!("KEY=sk-other; {ASK}"), &upstream).await;
    assert!(
        result.agent_log_tail.contains("401 Unauthorized"),
        "{}",
        result.agent_log_tail
    );
    assert_eq!(upstream.requests().len(), 0);
    assert_eq!(exchanges(&result).len(), 0);
}

#[tokio::test]
async fn an_unreachable_endpoint_is_reported_at_once() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let home = Home::new();
    let result = home
        .run_against(task(&["true"]), ASK, &format!("http://{closed}/v1"))
        .await;
    assert_eq!(
        (result.ended, result.retryable),
        (Ended::UpstreamFailed, true)
    );
    let error = result.error.unwrap();
    assert!(
        error.contains("cannot reach endpoint") && error.contains("refused"),
        "{error}"
    );
}

#[tokio::test]
async fn an_upstreams_error_reaches_the_agent_and_the_record() {
    let body = json!({"error": {"message": format!("bad key {API_KEY}"), "type": "server_error"}})
        .to_string();
    let upstream = Upstream::start(move |_, _| Reply::Whole {
        status: 402,
        content_type: "application/json",
        body: body.clone(),
    })
    .unwrap();
    let home = Home::new();
    let result = run(&home, &format!("{ASK}; exit 1"), &upstream).await;
    assert_eq!(result.ended, Ended::UpstreamFailed);
    assert!(result.agent_log_tail.contains("402") && result.agent_log_tail.contains("bad key ***"));
    let traced = traced(&result);
    let turn = &traced.proxy_turns[0];
    assert_eq!(turn.upstream_status, Some(402));
    assert_eq!(
        turn.upstream_error.as_ref().unwrap()["message"],
        "bad key ***"
    );
    assert!(traced.training_trace.is_none());
}

/// Agents would ask for minutes after we gave up if they were told of it by a status that may pass.
#[tokio::test]
async fn a_call_that_was_given_up_is_reported_as_not_retryable() {
    let busy = r#"{"error":{"message":"try later","type":"server_error","code":503}}"#;
    let status = |status| Reply::Whole {
        status,
        content_type: "application/json",
        body: busy.to_owned(),
    };
    let stream = Reply::Stream {
        data: vec![busy.to_owned()],
        ending: StreamEnd::Hang,
    };
    for (reply, told, recorded) in [
        (status(429), "endpoint answered 429", Some(429)),
        (status(503), "try later", Some(503)),
        (stream, "try later", Some(200)),
        (Reply::Drop, "no answer", None),
    ] {
        let upstream = Upstream::start(move |_, _| reply.clone()).unwrap();
        let home = Home::new();
        for ask in [ASK, ASK_STREAM] {
            let script = format!("{ask}; exit 1");
            let mut plan = home.plan(task(&[]), &script, upstream.base_url());
            plan.settings = ModelSettings {
                upstream_patience: Duration::ZERO,
                ..ModelSettings::default()
            };
            let engine = home.engine().await;
            let result = run_one(&engine, plan, &CancellationToken::new()).await;
            engine.close().await;
            assert_eq!(result.ended, Ended::UpstreamFailed, "{:?}", result.error);
            let seen = &result.agent_log_tail;
            assert!(seen.contains("424 Failed Dependency"), "{seen}");
            assert!(seen.contains("x-should-retry: false"), "{seen}");
            assert!(seen.contains(told), "{seen}");
            let response = exchanges(&result).pop().unwrap().response.unwrap();
            assert_eq!(response.status, recorded, "the record says what it was");
        }
    }
}

#[tokio::test]
async fn a_stream_without_a_finish_breaks_instead_of_ending_cleanly() {
    for reply in [
        streams(false, StreamEnd::Clean),
        streams(false, StreamEnd::Cut),
    ] {
        let upstream = Upstream::start(move |_, _| reply.clone()).unwrap();
        let home = Home::new();
        let result = run(&home, &format!("{ASK_STREAM}; true"), &upstream).await;
        assert_eq!(result.ended, Ended::UpstreamFailed, "{:?}", result.error);
        assert!(
            !result.agent_log_tail.contains("\r\n0\r\n"),
            "the chunked body has no end"
        );
        let exchanges = exchanges(&result);
        let response = exchanges[0].response.as_ref().unwrap();
        assert!(
            response.text().contains("prompt_token_ids"),
            "what came is kept"
        );
        assert!(response.error.is_some());
        assert_eq!(result.rollout_type, RolloutType::Eval);
    }
}

#[tokio::test]
async fn an_answer_of_the_wrong_kind_is_an_error_not_an_answer() {
    let upstream = Upstream::start(|_, _| Reply::Whole {
        status: 200,
        content_type: "text/html",
        body: "<html>login</html>".to_owned(),
    })
    .unwrap();
    let home = Home::new();
    let result = run(&home, &format!("{ASK_STREAM}; exit 1"), &upstream).await;
    assert_eq!(result.ended, Ended::UpstreamFailed);
    assert!(
        result.agent_log_tail.contains("424"),
        "{}",
        result.agent_log_tail
    );
}

#[tokio::test]
async fn an_upstream_that_never_answers_ends_with_the_agents_time() {
    for reply in [Reply::Hang, streams(false, StreamEnd::Hang)] {
        let upstream = Upstream::start(move |_, _| reply.clone()).unwrap();
        let mut task = task(&[]);
        task.agent_timeout_s = Some(6.0);
        let home = Home::new();
        let result = home
            .run_against(task, ASK_STREAM, upstream.base_url())
            .await;
        assert_eq!(
            (result.ended, result.cause, result.retryable),
            (Ended::UpstreamFailed, Some(Cause::EndpointSilent), true)
        );
        let exchanges = exchanges(&result);
        let response = exchanges[0]
            .response
            .as_ref()
            .expect("also a cut exchange is recorded");
        assert!(response.error.as_ref().unwrap().contains("hung up"));
    }
}

#[tokio::test]
async fn a_hosted_endpoint_that_refuses_our_members_still_works() {
    let upstream = Upstream::start(|_, asked| {
        let refused = |name: &str| {
            let message = format!("Unrecognized request argument supplied: {name}");
            let body = json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string();
            Reply::Whole { status: 400, content_type: "application/json", body }
        };
        if asked.body.contains("return_token_ids") {
            refused("return_token_ids")
        } else if asked.body.contains("logprobs") {
            refused("logprobs")
        } else {
            let body = json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "fine"}}]});
            Reply::Whole { status: 200, content_type: "application/json", body: body.to_string() }
        }
    })
    .unwrap();
    let home = Home::new();
    let result = run(&home, &format!("{ASK}; {ASK}"), &upstream).await;
    assert_eq!(
        (result.ended, result.capture_level),
        (Ended::Completed, CaptureLevel::Text)
    );
    assert!(result.agent_log_tail.contains("fine"));
    assert_eq!(
        upstream.requests().len(),
        4,
        "what was learnt is remembered"
    );
    assert_eq!(result.rollout_type, RolloutType::Eval);
}

/// As OpenAI's newer models do, under a name that says nothing of them.
fn takes_no(names: &[&str], asked: &str) -> Option<Reply> {
    let asked: Value = serde_json::from_str(asked).unwrap();
    let name = names.iter().find(|name| asked.get(**name).is_some())?;
    let hint = match *name {
        "max_tokens" => " Use 'max_completion_tokens' instead.",
        _ => "",
    };
    let message =
        format!("Unsupported parameter: '{name}' is not supported with this model.{hint}");
    let error = json!({"message": message, "param": name, "code": "unsupported_parameter"});
    let body = json!({"error": error}).to_string();
    Some(Reply::Whole {
        status: 400,
        content_type: "application/json",
        body,
    })
}

#[tokio::test]
async fn parameters_that_a_model_refuses_are_learnt() {
    const WISH: &str =
        r#"ask '{"model":"m","messages":[],"max_tokens":9,"temperature":0,"user":"u"}'"#;
    let upstream = Upstream::start(|_, asked| {
        takes_no(&["max_tokens", "temperature"], &asked.body).unwrap_or_else(|| says("fine"))
    })
    .unwrap();
    let home = Home::new();
    let result = run(&home, &format!("{WISH}; {WISH}"), &upstream).await;
    assert_eq!(result.ended, Ended::Completed, "{}", result.agent_log_tail);
    assert!(!result.agent_log_tail.contains("400"));
    let asked = upstream.requests();
    assert_eq!(asked.len(), 4, "what was learnt is remembered");
    let last: Value = serde_json::from_str(&asked[3].body).unwrap();
    assert_eq!(last["max_completion_tokens"], 9);
    assert_eq!(
        (last.get("temperature"), &last["user"]),
        (None, &json!("u"))
    );
    let exchanges = exchanges(&result);
    let request = &exchanges.last().unwrap().request;
    assert_eq!(request.removed, ["temperature", "max_tokens"]);
    assert!(
        request.text().contains("\"temperature\":0"),
        "what was asked for stays"
    );
}

#[tokio::test]
async fn a_probe_learns_the_other_name_of_the_limit() {
    let upstream = Upstream::start(|_, asked| {
        takes_no(&["max_tokens"], &asked.body).unwrap_or_else(|| {
            let message = json!({"role": "assistant", "content": "ok"});
            let choice = json!({"index": 0, "finish_reason": "stop", "message": message});
            let body = json!({"choices": [choice]}).to_string();
            let content_type = "application/json";
            Reply::Whole {
                status: 200,
                content_type,
                body,
            }
        })
    })
    .unwrap();
    let home = Home::new();
    let endpoint = home.plan(task(&[]), ASK, upstream.base_url()).endpoint;
    let client = rollcage_proxy::outbound::client(&endpoint.base_url).unwrap();
    let profile = rollcage_proxy::probe::probe(&client, &endpoint, 0).await;
    assert_eq!(profile.unwrap().level, CaptureLevel::Text);
    let asked = upstream.requests();
    let last: Value = serde_json::from_str(&asked.last().unwrap().body).unwrap();
    assert_eq!(last["max_completion_tokens"], 8);
}

#[tokio::test]
async fn a_policy_that_a_model_refuses_is_not_dropped() {
    let upstream = Upstream::start(|_, asked| {
        takes_no(&["top_k", "min_p", "temperature"], &asked.body).unwrap_or_else(|| says("fine"))
    })
    .unwrap();
    let home = Home::new();
    let engine = home.engine().await;
    let plan = home.plan(task(&[]), ASK, upstream.base_url());
    let settings = ModelSettings {
        sampling: SamplingPolicy::Pinned(Sampling { temperature: 0.7 }),
        ..ModelSettings::default()
    };
    let result = run_one(
        &engine,
        Plan { settings, ..plan },
        &CancellationToken::new(),
    )
    .await;
    engine.close().await;
    let asked = upstream.requests();
    let last: Value = serde_json::from_str(&asked.last().unwrap().body).unwrap();
    assert_eq!(last.get("top_k"), None, "there is nothing to put to rest");
    assert_eq!(last["temperature"], 0.7);
    let log = &result.agent_log_tail;
    assert!(log.contains("400") && log.contains("temperature"), "{log}");
}

#[tokio::test]
async fn bodies_of_twenty_megabytes_pass() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let script = r#"big=$(head -c 20000000 /dev/zero | tr '\0' x)
        ask "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"$big\"}]}""#;
    let home = Home::new();
    let result = run(&home, script, &upstream).await;
    assert!(
        result.agent_log_tail.contains("200 OK"),
        "{}",
        result.agent_log_tail
    );
    assert!(upstream.requests()[0].body.len() > 20_000_000);
    assert!(exchanges(&result)[0].request.body.len() > 20_000_000);
}

#[tokio::test]
async fn limits_and_thinking_are_set_as_requested() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let home = Home::new();
    let engine = home.engine().await;
    let plan = home.plan(task(&[]), ASK, upstream.base_url());
    let mut endpoint = plan.endpoint.clone();
    endpoint.is_thinking_disabled = true;
    endpoint.model = "gpt-5-mini".to_owned();
    let plan = Plan {
        endpoint,
        settings: ModelSettings {
            tokens_max: Some(99),
            top_logprobs: 3,
            ..ModelSettings::default()
        },
        ..plan
    };
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    assert_eq!(result.ended, Ended::Completed);
    let body: Value = serde_json::from_str(&upstream.requests()[0].body).unwrap();
    assert_eq!(body["max_completion_tokens"], 99);
    assert_eq!(body.get("max_tokens"), None);
    assert_eq!(body["chat_template_kwargs"]["enable_thinking"], false);
    assert_eq!(body["top_logprobs"], 3);
}

#[tokio::test]
async fn the_api_key_is_found_nowhere_it_does_not_belong() {
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let home = Home::new();
    let script = format!(
        "{ASK}; env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n'; \
         grep -rlF {} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr 2> /dev/null; echo searched",
        // The script itself must not hold the whole key, or the search would find itself.
        "\"$(printf %s sk-upstream- 3f9c1d77a2)\""
    );
    let result = home
        .run_against(task(&["env"]), &script, upstream.base_url())
        .await;
    assert!(result.agent_log_tail.contains("searched"));
    assert!(!serde_json::to_string(&result).unwrap().contains(API_KEY));
    for path in walk(&home.path()) {
        let content = std::fs::read(&path).unwrap();
        let found = content
            .windows(API_KEY.len())
            .any(|window| window == API_KEY.as_bytes());
        assert!(!found, "the key is in {}", path.display());
    }
}

#[tokio::test]
async fn records_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let home = Home::new();
    let result = home.run_against(task(&[]), ASK, upstream.base_url()).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.path()), 0o700);
    assert_eq!(mode(Path::new(&result.record)), 0o700);
    for path in walk(Path::new(&result.record)) {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(walk(&entry.path()));
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files
}
