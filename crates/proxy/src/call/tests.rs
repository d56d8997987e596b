//! Every output mode against everything that can go wrong: what the agent gets, what is recorded, and how the session
//! judges it. The endpoint is a list of answers, and time is paused.

use std::fs::File;
use std::sync::Mutex;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::time::Instant;

use rollcage_dialect::{Dialect, EndpointDialect};
use rollcage_model::exchange::read;

use super::*;
use crate::endpoint::Endpoint;
use crate::outbound::Clients;
use crate::policy::OnOverflow;
use crate::profile::Profile;
use crate::recorder::Recorder;
use crate::session::SessionOptions;
use crate::settings::ModelSettings;
use crate::transport::Transport;
use crate::transport::scripted::{BodyStep, ScriptedAnswer, ScriptedEndpoint, ScriptedResponse};

mod anthropic;
mod broken;
mod memory;

const MODES: [OutputMode; 3] = [OutputMode::Live, OutputMode::Whole, OutputMode::Replayed];

/// One call in a session with an endpoint that gives these answers.
struct Setup {
    mode: OutputMode,
    dialect: Dialect,
    endpoint: EndpointDialect,
    answers: Vec<ScriptedAnswer>,
    settings: ModelSettings,
    on_overflow: OnOverflow,
    /// The record can be written until the endpoint gets a request.
    is_record_cut: bool,
    /// The agent hangs up after this time.
    agent_patience: Option<Duration>,
}

impl Setup {
    fn new(mode: OutputMode, answers: Vec<ScriptedAnswer>) -> Self {
        Setup {
            mode,
            dialect: Dialect::Chat,
            endpoint: EndpointDialect::Chat,
            answers,
            settings: ModelSettings {
                upstream_patience: Duration::ZERO,
                ..ModelSettings::default()
            },
            on_overflow: OnOverflow::Stop,
            is_record_cut: false,
            agent_patience: None,
        }
    }

    async fn run(self) -> CallResult {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("exchanges.rec");
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = Arc::new(Mutex::new(Some(reader)));
        let recorder = match self.is_record_cut {
            true => Recorder::new(File::from(std::os::fd::OwnedFd::from(writer))),
            false => Recorder::create(&record).unwrap(),
        };
        let upstream = Arc::new(ScriptedEndpoint::new(self.answers, move || {
            drop(reader.lock().unwrap().take());
        }));
        let options = SessionOptions {
            client: crate::outbound::client("http://127.0.0.1:9").unwrap(),
            endpoint: Endpoint {
                dialect: self.endpoint,
                ..Endpoint::scripted("http://127.0.0.1:9/v1".to_owned(), "m", "k".to_owned())
            },
            settings: self.settings,
            profile: Profile {
                has_live_streams: self.mode != OutputMode::Replayed,
                ..Profile::whole()
            },
            on_overflow: self.on_overflow,
            record: record.clone(),
            agent_time: None,
            observe: Box::new(|_| {}),
            mcp: Default::default(),
            clients: Arc::new(Clients::default()),
        };
        let transport = Transport::Scripted(Arc::clone(&upstream));
        let session = Session::with("key".to_owned(), options, transport, recorder);
        let since = Instant::now();
        let asking = ask(&session, self.dialect, self.mode != OutputMode::Whole);
        let patience = self.agent_patience.unwrap_or(Duration::MAX);
        let agent = tokio::time::timeout(patience, asking).await;
        let agent = agent.unwrap_or_else(|_| "gone".to_owned());
        let (exchanges, problems) = read(&std::fs::read(&record).unwrap_or_default());
        assert_eq!(problems, Vec::<String>::new());
        let record = exchanges.iter().map(|exchange| {
            let response = exchange.response.as_ref();
            let Some(response) = response else {
                return "no response".to_owned();
            };
            let status = response.status.map_or("-".to_owned(), |it| it.to_string());
            let form = match (response.is_stream, response.is_replayed) {
                (true, _) => "stream",
                (_, true) => "replayed",
                _ => "whole",
            };
            let error = response.error.as_deref().unwrap_or("no error");
            format!("{status} {form} {error}")
        });
        CallResult {
            agent,
            record: record.collect::<Vec<_>>().join(", then "),
            calls: calls(&session),
            requests: upstream.requests(),
            seconds: since.elapsed().as_secs(),
        }
    }
}

/// The result of one call.
struct CallResult {
    agent: String,
    record: String,
    calls: String,
    requests: Vec<Bytes>,
    seconds: u64,
}

async fn ask(session: &Arc<Session>, dialect: Dialect, is_stream: bool) -> String {
    let body = format!(
        r#"{{"model":"a","max_tokens":9,"messages":[{{"role":"user","content":"hi"}}],"stream":{is_stream}}}"#
    );
    let request = Request::post("/v1").body(Full::new(Bytes::from(body)));
    let response = answer(
        Arc::clone(session),
        Route::ModelCall(dialect),
        request.unwrap(),
    );
    let (head, mut body) = response.await.into_parts();
    let mut text = Vec::new();
    let mut broken = None;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.extend_from_slice(&frame.into_data().unwrap()),
            Err(error) => broken = Some(error.to_string()),
        }
    }
    let text = String::from_utf8(text).unwrap();
    let status = head.status.as_u16();
    if status != 200 {
        let error: Value = serde_json::from_str(&text).unwrap();
        let cause = head.headers.get("x-rollcage-cause");
        return match cause {
            Some(cause) => format!("{status} because {}", cause.to_str().unwrap()),
            None => format!("{status} {}", error["error"]["message"].as_str().unwrap()),
        };
    }
    let is_events = text.starts_with("data:") || text.starts_with("event:");
    assert!(is_events == is_stream || text.is_empty(), "{text}");
    let (reply, _) = match dialect {
        Dialect::Anthropic => EndpointDialect::Anthropic,
        _ => EndpointDialect::Chat,
    }
    .read(&text, is_stream);
    let said = reply.message.content.unwrap_or_default();
    match broken {
        // What was added for capture must not reach the agent.
        _ if text.contains("prompt_token_ids") => format!("200 {said:?} with ids"),
        Some(broken) => format!("200 {said:?}, broken: {broken}"),
        None if !reply.is_complete => format!("200 {said:?}, unfinished"),
        None => format!("200 {said:?}"),
    }
}

fn calls(session: &Session) -> String {
    let calls = session.calls();
    let mut said = Vec::new();
    said.extend(calls.is_answered.then(|| "answered".to_owned()));
    said.extend(calls.failure.map(|it| format!("{:?}", it.cause)));
    said.extend(calls.agent_fault.map(|it| format!("agent: {it:?}")));
    said.extend(calls.stopped.map(|it| format!("stopped by {}", it.by)));
    said.extend(session.record_error().map(|_| "no record".to_owned()));
    said.join(", ")
}

fn events(data: &[&str]) -> Vec<BodyStep> {
    let event = |data: &&str| BodyStep::Bytes(format!("data: {data}\n\n").into());
    data.iter().map(event).collect()
}

const WORD: &str = r#"{"choices":[{"delta":{"role":"assistant","content":"ok"},"token_ids":[1]}],"prompt_token_ids":[7]}"#;
const STOP: &str = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
const ABORT: &str = r#"{"choices":[{"delta":{},"finish_reason":"abort"}]}"#;
const WHOLE: &str = r#"{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[1]}],"prompt_token_ids":[7],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;

fn stream(body: Vec<BodyStep>) -> ScriptedAnswer {
    ScriptedAnswer::Response(ScriptedResponse::new(200, answer::EVENTS, body))
}

fn json(status: u16, body: &str) -> ScriptedAnswer {
    let body = vec![BodyStep::Bytes(body.to_owned().into())];
    ScriptedAnswer::Response(ScriptedResponse::new(status, answer::JSON, body))
}

/// A good answer in the form that this mode requests.
fn good(mode: OutputMode) -> ScriptedAnswer {
    match mode {
        OutputMode::Live => stream(events(&[WORD, STOP, "[DONE]"])),
        OutputMode::Whole | OutputMode::Replayed => json(200, WHOLE),
    }
}

/// A good answer without token ids.
fn plain(mode: OutputMode) -> ScriptedAnswer {
    let bare = |text: &str| {
        let text = text.replace(r#","token_ids":[1]"#, "");
        text.replace(r#","prompt_token_ids":[7]"#, "")
    };
    match mode {
        OutputMode::Live => stream(events(&[&bare(WORD), STOP, "[DONE]"])),
        OutputMode::Whole | OutputMode::Replayed => json(200, &bare(WHOLE)),
    }
}

fn lesson() -> ScriptedAnswer {
    let text = "Unrecognized request argument supplied: return_token_ids";
    json(400, &format!(r#"{{"error":{{"message":"{text}"}}}}"#))
}

fn overflow() -> ScriptedAnswer {
    json(
        400,
        r#"{"error":{"message":"This model's maximum context length is 8 tokens"}}"#,
    )
}

fn refused() -> ScriptedAnswer {
    json(400, r#"{"error":{"message":"no such tool"}}"#)
}

/// Breaks after its first content.
fn broken(mode: OutputMode) -> ScriptedAnswer {
    let mut body = match mode {
        OutputMode::Live => events(&[WORD]),
        _ => vec![BodyStep::Bytes(Bytes::from_static(&WHOLE.as_bytes()[..40]))],
    };
    body.push(BodyStep::Break);
    match mode {
        OutputMode::Live => stream(body),
        _ => ScriptedAnswer::Response(ScriptedResponse::new(200, answer::JSON, body)),
    }
}

fn aborted(mode: OutputMode) -> ScriptedAnswer {
    match mode {
        OutputMode::Live => stream(events(&[WORD, ABORT])),
        _ => json(200, &WHOLE.replace("\"stop\"", "\"abort\"")),
    }
}

fn too_large(mode: OutputMode) -> ScriptedAnswer {
    if mode == OutputMode::Live {
        // One event without an end.
        let piece = BodyStep::Bytes(Bytes::from(vec![b'x'; 1 << 20]));
        let mut body = events(&[WORD]);
        body.extend(vec![piece; 66]);
        return stream(body);
    }
    let mut response = ScriptedResponse::new(200, answer::JSON, Vec::new());
    response.set("content-length", "999999999999");
    ScriptedAnswer::Response(response)
}

#[tokio::test(start_paused = true)]
async fn every_mode_handles_every_outcome() {
    type Case = (&'static str, fn(OutputMode) -> Setup);
    let cases: [Case; 12] = [
        ("good", |mode| Setup::new(mode, vec![good(mode)])),
        ("lesson", |mode| {
            Setup::new(mode, vec![lesson(), plain(mode)])
        }),
        ("refused", |mode| Setup::new(mode, vec![refused()])),
        ("overflow", |mode| Setup::new(mode, vec![overflow()])),
        ("overflow passed on", |mode| Setup {
            on_overflow: OnOverflow::PassOn,
            ..Setup::new(mode, vec![overflow()])
        }),
        ("busy", |mode| {
            Setup::new(mode, vec![json(503, r#"{"error":{"message":"busy"}}"#)])
        }),
        ("nobody there", |mode| {
            Setup::new(mode, vec![ScriptedAnswer::Refused])
        }),
        ("dies in its answer", |mode| {
            Setup::new(mode, vec![broken(mode)])
        }),
        ("aborts", |mode| Setup::new(mode, vec![aborted(mode)])),
        ("too large", |mode| Setup::new(mode, vec![too_large(mode)])),
        ("no record", |mode| Setup {
            is_record_cut: true,
            ..Setup::new(mode, vec![good(mode)])
        }),
        ("no budget", |mode| {
            let mut setup = Setup::new(mode, vec![good(mode)]);
            setup.settings.budget.calls = Some(0);
            setup
        }),
    ];
    let mut got = String::new();
    for (name, case) in cases {
        for mode in MODES {
            let seen = case(mode).run().await;
            let CallResult {
                agent,
                record,
                calls,
                ..
            } = seen;
            got += &format!("{name} {mode:?}: {agent} | {record} | {calls}\n");
        }
    }
    assert_eq!(got, include_str!("tests/table.txt"), "{got}");
}

/// An answer that arrives late.
fn slow(answer: ScriptedAnswer) -> ScriptedAnswer {
    match answer {
        ScriptedAnswer::Refused => ScriptedAnswer::Refused,
        ScriptedAnswer::Response(mut response) => {
            let pause = BodyStep::Pause(Duration::from_secs(25));
            response.body.push_front(pause);
            ScriptedAnswer::Response(response)
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_comes_back_is_waited_for_in_every_mode() {
    for mode in MODES {
        let away = [ScriptedAnswer::Refused, broken(OutputMode::Whole)];
        let mut setup = Setup::new(mode, away.into_iter().chain([good(mode)]).collect());
        setup.settings.upstream_patience = Duration::from_secs(180);
        let seen = setup.run().await;
        assert_eq!(seen.agent, "200 \"ok\"", "{mode:?}");
        assert_eq!((seen.requests.len(), seen.seconds), (3, 1), "{mode:?}");
        assert_eq!(seen.calls, "answered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lesson_is_applied_in_the_same_call() {
    for mode in MODES {
        let seen = Setup::new(mode, vec![lesson(), good(mode)]).run().await;
        let has_flag = |body: &Bytes| String::from_utf8_lossy(body).contains("return_token_ids");
        let flags: Vec<bool> = seen.requests.iter().map(has_flag).collect();
        assert_eq!(flags, [true, false], "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replayed_stream_that_has_begun_goes_on_or_breaks() {
    let mode = OutputMode::Replayed;
    for (answers, expect) in [
        (vec![slow(good(mode))], "200 \"ok\""),
        (vec![slow(lesson()), slow(good(mode))], "200 \"ok\""),
        (
            vec![slow(overflow())],
            "200 \"The conversation no longer fits the model's context. I stop here.\"",
        ),
        (
            vec![slow(refused())],
            "200 \"\", broken: {\"error\":{\"message\":\"no such tool\"}}",
        ),
        (
            vec![slow(broken(mode))],
            "200 \"\", broken: the answer broke off: connection reset",
        ),
    ] {
        let tries = answers.len() as u64;
        let seen = Setup::new(mode, answers).run().await;
        assert_eq!((seen.agent.as_str(), seen.seconds), (expect, 25 * tries));
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_dialect_gets_the_same_outcome() {
    for mode in MODES {
        let of = |answer: ScriptedAnswer| Setup {
            dialect: Dialect::Anthropic,
            ..Setup::new(mode, vec![answer])
        };
        assert_eq!(of(good(mode)).run().await.agent, "200 \"ok\"", "{mode:?}");
        let refused = of(refused()).run().await;
        assert_eq!(
            refused.agent, "400 {\"error\":{\"message\":\"no such tool\"}}",
            "{mode:?}"
        );
        let away = of(ScriptedAnswer::Refused).run().await;
        assert_eq!(away.agent, "424 because no answer: connection refused");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_up_on_a_silent_endpoint_is_not_the_agents_fault() {
    for (patience, expect) in [(5, "agent: AgentHungUp"), (60, "EndpointSilent")] {
        for mode in MODES {
            let ScriptedAnswer::Response(mut silent) = good(mode) else {
                unreachable!("a good answer is a response");
            };
            silent
                .body
                .push_front(BodyStep::Pause(Duration::from_secs(3600)));
            let mut setup = Setup::new(mode, vec![ScriptedAnswer::Response(silent)]);
            setup.agent_patience = Some(Duration::from_secs(patience));
            let seen = setup.run().await;
            assert_eq!(seen.calls, expect, "{mode:?} {patience}");
            assert!(
                seen.record
                    .ends_with("the agent hung up before the answer ended")
            );
        }
    }
}
