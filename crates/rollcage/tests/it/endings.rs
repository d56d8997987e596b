//! Whose doing an end is, and what a reward is worth then: the causes of `docs/endings.md`, each made to happen.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use crate::support::Plan;
use crate::support::{ASK, ASK_STREAM, Home, endpoint, run_beside, says, streams, task, traced};
use rollcage_model::ending::Cause;
use rollcage_model::ending::Ended;
use rollcage_model::finding::Code;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_testkit::upstream::{Reply, StreamEnd, Upstream};
use serde_json::{Value, json};

/// Gives a quarter.
const QUARTER: &str = "echo 0.25 > /home/user/logs/verifier/reward.txt";

fn whole(status: u16, body: &str) -> Reply {
    Reply::Whole {
        status,
        content_type: "application/json",
        body: body.to_owned(),
    }
}

/// A good answer with another finish reason.
fn finishes(reason: &str) -> Reply {
    let Reply::Whole { body, .. } = says("half an ans") else {
        unreachable!("it is whole");
    };
    let mut body: Value = serde_json::from_str(&body).unwrap();
    body["choices"][0]["finish_reason"] = json!(reason);
    whole(200, &body.to_string())
}

/// As a stream: what it says before, and a finish reason.
fn stream_finishes(content: &str, reason: &str) -> Reply {
    let Reply::Stream { mut data, .. } = streams(true, StreamEnd::Clean) else {
        unreachable!("it is a stream");
    };
    data[1] = data[1].replace("\"ok\"", &format!("\"{content}\""));
    data[2] = data[2].replace("\"stop\"", &format!("\"{reason}\""));
    if content.is_empty() {
        data.remove(1);
    }
    Reply::Stream {
        data,
        ending: StreamEnd::Clean,
    }
}

struct Case {
    name: &'static str,
    script: String,
    /// One for each call; the last for all that follow.
    replies: Vec<Reply>,
    cause: Cause,
    change: fn(&mut Plan),
}

impl Case {
    fn new(name: &'static str, script: &str, replies: &[Reply], cause: Cause) -> Self {
        Case {
            name,
            script: script.to_owned(),
            replies: replies.to_vec(),
            cause,
            change: |_| {},
        }
    }

    fn with(self, change: fn(&mut Plan)) -> Self {
        Case { change, ..self }
    }
}

/// Each in a rollout of its own, with no patience unless the case has some. Every result is what the table says.
async fn check(cases: Vec<Case>) -> Vec<RolloutResult> {
    check_in(&Home::new(), cases).await
}

/// For those who read the records afterwards.
async fn check_in(home: &Home, cases: Vec<Case>) -> Vec<RolloutResult> {
    let engine = home.engine().await;
    let mut upstreams = Vec::new();
    let plans = cases.iter().map(|case| {
        let replies = case.replies.clone();
        let answer = move |number: usize| replies[number.min(replies.len() - 1)].clone();
        let upstream = Upstream::start(move |number, _| answer(number)).unwrap();
        let task = Task {
            id: case.name.to_owned(),
            ..task(&[QUARTER])
        };
        let mut plan = home.plan(task, &case.script, upstream.base_url());
        plan.settings.upstream_patience = Duration::ZERO;
        (case.change)(&mut plan);
        upstreams.push(upstream);
        Arc::new(plan)
    });
    let plans: Vec<_> = plans.collect();
    let results = run_beside(&engine, plans, 3).await;
    engine.close().await;
    let of_case = |case: &Case| {
        let mut own = results.iter();
        let result = own.find(|result| result.task_id == case.name).unwrap();
        let verdict = case.cause.verdict();
        assert_eq!(
            (
                result.cause,
                result.ended,
                result.graded,
                result.reward_valid,
                result.retryable
            ),
            (
                Some(case.cause),
                verdict.ended,
                verdict.is_graded,
                verdict.is_valid,
                verdict.is_retryable
            ),
            "{}: {:?}\n{}",
            case.name,
            result.error,
            result.agent_log_tail
        );
        result.clone()
    };
    cases.iter().map(of_case).collect()
}

fn refused(status: u16) -> Reply {
    whole(status, r#"{"error":{"message":"no"}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_endpoint_causes_is_never_valid() {
    use Cause::*;
    let badly = format!("{ASK}; exit 1");
    let two = format!("{ASK}; {ASK}; exit 0");
    let stream = format!("{ASK_STREAM}; exit 0");
    let given_up = format!("{ASK}; ({ASK_STREAM}) & sleep 5; kill $!; exit 1");
    let ok = says("ok");
    let hangs = streams(false, StreamEnd::Hang);
    let half = stream_finishes("half", "abort");
    let cut = streams(false, StreamEnd::Cut);
    check(vec![
        // Agents such as goose exit with 0 then.
        Case::new("500", &two, &[ok.clone(), refused(500)], EndpointError),
        Case::new("429", &badly, &[refused(429)], RateLimited),
        Case::new("401", &badly, &[refused(401)], KeyRefused),
        Case::new("404", &two, &[ok.clone(), refused(404)], NotFound),
        Case::new("402", &badly, &[refused(402)], EndpointRefused),
        Case::new("gone", &badly, &[Reply::Drop], EndpointUnreachable),
        Case::new("aborted", &badly, &[finishes("abort")], EndpointAborted),
        Case::new("aborted late", &stream, &[half], EndpointAborted),
        Case::new("broken", &stream, &[cut], AnswerBroken),
        Case::new("no call", "true || ask x", from_ref(&ok), NothingAnswered),
        Case::new("hung", &two, &[ok.clone(), Reply::Hang], EndpointSilent)
            .with(|plan| plan.task.agent_timeout_s = Some(8.0)),
        Case::new("given up", &given_up, &[ok, hangs], EndpointSilent)
            .with(|plan| plan.task.agent_timeout_s = Some(10.0)),
    ])
    .await;
}

/// Answers with a good status that are none.
const GARBAGE: [(&str, &str); 6] = [
    ("broken JSON", "{broken"),
    (
        "cut",
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hal"#,
    ),
    ("no choices", r#"{"choices":[]}"#),
    ("an error", r#"{"error":{"message":"upstream fell over"}}"#),
    (
        "no message",
        r#"{"choices":[{"index":0,"finish_reason":"stop","token_ids":[7],"logprobs":{"content":[{"token":"o","logprob":-0.25}]}}],"prompt_token_ids":[1],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#,
    ),
    (
        "half a pair",
        r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"\ud800"},"finish_reason":"stop"}]}"#,
    ),
];

/// A good stream with this event in it, in place of its text or behind it.
fn stream_with(event: &str, is_behind: bool) -> Reply {
    let Reply::Stream { mut data, ending } = streams(true, StreamEnd::Clean) else {
        unreachable!("it is a stream");
    };
    match is_behind {
        true => data.insert(2, event.to_owned()),
        false => data[1] = event.to_owned(),
    }
    Reply::Stream { data, ending }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_none_is_the_endpoints_whatever_the_agent_makes_of_it() {
    let well = format!("{ASK}; exit 0");
    let badly = format!("{ASK}; exit 1");
    let two = format!("{ASK}; {ASK}; exit 0");
    let stream = format!("{ASK_STREAM}; exit 0");
    let mut cases = Vec::new();
    for (name, body) in GARBAGE {
        let named = |how: &str| -> &'static str { format!("{name}, {how}").leak() };
        let bad = whole(200, body);
        let after = [says("ok"), bad.clone()];
        cases.extend([
            Case::new(named("exit 0"), &well, from_ref(&bad), Cause::AnswerBroken),
            Case::new(named("exit 1"), &badly, &[bad], Cause::AnswerBroken),
            Case::new(named("at last"), &two, &after, Cause::AnswerBroken),
        ]);
    }
    for (name, event) in [
        ("an event that is no JSON", "{broken"),
        (
            "an event with half a pair",
            r#"{"choices":[{"delta":{"content":"\ud800"}}]}"#,
        ),
    ] {
        let named = |how: &str| -> &'static str { format!("{name}, {how}").leak() };
        for (how, is_behind) in [("first", false), ("later", true)] {
            let bad = stream_with(event, is_behind);
            let case = Case::new(named(how), &stream, &[bad], Cause::AnswerBroken);
            cases.push(case);
        }
    }
    for result in check(cases).await {
        assert!(traced(&result).training_trace.is_none() || result.task_id.ends_with("at last"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_none_is_asked_for_again() {
    let has_patience = |plan: &mut Plan| plan.settings.upstream_patience = Duration::from_secs(60);
    let good = streams(true, StreamEnd::Clean);
    let mut cases = Vec::new();
    for (name, body) in GARBAGE {
        let replies = [whole(200, body), says("ok")];
        cases.push(Case::new(name, ASK, &replies, Cause::Completed).with(has_patience));
    }
    // Once something has reached the agent, the agent has to ask again.
    let twice = format!("{ASK_STREAM}; {ASK_STREAM}");
    let first = [stream_with("{broken", false), good.clone()];
    let later = [stream_with("{broken", true), good];
    cases.push(Case::new("event", ASK_STREAM, &first, Cause::Completed).with(has_patience));
    cases.push(Case::new("late event", &twice, &later, Cause::Completed).with(has_patience));
    let home = Home::new();
    for result in check_in(&home, cases).await {
        let trace = traced(&result).training_trace.unwrap();
        assert_eq!(
            trace.turns.len(),
            1,
            "{}: {:?}",
            result.task_id,
            result.findings
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_nothing_is_valid() {
    let wrong = |code: u8| format!("ask '{{\"messages\":5}}'; exit {code}");
    let hangs_up = format!("({ASK_STREAM}) & sleep 1; kill $!; exit 0");
    let slow = streams(false, StreamEnd::Hang);
    check(vec![
        Case::new(
            "its own, well",
            &wrong(0),
            &[refused(400)],
            Cause::NothingAnswered,
        ),
        Case::new(
            "its own, badly",
            &wrong(1),
            &[refused(400)],
            Cause::NothingAnswered,
        ),
        Case::new("hung up", &hangs_up, &[slow], Cause::NothingAnswered),
        Case::new("none allowed", ASK, &[says("ok")], Cause::NothingAnswered)
            .with(|plan| plan.settings.budget.calls = Some(0)),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agent_and_model_cause_is_graded_and_valid() {
    use Cause::*;
    let well = format!("{ASK}; exit 0");
    let badly = format!("{ASK}; exit 1");
    let two = format!("{ASK}; {ASK}; exit 0");
    let wrong = format!("{ASK}; ask '{{\"messages\":5}}'; exit 1");
    let sleeps = format!("{ASK}; sleep 60");
    let ok = says("ok");
    let length = finishes("length");
    let filtered = finishes("content_filter");
    let streamed = format!("{ASK}; {ASK_STREAM}; exit 0");
    let in_stream = Reply::Stream {
        data: vec![format!(r#"{{"error":{SGLANG}}}"#), "[DONE]".to_owned()],
        ending: StreamEnd::Clean,
    };
    let results = check(vec![
        Case::new("coped", &two, &[refused(500), ok.clone()], Completed),
        Case::new("filtered", &well, &[filtered], Completed),
        Case::new(
            "its own body",
            &wrong,
            &[ok.clone(), refused(400)],
            AgentRequestRefused,
        ),
        Case::new("exit", &badly, from_ref(&ok), AgentExited),
        Case::new(
            "kill",
            &format!("{ASK}; kill -9 $$"),
            from_ref(&ok),
            AgentKilled,
        ),
        Case::new("time", &sleeps, from_ref(&ok), AgentTimeUsed)
            .with(|plan| plan.task.agent_timeout_s = Some(6.0)),
        Case::new("idle", &sleeps, from_ref(&ok), IdleAgent)
            .with(|plan| plan.task.budget.idle_s = Some(4.0)),
        // As codex does, and as others do.
        Case::new("length, failed", &badly, from_ref(&length), OutputLength),
        Case::new("length, well", &well, &[length], OutputLength),
        Case::new("full", &two, &[ok.clone(), too_long()], ContextOverflow),
        Case::new(
            "full, SGLang",
            &two,
            &[ok.clone(), whole(400, SGLANG)],
            ContextOverflow,
        ),
        Case::new(
            "full, llama.cpp",
            &two,
            &[ok.clone(), whole(400, LLAMA_CPP)],
            ContextOverflow,
        ),
        Case::new(
            "full, in a stream",
            &streamed,
            &[ok, in_stream],
            ContextOverflow,
        ),
    ])
    .await;
    let stopped_by = |name: &str| {
        let result = results.iter().find(|result| result.task_id == name);
        result.unwrap().budget.stopped_by.clone().unwrap()
    };
    assert_eq!(stopped_by("time"), "agent_timeout_s");
    assert_eq!(stopped_by("idle"), "idle_s");
    assert_eq!(stopped_by("length, well"), "output_length");
    assert_eq!(stopped_by("full"), "context");
}

/// Also Together's words.
const SGLANG: &str = r#"{"object":"error","message":"The input (61709 tokens) is longer than the model's context length (40960 tokens).","type":"BadRequestError","param":null,"code":400}"#;
const LLAMA_CPP: &str = r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}"#;

fn too_long() -> Reply {
    let text = "This model's maximum context length is 4096 tokens. Please reduce the length.";
    let body = json!({"error": {"message": text, "param": "input_tokens", "code": 400}});
    whole(400, &body.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_does_not_fit_is_not_graded() {
    let title = r#"ask '{"messages":[{"role":"user","content":"a title"}]}'"#;
    let titled = format!("{title}; {ASK}");
    let results = check(vec![
        Case::new("too long", ASK, &[too_long()], Cause::TaskDoesNotFit),
        Case::new(
            "too long beside a title",
            &titled,
            &[says("Title"), too_long()],
            Cause::TaskDoesNotFit,
        ),
    ])
    .await;
    for result in results {
        assert_eq!(result.ended, Ended::Budget);
        assert_eq!(result.budget.stopped_by.as_deref(), Some("context"));
        let found = |code| result.findings.iter().any(|finding| finding.code == code);
        assert!(found(Code::ContextTooSmall), "{:?}", result.findings);
    }
}

/// vLLM's weight sync aborts what is under way, and a restart takes a while: neither is the agent's to know.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_call_is_made_again_before_the_agent_has_seen_anything() {
    let has_patience = |plan: &mut Plan| plan.settings.upstream_patience = Duration::from_secs(60);
    let replayed = |plan: &mut Plan| {
        plan.settings.upstream_patience = Duration::from_secs(60);
        let mut endpoint = endpoint(&plan.endpoint.base_url);
        if let Some(profile) = &mut endpoint.profile {
            profile.has_live_streams = false;
        }
        plan.endpoint = endpoint;
    };
    let aborted = [finishes("abort"), finishes("error"), says("ok")];
    let streamed = [
        stream_finishes("", "abort"),
        streams(true, StreamEnd::Clean),
    ];
    let home = Home::new();
    let cases = vec![
        Case::new("whole", ASK, &aborted, Cause::Completed).with(has_patience),
        Case::new("stream", ASK_STREAM, &streamed, Cause::Completed).with(has_patience),
        Case::new("replayed", ASK_STREAM, &aborted, Cause::Completed).with(replayed),
    ];
    let results = check_in(&home, cases).await;
    for result in &results {
        let seen = &result.agent_log_tail;
        let is_whole = seen.contains("\"ok\"") && !seen.contains("half an ans");
        assert!(is_whole, "{seen}");
        let traced = traced(result);
        assert_eq!(traced.proxy_turns.len(), 1, "{}", result.task_id);
        assert!(traced.training_trace.is_some(), "{:?}", result.findings);
        assert!(result.timings.outage_s > 0.4, "{}", result.timings.outage_s);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_in_the_middle_breaks_the_stream_and_is_never_trained() {
    let twice = format!("{ASK_STREAM}; {ASK_STREAM}");
    let half = stream_finishes("half an ans", "abort");
    let replies = [half, streams(true, StreamEnd::Clean)];
    let home = Home::new();
    let case = Case::new("again", &twice, &replies, Cause::Completed);
    let results = check_in(&home, vec![case]).await;
    let result = &results[0];
    let traced = traced(result);
    assert_eq!(
        traced.proxy_turns[0].finish_reason.as_deref(),
        Some("abort")
    );
    let aborted = result
        .findings
        .iter()
        .filter(|it| it.code == Code::AbortedTurn);
    assert_eq!(aborted.count(), 1, "{:?}", result.findings);
    let trace = traced.training_trace.as_ref().unwrap();
    let nodes: Vec<_> = trace
        .turns
        .iter()
        .map(|turn| turn.node_id.as_str())
        .collect();
    assert_eq!(nodes, ["n2"]);
}

/// The clock of an agent stands still while its endpoint is out of order.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_not_the_agents_time() {
    let two = format!("{ASK}; {ASK}");
    let gone = || Reply::Drop;
    let tries = [gone(), gone(), gone(), gone(), gone(), gone()];
    let replies = [&[says("ok")], &tries[..], &[says("ok")]].concat();
    let restart = Case::new("restart", &two, &replies, Cause::Completed);
    let results = check(vec![restart.with(|plan| {
        plan.settings.upstream_patience = Duration::from_secs(60);
        // A lost connection is replaced at once; five more tries are made, after 0.5, 1, 2, 4 and 8 seconds.
        plan.task.agent_timeout_s = Some(8.0);
        plan.task.budget.idle_s = Some(6.0);
    })])
    .await;
    let timings = &results[0].timings;
    assert!(
        timings.outage_s > 15.0 && timings.agent_s > timings.outage_s,
        "{timings:?}"
    );
}

/// It accepts and says nothing: nobody is made to wait for a model that may load.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_endpoint_does_not_hold_a_slot() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let home = Home::new();
    let engine = home.engine().await;
    let plans = (0..3).map(|_| {
        let mut plan = home.plan(task(&[QUARTER]), ASK, &url);
        plan.endpoint.profile = None;
        plan.settings.reach_limit = Duration::from_millis(300);
        Arc::new(plan)
    });
    let results = run_beside(&engine, plans.collect(), 3).await;
    engine.close().await;
    for result in results {
        assert_eq!(
            (result.cause, result.ended, result.graded),
            (Some(Cause::EndpointSilent), Ended::UpstreamFailed, false),
            "{:?}",
            result.error
        );
    }
}

/// llama.cpp answers so while it reads its model.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_loading_is_waited_for() {
    let upstream = Upstream::start(|number, _| match number {
        0 => whole(503, r#"{"error":{"message":"Loading model","code":503}}"#),
        _ => says("ok"),
    })
    .unwrap();
    let home = Home::new();
    let engine = home.engine().await;
    let mut plan = home.plan(task(&[QUARTER]), ASK, upstream.base_url());
    plan.endpoint.profile = None;
    let results = run_beside(&engine, vec![Arc::new(plan)], 1).await;
    engine.close().await;
    assert_eq!(
        results[0].cause,
        Some(Cause::Completed),
        "{:?}",
        results[0].error
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_grading_results_are_reported() {
    let results = check(vec![
        Case::new("no program", ASK, &[says("ok")], Cause::Completed)
            .with(|plan| plan.task.verify = vec!["no-such-program".into(), QUARTER.into()]),
        Case::new("a service", ASK, &[says("ok")], Cause::Completed).with(|plan| {
            let service = "setsid sleep 1234 > /dev/null 2>&1 < /dev/null &";
            plan.task.setup = vec![service.into()];
            plan.task.verify = vec![format!("! pgrep -f 'sleep 123[4]'; {QUARTER}")];
        }),
        Case::new("no service", ASK, &[says("ok")], Cause::Completed)
            .with(|plan| plan.task.setup = vec!["true".into()]),
    ])
    .await;
    let found = |at: usize| -> Vec<_> {
        let grading = [Code::VerifyNotRunnable, Code::ServicesKilled];
        let findings = results[at].findings.iter();
        let findings = findings.filter(|it| grading.contains(&it.code));
        findings.map(|it| (it.code, it.text.clone())).collect()
    };
    let [(Code::VerifyNotRunnable, text)] = &found(0)[..] else {
        panic!("{:?}", results[0].findings);
    };
    assert!(
        text.contains("command 1") && text.contains("exit 127"),
        "{text}"
    );
    let [(Code::ServicesKilled, text)] = &found(1)[..] else {
        panic!("{:?}", results[1].findings);
    };
    assert!(text.contains("(sleep)"), "{text}");
    assert_eq!(found(2), []);
}
