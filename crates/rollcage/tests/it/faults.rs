//! What every main agent makes of a broken model: a typed end in time, no endless loop, nothing left alive.

use std::sync::Arc;
use std::time::Duration;

use crate::agents::shared_home;
use crate::support::Plan;
use crate::support::{endpoint, open_engine, run_beside, streams, traced};
use rollcage_agents::Agent;
use rollcage_agents::ReadyAgent;
use rollcage_model::ending::Ended;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_proxy::ModelSettings;
use rollcage_testkit::upstream::{Reply, StreamEnd, Upstream};

/// For an agent whose model says nothing: it waits, and only the rollout's time ends that.
const SHORT_S: f64 = 45.0;
/// For all others, who end by themselves; a busy machine may be slow to start them.
const LONG_S: f64 = 120.0;
/// For a call that was refused, or that we gave up: our own tries, and an agent that asks once more in another way.
const FAILED_REQUESTS_MAX: usize = 4;
/// For answers that break off, which agents try again for as long as they like: the proxy's limit, and what agents ask at
/// the same time.
const BROKEN_REQUESTS_MAX: usize = 8;
/// At once: enough that those which only wait do not hold up the others.
const SLOTS: usize = 5;

/// How a model can break, and which ends are right then.
struct Fault {
    name: &'static str,
    /// The answer to a request for a stream, or for a whole one.
    reply: fn(is_stream: bool) -> Reply,
    ends: &'static [Ended],
    requests_max: usize,
    /// The model keeps its connection open and says nothing (more).
    is_silent: bool,
}

fn error(status: u16, message: &str, code: &str) -> Reply {
    let body = serde_json::json!({"error": {"message": message, "type": "error", "code": code}});
    Reply::Whole {
        status,
        content_type: "application/json",
        body: body.to_string(),
    }
}

static FAULTS: [Fault; 15] = [
    Fault {
        name: "400",
        reply: |_| error(400, "no such parameter", "invalid_request"),
        ends: &[Ended::UpstreamFailed],
        requests_max: FAILED_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "401",
        reply: |_| error(401, "wrong key", "invalid_api_key"),
        ends: &[Ended::UpstreamFailed],
        requests_max: FAILED_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "429 for ever",
        reply: |_| error(429, "slow down", "rate_limit"),
        ends: &[Ended::UpstreamFailed],
        requests_max: FAILED_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "500 for ever",
        reply: |_| error(500, "out of order", "server_error"),
        ends: &[Ended::UpstreamFailed],
        requests_max: FAILED_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "a stream without its finish",
        reply: |_| streams(false, StreamEnd::Clean),
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "a web page",
        reply: |_| Reply::Whole {
            status: 200,
            content_type: "text/html",
            body: "<html>Welcome</html>".to_owned(),
        },
        ends: &[Ended::UpstreamFailed],
        requests_max: FAILED_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "never answers",
        reply: |_| Reply::Hang,
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: true,
    },
    Fault {
        name: "hangs within an answer",
        reply: |_| streams(false, StreamEnd::Hang),
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: true,
    },
    Fault {
        name: "a prompt that is too long",
        reply: |_| {
            let text = "This model's maximum context length is 4096 tokens. Please reduce the length of the messages.";
            error(400, text, "context_length_exceeded")
        },
        // The proxy says so in place of the model, and the agent ends its work.
        ends: &[Ended::Budget],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "hangs up",
        reply: |_| Reply::Drop,
        ends: &[Ended::UpstreamFailed],
        // A lost connection is replaced at once, before patience is asked for.
        requests_max: 3 * FAILED_REQUESTS_MAX / 2,
        is_silent: false,
    },
    Fault {
        name: "broken JSON",
        reply: |is_stream| match is_stream {
            true => with_event("{broken"),
            false => good_status("{broken"),
        },
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "no choices",
        reply: |is_stream| match is_stream {
            true => Reply::Stream {
                data: vec![r#"{"choices":[]}"#.to_owned(), "[DONE]".to_owned()],
                ending: StreamEnd::Clean,
            },
            false => good_status(r#"{"choices":[]}"#),
        },
        ends: &[Ended::UpstreamFailed],
        requests_max: FAILED_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "an error for an answer",
        reply: |is_stream| match is_stream {
            true => with_event(r#"{"error":{"message":"it fell over"}}"#),
            false => good_status(r#"{"error":{"message":"it fell over"}}"#),
        },
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "a choice without its message",
        reply: |is_stream| match is_stream {
            true => with_event(r#"{"choices":[{"index":0,"delta":"ok"}]}"#),
            false => good_status(r#"{"choices":[{"index":0,"finish_reason":"stop"}]}"#),
        },
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: false,
    },
    Fault {
        name: "half a surrogate pair",
        reply: |is_stream| match is_stream {
            true => with_event(r#"{"choices":[{"index":0,"delta":{"content":"\ud800"}}]}"#),
            false => good_status(
                r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"\ud800"},"finish_reason":"stop"}]}"#,
            ),
        },
        ends: &[Ended::UpstreamFailed],
        requests_max: BROKEN_REQUESTS_MAX,
        is_silent: false,
    },
];

fn good_status(body: &str) -> Reply {
    Reply::Whole {
        status: 200,
        content_type: "application/json",
        body: body.to_owned(),
    }
}

/// A good stream, with this event behind its text.
fn with_event(event: &str) -> Reply {
    let Reply::Stream { mut data, ending } = streams(true, StreamEnd::Clean) else {
        unreachable!("it is a stream");
    };
    data.insert(2, event.to_owned());
    Reply::Stream { data, ending }
}

/// One agent and one fault.
struct Cell {
    fault: &'static Fault,
    upstream: Upstream,
    plan: Arc<Plan>,
}

impl Cell {
    fn new(fault: &'static Fault, agent: &Arc<dyn Agent>, ready: &ReadyAgent, mark: &str) -> Self {
        let upstream = Upstream::start(|_, asked| {
            let is_stream =
                asked.body.contains("\"stream\":true") || asked.body.contains("\"stream\": true");
            (fault.reply)(is_stream)
        })
        .unwrap();
        let task = Task {
            id: format!("{}: {}", agent.name(), fault.name),
            instruction: "Say hello.".to_owned(),
            agent_timeout_s: Some(if fault.is_silent { SHORT_S } else { LONG_S }),
            env: [("ROLLCAGE_TEST_MARK".to_owned(), mark.to_owned())].into(),
            ..Task::default()
        };
        let plan = Plan {
            task,
            uploads: Default::default(),
            agent: Arc::clone(agent),
            ready: ready.clone(),
            endpoint: endpoint(upstream.base_url()),
            settings: ModelSettings {
                // One more try.
                upstream_patience: Duration::from_millis(300),
                ..ModelSettings::default()
            },
            mcp: Default::default(),
        };
        let plan = Arc::new(plan);
        Cell {
            fault,
            upstream,
            plan,
        }
    }

    /// What is wrong with how it went.
    #[expect(
        clippy::print_stderr,
        reason = "how each agent ended is worth a look when one fails"
    )]
    fn check(&self, result: &RolloutResult, tries: usize) -> Option<String> {
        let asked = self.upstream.requests().len();
        let how = format!(
            "{}: {} after {asked} requests and {:.1} s, exit {:?}: {:?}",
            result.task_id,
            result.ended.as_str(),
            result.timings.agent_s,
            result.agent_exit_code,
            result.error
        );
        eprintln!("{how}");
        // On a very busy machine an agent may be ended before its first request.
        let fewest = usize::from(!self.fault.is_silent);
        let is_right = self.fault.ends.contains(&result.ended)
            && (fewest..=self.fault.requests_max * tries).contains(&asked)
            && result.error.is_some()
            && traced(result).training_trace.is_none();
        (!is_right).then(|| format!("{how}\n{}", result.agent_log_tail))
    }
}

/// `tries` is how often the agent itself asks for what it was told has failed for good.
async fn ends_in_time(name: &str, tries: usize) {
    let engine = open_engine(shared_home()).await;
    // Every process of these rollouts carries this mark in its environment.
    let mark = format!("{name}-{}", std::process::id());
    let (agent, version) = rollcage_agents::find(name).unwrap();
    let ready = engine.ready(&*agent, version, &|_| {}).await.unwrap();
    let cells = FAULTS
        .iter()
        .map(|fault| Cell::new(fault, &agent, &ready, &mark));
    let mut cells: Vec<_> = cells.collect();
    // Those that wait come first, and the others run beside them.
    cells.sort_by_key(|cell| !cell.fault.is_silent);
    let plans: Vec<_> = cells.iter().map(|cell| Arc::clone(&cell.plan)).collect();
    let results = run_beside(&engine, plans, SLOTS).await;
    engine.close().await;

    assert_eq!(results.len(), cells.len(), "a result for each");
    let problems = cells.iter().filter_map(|cell| {
        let mut own = results.iter();
        let result = own.find(|result| result.task_id == cell.plan.task.id);
        cell.check(result.unwrap(), tries)
    });
    let problems: Vec<_> = problems.collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(alive(&mark), Vec::<String>::new(), "nothing survives");
}

/// The processes that carry a mark.
fn alive(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == format!("ROLLCAGE_TEST_MARK={mark}").as_bytes())
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_ends_in_time_whatever_the_model_does() {
    ends_in_time("opencode", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_ends_in_time_whatever_the_model_does() {
    ends_in_time("claude", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_ends_in_time_whatever_the_model_does() {
    ends_in_time("codex", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_ends_in_time_whatever_the_model_does() {
    ends_in_time("gemini", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_ends_in_time_whatever_the_model_does() {
    ends_in_time("qwen", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn goose_ends_in_time_whatever_the_model_does() {
    ends_in_time("goose", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mini_swe_agent_ends_in_time_whatever_the_model_does() {
    ends_in_time("mini-swe-agent", 1).await;
}
